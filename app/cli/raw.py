"""Raw tables of many rows as files: CSV, Parquet or Arrow, written part by part.

What lives here: formats. What does not: which rows there are
(`storage.queries.tables`), and result tables, which are small (`app.analysis.tables`).
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, Final, Literal, get_args

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.queries.tables import NO_ARROW, Part, TableName, arrow_schema, choose_fields, read_parts

RawFormat = Literal["csv", "parquet", "arrow"]
RAW_FORMATS: tuple[RawFormat, ...] = get_args(RawFormat)
_ROWS: Final = 50_000  # of a part, and so of a row group

Write = Callable[[Part], None]


def write_raw(
    db: Database, run_ids: Sequence[str], table: TableName, format: RawFormat, out: BinaryIO, *, rows: int = _ROWS
) -> int:
    """Write a raw table of some runs, one run after the other, in the memory of one part.

    A missing value is empty in CSV and null elsewhere; every number is read back as it was stored.

    Args:
        db: An open database.
        run_ids: The runs.
        table: Which table.
        format: csv, parquet, or arrow (the file format of Arrow, which is Feather 2).
        out: Where to.
        rows: Of one part.

    Returns:
        How many rows were written.

    Raises:
        StorageError: If pyarrow is missing, or a run's rows were thinned away.
    """
    written = 0
    with _WRITERS[format](table, out) as write:
        for run_id in run_ids:
            for part in read_parts(db, table, run_id, rows=rows):
                write(part)
                written += len(part.rows)
    return written


@contextmanager
def _csv(table: TableName, out: BinaryIO) -> Generator[Write]:
    out.write((",".join(field.name for field in choose_fields(table)) + "\n").encode())

    def write(part: Part) -> None:
        part.to_frame().to_csv(out, index=False, header=False, lineterminator="\n")

    yield write


@contextmanager
def _parquet(table: TableName, out: BinaryIO) -> Generator[Write]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise StorageError(NO_ARROW) from error
    with parquet.ParquetWriter(out, arrow_schema(choose_fields(table)), compression="zstd") as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


@contextmanager
def _arrow(table: TableName, out: BinaryIO) -> Generator[Write]:
    schema = arrow_schema(choose_fields(table))
    from pyarrow import ipc

    with ipc.new_file(out, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


_WRITERS: Final[dict[RawFormat, Callable[[TableName, Any], AbstractContextManager[Write]]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "arrow": _arrow,
}
