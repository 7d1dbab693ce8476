"""Frames as tables in files: CSV, LaTeX, Markdown or Parquet.

A frame may say more about itself in `attrs`: `best`, cells to print in bold as [row, column name], `caption`,
`left_out`, the runs that do not count, `about`, what CSV too says below its rows though it has no caption, and
`numbers`, what quoted cells are made of. Files that a program reads, CSV
and Parquet, have those numbers in columns of their own right after the quoted text: "3m" is followed by "3m value",
"3m low", "3m high", "3m n", "3m statistic" and "3m interval".
A column named "3m · 0.8M" stands under the head "3m" in LaTeX. What lives here: formats. What does not: which rows
a table needs (`app.analysis`).
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
class Number:
    """What a quoted cell is made of; None where there is none of it."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | str = ""
    """How many seeds it is of; of two variants both, "3 and 5"."""
    statistic: str = ""
    """What the value is: "mean over seeds"."""
    interval: str = ""
    """What low and high are."""


class Cell(str):
    """A quoted cell that knows its number."""

    __slots__ = ("number",)
    number: Number

    def __new__(cls, text: str, number: Number) -> "Cell":
        """Write the text; the number goes along with it."""
        cell = super().__new__(cls, text)
        cell.number = number
        return cell

    def followed_by(self, text: str) -> "Cell":
        """Write more behind it."""
        return Cell(f"{self}{text}", self.number)


def describe_table(
    frame: pd.DataFrame,
    *,
    caption: str,
    best: Sequence[tuple[int, str]] = (),
    left_out: Sequence[str] = (),
    about: Sequence[str] = (),
    cells: Mapping[str, Sequence[object]] | None = None,
) -> pd.DataFrame:
    """Give a frame its caption, its best cells as (row, column name), and the runs that do not count, with why.

    Sentences `about` its runs stand below the rows of CSV, which has no caption. All of it travels with the frame into
    the files, and so do the numbers of those `cells`, by column, that are quoted: in the frame itself they become plain
    text.
    """
    numbers = {
        name: [list(astuple(cell.number)) if isinstance(cell, Cell) else None for cell in column]
        for name, column in (cells or {}).items()
        if any(isinstance(cell, Cell) for cell in column)
    }
    for name in numbers:
        plain = [str(each) if isinstance(each, Cell) else each for each in frame[name]]
        frame[name] = pd.Series(plain, index=frame.index, dtype=frame[name].dtype)
    bold = [[row, name] for row, name in best]
    frame.attrs = {"caption": caption, "best": bold, "left_out": list(left_out)}
    frame.attrs["about"] = [text for text in about if text]
    if numbers:
        frame.attrs["numbers"] = numbers
    return frame


def with_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the numbers of quoted cells into columns of their own, right after each quoted column."""
    known: Mapping[str, Sequence[Sequence[object] | None]] = frame.attrs.get("numbers", {})
    columns: dict[str, pd.Series] = {}
    for name in frame.columns:
        columns[name] = pd.Series(frame[name])
        for place, part in enumerate(fields(Number) if name in known else ()):
            values = [row[place] if row else None for row in known[name]]
            is_number = part.name in ("value", "low", "high")
            kept = values if is_number else [value or None for value in values]
            kind = "float64" if is_number else "object"
            columns[f"{name} {part.name}"] = pd.Series(kept, index=frame.index, dtype=kind)
    return pd.DataFrame(columns) if known else frame


def writes_parquet() -> bool:
    """Whether this machine has what writes Parquet."""
    return importlib.util.find_spec("pyarrow") is not None


def left_out_lines(frame: pd.DataFrame) -> list[str]:
    """The lines below a table on which runs were left out of it; nothing if none was."""
    runs = [str(text) for text in frame.attrs.get("left_out", ())]
    return [f"Left out: {len(runs)} run{'s' if len(runs) > 1 else ''} of those chosen.", *runs] if runs else []


def export_table(frame: pd.DataFrame, format: TableFormat) -> bytes:
    """Write a table in one format.

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
    """List the cells that stand in bold, as (row, column name)."""
    return {(row, name) for row, name in frame.attrs.get("best", [])}


def _remarks(frame: pd.DataFrame) -> str:
    """Write what is said as comment lines without a comma, so that a reader of CSV sees one field in each."""
    plain = str.maketrans("", "", ',"')
    lines = [*map(str, frame.attrs.get("about", ())), *left_out_lines(frame)]
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
    said = [str(frame.attrs["caption"])] if frame.attrs.get("caption") else []
    said += [("- " if place else "") + _one_line(text) for place, text in enumerate(left_out_lines(frame))]
    return f"{text}\n" + "".join(f"{each}\n" for each in said) if said else text


def _latex(frame: pd.DataFrame) -> str:
    comment = [f"% {line}" for line in str(frame.attrs.get("caption", "")).splitlines()]
    remarks = [f"% {_one_line(line)}" for line in left_out_lines(frame)]
    return "\n".join([*comment, _tabular(frame), *remarks]) + "\n"


def _tabular(frame: pd.DataFrame) -> str:
    """Let pandas write the frame; a rule stands under each name that spans columns."""
    best = best_cells(frame)
    rows = [
        [_escape(cell, bold=(i, name) in best) for cell, name in zip(row, frame, strict=True)]
        for i, row in enumerate(_texts(frame))
    ]
    parts = [name.split(NESTED, 1) if NESTED in name else ["", name] for name in frame]
    heads = [(_escape(above), _escape(below)) for above, below in parts]
    is_nested = any(above for above, _ in heads)
    written = pd.DataFrame(rows, columns=pd.MultiIndex.from_tuples(heads) if is_nested else [name for _, name in heads])
    form = "l" * len(heads)
    text = written.to_latex(index=False, escape=False, column_format=form, multicolumn_format="c").rstrip("\n")
    spans = [list(members) for _, members in groupby(enumerate(heads, 1), key=lambda head: head[1][0])]
    rules = [rf"\cmidrule(lr){{{span[0][0]}-{span[-1][0]}}}" for span in spans if span[0][1][0]]
    return text.replace("\\\\\n", f"\\\\\n{' '.join(rules)}\n", 1) if is_nested else text


def _escape(text: str, *, bold: bool = False) -> str:
    escaped = text.translate(_LATEX)
    return rf"\textbf{{{escaped}}}" if bold else escaped
