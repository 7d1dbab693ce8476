"""Functions that print results to stdout and messages to stderr, or write results to files.

Control characters (escape sequences, changes of the text direction) are printed in escaped form. Passwords in URLs are
replaced.
"""

import json as plain_json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from emtc_core.errors import ConfigError
from storage.guards import hide_passwords

# Control characters except tab and line feed, marks that change the direction of text, and surrogates.
_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def print_message(text: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(_make_printable(text) + "\n")


def print_text(text: str) -> None:
    """Print text to stdout, in UTF-8 and without a line break at its end."""
    sys.stdout.buffer.write(_make_printable(text).encode())
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print one JSON value as one line; NaN becomes null."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # orjson does not write a lone surrogate or an integer beyond 64 bits
        text = plain_json.dumps(value, default=str)
    escaped = _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match.group()):04x}", hide_passwords(text))
    sys.stdout.write(f"{escaped}\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str = "", empty: str = "", json: bool = False) -> None:
    """Print rows as a table, or as JSON.

    Args:
        rows: The rows. All have the keys of the first one.
        title: Title of the table.
        empty: Text that is printed if there are no rows.
        json: Print the rows as JSON instead.
    """
    if json:
        print_json(rows)
        return
    width = None  # that of the terminal
    if not sys.stdout.isatty():
        width = int(os.environ.get("COLUMNS", "200"))
    console = Console(emoji=False, width=width)
    if not rows:
        console.print(empty, markup=False)
        return
    table = Table(title=_make_printable(title), title_justify="left")
    for column in rows[0]:
        table.add_column(_make_printable(column), overflow="fold")
    for row in rows:
        table.add_row(*("–" if value is None else _make_printable(str(value)) for value in row.values()))
    console.print(table, markup=False)


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
        try:
            print_text(content.decode())
        except UnicodeDecodeError:  # the bytes of a format such as Parquet
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


def _make_printable(text: str) -> str:
    """Escape control characters and hide passwords."""

    def escape(match: re.Match[str]) -> str:
        return ascii(match.group()).strip("'")

    return _CONTROL_CHARACTERS.sub(escape, hide_passwords(text))
