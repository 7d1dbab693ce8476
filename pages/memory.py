"""Memory: which states does this run remember, and which episode wrote each of them?"""

import streamlit as st

from app.ui import messages
from app.ui.memory import embedding_quality_panel, point_panel, selection_panel, snapshot_map
from app.ui.memory.snapshot_map import FIRST_MAP, MapChoice, MemoryMap
from app.ui.widgets import pin, run_header
from storage.runs.rows import RunRow


def draw(run: RunRow) -> None:
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        choice = snapshot_map.choose_map(run, FIRST_MAP)
        has_two_maps = choice is not None and snapshot_map.is_second_map_on()
    if choice is None:
        return
    if has_two_maps:
        selection_panel.show(draw_two(run, choice)[0])
    else:
        draw_one(choice)
    pin.show_more("memory", [run])


def draw_one(choice: MapChoice) -> None:
    left, right = st.columns([11, 9], gap="medium")
    with left:
        memory_map = snapshot_map.draw_map(choice)
    with right:
        side_panel = st.empty()
        point_panel.show([memory_map])
    embedding_quality_panel.show(memory_map)
    selection_panel.show(memory_map, side_panel)


def draw_two(run: RunRow, first: MapChoice) -> list[MemoryMap]:
    second = snapshot_map.choose_second_map(run, first)
    maps = []
    for column, choice, other in zip(st.columns(2, gap="medium"), (first, second), (second, first), strict=True):
        with column:
            if choice is not None:
                maps.append(snapshot_map.draw_map(choice, other))
                embedding_quality_panel.show(maps[-1])
    point_panel.show(maps)
    return maps


run = run_header.open_page("Memory")
with messages.guarded():
    draw(run)
