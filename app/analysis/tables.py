"""Tables of results, and their export as CSV, LaTeX, Markdown or Parquet.

CSV and Parquet files contain only the rows. `emtc export` writes the caption and the runs that are left out
(`Table.notes`) to a text file next to them.

CSV and Parquet files also contain the numbers of formatted cells, in separate columns after the text: the column "3m"
is followed by "3m value", "3m low", "3m high", "3m n", "3m statistic" and "3m interval". In LaTeX, the column
"3m · 0.8M" gets the header "0.8M" below the header "3m".
"""

import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
import pandas as pd

from app.analysis.latex import write_tabular

TableFormat = Literal["csv", "latex", "markdown", "parquet"]
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TABLE_SUFFIX: dict[TableFormat, str] = {"csv": "csv", "latex": "tex", "markdown": "md", "parquet": "parquet"}
ROWS_ONLY: tuple[TableFormat, ...] = ("csv", "parquet")
"""Formats of files that contain only the rows, without the caption."""
TABLE_MIME: dict[TableFormat, str] = {
    "csv": "text/csv",
    "latex": "application/x-tex",
    "markdown": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
}
NO_PARQUET = "Parquet needs pyarrow. Install it with: pip install pyarrow"
MISSING = "–"
"""Text of a cell without a value."""
NESTED = " · "
"""Separator of the upper and the lower header in the name of a column."""
_NUMBERS: Final = ("value", "low", "high")
"""Attributes of a `Cell` that are numbers."""
_CELL_COLUMNS: Final = (*_NUMBERS, "n", "statistic", "interval")
"""Attributes of a `Cell` that become separate columns in CSV and Parquet files."""


@dataclass(frozen=True)
class Column:
    """A column: its name, its unit, and the format of its numbers."""

    name: str
    unit: str = ""
    format: str = ""
    """Format of the numbers, such as ".2f". Missing numbers are then written as `MISSING`. Empty: not formatted."""
    group: str = ""
    """Header above this column and its neighbors of the same group."""

    @property
    def title(self) -> str:
        """The name with group and unit: "3m · 0.8M", "difference [%]"."""
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.group}{NESTED if self.group else ''}{self.name}{unit}"


