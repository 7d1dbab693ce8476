"""The selection on the map: its size, its comparison with the other nodes, its list, and its export.

The selection is a region (lasso) and ranges of values. The URL contains both. A node is one stored state of the memory.
"""

import os
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import escape_markdown, format_count, format_number, format_percent
from app.analysis.neighborhoods import measure_neighbor_agreement
from app.analysis.samples import describe_whole
from app.analysis.selection import NodeSelection, has_coordinates, list_nodes, tabulate_selection
from app.analysis.tables import TableFormat, export_table, make_plain_table
from app.figures.named.memory_map import SelectedNodes
from app.figures.registry import draw_chart
from app.ui.memory import atlas, snapshot_map, what_if_panel
from app.ui.memory.snapshot_map import MemoryMap
from app.ui.page_state import Flag
from app.ui.widgets import canvas, files, pin
from app.ui.widgets.result_table import number_columns

_IS_AGREEMENT_OPEN = Flag("agreement", "memory")
MAX_LISTED_NODES = 1000
"""Maximum number of nodes in the list on the page. The downloaded files contain all selected nodes."""


@st.fragment
def show(memory_map: MemoryMap, side_panel: DeltaGenerator | None = None) -> None:
    """Draw the export of the map, the selection, and *What if* (`what_if_panel`).

    A new selection reruns only this fragment.

    Args:
        memory_map: The map.
        side_panel: Container next to the map for the numbers of the selection; None: they are drawn under the map.
    """
    atlas.on_event(
        {"view": snapshot_map.write_view, "select": snapshot_map.write_selection},
        channel=memory_map.choice.side.channel,
    )
    selection = snapshot_map.read_selection()
    is_selected = selection.mask(memory_map.snapshot, memory_map.coordinates)
    _show_export(memory_map, is_selected)
    sample_note = describe_whole(memory_map.snapshot)
    if sample_note:
        st.caption(escape_markdown(sample_note))
    if not selection:
        if side_panel is not None:
            side_panel.empty()
        st.caption(
            "Select a region with *Lasso*, *Box* or *Select view*, or a range of values with *Filter*. Then a table "
            "compares the selected nodes with the others."
        )
        what_if_panel.show(memory_map.choice)
        return
    with st.container() if side_panel is None else side_panel.container():
        _show_selection(memory_map, selection, is_selected)
    what_if_panel.show(memory_map.choice, np.flatnonzero(is_selected), pinned_values=memory_map.pinned_values)


def _show_export(memory_map: MemoryMap, is_selected: NDArray[np.bool_]) -> None:
    """Offer the map as a file and as an entry of the notebook."""
    run = memory_map.run
    figure = snapshot_map.make_figure(memory_map, is_selected)
    pinned_values = memory_map.pinned_values | {
        "color": figure.quantity.key,
        "drawn": snapshot_map.MAX_NODES_IN_FILE,
    }
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        stem = f"{run.id}-{memory_map.snapshot.env_step}"
        pin.show_with_export(figure, key="atlas", stem=stem, page="memory", run=run, facts=pinned_values)


def _show_selection(memory_map: MemoryMap, selection: NodeSelection, is_selected: NDArray[np.bool_]) -> None:
    """Compare the selected nodes with the others. Offer the comparison and the selected nodes as files."""
    run = memory_map.run
    snapshot = memory_map.snapshot
    is_on_map = has_coordinates(memory_map.coordinates)
    selected_rows = np.flatnonzero(is_selected)
    unit = "nodes" if snapshot.whole is None else "nodes of the sample"
    n_selected = format_count(len(selected_rows))
    n_on_map = format_count(int(is_on_map.sum()))
    st.markdown(f"##### {n_selected} of {n_on_map} {unit} selected")
    st.caption(
        escape_markdown(f"{selection.description}. The URL stores the selection; a pin stores it in the notebook.")
    )
    nodes = SelectedNodes(snapshot, is_selected, is_on_map, run.name, selection.description)
    chart = draw_chart("memory-selection", nodes)
    means = tabulate_selection(snapshot, is_selected, is_on_map)
    table = pd.DataFrame(
        {
            "": means["what"],
            "selected": means["selected"].map(format_number),
            "rest": means["rest"].map(format_number),
            "unit": means["unit"],
        }
    )
    st.dataframe(table, hide_index=True, height="content")
    with st.container(horizontal=True, gap="small"):
        _show_downloads(memory_map, selected_rows)
        pinned_values = memory_map.pinned_values
        pin.show_with_export(chart, key="selection", stem=run.id, page="memory", run=run, facts=pinned_values)
    canvas.show(chart, key="selection-curves", panel_height=84, x_name="share of nodes")
    _show_agreement(memory_map, selected_rows)


def _show_downloads(memory_map: MemoryMap, rows: NDArray[np.int64]) -> None:
    """List the first selected nodes, and offer all of them as CSV and Parquet."""

    def write_table(format: TableFormat) -> bytes:
        nodes = list_nodes(memory_map.snapshot, memory_map.coordinates, rows)
        return export_table(make_plain_table(nodes), format)

    with st.container(horizontal=True, gap="small"):
        with st.popover("List", icon=":material/table_rows:"):
            note = ""
            if len(rows) > MAX_LISTED_NODES:
                note = f". The first {format_count(MAX_LISTED_NODES)} are listed; the files contain all"
            st.caption(f"{format_count(len(rows))} nodes{note}.")
            nodes = list_nodes(memory_map.snapshot, memory_map.coordinates, rows[:MAX_LISTED_NODES])
            st.dataframe(nodes, hide_index=True, column_config=number_columns(nodes))
        stem = f"selection-{memory_map.run.id}-{memory_map.snapshot.env_step}"
        files.button(
            "CSV", partial(write_table, "csv"), file_name=f"{stem}.csv", mime="text/csv", key="selection-csv",
            icon=":material/download:",
        )  # fmt: skip
        files.button(
            "Parquet", partial(write_table, "parquet"), file_name=f"{stem}.parquet",
            mime="application/vnd.apache.parquet", key="selection-parquet", icon=":material/download:",
        )  # fmt: skip


def _show_agreement(memory_map: MemoryMap, rows: NDArray[np.int64]) -> None:
    """Draw how well the map preserves neighbors in the selection. It is computed only while the box is open."""
    box = st.expander("Can the map be trusted here?", **_IS_AGREEMENT_OPEN.bind(), icon=":material/rule:")
    if not box.open or not len(rows):
        return
    result = measure_neighbor_agreement(
        memory_map.embedded.embedding, memory_map.coordinates, rows, n_jobs=os.cpu_count() or 1
    )
    box.markdown(
        f"Share of a node's {result.k} nearest neighbors in the embedding that are also near it on the map: "
        f"**{format_percent(result.selected)}** in the selection ({format_count(result.n_selected)} nodes measured), "
        f"{format_percent(result.rest)} in the rest ({format_count(result.n_rest)} nodes measured)."
    )
