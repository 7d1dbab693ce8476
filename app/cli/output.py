"""Options that several commands share, and the two ways of printing a result."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

DEFAULT_DATABASE = "sqlite:///runs/emtc.db"

DatabaseUrl = Annotated[
    str, typer.Option("--db", envvar="EMTC_DB", help="Database URL, for instance sqlite:///runs/emtc.db")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout and nothing else there")]
RunPrefix = Annotated[str, typer.Argument(metavar="RUN", help="Run id or an unambiguous beginning of one")]


def print_json(value: Any) -> None:
    """Print one JSON value as one line; NaN becomes null."""
    text = orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str, empty: str) -> None:
    """Print rows as a table, or the sentence that says what to do when there are none."""
    console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200")))
    if not rows:
        console.print(empty, markup=False)
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    console.print(table, markup=False)


def say(text: str) -> None:
    """Tell the user something that is not the result: on stderr."""
    sys.stderr.write(text + "\n")