@dataclass(frozen=True)
class Cell:
    """A formatted cell with the numbers that its text contains; numbers that do not exist are None."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | str = ""
    """Number of seeds; for two variants both numbers, "3 and 5"."""
    statistic: str = ""
    """Meaning of the value: "mean over seeds"."""
    interval: str = ""
    """Meaning of low and high."""
    digits: int = 0
    """Digits after the decimal point of the value in the text."""
    includes_unfinished: bool = False
    """Whether a run that has not finished is included."""

    def __str__(self) -> str:
        return self.text

    def append(self, text: str, *, includes_unfinished: bool = False) -> "Cell":
        """Append text and keep the numbers."""
        return replace(
            self, text=f"{self.text}{text}", includes_unfinished=self.includes_unfinished or includes_unfinished
        )


@dataclass(frozen=True)
class Table:
    """A table: columns, rows as a data frame of texts or numbers, and caption."""

    columns: tuple[Column, ...]
    frame: pd.DataFrame
    """The rows. Its columns have the titles of `columns`."""
    caption: str = ""
    excluded: tuple[str, ...] = ()
    """Selected runs that are not in the table, each with the reason."""
    best: frozenset[tuple[int, str]] = frozenset()
    """Cells in bold, as (row, title of the column)."""
    cells: Mapping[str, Sequence[Cell | None]] = field(default_factory=dict[str, Sequence[Cell | None]])
    """The formatted cells of each column that has some, by the title of the column."""

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def excluded_lines(self) -> list[str]:
        """Lines below the table that list the excluded runs; empty if there are none."""
        if not self.excluded:
            return []
        n = len(self.excluded)
        return [f"Left out: {n} selected run{'s' if n > 1 else ''}.", *self.excluded]

    @property
    def notes(self) -> str:
        """The caption and the excluded runs, one per line, for files that have only the rows."""
        return "\n".join(filter(None, [self.caption, *self.excluded_lines]))

    def to_wide_frame(self) -> pd.DataFrame:
        """Return the frame with the numbers of formatted cells as separate columns after each formatted column."""
        if not self.cells:
            return self.frame
        columns: dict[str, pd.Series] = {}
        for title in self.frame.columns:
            columns[title] = pd.Series(self.frame[title])
            if title not in self.cells:
                continue
            for name in _CELL_COLUMNS:
                values = [None if cell is None else getattr(cell, name) for cell in self.cells[title]]
                dtype = "float64"
                if name not in _NUMBERS:
                    values = [value or None for value in values]  # an empty text is a missing value
                    dtype = "object"
                columns[f"{title} {name}"] = pd.Series(values, index=self.frame.index, dtype=dtype)
        return pd.DataFrame(columns)


def make_table(
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    excluded: Iterable[object] = (),
    best: Iterable[tuple[int, str]] = (),
) -> Table:
    """Make a table of rows.

    Args:
        columns: The columns; a text is a column without unit and format.
        rows: The values of each row, in the order of the columns: a `Cell`, a text, a number or None.
        caption: The caption.
        excluded: Selected runs that are not in the table, each with the reason.
        best: Cells in bold, as (row, title of the column).
    """
    declared = tuple(column if isinstance(column, Column) else Column(column) for column in columns)
    row_values = [list(row) for row in rows]
    texts: dict[str, pd.Series] = {}
    cells: dict[str, list[Cell | None]] = {}
    for index, column in enumerate(declared):
        values = [row[index] for row in row_values]
        texts[column.title] = _make_series([_write_value(value, column.format) for value in values])
        if any(isinstance(value, Cell) and value.value is not None for value in values):
            cells[column.title] = [value if isinstance(value, Cell) else None for value in values]
    return Table(
        declared,
        pd.DataFrame(texts, columns=pd.Index([column.title for column in declared])),
        caption,
        tuple(map(str, excluded)),
        frozenset(best),
        cells,
    )


def make_plain_table(frame: pd.DataFrame, *, caption: str = "") -> Table:
    """Make a table of a data frame without formatted cells, such as the answer of an SQL query."""
    return Table(tuple(Column(str(name)) for name in frame.columns), frame, caption)


def can_write_parquet() -> bool:
    """Return whether the library that writes Parquet is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def export_table(table: Table, format: TableFormat) -> bytes:
    """Write a table as a file in one format.

    Raises:
        ValueError: If the format is unknown.
    """
    if format == "csv":
        return table.to_wide_frame().to_csv(index=False).encode()
    if format == "markdown":
        return _write_markdown(table).encode()
    if format == "latex":
        return _write_latex(table).encode()
    if format == "parquet":
        buffer = io.BytesIO()
        table.to_wide_frame().to_parquet(buffer, index=False)
        return buffer.getvalue()
    raise ValueError(f"format must be one of {', '.join(TABLE_FORMATS)}, got {format!r}")


def _write_value(value: object, format: str) -> object:
    if isinstance(value, Cell):
        return value.text
    if not format or isinstance(value, str):
        return value
    is_number = isinstance(value, int | float | np.number) and np.isfinite(value)
    return f"{value:{format}}" if is_number else MISSING


def _make_series(values: Sequence[object]) -> pd.Series:
    """Make a column of integers, floats or texts; a column with values of several types is stored as objects."""
    types = {type(value) for value in values}
    is_uniform = types in ({int}, {float}, {str}, {str, type(None)})
    return pd.Series(values) if is_uniform else pd.Series(values, dtype="object")


def _join_lines(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _list_texts(table: Table) -> list[list[str]]:
    rows = table.frame.itertuples(index=False, name=None)
    return [[MISSING if pd.isna(value) else str(value) for value in row] for row in rows]


def _write_markdown(table: Table) -> str:
    def write_line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

    titles = [str(title) for title in table.frame.columns]
    lines = [write_line(titles), write_line(["---"] * len(titles))]
    for i, row in enumerate(_list_texts(table)):
        cells = [f"**{cell}**" if (i, title) in table.best else cell for cell, title in zip(row, titles, strict=True)]
        lines.append(write_line(cells))
    notes = [table.caption] if table.caption else []
    # the first line is the heading of the list of excluded runs
    notes += [("- " if i else "") + _join_lines(note) for i, note in enumerate(table.excluded_lines)]
    if notes:
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


def _write_latex(table: Table) -> str:
    """Write the tabular environment. The caption and the excluded runs are comments."""
    titles = list(table.frame.columns)
    headers = [(column.group, replace(column, group="").title) for column in table.columns]
    best = {(row, titles.index(title)) for row, title in table.best}
    caption = [f"% {line}" for line in table.caption.splitlines()]
    remarks = [f"% {_join_lines(line)}" for line in table.excluded_lines]
    tabular = write_tabular(headers, _list_texts(table), best=best, comments=caption)
    return "\n".join([tabular, *remarks]) + "\n"
