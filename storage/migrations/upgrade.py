"""Bring a database to the newest schema, inside the caller's transaction, one process at a time."""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from emtc_core.errors import NewerDatabaseError, StorageError
from storage.models import SCHEMA_VERSION

SCRIPTS = Path(__file__).parent
_LOCK_KEY = 0x454D5443  # "EMTC"


def is_current(connection: Connection, url: str) -> bool:
    """Tell whether the database has the newest schema.

    Raises:
        NewerDatabaseError: If its schema is newer than this program.
        StorageError: If the database is somebody else's.
    """
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if tables:
            raise StorageError(f"{url} is not a database of EMTC Lab: it holds {sorted(tables)[0]}.")
        return False
    version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if version is None:
        return False
    if version > SCHEMA_VERSION:
        raise NewerDatabaseError(
            f"{url} was written by a newer version of EMTC Lab (schema {version}, this one knows up to "
            f"{SCHEMA_VERSION}). Upgrade with: pip install -U emtc-lab"
        )
    return version == SCHEMA_VERSION


def to_head(connection: Connection, url: str) -> None:
    """Run the missing migrations. The caller's transaction makes them all or nothing.

    On SQLite the connection must not enforce foreign keys, and its writer lock is held already; on a
    server an advisory lock does the same. So of several processes that open an old database at once one
    migrates and the others find the work done.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    if is_current(connection, url):
        return
    from alembic import command  # slow to import, needed once in a database's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.dialect.name == "sqlite":
        orphan = connection.execute(text("PRAGMA foreign_key_check")).first()
        if orphan is not None:
            raise StorageError(f"{url} cannot be upgraded: a row of {orphan[0]} has lost its {orphan[2]}.")
