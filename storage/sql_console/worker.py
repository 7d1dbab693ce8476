"""A process that runs one query and can only read: `python -m storage.sql_console.worker`, with a request on stdin.

SQLite: the file is opened for reading, an authorizer refuses every action except reading, and no second file can be
attached. PostgreSQL: one statement runs in a read-only transaction of a role that can only read (see `question`).
Rows, seconds, bytes and memory are limited. Imports are kept to a minimum, so that the process starts quickly.

The output is one JSON value per line: the columns, each row, and an end with the reason if rows were cut or refused.
"""

import contextlib
import json
import math
import re
import sqlite3
import sys
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

from storage.address import connect

MAX_OUTPUT_BYTES: Final = 64 << 20
MAX_MEMORY_BYTES: Final = 512 << 20
MAX_TEXT_LENGTH: Final = 100_000
_ADDRESS_SPACE_BYTES: Final = 2 << 30
_TEMPORARY_FILE_BYTES: Final = 2 << 30
_SQLITE_WAIT_S: Final = 5.0
_INT64: Final = 1 << 63

_ALLOWED_PRAGMAS: Final = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
)
_READ_ACTIONS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})
_READ_STATEMENTS: Final = ("select", "with", "values", "table", "explain")
_LEADING_COMMENTS: Final = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()+", re.DOTALL)
_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*")
_ESCAPED_NAME: Final = re.compile(r"u&\s*\"", re.IGNORECASE)
_ALLOWED_FUNCTIONS: Final = (
    *("random", "random_normal", "array_sample", "array_shuffle", "bernoulli", "system"),
    *("clock_timestamp", "timeofday", "gen_random_uuid", "uuidv4", "uuidv7"),
    *("pg_relation_size", "pg_table_size", "pg_indexes_size", "pg_total_relation_size", "pg_database_size"),
)
"""Volatile functions without an effect on the server."""
_REFUSED_FUNCTIONS: Final = ("txid_current", "pg_current_xact_id")
"""Functions with an effect that PostgreSQL does not call volatile: they assign a transaction number."""
_EFFECTS: Final = """
SELECT proname FROM pg_proc WHERE lower(proname) = ANY(%(words)s) AND prorettype != 'trigger'::regtype
    AND (provolatile = 'v' AND proname != ALL(%(allowed)s) OR proname = ANY(%(refused)s)) LIMIT 1
"""
"""Selects a function with effects: every volatile one, because it can write, lock, notify, or execute text as SQL."""
_RIGHTS: Final = """
SELECT session_user::text, CASE
    WHEN bool_or(rolsuper) THEN 'is a superuser'
    WHEN bool_or(rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls) THEN 'may make roles or databases'
    WHEN EXISTS (SELECT FROM pg_roles AS other
        WHERE other.rolname != session_user AND pg_has_role(session_user, other.oid, 'MEMBER'))
        THEN 'belongs to another role'
    WHEN EXISTS (SELECT FROM pg_class JOIN pg_namespace AS place ON place.oid = relnamespace
        WHERE nspname NOT LIKE 'pg\\_%' AND nspname != 'information_schema' AND CASE WHEN relkind = 'S'
        THEN has_sequence_privilege(session_user, pg_class.oid, 'USAGE, UPDATE')
        WHEN relkind IN ('r', 'p', 'v', 'm', 'f')
        THEN has_table_privilege(session_user, pg_class.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER') END)
        THEN 'may write'
    END
FROM pg_roles WHERE rolname IN (session_user, current_user)
"""
"""Selects the login role, and what it may do in addition to reading; NULL if it can only read."""


