"""The PostgreSQL role of users' queries: `emtc db reader` prints or runs the statements that create it."""

import os
import re
import secrets
from pathlib import Path
from typing import Any, Final

from sqlalchemy import make_url

from emtc_core.errors import ConfigError, StorageError
from storage.address import parse_address
from storage.engine import Database, check_not_read_only

READER_VARIABLE: Final = "EMTC_DB_READER"
READER_NAME: Final = "emtc_reader"
_ROLE_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_RIGHTS: Final = """
SELECT rolname::text, CASE
    WHEN rolsuper THEN 'is a superuser'
    WHEN EXISTS (SELECT FROM pg_auth_members WHERE member = pg_roles.oid) THEN 'is a member of another role'
    WHEN EXISTS (SELECT FROM pg_class WHERE relowner = pg_roles.oid AND relkind IN ('r', 'p', 'v', 'm', 'f'))
        OR EXISTS (SELECT FROM pg_namespace WHERE nspowner = pg_roles.oid)
        OR EXISTS (SELECT FROM pg_database WHERE datname = current_database() AND datdba = pg_roles.oid)
        THEN 'owns tables, their schema or the database'
    END
FROM pg_roles WHERE rolname = session_user
"""
"""Selects the login role and the first reason to refuse it, or NULL."""


def check_role(connection: Any) -> None:
    """Check that the role of a psycopg connection is not allowed to write.

    Raises:
        StorageError: If it is a superuser, is a member of another role, or owns tables, their schema or the database.
    """
    role, reason = connection.execute(_RIGHTS).fetchone()
    if reason is not None:
        raise StorageError(
            f"Queries must run in a role that can only read, but {role} {reason}. Create such a role with: emtc db "
            f"reader, and set {READER_VARIABLE} to its URL."
        )


def describe_reader(db: Database, *, name: str = READER_NAME) -> tuple[list[str], str]:
    """Make the statements with which an administrator creates a role that can only read.

    Args:
        db: An open database on a server.
        name: Name of the role: lower-case letters, digits and _.

    Returns:
        The statements, and the URL with the role's name and password.

    Raises:
        ConfigError: If the name is not valid.
        StorageError: If the database is a SQLite file, which needs no role.
    """
    if db.path is not None:
        raise StorageError("A SQLite file has no roles. Its queries can only read without a role.")
    if not _ROLE_NAME.fullmatch(name):
        raise ConfigError("must be lower-case letters, digits and _", key="role", value=name)
    password = secrets.token_urlsafe(24)
    url = make_url(db.url)
    database = (url.database or "").replace('"', '""')
    owner = (url.username or "").replace('"', '""')
    for_owner = f'FOR ROLE "{owner}" ' if owner else ""  # the role that creates tables later
    statements = [
        f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT "
        f"CONNECTION LIMIT 20 PASSWORD '{password}'",
        f"ALTER ROLE {name} SET default_transaction_read_only = on",
        f'GRANT CONNECT ON DATABASE "{database}" TO {name}',
        f"GRANT USAGE ON SCHEMA public TO {name}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        f"ALTER DEFAULT PRIVILEGES {for_owner}IN SCHEMA public GRANT SELECT ON TABLES TO {name}",
    ]
    return statements, url.set(username=name, password=password).render_as_string(hide_password=False)


def create_reader(db: Database, *, name: str = READER_NAME) -> str:
    """Create a role that can only read, and return the URL with its name and password.

    Raises:
        ConfigError: If the name is not valid.
        StorageError: If the database is a SQLite file, or the login of `db` may not create roles.
    """
    check_not_read_only("make a role")
    statements, url = describe_reader(db, name=name)
    with db.transaction() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    return url


def get_reader_url(db: Database) -> str:
    """Return the URL for queries on a server: the value of EMTC_DB_READER, or the database's own URL.

    Raises:
        StorageError: If EMTC_DB_READER names another database.
    """
    setting = os.environ.get(READER_VARIABLE, "").strip()
    if not setting:
        return db.url
    url = parse_address(setting)
    if isinstance(url, Path) or url.database != make_url(db.url).database:
        raise StorageError(
            f"{READER_VARIABLE} names another database than {db.safe_url}. Create a role for it with: emtc db reader"
        )
    return url.render_as_string(hide_password=False)
