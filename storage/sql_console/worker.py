"""The process that answers one question and can only read: `python -m storage.sql_console.worker`, a question on stdin.

SQLite: the file is opened for reading, an authorizer refuses every act but reading, and no second file is attached.
PostgreSQL: one statement in a read-only transaction, by a role that may do nothing else (`question`).
Both: so many rows, seconds and bytes, and no more. Only what is needed to answer is imported: it starts in no time.
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
from typing import Any

from storage.address import connect

MOST_BYTES_OUT = 64 << 20
MOST_MEMORY = 512 << 20
_ADDRESS_SPACE = 2 << 30
_TEMPORARY_FILE = 2 << 30
LONGEST_TEXT = 100_000
_INT64 = 1 << 63

_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"})
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_FUNCTIONS_REFUSED = frozenset({"load_extension", "fts3_tokenizer"})
_COMMENT = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()+", re.DOTALL)
_BEGINNINGS = ("select", "with", "values", "table", "explain")
_REACHES_OUT = re.compile(r"u&\s*\"|\b(set_config|query_to_xml\w*|cursor_to_xml\w*|dblink\w*|lo_\w+)\b", re.IGNORECASE)


_RIGHTS = """
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
"""Who asks, and what that role may do that a reader needs not; NULL where there is nothing."""


class RefusedError(Exception):
    """A question that cannot be answered: cause and next step, a fixed word for the cause, and what it is about."""

    def __init__(self, message: str, reason: str, subject: object = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.subject = subject


def main() -> None:
    """Read a question, write its columns, rows and end, one JSON value a line."""
    question = json.load(sys.stdin)
    _limit_this_process()
    try:
        _answer(question)
    except RefusedError as error:
        _write_refusal(error)
    except MemoryError:
        message = f"The question needs more than {MOST_MEMORY >> 20} MB of memory. Ask for less at once."
        _write_refusal(RefusedError(message, "memory"))


def _limit_this_process() -> None:
    """Let the system refuse what no other limit foresaw."""
    if sys.platform == "win32":
        return
    import resource

    for what, most in ((resource.RLIMIT_AS, _ADDRESS_SPACE), (resource.RLIMIT_FSIZE, _TEMPORARY_FILE)):
        with contextlib.suppress(ValueError, OSError):  # a system without such a limit, or with a lower one
            resource.setrlimit(what, (most, most))


def _answer(question: dict[str, Any]) -> None:
    read = _ask_sqlite if "path" in question else _ask_server
    with contextlib.closing(read(question)) as rows:
        _write({"columns": next(rows)})
        _write({"cut": _write_rows(rows, question["most_rows"])})


def _write_rows(rows: Iterable[Iterable[Any]], most_rows: int) -> str | None:
    """Write rows up to the limits; return which one cut them, or None."""
    written = 0
    for number, row in enumerate(rows):
        if number == most_rows:
            return f"The first {most_rows:,} rows; there are more."
        line = json.dumps([plain(value) for value in row])
        written += len(line)
        if written > MOST_BYTES_OUT:
            return f"The first {number:,} rows, which take {MOST_BYTES_OUT >> 20} MB; there are more."
        sys.stdout.write(line + "\n")
    return None


def plain(value: Any) -> Any:
    """Make a value that JSON holds: a blob is told by its size, a long text is cut, a time is text."""
    if isinstance(value, bytes | memoryview):
        return f"<{len(value):,} bytes>"
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str)
    elif type(value).__name__ == "Decimal":
        return float(value) if not math.isfinite(value) or value % 1 else plain(int(value))
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … <{len(text):,} characters>"


