"""Export of data frames as CSV, LaTeX, Markdown or Parquet.

`frame.attrs` can contain more information on the table:

- `best`: the cells to print in bold, as [row, column name];
- `caption`;
- `left_out`: the runs that are left out, each with its reason;
- `about`: sentences that are also written below the rows of a CSV file, which has no caption;
- `numbers`: the numbers behind formatted cells.

CSV and Parquet files are read by programs. They contain these numbers in separate columns after the formatted text:
"3m" is followed by "3m value", "3m low", "3m high", "3m n", "3m statistic" and "3m interval". In LaTeX, the column
"3m · 0.8M" gets the header "0.8M" below the header "3m".
"""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import groupby
from typing import Literal, get_args

import pandas as pd

TableFormat = Literal["csv", "latex", "markdown", "parquet"]
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TABLE_SUFFIX: dict[TableFormat, str] = {"csv": "csv", "latex": "tex", "markdown": "md", "parquet": "parquet"}
TABLE_MIME: dict[TableFormat, str] = {
    "csv": "text/csv",
    "latex": "application/x-tex",
    "markdown": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
}
NO_PARQUET = "Parquet needs pyarrow. Install it with: pip install pyarrow"
MISSING = "–"
NESTED = " · "

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "_": r"\_",
        "&": r"\&",
        "%": r"\%",
        "#": r"\#",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "–": "--",
        "·": r"$\cdot$",
        "×": r"$\times$",
        "\u0304": "",
        "†": r"$^\dagger$",
        "\n": " ",
        "\r": " ",
        "Δ": r"$\Delta$",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "γ": r"$\gamma$",
        "δ": r"$\delta$",
        "ε": r"$\epsilon$",
        "λ": r"$\lambda$",
        "μ": r"$\mu$",
        "ξ": r"$\xi$",
        "ρ": r"$\rho$",
        "σ": r"$\sigma$",
        "τ": r"$\tau$",
    }
)


@dataclass(frozen=True)
class CellNumber:
    """The number behind a formatted cell; parts that do not exist are None or empty."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | str = ""
    """Number of seeds; for two variants both numbers, "3 and 5"."""
    statistic: str = ""
    """Meaning of the value: "mean over seeds"."""
    interval: str = ""
    """Meaning of low and high."""


class Cell(str):
    """The text of a formatted cell, with its number."""

    __slots__ = ("number",)
    number: CellNumber

    def __new__(cls, text: str, number: CellNumber) -> "Cell":
        """Make a cell from its text and its number."""
        cell = super().__new__(cls, text)
        cell.number = number
        return cell

    def append(self, text: str) -> "Cell":
        """Append text and keep the number."""
        return Cell(f"{self}{text}", self.number)


def set_table_attrs(
    frame: pd.DataFrame,
    *,
    caption: str,
    best: Sequence[tuple[int, str]] = (),
    excluded: Sequence[str] = (),
    about: Sequence[str] = (),
    cells: Mapping[str, Sequence[object]] | None = None,
) -> pd.DataFrame:
    """Set the `attrs` of a frame that the exported files need.

    Args:
        frame: The table; its `Cell` values are replaced by plain text.
        caption: The caption.
        best: Cells to print in bold, as (row, column name).
        excluded: Excluded runs, each with its reason.
        about: Sentences for the end of a CSV file, which has no caption.
        cells: The cells of each column; the numbers of `Cell` values are stored.
    """
    numbers = {
        name: [list(astuple(cell.number)) if isinstance(cell, Cell) else None for cell in column]
        for name, column in (cells or {}).items()
        if any(isinstance(cell, Cell) for cell in column)
    }
    for name in numbers:
        texts = [str(value) if isinstance(value, Cell) else value for value in frame[name]]
        frame[name] = pd.Series(texts, index=frame.index, dtype=frame[name].dtype)
    frame.attrs = {"caption": caption, "best": [[row, name] for row, name in best], "left_out": list(excluded)}
    frame.attrs["about"] = [text for text in about if text]
    if numbers:
        frame.attrs["numbers"] = numbers
    return frame


def with_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the numbers of formatted cells as separate columns after each formatted column."""
    numbers: Mapping[str, Sequence[Sequence[object] | None]] = frame.attrs.get("numbers", {})
    columns: dict[str, pd.Series] = {}
    for name in frame.columns:
        columns[name] = pd.Series(frame[name])
        for i, field in enumerate(fields(CellNumber) if name in numbers else ()):
            values = [row[i] if row else None for row in numbers[name]]
            is_number = field.name in ("value", "low", "high")
            if not is_number:
                values = [value or None for value in values]
            dtype = "float64" if is_number else "object"
            columns[f"{name} {field.name}"] = pd.Series(values, index=frame.index, dtype=dtype)
    return pd.DataFrame(columns) if numbers else frame


