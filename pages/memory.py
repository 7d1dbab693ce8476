"""Memory: which states does the episodic memory of this run contain, and which episode wrote each of them?

A map shows the nodes (stored states) of a snapshot at two coordinates. The page has one map, or two next to each other.
`embedding_quality_panel` shows whether the embedding has collapsed, that is, whether nearby states still have similar
returns.
`point_panel` shows the clicked node, and `selection_panel` the nodes that a lasso or ranges of values select.
"""

import streamlit as st

from app.ui import messages
from app.ui.memory import embedding_quality_panel, point_panel, selection_panel, snapshot_map
from app.ui.memory.snapshot_map import FIRST_MAP, MapChoice
from app.ui.widgets import pin, run_header
from storage.runs.rows import RunRow


def draw(run: RunRow) -> None:
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        choice = snapshot_map.choose_map(run, FIRST_MAP)  # None if the run has no snapshot
        has_two_maps = choice is not None and snapshot_map.is_second_map_on()
    if choice is None:
        return
    if has_two_maps:
        draw_two_maps(run, choice)
    else:
        draw_one_map(choice)
    pin.show_more_figures("memory", [run])


def draw_one_map(choice: MapChoice) -> None:
    memory_map = snapshot_map.make_map(choice)
    left, right = st.columns([11, 9], gap="medium")
    with left:
        snapshot_map.draw_map(memory_map)
    with right:
        side_panel = st.empty()
        point_panel.show([memory_map])
    selection_panel.show(memory_map, side_panel)
    embedding_quality_panel.show(memory_map)


def draw_two_maps(run: RunRow, first: MapChoice) -> None:
    second = snapshot_map.choose_second_map(run, first)
    maps = [snapshot_map.make_map(choice) for choice in (first, second) if choice is not None]
    others = [second, first]  # the map with which each map shares color and selection
    for memory_map, other, column in zip(maps, others, st.columns(2, gap="medium"), strict=False):
        with column:
            snapshot_map.draw_map(memory_map, other)
            embedding_quality_panel.show(memory_map)
    point_panel.show(maps)
    selection_panel.show(maps[0])


run = run_header.open_page("Memory")
with messages.guarded():
    draw(run)
