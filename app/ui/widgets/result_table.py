"""A table of results as text with its best cells in bold, and its downloads."""

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.tables import (
    TABLE_FORMATS,
    TABLE_MIME,
    TABLE_SUFFIX,
    TableFormat,
    best_cells,
    export_table,
    list_excluded_lines,
)

SHOWN = 5
PERCENT = "%.0f %%"
"""How columns of percentages are written, as `app.analysis.format.percent` does; Streamlit's own has no space."""

_GLUED = (" ± ", " = ", " of ", " and ", " pair")
"""Where no line may end: between a number, its spread and its count."""

_LABELS: dict[TableFormat, str] = {
    "csv": "CSV",
    "latex": "LaTeX, booktabs",
    "markdown": "Markdown",
    "parquet": "Parquet",
}


def show(frame: pd.DataFrame, *, key: str, stem: str) -> None:
    """Draw the table, what it says and its files."""
    said, files = st.columns([7, 1], vertical_alignment="bottom")
    said.caption(escape_markdown(str(frame.attrs.get("caption", ""))))
    with files.container(horizontal=True, horizontal_alignment="right"):
        download(frame, key=key, stem=stem)
    st.markdown(to_markdown(frame))
    left_out(frame)


def left_out(frame: pd.DataFrame) -> None:
    """List the runs that the table leaves out, and why; many of them are folded."""
    lines = list_excluded_lines(frame)
    if not lines:
        return
    head, *runs = map(escape_markdown, lines)
    text = "\n".join(f"- {run}" for run in runs)
    if len(runs) <= SHOWN:
        st.caption(f"{head}\n{text}")
    else:
        with st.expander(head):
            st.caption(text)


def download(frame: pd.DataFrame, *, key: str, stem: str) -> None:
    """Offer the table in every format."""
    with st.popover("Table", icon=":material/download:", key=f"{key}-files"):
        for format in TABLE_FORMATS:
            st.download_button(
                _LABELS[format],
                data=partial(export_table, frame, format),
                file_name=f"{stem}.{TABLE_SUFFIX[format]}",
                mime=TABLE_MIME[format],
                key=f"{key}-{format}",
                on_click="ignore",
                width="stretch",
            )


def to_markdown(frame: pd.DataFrame, written: Mapping[str, Sequence[str]] | None = None) -> str:
    """Write the table as Markdown whose cells show as they are, whatever they contain.

    Args:
        frame: The table.
        written: Cells that are Markdown already, by column: those with icons or colours.
    """
    best = best_cells(frame)

    def cell(row: int, name: str) -> str:
        if written and name in written:
            return written[name][row]
        text = escape_markdown(str(frame[name].iloc[row]))
        for glued in _GLUED:
            text = text.replace(glued, glued.replace(" ", "\u00a0")) if name != frame.columns[0] else text
        return f"**{text}**" if (row, name) in best else text

    names = [str(name) for name in frame.columns]
    head = ["| " + " | ".join(map(escape_markdown, names)) + " |", "|" + "---|" * len(names)]
    return "\n".join(
        [*head, *("| " + " | ".join(cell(row, name) for name in names) + " |" for row in range(len(frame)))]
    )
