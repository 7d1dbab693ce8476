"""One memory node: its entry, the episode that wrote it, and the replay starting at that state."""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import count, escape_markdown, number
from app.analysis.selection import QUANTITIES
from app.figures.named.trajectories import draw_trajectory
from app.ui import data, memory_data, messages, state, view
from app.ui.memory import atlas, nearest, traces
from app.ui.memory.snapshot_map import Shown
from app.ui.widgets import pin, player
from emtc_core.errors import EmtcError
from storage.queries.episodes import Trajectory
from storage.queries.memory import PointDetail
from storage.runs.rows import RunRow

MAP = "map"
_NEAREST = (
    "The nodes whose embeddings are nearest to this one's, where the memory compares them; ringed on the map too."
)
_Told = tuple[Trajectory, Trajectory | None]


@st.fragment
def show(maps: Sequence[Shown]) -> None:
    """Ask for a node when none is chosen, otherwise show everything about it; a click draws this part alone.

    Args:
        maps: The page's maps; the address says in which of them the node was clicked.
    """
    active = next((each for each in maps if each.chosen.side.prefix == state.read_text(MAP)), maps[0])
    bar = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    with bar:
        slot = _choose()
    told = _node(active, slot, bar)
    for each in maps:
        _mark(each, slot, told if each.run.id == active.run.id else None)
    for each in maps:
        atlas.hear({"pick": partial(_picked, each.chosen.side.prefix)}, channel=each.chosen.side.channel)


def _mark(shown: Shown, slot: int | None, told: _Told | None) -> None:
    """Ring the node, and draw the paths over the map, where the map is of the same memory."""
    channel = shown.chosen.side.channel
    if slot is None or told is None:
        atlas.mark(channel=channel, selected=None)
        return
    paths = traces.make_paths(shown, *told)
    near = nearest.places(shown, slot) if st.session_state.get("near") else []
    atlas.mark(channel=channel, selected=slot, at=_place(shown, slot), near=near, traces=paths, every=traces.EVERY)


def _node(shown: Shown, slot: int | None, bar: DeltaGenerator) -> _Told | None:
    """Show a node; return its episode and the one that is held against it, None without a node."""
    run = shown.run
    if slot is None:
        messages.empty("No memory is chosen.", "Click a point of the map, or type a memory id.")
        return None
    try:
        detail = memory_data.point(shown.snapshot, slot)
    except EmtcError as exc:
        messages.error(exc)
        return None
    with bar:
        _ways_on(run, detail)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"##### Memory {detail.slot}", width="stretch")
        other = traces.choose(run, shown, detail)
        near = st.toggle("Nearest", key="near", bind="query-params", help=_NEAREST)
        with st.popover("Fields", icon=":material/list:", help="Everything that is known of this memory"):
            st.dataframe(make_fields(run, detail), hide_index=True, height="content")
    if other is not None:
        traces.say(detail.trajectory, other)
    _entry(detail)
    if near:
        nearest.show(shown, detail.slot)
    _replay(run, detail)
    return detail.trajectory, other


def _picked(prefix: str, said: dict[str, Any]) -> None:
    slot = said.get("slot")
    if isinstance(slot, int):
        state.write(MAP, prefix or None)
        state.write(state.POINT, slot)


def _place(shown: Shown, slot: int) -> atlas.Place | None:
    row = shown.snapshot.row_of(slot)
    place = [] if row is None else shown.coordinates[row].tolist()
    return place if place and all(map(isfinite, place)) else None


def _choose() -> int | None:
    in_url = state.read_int(state.POINT)
    if in_url != st.session_state.get("point_seen"):
        st.session_state["point_seen"] = in_url
        st.session_state["point_typed"] = in_url
    return st.number_input(
        "Memory id",
        min_value=0,
        step=1,
        value=None,
        key="point_typed",
        on_change=_typed,
        placeholder="click, or type",
        help="The slot of a node in the episodic memory; the way to any point without a mouse.",
        width=170,
    )


