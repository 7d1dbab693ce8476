"""Run one SQL query of a user, read-only and for a limited time: `emtc sql`, and the page *SQL*.

SQLite: a new connection opens the file with `mode=ro`, and an authorizer allows only SELECT and functions. `mode=ro`
alone is not sufficient: `ATTACH` can write another file.

PostgreSQL: one statement in a read-only transaction, in a role that `reader_role` has checked. A read-only transaction
alone is not sufficient: `COPY … TO PROGRAM` of a superuser runs any program on the server.
"""

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from sqlalchemy import make_url

from emtc_core.errors import StorageError
from storage.address import connect
from storage.engine import BUSY_TIMEOUT_S, Database
from storage.guards import hide_passwords, shorten
from storage.sql.reader_role import check_role, get_reader_url

DEFAULT_ROWS: Final = 1000
MAX_ROWS: Final = 100_000
DEFAULT_SECONDS: Final = 10.0
MAX_SECONDS: Final = 600.0
MAX_QUERY_LENGTH: Final = 100_000
"""Maximum number of characters of a query."""
MAX_TEXT_LENGTH: Final = 100_000
"""Longer texts of a result are cut [characters]."""
MAX_RESULT_LENGTH: Final = 64_000_000
"""Maximum number of characters of a result, without its numbers."""
_MAX_VALUE_BYTES: Final = 256 << 20
"""Limit of a value in SQLite. One call of a function cannot be interrupted, so its result has a limit."""
_STEPS_BETWEEN_CHECKS: Final = 10_000
"""Instructions of SQLite's virtual machine between two checks of the time: less than a millisecond."""
_INT64: Final = 1 << 63
_ALLOWED_ACTIONS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
)
_FORBIDDEN_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})
_NO_ROWS: Final = "The statement returns no rows. Use one SELECT."
_SIGNS_OF_A_WRITE: Final = ("not authorized", "prohibited", "readonly database", "read-only transaction", "COPY")
_SIGN_OF_NO_ROWS: Final = "unexpected result status from query"
_SIGNS_OF_SEVERAL_STATEMENTS: Final = ("one statement", "multiple commands")


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


class QueryCancel:
    """Cancels a running query from another thread."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Cancel the query that runs now, or the next one that gets this object."""
        with self._lock:
            self.is_cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def use(self, interrupt: Callable[[], None]) -> Generator[None]:
        """Call `interrupt` if `cancel` is called within the block or was called before.

        Raises:
            StorageError: If the query was cancelled before it started.
        """
        with self._lock:
            if self.is_cancelled:
                raise _make_cancelled_error()
            self._interrupt = interrupt
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None


def run_query(
    db: Database,
    query: str,
    *,
    max_rows: int = DEFAULT_ROWS,
    seconds: float = DEFAULT_SECONDS,
    cancel: QueryCancel | None = None,
) -> QueryResult:
    """Run one statement that only reads.

    Args:
        db: An open database.
        query: One statement in the SQL dialect of the database, for instance a SELECT.
        max_rows: Maximum number of rows, 1 to MAX_ROWS.
        seconds: Maximum execution time in the database, above 0 and at most MAX_SECONDS [s].
        cancel: Cancels the query from another thread.

    Raises:
        StorageError: If the statement does not only read, is not valid, was cancelled, or exceeds a limit.
    """
    _check_arguments(query, max_rows, seconds)
    cancel = cancel or QueryCancel()
    started = time.monotonic()
    if db.path is not None:
        lines = _read_sqlite(db.path, query, seconds=seconds, cancel=cancel)
    else:
        lines = _read_server(db, query, seconds=seconds, cancel=cancel)
    with closing(lines):
        columns = tuple(next(lines))
        rows, truncation = _take_rows(lines, max_rows)
    return QueryResult(columns, rows, truncation, time.monotonic() - started)


def to_json_value(value: Any) -> Any:
    """Convert a value of the database to a JSON value. A blob becomes its size as text, and a long text is cut."""
    if isinstance(value, bytes | memoryview):
        return f"<{len(value):,} bytes>"
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str)
    elif type(value).__name__ == "Decimal":
        return float(value) if not math.isfinite(value) or value % 1 else to_json_value(int(value))
    text = str(value)
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]} … <{len(text):,} characters>"


def _check_arguments(query: str, max_rows: int, seconds: float) -> None:
    if not query.strip():
        raise StorageError("A query must not be empty. Try: select name, win_rate from runs")
    if len(query) > MAX_QUERY_LENGTH or "\0" in query:
        raise StorageError(
            f"A query must be text of at most {MAX_QUERY_LENGTH:,} characters without NUL, got {shorten(query)}."
        )
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise StorageError("A query must be valid Unicode.") from error
    if not 1 <= max_rows <= MAX_ROWS:
        raise StorageError(f"Rows must be 1 to {MAX_ROWS:,}, got {max_rows}.")
    if not 0 < seconds <= MAX_SECONDS:
        raise StorageError(f"Seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {seconds:g}.")


