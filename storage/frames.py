"""Rows → typed frames: an empty answer has the same columns and types as a full one."""

from typing import Any, TypeAlias

import pandas as pd
from sqlalchemy import Connection
from sqlalchemy.sql import Select
from sqlalchemy.types import Boolean, Double, Integer, TypeEngine

from emtc_core.errors import StorageError
from storage.guards import shorten, unguarded
from storage.models import UtcDateTime

Statement: TypeAlias = "Select[*tuple[Any, ...]]"
"""A select of any columns."""


def read_frame(connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a statement into a frame whose column types come from the statement, not from the data.

    Integers are int64, or Int64 where a value is missing; floats float64 with NaN for NULL; times aware
    UTC.

    Raises:
        StorageError: If the database holds something else in a column.
    """
    rows = connection.execute(statement).all()
    columns = [(column.name, unguarded(column.type)) for column in statement.selected_columns]
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    return pd.DataFrame(
        {name: _checked(name, list(column), kind) for (name, kind), column in zip(columns, values, strict=True)}
    )


def _checked(name: str, values: list[Any], kind: TypeEngine[Any]) -> pd.Series:
    try:
        return _series(values, kind)
    except (ValueError, TypeError, OverflowError) as error:
        strange = next((value for value in values if isinstance(value, str | bytes)), "something")
        raise StorageError(
            f"The database holds {shorten(strange)} in a column {name} of numbers or times. "
            "See what else is wrong with it: emtc db check"
        ) from error


def _series(values: list[Any], kind: TypeEngine[Any]) -> pd.Series:
    if isinstance(kind, UtcDateTime):
        return pd.Series(pd.to_datetime(values, utc=True), dtype="datetime64[us, UTC]")
    return pd.Series(values, dtype=_dtype(values, kind))


def _dtype(values: list[Any], kind: TypeEngine[Any]) -> str:
    if isinstance(kind, Boolean):
        return "bool"
    if isinstance(kind, Integer):
        return "Int64" if None in values else "int64"
    if isinstance(kind, Double):
        return "float64"
    return "object"
