"""Base class and common columns of the tables, and column types that validate values when they are read.

`storage.models` calls `guard_columns` for its tables. The bulk tables are not guarded; `storage.frames` validates their
values column by column. A read validates only what code relies on; `storage.check_rows` also checks the Limits of each
column. Patterns are in `storage.guards`, which does not import SQLAlchemy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, Double, ForeignKey, Integer, LargeBinary, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from storage.guards import IDENTIFIER, MAX_NAME_LENGTH, make_damage_error

_ID_COLUMNS = frozenset({"runs.id", "runs.sweep_id", "runs.parent_id", "sweeps.id"})
_BULK_TABLES = frozenset({"episodes", "transitions", "transition_summary", "metrics", "gate_stats", "evaluations"})
"""Large tables, whose values are not checked one by one."""
_STATUSES = ("queued", "running", "paused", "finished", "stopped", "failed")
_LIMITED_COLUMNS = frozenset(
    {"runs.name", "runs.env", "runs.map", "runs.algo", "runs.host", "runs.device", "sweeps.name"}
)
"""Columns whose texts have at most MAX_NAME_LENGTH characters."""
_TYPE_NAMES = {
    "BigInteger": "integer",
    "Integer": "integer",
    "Double": "real",
    "Boolean": "boolean",
    "UtcDateTime": "time",
    "JSON": "JSON",
}
_MAX_DEPTH = 64
"""Maximum nesting of JSON values. This program writes less."""


USE = "use"
"""Key of the ColumnUse in the `info` of a column."""


@dataclass(frozen=True)
class ColumnUse:
    """Where a column of `runs` is used. By default it is listed and bundled, but not searched and not on Home."""

    label: str = ""
    """Heading of the column in tables, and its name in *Sort by*. Empty: its name in the database."""
    search: str = ""
    """Key of the column in searches, as in `return>2`. Empty: a search cannot compare it."""
    sort: str = ""
    """Key by which lists of runs can be sorted, as in `--sort return`. Empty: lists cannot be sorted by it."""
    has_words: bool = False
    """Whether the words of a search are looked up in it."""
    on_home: bool = False
    """Whether the table of runs on Home shows it."""
    is_listed: bool = True
    """Whether lists of runs contain it, for example `emtc runs --json`."""
    is_public: bool = True
    """Whether `db.runs()` of the Python interface returns it."""
    is_bundled: bool = True
    """Whether bundles contain it. Values that are valid on one machine or for one user are not bundled."""


LIMITS = "limits"
"""Key of the Limits in the `info` of a column."""
ROW_RULES = "row_rules"
"""Key of the rules in the `info` of a table: SQL conditions that are true or NULL for each row."""


@dataclass(frozen=True)
class Limits:
    """Range of the numbers in a column. `storage.check_rows` compares stored values with it."""

    low: float | None = None
    high: float | None = None
    is_low_excluded: bool = False
    has_infinity: bool = False
    """Whether an infinite number is allowed."""

    def allows(self, value: float) -> bool:
        """Return whether a number is in the range."""
        if math.isnan(value) or (math.isinf(value) and not self.has_infinity):
            return False
        is_low = self.low is not None and (value < self.low or (self.is_low_excluded and value == self.low))
        return not is_low and (self.high is None or value <= self.high)

    def describe(self, name: str) -> str:
        """Return the range of the column `name` as a condition, in SQL and in messages; empty if there is none."""
        if self.low is not None and self.high is not None:
            return f"{name} BETWEEN {self.low:g} AND {self.high:g}"
        if self.low is not None:
            return f"{name} {'>' if self.is_low_excluded else '>='} {self.low:g}"
        return "" if self.high is None else f"{name} <= {self.high:g}"


NO_LIMITS = Limits()
COUNT = {LIMITS: Limits(0)}
FROM_ONE = {LIMITS: Limits(1)}
POSITIVE = {LIMITS: Limits(0, is_low_excluded=True)}
FRACTION = {LIMITS: Limits(0, 1)}
"""Common values of `info`."""


class Guarded(TypeDecorator[Any]):
    """A column type that validates values when they are read. Writing is not changed."""

    impl = String
    cache_ok = True

    def __init__(self, inner: TypeEngine[Any], column: str, nullable: bool) -> None:
        """Guard the type `inner`. `column` is the name in error messages, for example runs.id."""
        super().__init__()
        self.impl = inner  # pyright: ignore[reportAttributeAccessIssue] - replaces the class attribute
        self.column, self.nullable = column, nullable

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Return the type for a compared value, as the guarded type does."""
        return self.impl_instance.coerce_compared_value(op, value)

    def result_processor(  # pyright: ignore[reportIncompatibleMethodOverride] - the type of the base class is private
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], Any]:
        """Return a function that decodes a value with the guarded type and then validates it."""
        decode = self.impl_instance.result_processor(dialect, coltype)
        column, nullable = self.column, self.nullable
        is_valid, expected = _make_rule(self.impl_instance, column)

        def read(value: Any) -> Any:
            stored = value
            try:
                value = decode(stored) if decode else stored
            except (ValueError, TypeError, RecursionError) as error:
                raise make_damage_error(column, stored, expected) from error
            if value is None and (stored is None or nullable):  # stored NULL, or null in JSON
                return None
            if not is_valid(value) or (isinstance(value, dict | list) and _is_too_deep(value, str(stored))):
                raise make_damage_error(column, value, expected)
            return value

        return read