def can_write_parquet() -> bool:
    """Return whether the library that writes Parquet is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def list_excluded_lines(frame: pd.DataFrame) -> list[str]:
    """Return the lines below a table that list the excluded runs; empty if there are none."""
    runs = [str(text) for text in frame.attrs.get("left_out", ())]
    return [f"Left out: {len(runs)} selected run{'s' if len(runs) > 1 else ''}.", *runs] if runs else []


def export_table(frame: pd.DataFrame, format: TableFormat) -> bytes:
    """Write a table as a file in one format.

    Raises:
        ValueError: If the format is unknown.
    """
    if format == "csv":
        return (with_numbers(frame).to_csv(index=False) + _remarks(frame)).encode()
    if format == "markdown":
        return _markdown(frame).encode()
    if format == "latex":
        return _latex(frame).encode()
    if format == "parquet":
        buffer = io.BytesIO()
        with_numbers(frame).to_parquet(buffer, index=False)
        return buffer.getvalue()
    raise ValueError(f"format must be one of {', '.join(TABLE_FORMATS)}, got {format!r}")


def best_cells(frame: pd.DataFrame) -> set[tuple[int, str]]:
    """Return the cells to print in bold, as (row, column name)."""
    return {(row, name) for row, name in frame.attrs.get("best", [])}


def _remarks(frame: pd.DataFrame) -> str:
    """Write the notes as comment lines without commas, so that a CSV reader parses each as one field."""
    plain = str.maketrans("", "", ',"')
    lines = [*map(str, frame.attrs.get("about", ())), *list_excluded_lines(frame)]
    return "".join(f"# {_one_line(line).translate(plain)}\n" for line in lines)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _texts(frame: pd.DataFrame) -> list[list[str]]:
    return [[MISSING if pd.isna(value) else str(value) for value in row] for row in frame.itertuples(index=False)]


def _markdown(frame: pd.DataFrame) -> str:
    best = best_cells(frame)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

    rows = [
        line([f"**{cell}**" if (i, name) in best else cell for cell, name in zip(row, frame.columns, strict=True)])
        for i, row in enumerate(_texts(frame))
    ]
    text = "\n".join([line(list(frame.columns)), line(["---"] * len(frame.columns)), *rows]) + "\n"
    notes = [str(frame.attrs["caption"])] if frame.attrs.get("caption") else []
    notes += [("- " if i else "") + _one_line(note) for i, note in enumerate(list_excluded_lines(frame))]
    return f"{text}\n" + "".join(f"{note}\n" for note in notes) if notes else text


def _latex(frame: pd.DataFrame) -> str:
    comment = [f"% {line}" for line in str(frame.attrs.get("caption", "")).splitlines()]
    remarks = [f"% {_one_line(line)}" for line in list_excluded_lines(frame)]
    return "\n".join([*comment, _tabular(frame), *remarks]) + "\n"


def _tabular(frame: pd.DataFrame) -> str:
    """Write the tabular environment, with a rule below each header that spans several columns."""
    best = best_cells(frame)
    rows = [
        [_escape(cell, bold=(i, name) in best) for cell, name in zip(row, frame, strict=True)]
        for i, row in enumerate(_texts(frame))
    ]
    headers = []
    for name in frame:
        upper, separator, lower = name.partition(NESTED)
        headers.append((_escape(upper), _escape(lower)) if separator else ("", _escape(name)))
    is_nested = any(upper for upper, _ in headers)
    columns = pd.MultiIndex.from_tuples(headers) if is_nested else [lower for _, lower in headers]
    text = pd.DataFrame(rows, columns=columns).to_latex(
        index=False, escape=False, column_format="l" * len(headers), multicolumn_format="c"
    )
    text = text.rstrip("\n")
    if not is_nested:
        return text
    rules = []
    for upper, group in groupby(enumerate(headers, 1), key=lambda header: header[1][0]):
        numbers = [number for number, _ in group]
        if upper:
            rules.append(rf"\cmidrule(lr){{{numbers[0]}-{numbers[-1]}}}")
    return text.replace("\\\\\n", f"\\\\\n{' '.join(rules)}\n", 1)


def _escape(text: str, *, bold: bool = False) -> str:
    escaped = text.translate(_LATEX)
    return rf"\textbf{{{escaped}}}" if bold else escaped
