"""Options that several commands share, and functions that print results and messages.

Control characters (escape sequences, changes of the text direction) are printed in escaped form. Passwords in URLs are
replaced.
"""

import json as plain_json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table

from emtc_core.errors import ConfigError
from storage.address import DEFAULT_DATABASE as DEFAULT_DATABASE
from storage.address import as_address, sqlite_address
from storage.guards import hide_passwords

Choice = TypeVar("Choice", bound=str)

_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def parse_step_count(text: str, option: str = "--steps") -> int:
    """Parse a number of env steps: 20000, 20k, 1e6 or 0.8M.

    Raises:
        ConfigError: If it is not a whole number.
    """
    from emtc_core.config.values import parse_count  # imports pydantic

    return parse_count(text, option)


DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="EMTC_DB",
        callback=as_address,
        help="SQLite file or database URL. Set a URL with a password as EMTC_DB instead",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value on stdout")]
DatabaseFile = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="SQLite file or database URL, instead of --db")
]
Runs = Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or unambiguous beginnings of them")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only runs with this setting (gate.enabled=false) or column (win_rate>0.8); signs: = != < <= > >=; may be "
        "repeated, all must be true",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="STEPS", parser=parse_step_count, help="Training length [env steps], such as 20k or 1e6"
    ),
]
RunPrefix = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id or an unambiguous beginning of one, or --where with one matching run"),
]


def print_json(value: Any) -> None:
    """Print one JSON value as one line; NaN becomes null."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # orjson does not write a lone surrogate or an integer beyond 64 bits
        text = plain_json.dumps(value, default=str)
    sys.stdout.write(_CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match.group()):04x}", hide_passwords(text)) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Escape control characters and hide passwords."""
    return _CONTROL_CHARACTERS.sub(lambda match: ascii(match.group())[1:-1], hide_passwords(text))


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str, empty: str) -> None:
    """Print rows as a table, or the text `empty` if there are none."""
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
    """Return the URL of a file or URL argument, or that of --db if there is none."""
    if file is None:
        return db
    return file if "://" in file else sqlite_address(file)


def print_message(text: str) -> None:
    """Print a message to stderr. Results are printed to stdout."""
    sys.stderr.write(printable(text) + "\n")


def choose(option: str, given: str, allowed: Iterable[Choice]) -> Choice:
    """Validate the value of an option that has a list of allowed values.

    Raises:
        BadParameter: If the value is not allowed.
    """
    choices = list(allowed)
    for choice in choices:
        if given == choice:
            return choice
    raise typer.BadParameter(f"--{option} must be one of {', '.join(choices)}, got {given!r}.")


def write_result(content: bytes, out: Path | None, *, notes: str = "") -> None:
    """Write a result to a file, or to stdout. Text on stdout is made safe for a terminal.

    Args:
        content: The result.
        out: The file; None for stdout.
        notes: What a reader of the result must know and the result does not contain. It is written to FILE.notes.txt,
            or to stderr if the result goes to stdout.

    Raises:
        ConfigError: If a file cannot be written.
    """
    if out is None:
        with suppress(UnicodeDecodeError):  # the bytes of a format such as Parquet
            content = printable(content.decode()).encode()
        sys.stdout.buffer.write(content)
    else:
        write_file(out, content)
        print_message(f"Wrote {out} ({len(content):,} bytes).")
    if notes and out is not None and out.is_file():
        notes_file = out.with_name(f"{out.name}.notes.txt")
        write_file(notes_file, f"{notes}\n".encode())
        print_message(f"Wrote {notes_file}.")
    elif notes:
        print_message(notes)


def write_file(out: Path, content: bytes) -> None:
    """Write a result to a file. Its folder is created.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}", hint="Choose another file.") from exc
