"""What tables are made of: their base, the columns that many have, and types whose values are checked as they are read.

`storage.models` puts the guard around its columns. The bulk tables are read column by column in `storage.frames`, which
checks the same way. What a good value is in words and patterns is in `storage.guards`, which a command can import
without SQLAlchemy.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, Double, ForeignKey, Integer, LargeBinary, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from storage.guards import IDENTIFIER, LONGEST_NAME, damaged

_IDENTIFIERS = frozenset({"runs.id", "runs.sweep_id", "runs.parent_id", "sweeps.id"})
_BULK = frozenset({"episodes", "transitions", "transition_summary", "metrics", "gate_stats", "evaluations"})
_STATUSES = ("queued", "running", "paused", "finished", "stopped", "failed")
_SHORT = frozenset({"runs.name", "runs.env", "runs.map", "runs.algo", "runs.host", "runs.device", "sweeps.name"})
_DEEPEST = 64


class Guarded(TypeDecorator[Any]):
    """A column's own type, whose values are checked as they are read; what is written stays as it was."""

    impl = String
    cache_ok = True

    def __init__(self, inner: TypeEngine[Any], column: str, nullable: bool) -> None:
        """Guard a type; `column` is named in the sentence about a bad value."""
        super().__init__()
        self.impl = inner  # pyright: ignore[reportAttributeAccessIssue] - an instance instead of the class's
        self.column, self.nullable = column, nullable

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Compare as the guarded type does."""
        return self.impl_instance.coerce_compared_value(op, value)

    def result_processor(  # pyright: ignore[reportIncompatibleMethodOverride] - a protocol that nobody can name
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], Any]:
        """Read with the guarded type, then look at what came out."""
        decode = self.impl_instance.result_processor(dialect, coltype)
        column, nullable = self.column, self.nullable
        is_valid, expected = _rule(self.impl_instance, column)

        def read(value: Any) -> Any:
            stored = value
            try:
                value = decode(stored) if decode else stored
            except (ValueError, TypeError, RecursionError) as error:
                raise damaged(column, stored, expected) from error
            if value is None and (stored is None or nullable):  # stored NULL, or null in JSON
                return None
            if not is_valid(value) or (isinstance(value, dict | list) and _is_deep(value, str(stored))):
                raise damaged(column, value, expected)
            return value

        return read


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite, which has no time type, gets it as naive UTC text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone; store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"times must carry a zone, got {value!r}")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back an aware UTC time."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Parent of all mapped classes."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this attribute as it stands
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
        bytes: LargeBinary,
    }


def run_key() -> Mapped[str]:
    """A run's id as a part of the key."""
    return mapped_column(String(12), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def run_column() -> Mapped[str]:
    """A run's id beside a key of the row's own."""
    return mapped_column(String(12), ForeignKey("runs.id", ondelete="CASCADE"))


def serial() -> Mapped[int]:
    """A row's number, given by the database."""
    return mapped_column(Integer, primary_key=True, autoincrement=True)


def guard_columns(metadata: MetaData) -> None:
    """Check what is read from every column of the small tables."""
    for table in metadata.tables.values():
        for column in table.columns if table.name not in _BULK else ():
            if not isinstance(column.type, Guarded):
                column.type = Guarded(column.type, f"{table.name}.{column.name}", bool(column.nullable))


def is_identifier(column: str) -> bool:
    """Whether a column, as "runs.id", holds the id of a run or of a sweep."""
    return column in _IDENTIFIERS or column.endswith(".run_id")


def is_guarded(column: Column[Any]) -> bool:
    """Whether what is read from a column is checked."""
    return isinstance(column.type, Guarded)


def unguarded(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type that a guard stands around, or the type itself."""
    return kind.impl_instance if isinstance(kind, Guarded) else kind


def _rule(kind: TypeEngine[Any], column: str) -> tuple[Callable[[Any], bool], str]:
    """Find what the values of a column must be, as a test and in words."""
    if is_identifier(column):
        return _is_identifier, "1 to 12 letters, digits, - and _"
    if column == "runs.status":
        return lambda value: value in _STATUSES, f"one of {', '.join(_STATUSES)}"
    if isinstance(kind, JSON):
        if column == "runs.tags":
            return _is_texts, "a JSON list of texts"
        return _is_object, f"a JSON object of at most {_DEEPEST} levels"
    if isinstance(kind, String):
        most = longest(column)
        return (_is_text, "text") if most is None else (_is_short, f"text of at most {most:,} characters")
    if isinstance(kind, Integer | BigInteger):
        return _is_whole, "a whole number"
    if isinstance(kind, Double):
        return _is_number, "a number"
    if isinstance(kind, UtcDateTime):
        return _is_time, "a time"
    return lambda value: True, "readable"


def _is_deep(value: Any, stored: str) -> bool:
    """Whether a value is nested deeper than anything that this program writes or could walk through."""
    if stored.count("{") + stored.count("[") <= _DEEPEST:
        return False
    level = [value]
    for _ in range(_DEEPEST):
        parents = [each for each in level if isinstance(each, dict | list)]
        level = [child for each in parents for child in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, dict | list) for each in level)


def _is_identifier(value: Any) -> bool:
    return isinstance(value, str) and IDENTIFIER.fullmatch(value) is not None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def longest(column: str) -> int | None:
    """How long the text in a column, as "runs.name", may be; None: as long as it wants."""
    return LONGEST_NAME if column in _SHORT else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _is_whole(value: Any) -> bool:
    return isinstance(value, int)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime)