class RefusedError(Exception):
    """A query that cannot be answered.

    Args:
        message: The cause and the next step.
        reason: The cause as a fixed word, as in `EmtcError`.
        subject: What the error is about, as a JSON value.
    """

    def __init__(self, message: str, reason: str, subject: object = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.subject = subject


def main() -> None:
    """Read a request from stdin; write the columns, the rows and the end to stdout."""
    request = json.load(sys.stdin)
    _limit_process()
    try:
        read = _read_sqlite if "path" in request else _read_postgres
        with contextlib.closing(read(request)) as columns_and_rows:
            _write({"columns": next(columns_and_rows)})
            _write({"cut": _write_rows(columns_and_rows, request["most_rows"])})
    except RefusedError as error:
        _write_refusal(error)
    except MemoryError:
        message = f"The query needs more than {MAX_MEMORY_BYTES >> 20} MB of memory. Select less data."
        _write_refusal(RefusedError(message, "memory"))


def describe_timeout(seconds: float) -> str:
    """Return the message about a query that exceeded its time."""
    return f"The query took more than {seconds:g} s and was stopped. Add WHERE or LIMIT, or allow more time."


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


def _limit_process() -> None:
    """Limit address space and file size by the operating system, in addition to the limits of the database."""
    if sys.platform == "win32":
        return
    import resource

    for limit, size in (
        (resource.RLIMIT_AS, _ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_FSIZE, _TEMPORARY_FILE_BYTES),
    ):
        with contextlib.suppress(ValueError, OSError):  # the system lacks this limit, or has a lower one
            resource.setrlimit(limit, (size, size))


def _write_rows(rows: Iterable[Iterable[Any]], most_rows: int) -> str | None:
    """Write rows up to the limits; return which limit cut them, or None."""
    size = 0
    for number, row in enumerate(rows):
        if number == most_rows:
            return f"The first {most_rows:,} rows; there are more."
        line = json.dumps([to_json_value(value) for value in row])
        size += len(line)
        if size > MAX_OUTPUT_BYTES:
            return f"The first {number:,} rows, which take {MAX_OUTPUT_BYTES >> 20} MB; there are more."
        sys.stdout.write(line + "\n")
    return None


def _write(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _write_refusal(error: RefusedError) -> None:
    _write({"refused": str(error), "reason": error.reason, "subject": error.subject})


def _read_sqlite(request: dict[str, Any]) -> Generator[Any, None, None]:
    """Yield the names of the columns, then the rows."""
    query, seconds, refused = request["query"], request["seconds"], list[str]()
    path = Path(request["path"])
    with contextlib.closing(connect(path, wait_s=_SQLITE_WAIT_S, writes=False, mode="ro")) as connection:
        _restrict(connection, query, refused)
        timer = threading.Timer(seconds, connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            cursor = connection.execute(query)
            if cursor.description is None:
                raise RefusedError("The statement returns no rows. Use one SELECT.", "no_rows")
            yield [column[0] for column in cursor.description]
            yield from cursor
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            if refused:
                raise _make_refusal(refused[0]) from error
            raise _translate_error(error, seconds) from error


def _restrict(connection: sqlite3.Connection, query: str, refused: list[str]) -> None:
    """Allow a connection only to read, and do not allow it to remove the restrictions.

    Args:
        connection: The connection.
        query: The query, for the description of a refused action.
        refused: The authorizer appends a description of every action that it refuses.
    """
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute(f"PRAGMA hard_heap_limit={MAX_MEMORY_BYTES}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    connection.text_factory = lambda stored: stored.decode(errors="replace")

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in _READ_ACTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _ALLOWED_PRAGMAS:
            return sqlite3.SQLITE_OK
        word = _first_word(query)
        if action == sqlite3.SQLITE_PRAGMA:
            refused.append(f"PRAGMA {first}")
        elif action == sqlite3.SQLITE_FUNCTION:
            refused.append(f"{second}()")
        else:
            refused.append("Writing" if word in _READ_STATEMENTS else word.upper())
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


def _read_postgres(request: dict[str, Any]) -> Generator[Any, None, None]:
    """Yield the names of the columns, then the rows. psycopg's `stream` accepts one statement only."""
    import psycopg

    query, seconds = request["query"], request["seconds"]
    word = _first_word(query)
    if word not in _READ_STATEMENTS:
        raise _make_refusal(word.upper() or "This statement")
    if escaped := _ESCAPED_NAME.search(query):
        raise _make_refusal(escaped.group())
    try:
        with psycopg.connect(**request["server"], autocommit=True) as connection:
            _begin_reading(connection, timeout_ms=max(1, int(1000 * seconds)))
            _check_functions(connection, query)
            cursor = connection.cursor()
            rows = cursor.stream(query)
            first = next(rows, None)
            if first is None:  # without a row, the cursor has no description of the columns
                yield _list_columns(connection, query)
                return
            yield [column.name for column in cursor.description or ()]
            yield first
            yield from rows
    except psycopg.Error as error:
        raise _translate_error(error, seconds) from error


def _begin_reading(connection: Any, *, timeout_ms: int) -> None:
    """Begin a read-only transaction, and check that the role can only read."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET LOCAL statement_timeout = {timeout_ms}")
    role, right = connection.execute(_RIGHTS).fetchall()[0]
    if right:
        raise RefusedError(
            f"Queries must run in a role that can only read, but {role} {right}. Create such a role with: emtc db "
            "reader, and set EMTC_DB_READER to its URL.",
            "too_many_rights",
            role,
        )


def _check_functions(connection: Any, query: str) -> None:
    """Refuse a query with the name of a function with effects anywhere, so quotes and comments cannot hide it."""
    names = {
        "words": sorted(set(_WORD.findall(query.lower()))),
        "allowed": list(_ALLOWED_FUNCTIONS),
        "refused": list(_REFUSED_FUNCTIONS),
    }
    if row := connection.execute(_EFFECTS, names).fetchone():
        raise _make_refusal(f"{row[0]}()")


def _list_columns(connection: Any, query: str) -> list[str]:
    """List the columns of a statement without running it."""
    connection.pgconn.prepare(b"described", query.encode())
    description = connection.pgconn.describe_prepared(b"described")
    return [description.fname(index).decode() for index in range(description.nfields)]


def _first_word(query: str) -> str:
    """Return the first word of a query in lower case, after comments and parentheses; empty if there is none."""
    return (re.match(r"\w*", _LEADING_COMMENTS.sub("", query)) or [""])[0].lower()


def _translate_error(error: Exception, seconds: float) -> RefusedError:
    """Convert a driver's error, whose text is the only sign of its cause."""
    text = (str(error).strip().splitlines() or ["no reason was given"])[0].rstrip(".")
    if "one statement" in text or "multiple commands" in text:
        message = "A query must be one statement. Remove everything after the first semicolon."
        return RefusedError(message, "statements")
    if any(part in text for part in ("readonly database", "read-only transaction", "COPY")):
        return _make_refusal("Writing")
    if text == "interrupted" or "statement timeout" in text:
        return RefusedError(describe_timeout(seconds), "timeout", seconds)
    message = f"The database cannot run the query: {text}. List the tables and columns with: emtc sql --schema"
    return RefusedError(message, "failed", text)


def _make_refusal(action: str) -> RefusedError:
    return RefusedError(f"{action} is refused, because a query can only read. Use one SELECT.", "writes", action)


if __name__ == "__main__":
    main()
