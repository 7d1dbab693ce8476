"""The raw tables of a run, read part by part: as many rows as there are, in the memory of one part.

Each part is a read of its own that goes on where the one before it ended, so a long read neither holds a living
database's write-ahead log nor waits for its trainer. What is written after the read began is not in it.
What lives here: columns and parts. What does not: files (`app.cli.export_raw`), questions with answers of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pandas as pd
from sqlalchemy import Column, Table, func, select, true, tuple_
from sqlalchemy.types import Boolean, Double, Integer, LargeBinary

from emtc_core.errors import ConfigError, StorageError
from storage.column_types import unguarded
from storage.engine import Database
from storage.frames import Field, make_frame, wrong_value
from storage.models import Base, EpisodeRow, Evaluation, GateStats, MetricRow, Run, Transition
from storage.queries.gate import has_transitions

ArrowBatch = Any  # pyarrow, which may be missing, has no types
ArrowSchema = Any

TableName = Literal["transitions", "episodes", "evaluations", "metrics", "gate"]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)
PART_ROWS: Final = 50_000
NO_ARROW: Final = "Arrow and Parquet need pyarrow. Install it with: pip install pyarrow"

_MODELS: Final[dict[TableName, type[Base]]] = {
    "transitions": Transition,
    "episodes": EpisodeRow,
    "evaluations": Evaluation,
    "metrics": MetricRow,
    "gate": GateStats,
}
_PART_BYTES: Final = 32 << 20  # of a part whose rows hold blobs
_BLOB_BYTES: Final = 16 << 10  # what a trajectory takes, and more


@dataclass(frozen=True)
class Part:
    """Some rows of a table, as the database gave them."""

    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Any]]

    def to_frame(self) -> pd.DataFrame:
        """Lay them out as a frame whose types are those of every other part.

        Raises:
            StorageError: If the database holds something else in a column.
        """
        return make_frame(self.fields, self.rows)

    def to_arrow(self) -> ArrowBatch:
        """Lay them out as Arrow columns: a missing value is null, every number is the stored one.

        Raises:
            StorageError: If pyarrow is missing, or the database holds something else in a column.
        """
        schema, arrow = arrow_schema(self.fields), _arrow()
        columns = list(zip(*self.rows, strict=True)) if self.rows else [() for _ in self.fields]
        arrays = []
        for field, values in zip(schema, columns, strict=True):
            try:
                arrays.append(arrow.array(values, field.type))
            except (arrow.ArrowException, OverflowError, TypeError) as error:
                raise wrong_value(field.name, values) from error
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)


def choose_fields(table: TableName, columns: Sequence[str] | None = None) -> tuple[Field, ...]:
    """Choose columns of a raw table; all but blobs when none is named.

    Raises:
        ConfigError: If the table has no such column.
    """
    known = {column.name: column for column in _table(table).columns}
    if columns is None:
        chosen = [column for column in known.values() if not isinstance(unguarded(column.type), LargeBinary)]
    else:
        strange = next((name for name in columns if name not in known), None)
        if strange is not None or not columns:
            raise ConfigError(f"is not a column of {table}, which has {', '.join(known)}", key=strange or "columns")
        chosen = [known[name] for name in dict.fromkeys(columns)]
    return tuple(Field(column.name, unguarded(column.type), bool(column.nullable)) for column in chosen)


def read_parts(
    db: Database,
    table: TableName,
    run_id: str,
    *,
    columns: Sequence[str] | None = None,
    since: int = 0,
    names: Sequence[str] = (),
    rows: int = PART_ROWS,
) -> Iterator[Part]:
    """Which rows has a run in a raw table? By env step, or by name and env step where names are asked for.

    Args:
        db: An open database.
        table: Which table.
        run_id: The run.
        columns: Which columns; all but blobs when missing.
        since: Only rows after this env step (of episodes, those that began after it).
        names: Of metrics: which; all when empty.
        rows: Rows of a part, at most.

    Returns:
        At least one part; the last one may be empty.

    Raises:
        ConfigError: If the table has no such column, or the numbers make no sense.
        StorageError: If the rows were thinned away, or the database cannot be read.
    """
    if rows < 1:
        raise ConfigError("must be >= 1", key="rows", value=rows)
    if since < 0:
        raise ConfigError("must be >= 0", key="since", value=since)
    fields = choose_fields(table, columns)
    if any(isinstance(field.kind, LargeBinary) for field in fields):
        rows = min(rows, _PART_BYTES // _BLOB_BYTES)
    end = _last_step(db, table, run_id)
    return _read(db, table, run_id, fields=fields, since=since, end=end, names=names, rows=rows)


def arrow_schema(fields: Sequence[Field]) -> ArrowSchema:
    """The Arrow types of columns.

    Raises:
        StorageError: If pyarrow is missing.
    """
    arrow = _arrow()
    kinds = {Boolean: arrow.bool_(), Integer: arrow.int64(), Double: arrow.float64(), LargeBinary: arrow.binary()}
    found = [next((kind for of, kind in kinds.items() if isinstance(each.kind, of)), arrow.string()) for each in fields]
    return arrow.schema([(field.name, kind) for field, kind in zip(fields, found, strict=True)])


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise StorageError(NO_ARROW) from error
    return pyarrow


def _table(name: TableName) -> Table:
    if name not in _MODELS:
        raise ConfigError(f"must be one of {', '.join(TABLE_NAMES)}", key="table", value=name)
    table = _MODELS[name].__table__
    assert isinstance(table, Table)
    return table


def _step(table: Table) -> Column[Any]:
    return table.c["first_env_step" if "first_env_step" in table.c else "env_step"]


def _last_step(db: Database, name: TableName, run_id: str) -> int:
    """Find where the read ends: rows that come later belong to the next one."""
    table = _table(name)
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none()
        if name == "transitions" and reached and not has_transitions(connection, run_id):
            raise StorageError(
                f"The transitions of run {run_id} are not in this database: they were thinned away or left out of a "
                "bundle. Their sums over 1,000 steps are what its gate chart shows.",
                reason="removed",
                subject=run_id,
            )
        last = select(func.max(_step(table))).where(table.c.run_id == run_id)
        return connection.execute(last).scalar() or 0


def _read(
    db: Database,
    name: TableName,
    run_id: str,
    *,
    fields: tuple[Field, ...],
    since: int,
    end: int,
    names: Sequence[str],
    rows: int,
) -> Iterator[Part]:
    table = _table(name)
    of_run = [table.c.run_id == run_id, _step(table) > since if since else true(), _step(table) <= end]
    key = [column for column in table.primary_key if column.name != "run_id"]
    if names:
        for metric in dict.fromkeys(names):
            yield from _read_stretch(db, table, fields, [*of_run, table.c.name == metric], [table.c.env_step], rows)
    else:
        yield from _read_stretch(db, table, fields, of_run, key, rows)


def _read_stretch(
    db: Database, table: Table, fields: tuple[Field, ...], wanted: list[Any], key: list[Column[Any]], rows: int
) -> Iterator[Part]:
    """Read by key: each part begins after the last key of the one before it."""
    columns = [*(table.c[field.name] for field in fields), *key]
    after: tuple[Any, ...] | None = None
    while True:
        further = [] if after is None else [_is_after(key, after)]
        statement = select(*columns).where(*wanted, *further).order_by(*key).limit(rows)
        with db.read() as connection:
            found = [tuple(row) for row in connection.execute(statement)]
        yield Part(fields, [row[: len(fields)] for row in found])
        if len(found) < rows:
            return
        after = found[-1][len(fields) :]


def _is_after(key: list[Column[Any]], values: tuple[Any, ...]) -> Any:
    if len(key) == 1:
        return key[0] > values[0]
    return tuple_(*key) > tuple_(*values, types=[column.type for column in key])