def _write(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _write_refusal(error: RefusedError) -> None:
    _write({"refused": str(error), "reason": error.reason, "subject": error.subject})


def _ask_sqlite(question: dict[str, Any]) -> Generator[Any, None, None]:
    """Give the names of the columns, then the rows."""
    query, seconds, denied = question["query"], question["seconds"], list[str]()
    with contextlib.closing(connect(Path(question["path"]), wait_s=5, writes=False, mode="ro")) as connection:
        _restrict(connection, query, denied)
        late = threading.Timer(seconds, connection.interrupt)
        late.daemon = True
        late.start()
        try:
            cursor = connection.execute(query)
            if cursor.description is None:
                raise RefusedError("The question gives no rows. Ask with one SELECT.", "no_rows")
            yield [column[0] for column in cursor.description]
            yield from cursor
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            raise _translate(error, denied, seconds) from error


def _restrict(connection: sqlite3.Connection, query: str, denied: list[str]) -> None:
    """Take from a connection everything but reading, then the means to give it back; what it refuses is named."""
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute(f"PRAGMA hard_heap_limit={MOST_MEMORY}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    connection.text_factory = lambda stored: stored.decode(errors="replace")

    def authorize(act: int, first: str | None, second: str | None, *_: str | None) -> int:
        if act in _READING:
            return sqlite3.SQLITE_OK
        if act == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _FUNCTIONS_REFUSED:
            return sqlite3.SQLITE_OK
        if act == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
            return sqlite3.SQLITE_OK
        denied.append(_name_act(act, first, second, query))
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


def _name_act(act: int, first: str | None, second: str | None, query: str) -> str:
    if act == sqlite3.SQLITE_PRAGMA:
        return f"PRAGMA {first}"
    word = _first_word(query)
    return f"{second}()" if act == sqlite3.SQLITE_FUNCTION else "Writing" if word in _BEGINNINGS else word.upper()


def _first_word(query: str) -> str:
    return (re.match(r"\w*", _COMMENT.sub("", query)) or [""])[0].lower()


def _translate(error: Exception, denied: list[str], seconds: float) -> RefusedError:
    """Describe a driver's error, whose own text is all that tells what it is."""
    text = (str(error).strip().splitlines() or ["nothing is said of it"])[0].rstrip(".")
    if denied:
        return _refuse(denied[0])
    if "one statement" in text or "multiple commands" in text:
        message = "A question is one statement. Remove the text after the first semicolon."
        return RefusedError(message, "statements")
    if any(sign in text for sign in ("readonly database", "read-only transaction", "COPY")):
        return _refuse("Writing")
    if text == "interrupted" or "statement timeout" in text:
        message = f"The question took more than {seconds:g} s and was ended."
        return RefusedError(f"{message} Narrow it with WHERE or LIMIT, or allow more.", "timeout", seconds)
    message = f"The database cannot answer: {text}. List the tables and columns with: emtc sql --schema"
    return RefusedError(message, "failed", text)


def _refuse(what: str) -> RefusedError:
    return RefusedError(f"{what} is refused: a question only reads. Ask with one SELECT.", "writes", what)


def _ask_server(question: dict[str, Any]) -> Generator[Any, None, None]:
    """Give the names of the columns, then the rows; the extended protocol takes one statement and no more."""
    import psycopg

    _check_statement(question["query"])
    milliseconds = max(1, int(1000 * question["seconds"]))
    try:
        with psycopg.connect(**question["server"], autocommit=True) as connection:
            _begin_reading(connection, milliseconds)
            cursor = connection.cursor()
            rows = cursor.stream(question["query"])
            first = next(rows, None)
            if first is None:  # nothing came, so nothing has told the columns either
                yield _describe(connection, question["query"])
                return
            yield [column.name for column in cursor.description or ()]
            yield first
            yield from rows
    except psycopg.Error as error:
        raise _translate(error, [], question["seconds"]) from error


def _describe(connection: Any, query: str) -> list[str]:
    """The names of a statement's columns, which is not run again."""
    connection.pgconn.prepare(b"described", query.encode())
    told = connection.pgconn.describe_prepared(b"described")
    return [told.fname(place).decode() for place in range(told.nfields)]


def _check_statement(query: str) -> None:
    """Refuse what a read-only transaction of a server would still do: programs, files, other servers."""
    if (word := _first_word(query)) not in _BEGINNINGS:
        raise _refuse(word.upper() or "That")
    if found := _REACHES_OUT.search(query):
        raise _refuse(found.group())


def _begin_reading(connection: Any, milliseconds: int) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET LOCAL statement_timeout = {milliseconds}")
    role, more = connection.execute(_RIGHTS).fetchall()[0]
    if more:
        raise RefusedError(
            f"Questions are asked by a role that was made for reading, and {role} {more}. Make one with: emtc db "
            "reader, and name it in EMTC_DB_READER",
            "too_many_rights",
            role,
        )


if __name__ == "__main__":
    main()
