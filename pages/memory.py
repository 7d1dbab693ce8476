"""Memory: what does this run remember, and which episode wrote it?"""

import streamlit as st

from app.ui import messages
from app.ui.memory import point_panel, selection_panel, snapshot_map
from app.ui.memory.snapshot_map import FIRST, Chosen, Shown
from app.ui.widgets import pin, run_picker
from storage.runs.rows import RunRow


def draw(run: RunRow) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = snapshot_map.choose(run, FIRST)
        two = chosen is not None and snapshot_map.asked()
    if chosen is None:
        return
    if two:
        selection_panel.show(draw_two(run, chosen)[0])
    else:
        draw_one(chosen)
    pin.show_more("memory", [run])


def draw_one(chosen: Chosen) -> None:
    left, right = st.columns([11, 9], gap="medium")
    with left:
        shown = snapshot_map.show(chosen)
    with right:
        beside = st.empty()
        point_panel.show([shown])
    selection_panel.show_collapse(shown)
    selection_panel.show(shown, beside)


def draw_two(run: RunRow, chosen: Chosen) -> list[Shown]:
    beside = snapshot_map.choose_second(run, chosen)
    maps = []
    for column, one, other in zip(st.columns(2, gap="medium"), (chosen, beside), (beside, chosen), strict=True):
        with column:
            if one is not None:
                maps.append(snapshot_map.show(one, other))
                selection_panel.show_collapse(maps[-1])
    point_panel.show(maps)
    return maps


run = run_picker.open_page("Memory")
with messages.guarded():
    draw(run)