def _take_rows(rows: Iterable[Sequence[Any]], max_rows: int) -> tuple[list[list[Any]], str | None]:
    """Read rows up to the limits; return them, and which limit cut them or None."""
    taken: list[list[Any]] = []
    length = 0
    for row in rows:
        if len(taken) == max_rows:
            return taken, f"The first {max_rows:,} rows; there are more."
        values = [to_json_value(value) for value in row]
        length += sum(len(value) for value in values if isinstance(value, str))
        if length > MAX_RESULT_LENGTH:
            size = MAX_RESULT_LENGTH // 1_000_000
            return taken, f"The first {len(taken):,} rows, which have {size} million characters; there are more."
        taken.append(values)
    return taken, None


def _read_sqlite(
    path: Path, query: str, *, seconds: float, cancel: QueryCancel
) -> Generator[Sequence[Any], None, None]:
    """Yield the names of the columns, then the rows."""
    try:
        with closing(connect(path, wait_s=BUSY_TIMEOUT_S, writes=False, mode="ro")) as connection:
            _restrict(connection, seconds=seconds, cancel=cancel)
            with cancel.use(connection.interrupt):
                cursor = connection.execute(query)
                if cursor.description is None:
                    raise StorageError(_NO_ROWS)
                yield [column[0] for column in cursor.description]
                yield from cursor
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        raise _convert_error(error, seconds=seconds, cancel=cancel) from error


def _restrict(connection: sqlite3.Connection, *, seconds: float, cancel: QueryCancel) -> None:
    """Allow a connection only to read, and only until the time is over or the query is cancelled."""

    def authorize(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
        is_allowed = action in _ALLOWED_ACTIONS
        if action == sqlite3.SQLITE_FUNCTION:
            is_allowed = (second or "").lower() not in _FORBIDDEN_FUNCTIONS
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    deadline = time.monotonic() + seconds
    connection.isolation_level = None
    connection.text_factory = lambda stored: stored.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: cancel.is_cancelled or time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)


def _read_server(
    db: Database, query: str, *, seconds: float, cancel: QueryCancel
) -> Generator[Sequence[Any], None, None]:
    """Yield the names of the columns, then the rows. psycopg's `stream` accepts one statement only."""
    import psycopg

    _, settings = db.reader.dialect.create_connect_args(make_url(get_reader_url(db)))
    try:
        with closing(psycopg.connect(**settings, autocommit=True)) as connection:  # without a commit at its end
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {max(1, int(1000 * seconds))}".encode())
            check_role(connection)
            with cancel.use(connection.cancel):
                cursor = connection.cursor()
                rows = cursor.stream(query.encode())
                first = next(rows, None)
                if first is None:  # without a row, the cursor has no description of the columns
                    yield _list_columns(connection, query)
                    return
                yield [column.name for column in cursor.description or ()]
                yield first
                yield from rows
    except psycopg.Error as error:
        raise _convert_error(error, seconds=seconds, cancel=cancel) from error


def _list_columns(connection: Any, query: str) -> list[str]:
    """List the columns of a statement on a server without running it."""
    connection.pgconn.prepare(b"described", query.encode())
    description = connection.pgconn.describe_prepared(b"described")
    return [description.fname(index).decode() for index in range(description.nfields)]


def _convert_error(error: Exception, *, seconds: float, cancel: QueryCancel) -> StorageError:
    """Convert a driver's error, whose text is the only sign of its cause."""
    if cancel.is_cancelled:
        return _make_cancelled_error()
    text = hide_passwords((str(error).strip().splitlines() or ["no reason was given"])[0].rstrip("."))
    if any(sign in text for sign in _SIGNS_OF_SEVERAL_STATEMENTS):
        return StorageError("A query must be one statement. Remove everything after the first semicolon.")
    if any(sign in text for sign in _SIGNS_OF_A_WRITE):
        return StorageError(f"The statement is refused, because a query can only read ({text}). Use one SELECT.")
    if text.startswith(_SIGN_OF_NO_ROWS):
        return StorageError(_NO_ROWS)
    if text == "interrupted" or "statement timeout" in text:
        return StorageError(
            f"The query took more than {seconds:g} s and was stopped. Add WHERE or LIMIT, or allow more time."
        )
    return StorageError(
        f"The database cannot run the query: {text}. List the tables and columns with: emtc sql --schema"
    )


def _make_cancelled_error() -> StorageError:
    return StorageError("The query was cancelled.")


def _make_series(values: Sequence[Any]) -> pd.Series:
    """Convert values to one type. Integers with NULL stay integers, and values of mixed types become text."""
    types = {type(value) for value in values if value is not None}
    if types in ({bool}, {int}):
        return pd.Series(values, dtype="boolean" if types == {bool} else "Int64")
    if types and types <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series([None if value is None else str(value) for value in values], dtype="str")
