"""The schema of a database: create the tables, and refuse a database with another schema.

The tables are those of `models`. The table `schema_version` has one row with `SCHEMA_VERSION`. There are no upgrades.
"""

from typing import Final

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table, func, insert, inspect, select, text

from emtc_core.errors import StorageError
from storage.models import SCHEMA_VERSION, Base

VERSION_TABLE: Final = Table("schema_version", MetaData(), Column("version", Integer, primary_key=True))
"""One row with the number of the schema. It is not in `Base.metadata`, because it has no data of a run."""
_CREATION_LOCK: Final = 0x454D5443
"""Key of the PostgreSQL advisory lock that a process takes to create the tables."""


def has_tables(connection: Connection, url: str) -> bool:
    """Return whether a database has the tables of this schema; False if it has no tables at all.

    Args:
        connection: Connection for reading.
        url: URL of the database without its password, for messages.

    Raises:
        StorageError: If the database has another schema, or is not a database of EMTC Lab.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return False
    if VERSION_TABLE.name in tables:
        versions = connection.execute(select(VERSION_TABLE.c.version)).scalars().all()
        version = str(versions[0]) if len(versions) == 1 else "unknown"
    elif "alembic_version" in tables:  # databases before the first public release
        version = "unknown"
    else:
        raise StorageError(
            f"{url} is not a database of EMTC Lab: it contains {sorted(tables)[0]}.", hint="Choose another with --db."
        )
    if version != str(SCHEMA_VERSION):
        raise StorageError(
            f"{url} was written by another version of EMTC Lab (schema {version}; this version reads "
            f"{SCHEMA_VERSION}).",
            hint="Use that version, or start a new database with --db.",
        )
    return True


def create_tables(connection: Connection, url: str) -> None:
    """Create all tables, unless another process has created them in the meantime.

    Only one process at a time creates them: a SQLite transaction for writing has the write lock, and on PostgreSQL an
    advisory lock is taken until the end of the transaction.

    Args:
        connection: Connection in a transaction for writing.
        url: URL of the database without its password, for messages.

    Raises:
        StorageError: If the database has another schema.
    """
    is_server = connection.dialect.name == "postgresql"
    if is_server:
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    if has_tables(connection, url):
        return
    Base.metadata.create_all(connection)
    if is_server:
        _store_blobs_uncompressed(connection)
    VERSION_TABLE.create(connection)
    connection.execute(insert(VERSION_TABLE).values(version=SCHEMA_VERSION))


def _store_blobs_uncompressed(connection: Connection) -> None:
    """Turn off PostgreSQL's compression of binary columns. They are already compressed, and attempts take time."""
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, LargeBinary):
                connection.execute(text(f'ALTER TABLE {table.name} ALTER "{column.name}" SET STORAGE EXTERNAL'))