def _typed() -> None:
    st.session_state["point_seen"] = st.session_state["point_typed"]
    state.write(state.POINT, st.session_state["point_typed"])


def _entry(detail: PointDetail) -> None:
    tiles = (
        ("H", number(detail.h), "Highest return-to-go ever seen from this state [return]"),
        ("ξ", QUANTITIES["xi"].words[int(detail.xi)], "Whether a successful episode passed here"),
        ("N_ξ/N_call", f"{count(detail.n_xi)} / {count(detail.n_call)}", "Successful visits of all visits"),
        ("Δ_mem", number(detail.delta_mem), "Consistency error along the stored successor [return]"),
        ("β", number(detail.beta), "Gate coefficient at the snapshot"),
        ("t", count(detail.t), "Step of the episode at which the state was met"),
    )
    with st.container(horizontal=True, gap="small"):
        for label, value, text in tiles:
            st.metric(label, value, help=text, width="content")


def _ways_on(run: RunRow, detail: PointDetail) -> None:
    """Offer the stored successor and the whole episode."""
    if detail.idx_next is not None:
        st.button(
            str(detail.idx_next),
            icon=":material/arrow_forward:",
            help="Its successor: the memory that the stored link leads to",
            on_click=state.write,
            args=(state.POINT, detail.idx_next),
        )
    st.page_link(
        "../pages/replay.py",
        label="Replay",
        icon=":material/smart_display:",
        help="Open this episode on Replay",
        width="content",
        query_params=view.link({state.RUN: run.id, state.EPISODE: str(detail.episode), state.START: str(detail.t)}),
    )


def make_fields(run: RunRow, detail: PointDetail) -> pd.DataFrame:
    """List everything that is known of a node, with units."""
    trajectory = detail.trajectory
    rows = [
        ("memory id (slot)", str(detail.slot)),
        ("run", f"{run.name} ({run.id})"),
        ("snapshot at env step", count(detail.env_step)),
        ("H [return]", number(detail.h, 6)),
        ("ξ", f"{int(detail.xi)}, {QUANTITIES['xi'].words[int(detail.xi)]}"),
        ("N_call", count(detail.n_call)),
        ("N_ξ", count(detail.n_xi)),
        ("Δ_mem at the snapshot [return]", number(detail.delta_mem, 6)),
        ("β at the snapshot", number(detail.beta, 6)),
        ("τ of the episode [return]", number(trajectory.tau, 6)),
        ("reward of the transition that last wrote it", number(detail.reward, 6)),
        ("successor (slot)", str(detail.idx_next) if detail.idx_next is not None else "none"),
        ("embedding x", "  ".join(f"{float(value):.4g}" for value in detail.embedding)),
        ("written by episode", count(detail.episode)),
        ("at step t", count(detail.t)),
        ("env step", count(trajectory.first_env_step + detail.t)),
    ]
    return pd.DataFrame(rows, columns=["field", "value"])


def _replay(run: RunRow, detail: PointDetail) -> None:
    trajectory = detail.trajectory
    outcome = "won" if trajectory.won else "not won"
    title = f"Episode {detail.episode}, {outcome}, return {number(trajectory.episode_return)}"
    chart = draw_trajectory(
        title=title, reward=trajectory.reward, h=trajectory.h, delta_mem=trajectory.delta_mem, beta=trajectory.beta
    )
    scene = data.scene(run.env, run.map, trajectory.state)
    player.show(scene, chart, key="point-replay", start=detail.t, title=title)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"**{escape_markdown(title)}**, wrote this memory at t = {detail.t}. Its path is on the map.")
        stem, facts = f"{run.id}-episode-{detail.episode}", {"episode": detail.episode}
        pin.show_with_export(chart, key="point-trajectory", stem=stem, page="memory", run=run, facts=facts)
    st.caption(escape_markdown(chart.caption))
