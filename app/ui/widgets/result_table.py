"""A result table as Markdown with the best values in bold, and its downloads."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st
from pandas.api.types import infer_dtype

from app.analysis.format import escape_markdown, write_minus_signs
from app.analysis.tables import (
    ROWS_ONLY,
    TABLE_FORMATS,
    TABLE_MIME,
    TABLE_SUFFIX,
    Cell,
    Table,
    TableFormat,
    export_table,
)
from app.ui.widgets import files

MAX_UNFOLDED = 5
"""Maximum number of lines of a list that is drawn without an expander."""
PERCENT = "%.0f %%"
"""Format of a data frame column with whole percentages: "12 %", with a space as in `format_percent`, unlike Streamlit's
percent format. Several pages use this format and the next one."""
RATE = "%.3g %%"
"""Format of a data frame column with percentages of three significant digits: "12.3 %"."""
_NO_BREAK = (" ± ", " = ", " of ", " and ", " pair", " seed")
"""Texts whose spaces become non-breaking, so that a value, its spread and its count stay on one line."""
_END_OF_TITLE = re.compile("[:.] ")
"""The title of a table is the start of its caption, to the first colon or full stop."""
_LABELS: dict[TableFormat, str] = {
    "csv": "CSV",
    "latex": "LaTeX",
    "markdown": "Markdown",
    "parquet": "Parquet",
}


def number_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the number formats of a data frame, by column: 10 significant digits, or 7 if the type is float32.

    Only columns of floating-point or decimal numbers get a format. Without it, Streamlit shows four digits after the
    point, which leaves few digits of a small number.
    """
    formats = {}
    for name, values in frame.items():
        if infer_dtype(values) in ("floating", "mixed-integer-float", "decimal"):
            digits = 7 if values.dtype == np.float32 else 10
            formats[str(name)] = st.column_config.NumberColumn(format=f"%.{digits}g")
    return formats


def make_text_frame(table: Table) -> pd.DataFrame:
    """Return the rows of a table for the page. Its texts have minus signs instead of hyphens; files keep hyphens."""
    return table.frame.map(lambda cell: write_minus_signs(cell) if isinstance(cell, str) else cell)


def make_number_frame(table: Table) -> pd.DataFrame:
    """Return the rows with numbers instead of formatted cells, so that a data frame sorts them as numbers.

    The column "estimate" becomes a column of numbers. The ends of its interval, if there are any, become the columns
    "estimate low" and "estimate high".
    """
    columns: dict[str, pd.Series] = {}
    for title in table.frame.columns:
        cells = table.cells.get(title)
        if cells is None:
            columns[title] = pd.Series(table.frame[title])
            continue
        columns[title] = _read_numbers(cells, "value")
        for end in ("low", "high"):
            numbers = _read_numbers(cells, end)
            if numbers.count():  # without missing numbers
                columns[f"{title} {end}"] = numbers
    return pd.DataFrame(columns)


def show(table: Table, *, key: str, stem: str, titles: Sequence[str] = ()) -> None:
    """Draw the table with its title, downloads and excluded runs. The tooltip of the title is the caption.

    Args:
        table: The table.
        key: Unique among the tables of the page.
        stem: Name of the files.
        titles: Titles of the columns on the page. Default: all columns. Files have all columns.
    """
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        title = _END_OF_TITLE.split(table.caption, maxsplit=1)[0]
        st.markdown(
            f"**{escape_markdown(write_minus_signs(title))}**",
            help=escape_markdown(write_minus_signs(table.caption)),
            width="content",
        )
        download(table, key=key, stem=stem)
    st.markdown(to_markdown(table, titles=titles))
    show_excluded(table)


def show_excluded(table: Table) -> None:
    """List the runs that are not in the table, with the reasons; draw a long list in an expander."""
    lines = table.excluded_lines  # the first line is a title, each other line is a run
    if not lines:
        return
    title, *runs = map(escape_markdown, lines)
    text = "\n".join(f"- {run}" for run in runs)
    if len(runs) <= MAX_UNFOLDED:
        st.caption(f"{title}\n{text}")
    else:
        with st.expander(title):
            st.caption(text)


def download(table: Table, *, key: str, stem: str) -> None:
    """Draw the button *LaTeX*, and a box with a button for each other format.

    A file is made when its button is pressed.
    """

    def show_button(format: TableFormat, label: str, **options: Any) -> None:
        files.button(
            label,
            partial(export_table, table, format),
            file_name=f"{stem}.{TABLE_SUFFIX[format]}",
            mime=TABLE_MIME[format],
            key=f"{key}-{format}",
            **options,
        )

    with st.container(key=f"table-files-{key}", horizontal=True, width="content", gap=None):
        show_button("latex", _LABELS["latex"], icon=":material/download:", help="Table for the package booktabs")
        with st.popover("Table", icon=":material/more_horiz:", key=f"{key}-files", help="Table in other formats"):
            for format in TABLE_FORMATS:
                if format != "latex":
                    show_button(format, _LABELS[format], width="stretch")
            # the formats in `ROWS_ONLY` have no place for notes
            show_notes(table.notes, formats=" and ".join(_LABELS[format] for format in ROWS_ONLY))


def show_notes(notes: str, *, formats: str) -> None:
    """Draw the notes that the files of some formats do not contain, as text that can be copied.

    Args:
        notes: The notes.
        formats: Names of these formats.
    """
    st.caption(f"{formats} files contain only the rows. Their notes:")
    st.code(notes, language=None, wrap_lines=True)


def to_markdown(
    table: Table, *, titles: Sequence[str] = (), markdown_cells: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return the table as Markdown text. The text of cells is escaped.

    Args:
        table: The table.
        titles: Titles of the columns. Default: all columns.
        markdown_cells: Column title → cells that are already Markdown, with icons or colors. They are not escaped.
    """
    frame = table.frame

    def write_cell(row: int, name: str) -> str:
        if markdown_cells and name in markdown_cells:
            return markdown_cells[name][row]
        text = str(frame[name].iloc[row])
        is_value = name != frame.columns[0]  # the first column contains names, which may wrap
        text = escape_markdown(write_minus_signs(text) if is_value else text)
        if is_value:
            for words in _NO_BREAK:
                text = text.replace(words, words.replace(" ", "\u00a0"))
        return f"**{text}**" if (row, name) in table.best else text

    names = titles or [str(title) for title in frame.columns]
    rows = ([write_cell(row, name) for name in names] for row in range(len(frame)))
    return write_table([escape_markdown(name) for name in names], rows)


def write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown text. Its cells are Markdown already and are not escaped."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *others])


def _read_numbers(cells: Sequence[Cell | None], name: Literal["value", "low", "high"]) -> pd.Series:
    """Read one number of each cell; NaN if it does not exist."""
    return pd.Series([None if cell is None else getattr(cell, name) for cell in cells], dtype="float64")
