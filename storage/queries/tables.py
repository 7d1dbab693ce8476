"""Which rows does a raw table have for a run? Read in parts, so that only one part is in memory at a time.

Each part is a separate read transaction that continues after the last key of the part before it. A long read therefore
neither blocks checkpoints of the write-ahead log nor waits for a trainer. Rows that are written after the start of the
read are not returned. `app.cli.export_raw` writes the parts to files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pandas as pd
from sqlalchemy import Column, Table, func, select, true, tuple_
from sqlalchemy.types import Boolean, Double, Integer, LargeBinary

from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database
from storage.frames import FrameField, make_frame
from storage.guards import make_unreadable_error
from storage.models import Base, EpisodeRow, Evaluation, GateStats, MetricRow, Run, Transition
from storage.queries.gate import has_transitions

ArrowBatch = Any  # pyarrow is optional and has no types
ArrowSchema = Any

TableName = Literal["transitions", "episodes", "evaluations", "metrics", "gate"]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)
PART_ROWS: Final = 50_000
"""Default number of rows per part."""
NO_ARROW: Final = "Arrow and Parquet need pyarrow. Install it with: pip install pyarrow"

_MODELS: Final[dict[TableName, type[Base]]] = {
    "transitions": Transition,
    "episodes": EpisodeRow,
    "evaluations": Evaluation,
    "metrics": MetricRow,
    "gate": GateStats,
}
_PART_BYTES: Final = 32 << 20
"""Maximum size of a part whose rows contain blobs [bytes]."""
_BLOB_BYTES: Final = 16 << 10
"""Upper estimate of the size of a trajectory [bytes]."""


@dataclass(frozen=True)
class TablePart:
    """Some rows of a table, with the values of the database."""

    fields: tuple[FrameField, ...]
    rows: Sequence[Sequence[Any]]

    def to_frame(self) -> pd.DataFrame:
        """Convert the rows to a frame. All parts of a table have the same column types.

        Source: the table of the part.

        Returns:
            One row per row of the part; units as in `models.py` [unit varies].

        Raises:
            StorageError: If a value does not have the type of its column.
        """
        return make_frame(self.fields, self.rows)

    def to_arrow(self) -> ArrowBatch:
        """Return the rows as an Arrow batch. NULL becomes null, and numbers are not changed.

        Raises:
            StorageError: If pyarrow is not installed, or a value does not have the type of its column.
        """
        schema, arrow = arrow_schema(self.fields), _import_arrow()
        columns = list(zip(*self.rows, strict=True)) if self.rows else [() for _ in self.fields]
        arrays = []
        for field, values in zip(schema, columns, strict=True):
            try:
                arrays.append(arrow.array(values, field.type))
            except (arrow.ArrowException, OverflowError, TypeError) as error:
                raise make_unreadable_error(f"the column {field.name} contains a value of another type") from error
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)


def select_fields(table: TableName, columns: Sequence[str] | None = None) -> tuple[FrameField, ...]:
    """Return the fields of some columns of a raw table; None returns all but binary columns.

    Raises:
        ConfigError: If the table has no such column.
    """
    by_name = {column.name: column for column in _get_table(table).columns}
    if columns is None:
        selected = [column for column in by_name.values() if not isinstance(column.type, LargeBinary)]
    else:
        unknown = next((name for name in columns if name not in by_name), None)
        if unknown is not None or not columns:
            raise ConfigError(f"is not a column of {table}, which has {', '.join(by_name)}", key=unknown or "columns")
        selected = [by_name[name] for name in dict.fromkeys(columns)]
    return tuple(FrameField(column.name, column.type, bool(column.nullable)) for column in selected)


def read_parts(
    db: Database,
    table: TableName,
    run_id: str,
    *,
    columns: Sequence[str] | None = None,
    since: int = 0,
    names: Sequence[str] = (),
    rows: int = PART_ROWS,
) -> Iterator[TablePart]:
    """Which rows does a raw table have for a run? Sorted by env step, or by name and env step if `names` is given.

    Args:
        db: An open database.
        table: Which table.
        run_id: The run.
        columns: Names of columns; None reads all but binary columns.
        since: Read only rows after this env step (of episodes, those that began after it).
        names: Names of metrics, for the table metrics; empty reads all.
        rows: Maximum number of rows per part.

    Returns:
        At least one part; the last one may be empty.

    Raises:
        ConfigError: If the table has no such column, `rows` < 1 or `since` < 0.
        StorageError: If thinning has deleted the rows, or the database cannot be read.
    """
    if rows < 1:
        raise ConfigError("must be >= 1", key="rows", value=rows)
    if since < 0:
        raise ConfigError("must be >= 0", key="since", value=since)
    fields = select_fields(table, columns)
    if any(isinstance(field.kind, LargeBinary) for field in fields):
        rows = min(rows, _PART_BYTES // _BLOB_BYTES)
    end = _last_step(db, table, run_id)
    return _read(db, table, run_id, fields=fields, since=since, end=end, names=names, rows=rows)


def arrow_schema(fields: Sequence[FrameField]) -> ArrowSchema:
    """Return the Arrow schema of some columns.

    Raises:
        StorageError: If pyarrow is not installed.
    """
    arrow = _import_arrow()
    types = {Boolean: arrow.bool_(), Integer: arrow.int64(), Double: arrow.float64(), LargeBinary: arrow.binary()}

    def arrow_type(field: FrameField) -> Any:
        return next((kind for sql, kind in types.items() if isinstance(field.kind, sql)), arrow.string())

    return arrow.schema([(field.name, arrow_type(field)) for field in fields])


def _import_arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise StorageError(NO_ARROW) from error
    return pyarrow


def _get_table(name: TableName) -> Table:
    if name not in _MODELS:
        raise ConfigError(f"must be one of {', '.join(TABLE_NAMES)}", key="table", value=name)
    table = _MODELS[name].__table__
    assert isinstance(table, Table)
    return table


def _step_column(table: Table) -> Column[Any]:
    return table.c["first_env_step" if "first_env_step" in table.c else "env_step"]


def _last_step(db: Database, name: TableName, run_id: str) -> int:
    """Return the last env step at the start of the read. Later rows are not read."""
    table = _get_table(name)
    with db.read() as connection:
        env_steps = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none()
        if name == "transitions" and env_steps and not has_transitions(connection, run_id):
            raise StorageError(
                f"The transitions of run {run_id} were deleted by thinning (emtc db thin), or are not part of this "
                "bundle. Only their sums over 1,000 steps are stored, which the gate chart shows."
            )
        last = select(func.max(_step_column(table))).where(table.c.run_id == run_id)
        return connection.execute(last).scalar() or 0


def _read(
    db: Database,
    name: TableName,
    run_id: str,
    *,
    fields: tuple[FrameField, ...],
    since: int,
    end: int,
    names: Sequence[str],
    rows: int,
) -> Iterator[TablePart]:
    table = _get_table(name)
    conditions = [table.c.run_id == run_id, _step_column(table) > since if since else true()]
    conditions.append(_step_column(table) <= end)
    if names:
        for metric in dict.fromkeys(names):
            of_metric = [*conditions, table.c.name == metric]
            yield from _read_by_key(db, table, fields, conditions=of_metric, key=[table.c.env_step], rows=rows)
    else:
        key = [column for column in table.primary_key if column.name != "run_id"]
        yield from _read_by_key(db, table, fields, conditions=conditions, key=key, rows=rows)


def _read_by_key(
    db: Database,
    table: Table,
    fields: tuple[FrameField, ...],
    *,
    conditions: list[Any],
    key: list[Column[Any]],
    rows: int,
) -> Iterator[TablePart]:
    """Read parts in the order of a key. Each part starts after the last key of the part before it."""
    columns = [*(table.c[field.name] for field in fields), *key]
    after = true()
    while True:
        statement = select(*columns).where(*conditions, after).order_by(*key).limit(rows)
        with db.read() as connection:
            part = [tuple(row) for row in connection.execute(statement)]
        yield TablePart(fields, [row[: len(fields)] for row in part])
        if len(part) < rows:
            return
        last = part[-1][len(fields) :]
        if len(key) == 1:
            after = key[0] > last[0]
        else:
            after = tuple_(*key) > tuple_(*last, types=[column.type for column in key])
