"""Convert rows to typed pandas frames. An empty result has the same columns and types as any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.sql import Select
from sqlalchemy.types import Boolean, Double, Integer, TypeEngine

from storage.column_types import UtcDateTime
from storage.guards import make_unreadable_error

if TYPE_CHECKING:  # pandas is imported with the first frame, because many commands need none
    import pandas as pd

Statement: TypeAlias = "Select[*tuple[Any, ...]]"
"""A SELECT of any columns."""


@dataclass(frozen=True)
class FrameField:
    """One column of a frame."""

    name: str
    kind: TypeEngine[Any]
    nullable: bool = False
    """Whether whole numbers may be missing. Then their type is Int64, even if these rows have no missing value."""


def read_frame(connection: Connection, statement: Statement) -> pd.DataFrame:
    """Execute a statement and return a frame. The column types follow from the statement, not from the data.

    Integers are int64, or Int64 if a value is missing. Floats are float64 with NaN for NULL. Times are in UTC.

    Source: the statement.

    Args:
        connection: The connection.
        statement: A SELECT.

    Returns:
        One row per selected row, in its order; units as in `models.py` [unit varies].

    Raises:
        StorageError: If a value does not have the type of its column.
    """
    rows = connection.execute(statement).all()
    return make_frame(_fields_of(statement), rows)


def empty_frame(statement: Statement) -> pd.DataFrame:
    """Return the frame of a statement without rows. The statement is not executed.

    Source: the statement.

    Returns:
        A frame of shape [0, columns], with the types that `read_frame` describes [unit varies].
    """
    return make_frame(_fields_of(statement), [])


def _fields_of(statement: Statement) -> list[FrameField]:
    return [FrameField(column.name, column.type) for column in statement.selected_columns]


def make_frame(fields: Sequence[FrameField], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Make a frame from rows, with the types that `read_frame` describes.

    Source: implementation detail.

    Args:
        fields: The columns.
        rows: The rows, one value per column.

    Returns:
        One row per row, in the given order [unit varies].

    Raises:
        StorageError: If a value does not have the type of its column.
    """
    import pandas as pd

    values = zip(*rows, strict=True) if rows else ([] for _ in fields)
    return pd.DataFrame(
        {field.name: _make_series(field, list(column)) for field, column in zip(fields, values, strict=True)}
    )


def join_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the frames of the parts of a query; see `in_parts`.

    Source: implementation detail.

    Args:
        frames: At least one frame; all have the same columns and one row per result row [unit varies].

    Returns:
        One row per row of the frames [unit varies].
    """
    import pandas as pd

    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


def in_parts(ids: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """Split ids into parts, at least one, because databases limit the number of parameters of a statement."""
    return (ids[first : first + size] for first in range(0, max(1, len(ids)), size))


def _make_series(field: FrameField, values: list[Any]) -> pd.Series:
    import pandas as pd

    kind, dtype = field.kind, "object"
    if isinstance(kind, Boolean):
        dtype = "bool"
    elif isinstance(kind, Integer):
        dtype = "Int64" if field.nullable or None in values else "int64"
    elif isinstance(kind, Double):
        dtype = "float64"
    try:
        if isinstance(kind, UtcDateTime):
            return pd.Series(pd.to_datetime(values, utc=True), dtype="datetime64[us, UTC]")
        return pd.Series(values, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise make_unreadable_error(f"the column {field.name} contains a value of another type") from error
