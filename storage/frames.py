"""Rows → typed frames: an empty answer has the same columns and types as a full one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.sql import Select
from sqlalchemy.types import Boolean, Double, Integer, TypeEngine

from emtc_core.errors import StorageError
from storage.column_types import UtcDateTime, unguarded
from storage.guards import shorten

if TYPE_CHECKING:  # loaded with the first frame: much of what is asked in a terminal needs none
    import pandas as pd

Statement: TypeAlias = "Select[*tuple[Any, ...]]"
"""A select of any columns."""


@dataclass(frozen=True)
class Field:
    """One column of a frame."""

    name: str
    kind: TypeEngine[Any]
    nullable: bool = False
    """Whether whole numbers may be missing, whatever these rows hold: then they are Int64 in every part of a table."""


def read_frame(connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a statement into a frame whose column types come from the statement, not from the data.

    Integers are int64, or Int64 where a value is missing; floats float64 with NaN for NULL; times aware
    UTC.

    Raises:
        StorageError: If the database holds something else in a column.
    """
    rows = connection.execute(statement).all()
    return make_frame(_fields_of(statement), rows)


def empty_frame(statement: Statement) -> pd.DataFrame:
    """Lay out a statement's answer of no rows, without asking."""
    return make_frame(_fields_of(statement), [])


def _fields_of(statement: Statement) -> list[Field]:
    return [Field(column.name, unguarded(column.type)) for column in statement.selected_columns]


def make_frame(fields: Sequence[Field], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Lay rows out under their columns, as `read_frame` does.

    Raises:
        StorageError: If a value is not of its column's kind.
    """
    import pandas as pd

    values = zip(*rows, strict=True) if rows else ([] for _ in fields)
    return pd.DataFrame(
        {field.name: _checked(field, list(column)) for field, column in zip(fields, values, strict=True)}
    )


def join_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Join the frames of the parts of one answer, as `in_parts` cut the question; the types stay those of the first."""
    import pandas as pd

    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


def in_parts(ids: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """Cut ids into parts, at least one: databases limit the parameters of one statement."""
    return (ids[first : first + size] for first in range(0, max(1, len(ids)), size))


def wrong_value(name: str, values: Sequence[Any]) -> StorageError:
    """The error about a column that holds something else than it should."""
    strange = next((value for value in values if isinstance(value, str | bytes)), "something")
    return StorageError(
        f"The database holds {shorten(strange)} in a column {name} of numbers or times. "
        "See what else is wrong with it: emtc db check",
        reason="damaged",
        subject=name,
    )


def _checked(field: Field, values: list[Any]) -> pd.Series:
    try:
        return _series(field, values)
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong_value(field.name, values) from error


def _series(field: Field, values: list[Any]) -> pd.Series:
    import pandas as pd

    if isinstance(field.kind, UtcDateTime):
        return pd.Series(pd.to_datetime(values, utc=True), dtype="datetime64[us, UTC]")
    return pd.Series(values, dtype=_dtype(field, values))


def _dtype(field: Field, values: list[Any]) -> str:
    kind = field.kind
    if isinstance(kind, Boolean):
        return "bool"
    if isinstance(kind, Integer):
        return "Int64" if field.nullable or None in values else "int64"
    if isinstance(kind, Double):
        return "float64"
    return "object"
