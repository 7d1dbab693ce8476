"""`emtc export --table transitions | episodes | evaluations | metrics | gate`: the raw tables, however long."""

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
import typer

from app.analysis.format import runs_of
from app.analysis.marl_eval import to_marl_eval
from app.cli.output import printable, say
from app.cli.raw import RAW_FORMATS, RawFormat, write_raw
from storage.engine import Database
from storage.private_files import replaced
from storage.queries.tables import TABLE_NAMES, TableName
from storage.runs.rows import RunRow

MARL_EVAL = "marl-eval"


class _Terminal:
    """Standard output that shows what a terminal would obey as text."""

    def write(self, content: bytes | str) -> int:
        """Write a piece of a text."""
        text = content if isinstance(content, str) else content.decode()
        return sys.stdout.buffer.write(printable(text).encode())


def find_raw(table: str | None, format: str) -> TableName | None:
    """Tell which raw table is meant, if it is one; marl-eval's JSON is made of evaluations."""
    if table is None and format == MARL_EVAL:
        return "evaluations"
    return next((name for name in TABLE_NAMES if name == table), None)


def export_raw(db: Database, rows: Sequence[RunRow], table: TableName, format: str, out: Path | None) -> None:
    """Write a raw table of these runs; CSV may go to stdout.

    Raises:
        EmtcError: If it cannot be read or written; then there is no file.
    """
    kind = _choose_format(table, format or (out.suffix.removeprefix(".") if out else "csv"))
    ids = [row.id for row in rows]
    if out is None:
        if kind != "csv":
            raise typer.BadParameter(f"--format {kind} needs --out FILE.")
        write_raw(db, ids, table, kind, _Terminal())  # type: ignore[arg-type]  # pandas needs no more of a file
        return
    with replaced(out) as file:
        n = write_raw(db, ids, table, kind, file)
    say(f"Wrote {out}: {n:,} rows of {table} of {runs_of(len(ids))}.")


def export_marl_eval(
    db: Database, rows: Sequence[RunRow], table: TableName, out: Path | None, *, include_unfinished: bool
) -> None:
    """Write evaluations in marl-eval's JSON.

    Raises:
        EmtcError: If no run counts, or it cannot be written.
    """
    if table != "evaluations":
        raise typer.BadParameter(f"--format {MARL_EVAL} is made of --table evaluations, not of {table}.")
    made = to_marl_eval(db, rows, include_unfinished=include_unfinished)
    content = orjson.dumps(made.data, option=orjson.OPT_INDENT_2) + b"\n"
    for remark in made.remarks:
        say(remark)
    if out is None:
        _Terminal().write(content)
        return
    with replaced(out) as file:
        file.write(content)
    say(f"Wrote {out} ({len(content):,} bytes).")


def _choose_format(table: TableName, format: str) -> RawFormat:
    for known in RAW_FORMATS:
        if format == known:
            return known
    more = f", {MARL_EVAL}" if table == "evaluations" else ""
    raise typer.BadParameter(f"--format must be one of {', '.join(RAW_FORMATS)}{more}, got {format!r}.")
