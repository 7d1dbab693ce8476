"""Options that several commands share, and the two ways of printing a result.

What a terminal would obey (escape sequences, changes of direction) is printed as text, and no password is printed.
"""

import json as plain_json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table

from emtc_core.errors import ConfigError
from storage.address import DEFAULT_DATABASE as DEFAULT_DATABASE
from storage.address import sqlite_address
from storage.guards import hide_passwords

Choice = TypeVar("Choice", bound=str)

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

DatabaseUrl = Annotated[
    str, typer.Option("--db", envvar="EMTC_DB", help="Database URL; one with a password is better set as EMTC_DB")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout and nothing else there")]
DatabaseFile = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="SQLite file or database URL, instead of --db")
]
RunPrefix = Annotated[str, typer.Argument(metavar="RUN", help="Run id or an unambiguous beginning of one")]


def print_json(value: Any) -> None:
    """Print one JSON value as one line; NaN becomes null."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # what JSON may hold and orjson does not write: half a character, a number beyond 64 bits
        text = plain_json.dumps(value, default=str)
    sys.stdout.write(_OBEYED.sub(lambda found: f"\\u{ord(found.group()):04x}", hide_passwords(text)) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Write what a terminal would obey as text, and hide passwords."""
    return _OBEYED.sub(lambda found: ascii(found.group())[1:-1], hide_passwords(text))


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str, empty: str) -> None:
    """Print rows as a table, or the sentence that says what to do when there are none."""
    console = Console(emoji=False, width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200")))
    if not rows:
        console.print(empty, markup=False)
        return
    table = Table(title=printable(title), title_justify="left")
    for column in rows[0]:
        table.add_column(printable(column), overflow="fold")
    for row in rows:
        table.add_row(*("–" if value is None else printable(str(value)) for value in row.values()))
    console.print(table, markup=False)


def print_rows(rows: Sequence[Mapping[str, Any]], *, title: str, empty: str, json: bool) -> None:
    """Print rows as JSON, or as a table."""
    print_json(rows) if json else print_table(rows, title=title, empty=empty)


def database_url(file: str | None, db: str) -> str:
    """Choose between a file or URL that was named and --db."""
    if file is None:
        return db
    return file if "://" in file else sqlite_address(file)


def say(text: str) -> None:
    """The user something that is not the result: on stderr."""
    sys.stderr.write(printable(text) + "\n")


def choose(option: str, given: str, allowed: Iterable[Choice]) -> Choice:
    """Read the value of an option that has a few.

    Raises:
        BadParameter: If it is none of them.
    """
    known = list(allowed)
    for each in known:
        if given == each:
            return each
    raise typer.BadParameter(f"--{option} must be one of {', '.join(known)}, got {given!r}.")


def write_file(out: Path, content: bytes) -> None:
    """Write a result into a file.

    Raises:
        ConfigError: If it cannot be written.
    """
    try:
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}", hint="Choose another file.") from exc
