"""What was selected on the map: how many, what they are against the rest, the list of them, and ways to keep it.

Numbers under a map: does this embedding tell returns and success apart, and how far can the map be trusted?
"""

import os
from collections.abc import Sequence
from io import BytesIO
from math import isfinite

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app.analysis.collapse import USEFUL, USELESS, Number
from app.analysis.format import count, escape_markdown, number, percent
from app.analysis.neighborhoods import neighbor_agreement
from app.analysis.selection import Choice, describe, has_place, list_nodes
from app.figures.named.memory_map import draw_selection
from app.ui import memory_data, messages
from app.ui.memory import atlas, snapshot_map, what_if
from app.ui.memory.snapshot_map import Shown
from app.ui.widgets import curves, pin
from storage.runs.rows import RunRow


@st.fragment
def show_collapse(shown: Shown) -> None:
    """Draw the numbers once somebody opens them."""
    box = st.expander(
        "Has this embedding collapsed?", icon=":material/compress:", key=f"{shown.chosen.side.prefix}collapse",
        bind="query-params",
    )  # fmt: skip
    if not box.open:
        return
    with box, messages.guarded():
        found = memory_data.collapse(shown.embedded, shown.embedding, shown.run.config.get("memory", {}))
        st.markdown(f"**{escape_markdown(found.verdict)}**")
        layout = memory_data.faithfulness(shown.embedded, shown.coordinates, shown.plane)
        st.dataframe(tabulate_collapse([*found.numbers, *layout]), hide_index=True, height="content")
        st.caption(
            f"Yes: the whole interval of R² lies below {USELESS:g}; no: above {USEFUL:g}. 95 % percentile bootstrap "
            "over whole episodes, 1000 draws; of the embedding, whatever its projection, and below it of this map."
        )


def tabulate_collapse(numbers: Sequence[Number]) -> pd.DataFrame:
    """List the numbers by what they mean; one that nothing can be said of says so."""
    rows = [(_name(each), _say_number(each), each.unit, count(each.n)) for each in numbers]
    return pd.DataFrame(rows, columns=["what", "value [95 %]", "unit", "nodes"])


def _name(each: Number) -> str:
    return f"{each.name} {each.meaning}" if each.meaning.startswith("of the layout") else each.meaning


def _say_number(each: Number) -> str:
    if not isfinite(each.value):
        return "no such nodes" if not each.n else "not defined"
    return f"{number(each.value)} [{number(each.low)} to {number(each.high)}]"


LISTED = 1000


@st.fragment
def show(shown: Shown, beside: DeltaGenerator | None = None) -> None:
    """Offer the map as a file, and hold a selection against the rest of it; a new selection draws this part alone.

    The numbers of a selection stand in the place `beside` the map, where there is one.
    """
    atlas.hear({"view": snapshot_map.keep_view, "select": snapshot_map.keep_choice}, channel=shown.chosen.side.channel)
    asked = snapshot_map.read_choice()
    run, chosen = shown.run, asked.mask(shown.snapshot, shown.coordinates)
    _tools(run, shown, chosen)
    if not asked:
        if beside is not None:
            beside.empty()
        st.caption(
            "Select a region with *Lasso*, *Box* or *Select view*, or keep a range with *Filter*: "
            "what it holds against the rest stands beside the map then."
        )
        what_if.show(run, shown.snapshot, None)
        return
    with st.container() if beside is None else beside.container():
        _selected(run, shown, asked, chosen)
    what_if.show(run, shown.snapshot, np.flatnonzero(chosen), facts=shown.facts)


def _selected(run: RunRow, shown: Shown, asked: Choice, chosen: NDArray[np.bool_]) -> None:
    snapshot, among, rows = shown.snapshot, has_place(shown.coordinates), np.flatnonzero(chosen)
    st.markdown(f"##### {count(len(rows))} of {count(int(among.sum()))} nodes selected")
    st.caption(escape_markdown(f"{asked.words}. The address keeps it; a pin keeps it under a name in the notebook."))
    chart = draw_selection(snapshot, chosen, among, run=run.name, words=asked.words)
    st.dataframe(_as_text(describe(snapshot, chosen, among)), hide_index=True, height="content")
    with st.container(horizontal=True, gap="small"):
        _downloads(run, shown, rows)
        pin.show_with_export(chart, key="selection", stem=run.id, page="memory", run=run, facts=shown.facts)
    curves.show(chart, key="selection-curves", panel_height=84, x_name="share of nodes")
    _agreement(shown, rows)


def _tools(run: RunRow, shown: Shown, chosen: NDArray[np.bool_]) -> None:
    """Offer what the map shows now as a file or an entry of the notebook."""
    figure = snapshot_map.make_figure(shown, chosen)
    look = {"color": figure.quantity.key, "scale": list(figure.scale), "drawn": snapshot_map.MOST_IN_FILE}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(escape_markdown(figure.caption.split(". ")[0]))
        stem = f"{run.id}-{shown.snapshot.env_step}"
        pin.show_with_export(figure, key="atlas", stem=stem, page="memory", run=run, facts=shown.facts | look)


def _agreement(shown: Shown, rows: NDArray[np.int64]) -> None:
    """How far this region of the map can be trusted, once somebody asks."""
    box = st.expander("Can the map be trusted here?", key="agreement", bind="query-params", icon=":material/rule:")
    if not box.open or not len(rows):
        return
    found = neighbor_agreement(shown.embedded.embedding, shown.coordinates, rows, n_jobs=os.cpu_count() or 1)
    box.markdown(
        f"Of a node's {found.k} nearest neighbors in the embedding, the map keeps "
        f"**{percent(found.selected)}** near it in the selection ({count(found.n_selected)} nodes asked), "
        f"{percent(found.rest)} in the rest ({count(found.n_rest)} asked)."
    )


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    parts = {part: [number(value) for value in frame[part]] for part in ("selected", "rest")}
    return pd.DataFrame({"": frame["what"], **parts, "unit": frame["unit"]})


def _downloads(run: RunRow, shown: Shown, rows: NDArray[np.int64]) -> None:
    with st.container(horizontal=True, gap="small"):
        with st.popover("List", icon=":material/table_rows:"):
            more = f", the first {count(LISTED)}" if len(rows) > LISTED else ""
            st.caption(f"{count(len(rows))} nodes{more}; a file holds all of them.")
            st.dataframe(list_nodes(shown.snapshot, shown.coordinates, rows[:LISTED]), hide_index=True)
        stem = f"selection-{run.id}-{shown.snapshot.env_step}"
        st.download_button(
            "CSV", lambda: list_nodes(shown.snapshot, shown.coordinates, rows).to_csv(index=False).encode(),
            file_name=f"{stem}.csv", mime="text/csv", key="selection-csv", on_click="ignore",
            icon=":material/download:",
        )  # fmt: skip
        st.download_button(
            "Parquet", lambda: _parquet(list_nodes(shown.snapshot, shown.coordinates, rows)),
            file_name=f"{stem}.parquet", mime="application/vnd.apache.parquet", key="selection-parquet",
            on_click="ignore", icon=":material/download:",
        )  # fmt: skip


def _parquet(frame: pd.DataFrame) -> bytes:
    file = BytesIO()
    frame.to_parquet(file, index=False)
    return file.getvalue()
