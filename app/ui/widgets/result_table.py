"""A table of results as text with its best cells in bold, and its download buttons."""

from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.tables import TABLE_FORMATS, TABLE_MIME, TABLE_SUFFIX, Table, TableFormat, export_table

SHOWN = 5
"""A longer list of runs is folded."""
PERCENT = "%.0f %%"
"""Format of columns of percentages, equal to `app.analysis.format.format_percent`."""

_UNBROKEN = (" ± ", " = ", " of ", " and ", " pair")
"""Texts without a line break, so that a number stays together with its band and its count."""

_LABELS: dict[TableFormat, str] = {
    "csv": "CSV",
    "latex": "LaTeX, booktabs",
    "markdown": "Markdown",
    "parquet": "Parquet",
}


def show(table: Table, *, key: str, stem: str) -> None:
    """Draw the table with its caption, its download buttons and the excluded runs."""
    caption, files = st.columns([7, 1], vertical_alignment="bottom")
    caption.caption(escape_markdown(table.caption))
    with files.container(horizontal=True, horizontal_alignment="right"):
        download(table, key=key, stem=stem)
    st.markdown(to_markdown(table))
    show_excluded(table)


def show_excluded(table: Table) -> None:
    """List the runs that are not in the table, with the reasons; a long list is folded."""
    lines = table.excluded_lines
    if not lines:
        return
    head, *runs = map(escape_markdown, lines)
    text = "\n".join(f"- {run}" for run in runs)
    if len(runs) <= SHOWN:
        st.caption(f"{head}\n{text}")
    else:
        with st.expander(head):
            st.caption(text)


def download(table: Table, *, key: str, stem: str) -> None:
    """Draw a popover with a download button for each format."""
    with st.popover("Table", icon=":material/download:", key=f"{key}-files"):
        for format in TABLE_FORMATS:
            st.download_button(
                _LABELS[format],
                data=partial(export_table, table, format),
                file_name=f"{stem}.{TABLE_SUFFIX[format]}",
                mime=TABLE_MIME[format],
                key=f"{key}-{format}",
                on_click="ignore",
                width="stretch",
            )


def to_markdown(
    table: Table, *, titles: Sequence[str] | None = None, markdown: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Write the table as Markdown. The text of its cells is escaped.

    Args:
        table: The table.
        titles: Titles of the columns to write. Default: all columns.
        markdown: Cells that are Markdown, by the title of the column. They are not escaped.
    """
    frame = table.frame
    titles = titles or [str(title) for title in frame.columns]

    def write_cell(row: int, title: str) -> str:
        if markdown and title in markdown:
            return markdown[title][row]
        text = escape_markdown(str(frame[title].iloc[row]))
        for unbroken in _UNBROKEN if title != frame.columns[0] else ():
            text = text.replace(unbroken, unbroken.replace(" ", "\u00a0"))
        return f"**{text}**" if (row, title) in table.best else text

    head = ["| " + " | ".join(map(escape_markdown, titles)) + " |", "|" + "---|" * len(titles)]
    rows = ("| " + " | ".join(write_cell(row, title) for title in titles) + " |" for row in range(len(frame)))
    return "\n".join([*head, *rows])
