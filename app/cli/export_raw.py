"""Raw tables of `emtc export`: transitions, episodes, evaluations, metrics, gate; and the JSON format of marl-eval.

A raw table can have many rows. It is read and written in parts, so that only one part is in memory. The table gate has
the statistics of β, the weight of the episodic incentive. marl-eval is a Python library that compares results of runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, get_args

import orjson
import typer

from app.analysis.format import format_run_count
from app.analysis.marl_eval import to_marl_eval
from app.analysis.results import Budget
from app.cli.output import print_message, print_text
from storage.engine import Database
from storage.private_files import open_output
from storage.queries.tables import TABLE_NAMES, TableName, TablePart, arrow_schema, read_parts, select_fields
from storage.runs.rows import RunRow

MARL_EVAL: Final = "marl-eval"
RawFormat = Literal["csv", "parquet", "arrow"]
RAW_FORMATS: tuple[RawFormat, ...] = get_args(RawFormat)
_ROWS_PER_PART: Final = 50_000
"""Rows that are in memory at the same time; also the size of a row group of Parquet."""


def find_raw_table(table: str | None, format: str) -> TableName | None:
    """Find the raw table with the name of --table; None if it is another table. marl-eval uses the evaluations."""
    if table is None and format == MARL_EVAL:
        return "evaluations"
    return next((name for name in TABLE_NAMES if name == table), None)


def export_raw(db: Database, rows: Sequence[RunRow], table: TableName, format: str, out: Path | None) -> None:
    """Write a raw table of these runs to a file, or as CSV to stdout.

    Raises:
        EmtcError: If the table cannot be read or written. Then no file is created.
    """
    name = format
    if not name:
        name = out.suffix.removeprefix(".") if out else "csv"
    file_format: RawFormat | None = next((raw_format for raw_format in RAW_FORMATS if raw_format == name), None)
    if file_format is None:
        more = f", {MARL_EVAL}" if table == "evaluations" else ""
        raise typer.BadParameter(f"--format must be one of {', '.join(RAW_FORMATS)}{more}, got {name!r}.")
    run_ids = [row.id for row in rows]
    if out is None:
        if file_format != "csv":
            raise typer.BadParameter(f"--format {file_format} needs --out FILE.")
        _write_csv(_read_parts(db, run_ids, table, rows=_ROWS_PER_PART), print_text)
        return
    with open_output(out) as file:
        n_rows = write_raw(db, run_ids, table, file_format, file)
    print_message(f"Wrote {out}: {n_rows:,} rows of {table} of {format_run_count(len(run_ids))}.")


def export_marl_eval(
    db: Database,
    rows: Sequence[RunRow],
    table: TableName,
    out: Path | None,
    *,
    include_unfinished: bool,
    budget: Budget,
) -> None:
    """Write evaluations as JSON of marl-eval to a file or to stdout.

    Raises:
        EmtcError: If no run can be compared, or if the file cannot be written.
    """
    if table != "evaluations":
        raise typer.BadParameter(f"--format {MARL_EVAL} needs --table evaluations, got {table}.")
    exported = to_marl_eval(db, rows, include_unfinished=include_unfinished, budget=budget)
    content = orjson.dumps(exported.data, option=orjson.OPT_INDENT_2) + b"\n"
    for remark in exported.remarks:
        print_message(remark)
    if out is None:
        print_text(content.decode())
        return
    with open_output(out) as file:
        file.write(content)
    print_message(f"Wrote {out} ({len(content):,} bytes).")


def write_raw(
    db: Database,
    run_ids: Sequence[str],
    table: TableName,
    format: RawFormat,
    out: BinaryIO,
    *,
    rows: int = _ROWS_PER_PART,
) -> int:
    """Write a raw table of some runs, one run after the other. Only one part is in memory.

    A missing value is empty in CSV and null in the other formats. Every number can be read back unchanged.

    Args:
        db: An open database.
        run_ids: The runs.
        table: The table.
        format: csv, parquet, or arrow (the file format of Arrow, which is Feather 2).
        out: The open file.
        rows: Number of rows in a part.

    Returns:
        The number of written rows.

    Raises:
        StorageError: If pyarrow is missing, or if rows of a run were deleted to save space.
    """
    parts = _read_parts(db, run_ids, table, rows=rows)
    if format == "csv":
        return _write_csv(parts, lambda text: out.write(text.encode()))
    schema = arrow_schema(select_fields(table))  # raises if pyarrow is missing
    from pyarrow import ipc, parquet

    if format == "parquet":
        writer = parquet.ParquetWriter(out, schema, compression="zstd")
    else:
        writer = ipc.new_file(out, schema, options=ipc.IpcWriteOptions(compression="zstd"))
    n_rows = 0
    with writer:
        for part in parts:
            writer.write_batch(part.to_arrow())
            n_rows += len(part.rows)
    return n_rows


def _read_parts(db: Database, run_ids: Sequence[str], table: TableName, *, rows: int) -> Iterator[TablePart]:
    for run_id in run_ids:
        yield from read_parts(db, table, run_id, rows=rows)


def _write_csv(parts: Iterable[TablePart], write: Callable[[str], object]) -> int:
    """Write a table as CSV, with one call of `write` per part, and return the number of rows."""
    n_rows = 0
    for number, part in enumerate(parts):
        write(part.to_frame().to_csv(index=False, header=number == 0, lineterminator="\n"))
        n_rows += len(part.rows)
    return n_rows
