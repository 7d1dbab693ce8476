"""Run one SQL query of a user in a separate process that can only read: `emtc sql`, and the page *SQL*.

The process (`worker`) opens the database for reading and refuses every other statement. Its rows, time, memory and
temporary files are limited. This module starts it, reads its output, and kills it if it does not end in time.

On a PostgreSQL server the query runs in a role that was made for it. A read-only transaction of an owner or a superuser
is not sufficient: it can read files of the server, close connections of other users, and change its role back. The
special role owns nothing and is not a member of another role. Every role may call functions that lock, notify, write to
the log of transactions or execute text as SQL, so the worker refuses the names of all volatile functions.
"""

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from sqlalchemy import make_url

from emtc_core.errors import ConfigError, StorageError
from storage.address import parse_address
from storage.engine import Database, check_not_read_only
from storage.guards import hide_passwords, shorten
from storage.sql_console.worker import describe_timeout

DEFAULT_ROWS: Final = 1000
MAX_ROWS: Final = 100_000
DEFAULT_SECONDS: Final = 10.0
MAX_SECONDS: Final = 600.0
MAX_QUERY_LENGTH: Final = 100_000
"""Maximum number of characters of a query."""
READER_VARIABLE: Final = "EMTC_DB_READER"
READER_NAME: Final = "emtc_reader"
_GRACE_S: float = 3.0
"""Additional time for the process to start, to open the database and to end."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_ROLE_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_ROLE_SETTINGS: Final = (
    "default_transaction_read_only = on",
    "statement_timeout = '10min'",
    "idle_in_transaction_session_timeout = '1min'",
)
_TEMPORARY_FILES: Final = "2GB"
_LIMIT_FILES: Final = """DO $$ BEGIN
    ALTER ROLE {name} SET temp_file_limit = '{size}';
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'Only a superuser can set temp_file_limit of {name}.';
END $$"""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    """JSON values; a blob is the text `<n bytes>`."""
    truncation: str | None
    """Which limit cut the rows; None if all rows are here."""
    seconds: float
    """Duration of the query [s]."""

    def frame(self) -> pd.DataFrame:
        """Convert to a frame with one type per column and unique column names (`n`, `n_2`, …).

        Source: the query.

        Returns:
            One row per result row [unit varies].
        """
        names: list[str] = []
        for column in self.columns:
            name, number = column, 1
            while name in names:
                number += 1
                name = f"{column}_{number}"
            names.append(name)
        if not self.rows:
            return pd.DataFrame(columns=pd.Index(names))
        columns = zip(names, zip(*self.rows, strict=True), strict=True)
        return pd.DataFrame({name: _make_series(values) for name, values in columns})


def run_query(
    db: Database, query: str, *, max_rows: int = DEFAULT_ROWS, seconds: float = DEFAULT_SECONDS
) -> QueryResult:
    """Run one statement that only reads.

    Args:
        db: An open database.
        query: One statement in the SQL dialect of the database, for instance a SELECT.
        max_rows: Maximum number of rows, 1 to MAX_ROWS.
        seconds: Maximum execution time in the database, above 0 and at most MAX_SECONDS [s].

    Raises:
        StorageError: If the statement does not only read, is not valid, or exceeds a limit.
    """
    _check_arguments(query, max_rows, seconds)
    if db.path is not None:
        location: dict[str, Any] = {"path": str(db.path)}
    else:
        _, settings = db.reader.dialect.create_connect_args(make_url(reader_url(db)))
        location = {"server": {name: str(value) for name, value in settings.items() if name != "context"}}
    request = {**location, "query": query, "most_rows": max_rows, "seconds": seconds}
    started = time.monotonic()
    lines = _run_worker(json.dumps(request).encode(), seconds)
    end = lines[-1] if lines and isinstance(lines[-1], dict) else {}
    if "refused" in end or "columns" not in (lines[0] if lines else {}):
        message = hide_passwords(end.get("refused", "The query ended its process. Select less data."))
        raise StorageError(message, reason=end.get("reason", "ended"), subject=end.get("subject", ""))
    return QueryResult(tuple(lines[0]["columns"]), lines[1:-1], end["cut"], time.monotonic() - started)


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
        raise StorageError(
            "A SQLite file has no roles. Its queries already run in a process that can only read.", reason="no_roles"
        )
    if not _ROLE_NAME.fullmatch(name):
        raise ConfigError("must be lower-case letters, digits and _", key="role", value=name)
    password = secrets.token_urlsafe(24)
    url = make_url(db.url)
    database = (url.database or "").replace('"', '""')
    owner = (url.username or "").replace('"', '""')
    for_owner = f'FOR ROLE "{owner}" ' if owner else ""  # the role that creates the tables of later schema versions
    statements = [
        f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT "
        f"CONNECTION LIMIT 20 PASSWORD '{password}'",
        *(f"ALTER ROLE {name} SET {setting}" for setting in _ROLE_SETTINGS),
        _LIMIT_FILES.format(name=name, size=_TEMPORARY_FILES),
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


def reader_url(db: Database) -> str:
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
            f"{READER_VARIABLE} names another database than {db.safe_url}. Create a role for it with: emtc db reader",
            reason="other_database",
            subject=READER_VARIABLE,
        )
    return url.render_as_string(hide_password=False)


def _check_arguments(query: str, most_rows: int, seconds: float) -> None:
    if not query.strip():
        raise StorageError("A query must not be empty. Try: select name, win_rate from runs", reason="empty")
    if len(query) > MAX_QUERY_LENGTH or "\0" in query:
        raise StorageError(
            f"A query must be text of at most {MAX_QUERY_LENGTH:,} characters without NUL, got {shorten(query)}.",
            reason="too_long",
        )
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise StorageError("A query must be valid Unicode.", reason="not_unicode") from error
    if not 1 <= most_rows <= MAX_ROWS:
        raise StorageError(f"Rows must be 1 to {MAX_ROWS:,}, got {most_rows}.", reason="rows", subject=most_rows)
    if not 0 < seconds <= MAX_SECONDS:
        raise StorageError(
            f"Seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {seconds:g}.",
            reason="seconds",
            subject=seconds,
        )


def _run_worker(request: bytes, seconds: float) -> list[Any]:
    """Run the worker process and parse its output; empty if it failed.

    The request is sent through a pipe, because it contains the password.
    """
    command = [sys.executable, "-m", "storage.sql_console.worker"]
    pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=devnull) as process:
        try:
            output, _ = process.communicate(request, timeout=seconds + _GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise StorageError(describe_timeout(seconds), reason="timeout", subject=seconds) from error
        finally:
            process.kill()
    return [json.loads(line) for line in output.splitlines()] if process.returncode == 0 else []


def _make_series(values: Sequence[Any]) -> pd.Series:
    """Convert values to one type. Integers with NULL stay integers, and values of mixed types become text."""
    types = {type(value) for value in values if value is not None}
    if types in ({bool}, {int}):
        return pd.Series(values, dtype="boolean" if types == {bool} else "Int64")
    if types and types <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series([None if value is None else str(value) for value in values], dtype="str")
