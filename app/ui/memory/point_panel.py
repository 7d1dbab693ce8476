"""One memory node: its entry, the episode that wrote it, the replay starting at that state, and its nearest neighbors.

Distances are those that the memory decides by: of the embedding scaled per dimension, unless `memory.delta_space` is
raw.
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app.analysis.episodes import draw_scene
from app.analysis.format import escape_markdown, format_count, format_number
from app.analysis.selection import NODE_QUANTITIES
from app.figures.named.trajectories import TITLE, Episode
from app.figures.options import make_options
from app.figures.registry import find_figure
from app.ui import memory_data, messages, state, view
from app.ui.memory import atlas, traces
from app.ui.memory.snapshot_map import Shown
from app.ui.widgets import canvas, pin
from emtc_core.errors import DataRemovedError, EmtcError
from storage.queries.episodes import Trajectory
from storage.queries.memory import NodeDetail, Snapshot
from storage.runs.rows import RunRow

MAP = "map"
_NEAREST = (
    "The nodes whose embeddings are nearest to this one's, where the memory compares them; ringed on the map too."
)
_ODD = "The node whose H stands out most from that of its neighbors in the embedding"
_Told = tuple[Trajectory | None, Trajectory | None]


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
        st.button("Oddest", icon=":material/flare:", key="oddest", on_click=_take_oddest, args=(active,), help=_ODD)
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
    own, other = told
    paths = [] if own is None else traces.make_paths(shown, own, other)
    near = places(shown, slot) if st.session_state.get("near") else []
    atlas.mark(channel=channel, selected=slot, at=_place(shown, slot), near=near, traces=paths, every=traces.EVERY)


def _node(shown: Shown, slot: int | None, bar: DeltaGenerator) -> _Told | None:
    """Show a node; return its episode and the one that is held against it, None without a node.

    Of an episode that was thinned away or left out of a bundle the memory still has what it learned.
    """
    run = shown.run
    if slot is None:
        messages.empty("No memory is chosen.", "Click a point of the map, or type a memory id.")
        return None
    try:
        detail = memory_data.point(shown.snapshot, slot)
    except DataRemovedError as exc:
        _entry(shown.snapshot, slot)
        messages.error(exc)
        return None, None
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
    _entry(shown.snapshot, detail.slot)
    if near:
        show_nearest(shown, detail.slot)
    _replay(run, detail)
    return detail.trajectory, other


def _take_oddest(shown: Shown) -> None:
    odd = memory_data.outlier(shown.snapshot.id, shown.chosen.stamp)
    if odd is not None:
        state.write(MAP, shown.chosen.side.prefix or None)
        state.write(state.POINT, odd.slot)


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


def _entry(nodes: Snapshot, slot: int) -> None:
    row = nodes.row_of(slot)
    if row is None:
        return
    visits = f"{format_count(int(nodes.n_xi[row]))} / {format_count(int(nodes.n_call[row]))}"
    tiles = (
        ("H", format_number(float(nodes.h[row])), "Highest return-to-go ever seen from this state [return]"),
        ("ξ", NODE_QUANTITIES["xi"].value_names[int(nodes.xi[row])], "Whether a successful episode passed here"),
        ("N_ξ/N_call", visits, "Successful visits of all visits"),
        ("Δ_mem", format_number(float(nodes.delta_mem[row])), "Consistency error along the stored successor [return]"),
        ("β", format_number(float(nodes.beta[row])), "Gate coefficient at the snapshot"),
        ("t", format_count(int(nodes.t[row])), "Step of the episode at which the state was met"),
    )
    with st.container(horizontal=True, gap="small"):
        for label, value, text in tiles:
            st.metric(label, value, help=text, width="content")


def _ways_on(run: RunRow, detail: NodeDetail) -> None:
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


def make_fields(run: RunRow, detail: NodeDetail) -> pd.DataFrame:
    """List everything that is known of a node, with units."""
    trajectory = detail.trajectory
    rows = [
        ("memory id (slot)", str(detail.slot)),
        ("run", f"{run.name} ({run.id})"),
        ("snapshot at env step", format_count(detail.env_step)),
        ("H [return]", format_number(detail.h, 6)),
        ("ξ", f"{int(detail.xi)}, {NODE_QUANTITIES['xi'].value_names[int(detail.xi)]}"),
        ("N_call", format_count(detail.n_call)),
        ("N_ξ", format_count(detail.n_xi)),
        ("Δ_mem at the snapshot [return]", format_number(detail.delta_mem, 6)),
        ("β at the snapshot", format_number(detail.beta, 6)),
        ("τ of the episode [return]", format_number(trajectory.tau, 6)),
        ("reward of the transition that last wrote it", format_number(detail.reward, 6)),
        ("successor (slot)", str(detail.idx_next) if detail.idx_next is not None else "none"),
        ("embedding x", "  ".join(f"{float(value):.4g}" for value in detail.embedding)),
        ("written by episode", format_count(detail.episode)),
        ("at step t", format_count(detail.t)),
        ("env step", format_count(trajectory.first_env_step + detail.t)),
    ]
    return pd.DataFrame(rows, columns=["field", "value"])


def _replay(run: RunRow, detail: NodeDetail) -> None:
    trajectory = detail.trajectory
    outcome = "won" if trajectory.won else "not won"
    title = f"Episode {detail.episode}, {outcome}, return {format_number(trajectory.episode_return)}"
    chart = find_figure("trajectory").draw(Episode(trajectory, title), make_options({TITLE: title}))
    scene = draw_scene(run.env, run.map, trajectory.state)
    canvas.show_playback(scene, chart, key="point-replay", start=detail.t, title=title)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"**{escape_markdown(title)}**, wrote this memory at t = {detail.t}. Its path is on the map.")
        stem, facts = f"{run.id}-episode-{detail.episode}", {"episode": detail.episode}
        pin.show_with_export(chart, key="point-trajectory", stem=stem, page="memory", run=run, facts=facts)
    st.caption(escape_markdown(chart.caption))


NEAREST = 10


def show_nearest(shown: Shown, slot: int) -> None:
    """List the nearest nodes, nearest first; a press on a row chooses its node."""
    rows, distance = _find(shown, slot)
    frame = list_nearest(shown, rows, distance)
    slots: list[int] = frame["memory"].tolist()
    key = f"nearest-{shown.snapshot.id}-{slot}"

    def chosen() -> None:
        selected = st.session_state[key]["selection"]["rows"]
        if selected and selected[0] < len(slots):
            state.write(state.POINT, slots[selected[0]])

    st.dataframe(
        frame, hide_index=True, height="content", key=key, on_select=chosen, selection_mode="single-row",
        alt="The nearest nodes in the embedding. Choose a row to go to its node.",
    )  # fmt: skip
    delta = shown.run.config.get("memory", {}).get("delta")
    st.caption(_say(frame, delta if isinstance(delta, int | float) else None))


def places(shown: Shown, slot: int) -> list[atlas.Place]:
    """Find where the nearest nodes lie on the map."""
    rows, _ = _find(shown, slot)
    return [place for row in rows if all(map(isfinite, place := shown.coordinates[row].tolist()))]


def list_nearest(shown: Shown, rows: NDArray[np.int64], distance: NDArray[np.float64]) -> pd.DataFrame:
    """List nodes with their distance, H, ξ, Δ_mem, episode and step."""
    snapshot, words = shown.snapshot, NODE_QUANTITIES["xi"].value_names
    return pd.DataFrame(
        {
            "memory": snapshot.slot[rows],
            "distance": [format_number(each) for each in distance],
            "H [return]": [format_number(float(each)) for each in snapshot.h[rows]],
            "ξ": [words[int(each)] for each in snapshot.xi[rows]],
            "Δ_mem [return]": [format_number(float(each)) for each in snapshot.delta_mem[rows]],
            "episode": snapshot.episode[rows],
            "t": snapshot.t[rows],
        }
    )


def _find(shown: Shown, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    row = shown.snapshot.row_of(slot)
    if row is None:
        return np.empty(0, np.int64), np.empty(0)
    memory = shown.run.config.get("memory", {})
    return memory_data.nearest(shown.embedded, shown.embedding, memory, row, NEAREST)


def _say(frame: pd.DataFrame, delta: float | None) -> str:
    within = f" States within δ = {delta:g} are merged into one node." if delta else ""
    return f"{frame['episode'].nunique()} episodes wrote these {len(frame)} nodes.{within} A press on a row goes there."