class UtcDateTime(TypeDecorator[datetime]):
    """A UTC time with time zone. SQLite has no time type, so it stores the time as UTC text without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a time to UTC.

        Raises:
            ValueError: If the time has no time zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time must have a time zone (got {value!r})")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC, with its time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Parent of all mapped classes."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy needs a class attribute
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
        bytes: LargeBinary,
    }


def run_key() -> Mapped[str]:
    """Return a column with the id of a run that is part of the primary key."""
    return mapped_column(String(12), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def run_column() -> Mapped[str]:
    """Return a column with the id of a run that is not part of the primary key."""
    return mapped_column(String(12), ForeignKey("runs.id", ondelete="CASCADE"))


def make_id_column() -> Mapped[int]:
    """Return an integer primary key that the database generates."""
    return mapped_column(Integer, primary_key=True, autoincrement=True)


def guard_columns(metadata: MetaData) -> None:
    """Guard every column of the tables that are not bulk tables."""
    for table in metadata.tables.values():
        for column in table.columns if table.name not in _BULK_TABLES else ():
            if not isinstance(column.type, Guarded):
                column.type = Guarded(column.type, f"{table.name}.{column.name}", bool(column.nullable))


def get_use(column: Column[Any]) -> ColumnUse:
    """Return where a column of `runs` is used."""
    return column.info.get(USE, ColumnUse())


def get_limits(column: Column[Any]) -> Limits:
    """Return the range of the numbers in a column."""
    return column.info.get(LIMITS, NO_LIMITS)


def name_type(column: Column[Any]) -> str:
    """Return the type of a column for users: integer, real, boolean, text, time, JSON or blob."""
    kind = get_inner_type(column.type)
    if isinstance(kind, LargeBinary):
        return "blob"
    return _TYPE_NAMES.get(type(kind).__name__, "text")


def is_identifier(column: str) -> bool:
    """Return whether a column, for example "runs.id", contains the id of a run or of a sweep."""
    return column in _ID_COLUMNS or column.endswith(".run_id")


def is_guarded(column: Column[Any]) -> bool:
    """Return whether values of a column are validated when they are read."""
    return isinstance(column.type, Guarded)


def get_inner_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type inside a guard, or the type itself if it is not guarded."""
    return kind.impl_instance if isinstance(kind, Guarded) else kind


def _make_rule(kind: TypeEngine[Any], column: str) -> tuple[Callable[[Any], bool], str]:
    """Return a test for the values of a column, and its description for error messages."""
    if is_identifier(column):
        return (
            lambda value: isinstance(value, str) and IDENTIFIER.fullmatch(value) is not None,
            "1 to 12 letters, digits, - and _",
        )
    if column == "runs.status":
        return lambda value: value in _STATUSES, f"one of {', '.join(_STATUSES)}"
    if column == "runs.tags":
        return _is_list_of_texts, "a JSON list of texts"
    if isinstance(kind, JSON):
        return lambda value: isinstance(value, dict), f"a JSON object of at most {_MAX_DEPTH} levels"
    if isinstance(kind, String):
        limit = get_max_length(column)
        if limit is None:
            return lambda value: isinstance(value, str), "text"
        return lambda value: isinstance(value, str) and len(value) <= limit, f"text of at most {limit:,} characters"
    if isinstance(kind, Integer | BigInteger):
        return lambda value: isinstance(value, int), "a whole number"
    if isinstance(kind, Double):
        return lambda value: isinstance(value, int | float), "a number"
    if isinstance(kind, UtcDateTime):
        return lambda value: isinstance(value, datetime), "a time"
    return lambda value: True, "readable"


def _is_too_deep(value: Any, stored: str) -> bool:
    """Return whether a JSON value has more than _MAX_DEPTH levels. `stored` is its text."""
    if stored.count("{") + stored.count("[") <= _MAX_DEPTH:
        return False
    level = [value]
    for _ in range(_MAX_DEPTH):
        parents = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in parents for child in (node.values() if isinstance(node, dict) else node)]
    return any(isinstance(node, dict | list) for node in level)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def get_max_length(column: str) -> int | None:
    """Return the maximum length of a text in a column, for example "runs.name" [characters]; None: no limit."""
    return MAX_NAME_LENGTH if column in _LIMITED_COLUMNS else None
