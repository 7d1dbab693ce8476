"""The role by which questions are asked of a PostgreSQL server: what makes it, and where its address is found.

A read-only transaction of an owner or a superuser still reads the server's files, ends other people's connections and
takes its own role back, and no list of words holds against functions that run text. So a question logs in as a role
that was made for it, which owns nothing and belongs to nobody; the server itself refuses the rest.
"""

import os
import re
import secrets
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from emtc_core.errors import ConfigError, StorageError
from storage.address import parse
from storage.engine import Database, refuse_when_read_only
from storage.guards import shorten

VARIABLE: Final = "EMTC_DB_READER"
NAME: Final = "emtc_reader"
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SETTINGS: Final = (
    "default_transaction_read_only = on",
    "statement_timeout = '10min'",
    "idle_in_transaction_session_timeout = '1min'",
)


def describe_reader(db: Database, *, name: str = NAME, password: str | None = None) -> tuple[list[str], str]:
    """The statements that make a role for reading, to be run by an administrator, and the address for questions.

    Args:
        db: An open database of a server.
        name: Of the role: small letters, digits and _.
        password: Its password; a new one where it is missing.

    Raises:
        ConfigError: If the name is none.
        StorageError: If it is a SQLite file, which needs no role.
    """
    if db.path is not None:
        raise StorageError("A SQLite file has no roles: questions are asked of it by a process that can only read.")
    if not _PLAIN.fullmatch(name):
        raise ConfigError(f"The name of a role must be small letters, digits and _, got {shorten(name)}.")
    secret = password or secrets.token_urlsafe(24)
    url = make_url(db.url)
    database = (url.database or "").replace('"', '""')
    owner = (url.username or "").replace('"', '""')
    of_owner = f'FOR ROLE "{owner}" ' if owner else ""  # whoever makes the tables of the next schema
    statements = [
        f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT "
        f"CONNECTION LIMIT 20 PASSWORD '{secret}'",
        *(f"ALTER ROLE {name} SET {setting}" for setting in _SETTINGS),
        f'GRANT CONNECT ON DATABASE "{database}" TO {name}',
        f"GRANT USAGE ON SCHEMA public TO {name}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        f"ALTER DEFAULT PRIVILEGES {of_owner}IN SCHEMA public GRANT SELECT ON TABLES TO {name}",
    ]
    return statements, url.set(username=name, password=secret).render_as_string(hide_password=False)


def create_reader(db: Database, *, name: str = NAME) -> str:
    """Make a role for reading by one's own login, and return the address for questions.

    Raises:
        ConfigError, StorageError: If the name is none, or this login may not make roles.
    """
    refuse_when_read_only("make a role")
    statements, url = describe_reader(db, name=name)
    with db.transaction() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    return url


def reader_url(db: Database) -> str:
    """The address by which questions are asked of a server: EMTC_DB_READER's, else the database's own.

    Raises:
        StorageError: If it names another database.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return db.url
    url = parse(given)
    if isinstance(url, Path) or url.database != make_url(db.url).database:
        raise StorageError(f"{VARIABLE} names another database than {db.shown}. Make its own with: emtc db reader")
    return url.render_as_string(hide_password=False)
