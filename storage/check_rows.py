"""Check stored rows by the declarations in `models`: type, length and limits of each column, and the rules of a table.

The same check is used for bundles, imports and `emtc db check`. All conditions are SQL, so that no row is loaded.
A table without errors is read once or twice.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Table, bindparam, inspect, text
from sqlalchemy.types import JSON, Boolean, Double, Integer, LargeBinary

from emtc_core.errors import StorageError
from storage.column_types import ROW_RULES, get_inner_type, get_limits, get_max_length
from storage.guards import shorten
from storage.models import Base

_MAX_FLOAT: Final = 1.7e308
"""Largest absolute value where infinity is not allowed."""
_MAX_TEXT_LENGTH: Final = 1 << 20
_MAX_JSON_LENGTHS: Final = {
    **dict.fromkeys(("sweeps.plan", "entries.figure", "entries.view"), 64 << 20),
    "projections.params": 100_000,
    "runs.tags": 20_000,
}
"""For JSON columns whose limit is not `_MAX_TEXT_LENGTH`."""


@dataclass(frozen=True)
class RowError:
    """A rule that at least one row of a table violates."""

    table: str
    key: str
    """Primary key of one of the rows, shortened."""
    what: str
    column: str = ""
    """The column with the invalid value; empty if several columns contradict each other."""

    def __str__(self) -> str:
        return f"{self.table}{f'.{self.column}' if self.column else ''} {self.what} (row {self.key})"


@dataclass(frozen=True)
class _Rule:
    violation: str
    """SQL condition that is true for a row that violates the rule."""
    what: str
    column: str = ""


def check_rows(connection: Connection, run_ids: Sequence[str]) -> None:
    """Check all rows of some runs.

    Raises:
        StorageError: At the first error.
    """
    if (error := next(list_row_errors(connection, run_ids), None)) is not None:
        raise StorageError(f"{error}.", reason="unsound", subject=f"{error.table}.{error.column}".rstrip("."))


def list_row_errors(connection: Connection, run_ids: Sequence[str] | None = None) -> Iterator[RowError]:
    """List the violated rules, with one example row each.

    Args:
        connection: Connection to a database of any schema version. Columns that it does not have are not checked.
        run_ids: Only rows of these runs; None checks all rows of all tables.
    """
    inspector = inspect(connection)
    tables = set(inspector.get_table_names())
    for table in Base.metadata.sorted_tables:
        selection = "1 = 1" if run_ids is None else _select_runs(table)
        if table.name not in tables or selection is None:
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        has_error = False
        for rules in (list(_list_column_rules(connection, table, columns)), list(_list_row_rules(table, columns))):
            if has_error or not rules:  # the rules of a table can fail on values of wrong types
                continue
            violation = " OR ".join(f"({rule.violation})" for rule in rules)
            has_error = _find_row(connection, table, f"{selection} AND ({violation})", run_ids) is not None
            for rule in rules if has_error else ():
                condition = f"{selection} AND ({rule.violation})"
                if row := _find_row(connection, table, condition, run_ids, column=rule.column):
                    key, value = row
                    yield RowError(table.name, key, rule.what.format(value=shorten(value)), rule.column)


def _select_runs(table: Table) -> str | None:
    """Return the SQL condition for the rows of the runs in `:runs`; None if the rows do not belong to one run."""
    if table.name == "runs":
        return "id IN :runs"
    if "run_id" in table.columns and table.name not in ("commands", "entries"):
        return "run_id IN :runs"
    return "snapshot_id IN (SELECT id FROM snapshots WHERE run_id IN :runs)" if table.name == "projections" else None


def _find_row(
    connection: Connection, table: Table, condition: str, run_ids: Sequence[str] | None, *, column: str = ""
) -> tuple[str, Any] | None:
    """Find one row for which a condition is true; return its primary key as text, and its value in a column.

    Values are cut to 100 characters in SQL, so that a huge value is not loaded. A condition is not true if it is NULL.
    """
    quote = connection.dialect.identifier_preparer.quote
    names = [*(key.name for key in table.primary_key), *([column] if column else [])]
    selected = ", ".join(f"substr(CAST({quote(name)} AS TEXT), 1, 100)" for name in names)
    statement = text(f"SELECT {selected} FROM {table.name} WHERE {condition} LIMIT 1")
    if run_ids is not None:
        statement = statement.bindparams(bindparam("runs", list(run_ids), expanding=True))
    row = connection.execute(statement).first()
    if row is None:
        return None
    n_keys = len(table.primary_key)
    return shorten("/".join(str(key) for key in row[:n_keys])), row[n_keys] if column else None


def _list_column_rules(connection: Connection, table: Table, existing: Collection[str]) -> Iterator[_Rule]:
    """List the rules for the columns of a table that exist."""
    is_sqlite = connection.dialect.name == "sqlite"
    quote = connection.dialect.identifier_preparer.quote
    for column in table.columns:
        if column.name not in existing:
            continue
        name = quote(column.name)
        kind, condition = _describe_type(column, name, is_sqlite=is_sqlite)
        limits = get_limits(column).describe(name)
        conditions = [part for part in (condition, limits) if part]
        if not conditions:
            continue
        violation = f"({' AND '.join(conditions)}) IS NOT TRUE"
        if column.nullable:
            violation = f"{name} IS NOT NULL AND {violation}"
        what = f"contains {{value}}, which must be {kind}{f' with {limits}' if limits else ''}"
        yield _Rule(violation, what, column.name)


def _list_row_rules(table: Table, existing: Collection[str]) -> Iterator[_Rule]:
    """List the rules of a table, if it has all columns of the current schema."""
    if set(existing) >= set(table.columns.keys()):
        for rule in table.info.get(ROW_RULES, ()):
            yield _Rule(f"NOT ({rule})", f"violates the rule {rule}")


def _describe_type(column: Column[Any], name: str, *, is_sqlite: bool) -> tuple[str, str]:
    """Return the description of a column's type, and the SQL condition for it, without the limits.

    PostgreSQL accepts no values of other types, so that only lengths and infinity are checked there.
    """
    kind = get_inner_type(column.type)
    if isinstance(kind, Boolean):
        return "true or false", f"typeof({name}) = 'integer' AND {name} IN (0, 1)" if is_sqlite else ""
    if isinstance(kind, Integer):
        return "a whole number", f"typeof({name}) = 'integer'" if is_sqlite else ""
    if isinstance(kind, Double):
        conditions = [f"typeof({name}) IN ('integer', 'real')"] if is_sqlite else []
        if not get_limits(column).has_infinity:
            conditions.append(f"abs({name}) <= {_MAX_FLOAT}")
        return "a number" if get_limits(column).has_infinity else "a finite number", " AND ".join(conditions)
    if isinstance(kind, LargeBinary):
        return "binary data", f"typeof({name}) = 'blob'" if is_sqlite else ""
    qualified_name = f"{column.table.name}.{column.name}"
    if isinstance(kind, JSON):
        limit = _MAX_JSON_LENGTHS.get(qualified_name, _MAX_TEXT_LENGTH)
        condition = f"typeof({name}) = 'text' AND length({name}) <= {limit} AND json_valid({name})"
        return f"JSON without NaN, of at most {limit:,} characters", condition if is_sqlite else ""
    limit = get_max_length(qualified_name) or getattr(kind, "length", None) or _MAX_TEXT_LENGTH
    condition = f"typeof({name}) = 'text' AND length({name}) <= {limit}"
    return f"text of at most {limit:,} characters", condition if is_sqlite else ""
