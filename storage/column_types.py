"""Base class and common columns of the tables, the type of times, and where a column is used."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, Double, ForeignKey, Integer, LargeBinary, String
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from storage.guards import make_unreadable_error, shorten

_TYPE_NAMES = {
    "BigInteger": "integer",
    "Integer": "integer",
    "Double": "real",
    "Boolean": "boolean",
    "UtcDateTime": "time",
    "JSON": "JSON",
}

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

    def result_processor(  # pyright: ignore[reportIncompatibleMethodOverride] - the type of the base class is private
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], Any]:
        """Return a function that reads a stored time, and raises StorageError if it is not a time."""
        read_time = super().result_processor(dialect, coltype)

        def read(value: Any) -> Any:
            try:
                return read_time(value) if read_time else value
            except (ValueError, TypeError) as error:
                raise make_unreadable_error(f"{shorten(value)} is not a time") from error

        return read


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


def get_use(column: Column[Any]) -> ColumnUse:
    """Return where a column of `runs` is used."""
    return column.info.get(USE, ColumnUse())


def name_type(column: Column[Any]) -> str:
    """Return the type of a column for users: integer, real, boolean, text, time, JSON or blob."""
    if isinstance(column.type, LargeBinary):
        return "blob"
    return _TYPE_NAMES.get(type(column.type).__name__, "text")
