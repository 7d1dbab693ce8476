"""One question in SQL, answered by a process of its own that can only read: `emtc sql`, and the page beside it.

The process (`worker`) opens the database for reading, refuses whatever is no reading, and is bounded in rows, time,
memory and temporary files. Here it is started, listened to and, if it does not end by itself, ended.

On a PostgreSQL server a question logs in as a role that was made for it. A read-only transaction of an owner or a
superuser still reads the server's files, ends other people's connections and takes its own role back, and no list of
words holds against functions that run text. That role owns nothing and belongs to nobody; the server itself refuses
the rest.
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
from storage.address import parse
from storage.engine import Database, refuse_when_read_only
from storage.guards import hide_passwords, shorten

ROWS = 1000
MOST_ROWS = 100_000
SECONDS = 10.0
MOST_SECONDS = 600.0
LONGEST_QUESTION = 100_000
_GRACE_S = 3.0  # to start, to open the database, and to end by itself
_ROOT = Path(__file__).resolve().parents[2]

READER_VARIABLE: Final = "EMTC_DB_READER"
READER_NAME: Final = "emtc_reader"
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SETTINGS: Final = (
    "default_transaction_read_only = on",
    "statement_timeout = '10min'",
    "idle_in_transaction_session_timeout = '1min'",
)


@dataclass(frozen=True)
class Answer:
    """What a question gave: plain values, a blob as `<n bytes>`."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    cut: str | None
    """Why there are not more rows, when there would be."""
    seconds: float

    def frame(self) -> pd.DataFrame:
        """Make a frame of it: every column of one type, its name its own."""
        columns = dict(zip(_distinct(self.columns), zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        if not columns:
            return pd.DataFrame(columns=pd.Index(_distinct(self.columns)))
        return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def ask(db: Database, query: str, *, most_rows: int = ROWS, seconds: float = SECONDS) -> Answer:
    """Answer one statement that only reads.

    Args:
        db: An open database.
        query: One statement of its dialect, as a SELECT.
        most_rows: Rows at most, 1 to MOST_ROWS.
        seconds: The database's own time at most, above 0, to MOST_SECONDS.

    Raises:
        StorageError: In one sentence, if the statement would do more than read, is none, or needs more than it may.
    """
    _check(query, most_rows, seconds)
    question = {**_place(db), "query": query, "most_rows": most_rows, "seconds": seconds}
    started = time.monotonic()
    lines = _run(json.dumps(question).encode(), seconds)
    end = lines[-1] if lines and isinstance(lines[-1], dict) else {}
    if "refused" in end or "columns" not in (lines[0] if lines else {}):
        message = hide_passwords(end.get("refused", "The question ended its reader. Ask for less at once."))
        raise StorageError(message, reason=end.get("reason", "ended"), subject=end.get("subject", ""))
    return Answer(tuple(lines[0]["columns"]), lines[1:-1], end["cut"], time.monotonic() - started)


def _check(query: str, most_rows: int, seconds: float) -> None:
    if not query.strip():
        raise StorageError("A question must not be empty. Try: select name, win_rate from runs", reason="empty")
    if len(query) > LONGEST_QUESTION or "\0" in query:
        raise StorageError(
            f"A question must be text of at most {LONGEST_QUESTION:,} characters, got {shorten(query)}.",
            reason="too_long",
        )
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise StorageError("A question must be valid Unicode.", reason="not_unicode") from error
    if not 1 <= most_rows <= MOST_ROWS:
        raise StorageError(f"Rows must be 1 to {MOST_ROWS:,}, got {most_rows}.", reason="rows", subject=most_rows)
    if not 0 < seconds <= MOST_SECONDS:
        raise StorageError(
            f"Seconds must be above 0 and at most {MOST_SECONDS:.0f}, got {seconds:g}.",
            reason="seconds",
            subject=seconds,
        )


def _place(db: Database) -> dict[str, Any]:
    """Where the database is, for another process."""
    if db.path is not None:
        return {"path": str(db.path)}
    _, settings = db.reader.dialect.create_connect_args(make_url(reader_url(db)))
    return {"server": {name: str(value) for name, value in settings.items() if name != "context"}}


def _run(question: bytes, seconds: float) -> list[Any]:
    """Start the reader, and end it where it does not end by itself; the password goes through a pipe."""
    reader = [sys.executable, "-m", "storage.sql_console.worker"]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(reader, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=nothing) as process:
        try:
            told, _ = process.communicate(question, timeout=seconds + _GRACE_S)
        except subprocess.TimeoutExpired as late:
            raise StorageError(too_slow(seconds), reason="timeout", subject=seconds) from late
        finally:
            process.kill()
    return [json.loads(line) for line in told.splitlines()] if process.returncode == 0 else []


def too_slow(seconds: float) -> str:
    """The sentence about a question that took too long."""
    return f"The question took more than {seconds:g} s and was ended. Narrow it with WHERE or LIMIT, or allow more."


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, each made different where a question calls two columns the same."""
    taken: list[str] = []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken


def _series(values: Sequence[Any]) -> pd.Series:
    """Make one type of a column: whole numbers stay whole beside NULL, and a mixture is text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds in ({bool}, {int}):
        return pd.Series(values, dtype="boolean" if kinds == {bool} else "Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series([None if value is None else str(value) for value in values], dtype="str")


def describe_reader(db: Database, *, name: str = READER_NAME) -> tuple[list[str], str]:
    """The statements that make a role for reading, to be run by an administrator, and the address for questions.

    Args:
        db: An open database of a server.
        name: Of the role: small letters, digits and _.

    Raises:
        ConfigError: If the name is none.
        StorageError: If it is a SQLite file, which needs no role.
    """
    if db.path is not None:
        raise StorageError(
            "A SQLite file has no roles: questions are asked of it by a process that can only read.", reason="no_roles"
        )
    if not _PLAIN.fullmatch(name):
        raise ConfigError("must be small letters, digits and _", key="role", value=name)
    secret = secrets.token_urlsafe(24)
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


def create_reader(db: Database, *, name: str = READER_NAME) -> str:
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
    given = os.environ.get(READER_VARIABLE, "").strip()
    if not given:
        return db.url
    url = parse(given)
    if isinstance(url, Path) or url.database != make_url(db.url).database:
        raise StorageError(
            f"{READER_VARIABLE} names another database than {db.shown}. Make its own with: emtc db reader",
            reason="other_database",
            subject=READER_VARIABLE,
        )
    return url.render_as_string(hide_password=False)
