"""The selected node: its values, the episode that wrote it, the replay from its state, and its nearest neighbors.

While no node is selected, the panel lists the outliers: nodes whose return differs most from that of their neighbors.

A node is one stored state of the episodic memory. It is selected by its slot, its place in the memory. This number is
`slot` in the code, "memory id" on the page and `point` in the URL. On the page, "this memory" is one node; in the code,
the memory contains all nodes. The values of a node:

  * H: highest return that was reached from the state; ξ: whether a successful episode visited it
  * N_call: number of visits by any episode; N_ξ: number of visits by successful episodes
  * Δ_mem: consistency error along the stored successor; β: gate coefficient, the weight of the episodic incentive
  * τ: temperature of the gate, the scale of Δ_mem above which it closes

Distances of nodes are computed as in the memory: the embedding is scaled per dimension, or not scaled if
`memory.delta_space` is raw. The page has one or two maps; `side` is the first or the second one, with the prefix of its
URL parameters and its channel of messages. The widget that draws a map is `atlas`. It also draws the marks: rings
around nodes, and paths of episodes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app.analysis.episodes import draw_scene
from app.analysis.format import escape_markdown, format_count, format_number
from app.analysis.neighborhoods import OUTLIER_NEIGHBORS, Outlier, find_nearest
from app.analysis.selection import NODE_QUANTITIES
from app.figures.named.trajectories import Episode, TrajectoryOptions
from app.figures.registry import draw_chart
from app.ui import data, memory_data, messages, view
from app.ui.memory import atlas, episode_paths, snapshot_map
from app.ui.memory.snapshot_map import FIRST_MAP, SECOND_MAP, MemoryMap
from app.ui.page_state import EPISODE, MARK, POINT, RUN, START, Choice, Flag
from app.ui.widgets import canvas, pin
from emtc_core.errors import DataRemovedError, EmtcError
from storage.queries.episodes import Trajectory
from storage.queries.memory import NodeDetail, Snapshot, get_node
from storage.runs.rows import RunRow

_ACTIVE_MAP = Choice("map", "memory")
"""The map in which the node was selected. Its value is the prefix of the URL parameters of that map."""
_HAS_NEIGHBORS = Flag("near", "memory")
"""Whether the nearest neighbors are shown. The user sets it; it does not depend on the node."""
_N_NEIGHBORS = 10
_NEIGHBORS_HELP = (
    "Lists the nodes with the nearest embeddings, in the space in which the memory compares them. The map marks them "
    "with rings."
)
_OUTLIERS_HELP = (
    "difference = H of a state (the highest return recorded from it) minus the mean H of its "
    f"{OUTLIER_NEIGHBORS} nearest neighbors in the embedding. The memory treats these states as similar, but their "
    "returns differ, so the return that it recalls near them can be wrong. The table lists the largest absolute "
    "differences."
)
_TwoEpisodes = tuple[Trajectory | None, Trajectory | None]
"""The episode that wrote the node, and the episode to compare with."""


@st.fragment
def show(maps: Sequence[MemoryMap]) -> None:
    """Draw everything about the selected node, or the outliers of each map. A click on a map reruns only this.

    Args:
        maps: The page's maps. The URL stores in which of them the node was selected.
    """
    by_prefix = {memory_map.choice.side.prefix: memory_map for memory_map in maps}
    active_map = by_prefix.get(_ACTIVE_MAP.select([FIRST_MAP.prefix, SECOND_MAP.prefix]), maps[0])
    bar = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    with bar:
        slot = _choose_slot()
        if slot is not None:
            st.button(
                "Deselect", icon=":material/close:", key="deselect", on_click=POINT.write, args=(None,),
                help="Selects no memory and lists the states that the memory confuses",
            )  # fmt: skip
    if slot is None:
        episodes = None
        for memory_map, column in zip(maps, st.columns(len(maps), gap="medium"), strict=True):
            with column:
                _show_outliers(memory_map)
    else:
        episodes = _show_node(active_map, slot, bar)
    for memory_map in maps:
        is_same_memory = memory_map.run.id == active_map.run.id
        _show_marks(memory_map, slot, episodes if is_same_memory else None)
    for memory_map in maps:
        side = memory_map.choice.side
        atlas.on_event({"pick": partial(_on_pick, side.prefix)}, channel=side.channel)


def make_fields(run: RunRow, detail: NodeDetail) -> pd.DataFrame:
    """Tabulate all values of a node, with units."""
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
        ("embedding x", "  ".join(format_number(float(value), 4) for value in detail.embedding)),
        ("written by episode", format_count(detail.episode)),
        ("at step t", format_count(detail.t)),
        ("env step", format_count(trajectory.first_env_step + detail.t)),
    ]
    return pd.DataFrame(rows, columns=["field", "value"])


def tabulate_nearest(memory_map: MemoryMap, rows: NDArray[np.int64], distance: NDArray[np.float64]) -> pd.DataFrame:
    """Tabulate nodes with their distance from the selected node, H, ξ, Δ_mem, episode and step.

    Args:
        memory_map: The map.
        rows: Rows of the nodes in the snapshot.
        distance: Distance of each node from the selected node.
    """
    snapshot = memory_map.snapshot
    xi_names = NODE_QUANTITIES["xi"].value_names
    return pd.DataFrame(
        {
            "memory": snapshot.slot[rows],
            "distance": [format_number(value) for value in distance],
            "H [return]": [format_number(float(value)) for value in snapshot.h[rows]],
            "ξ": [xi_names[int(value)] for value in snapshot.xi[rows]],
            "Δ_mem [return]": [format_number(float(value)) for value in snapshot.delta_mem[rows]],
            "episode": snapshot.episode[rows],
            "t": snapshot.t[rows],
        }
    )


def _choose_slot() -> int | None:
    return st.number_input(
        "Memory id",
        **POINT.bind(),
        step=1,
        placeholder="none",
        help="Slot of a node in the episodic memory. Use it to select a node without a mouse.",
        width=140,
    )


def _on_pick(prefix: str, event: dict[str, Any]) -> None:
    slot = event.get("slot")
    if isinstance(slot, int):
        _select_node(prefix, slot)


def _select_node(prefix: str, slot: int) -> None:
    """Write the map (by the prefix of its URL parameters) and the slot into the URL."""
    _ACTIVE_MAP.write(prefix or None)
    POINT.write(slot)


def _show_marks(memory_map: MemoryMap, slot: int | None, episodes: _TwoEpisodes | None) -> None:
    """Mark the node, its neighbors and the paths on a map.

    Without `episodes`, mark only the node that the guided tour of the app suggests to the user (`MARK` in the URL), and
    the outliers if no node is selected.
    """
    channel = memory_map.choice.side.channel
    if slot is None or episodes is None:
        suggested_slot = MARK.read()
        suggested_point = None if suggested_slot is None else _find_point(memory_map, suggested_slot)
        outliers: list[atlas.MapPoint] = []
        if slot is None:
            outliers = _list_points(memory_map, [outlier.row for outlier in _get_outliers(memory_map)])
        atlas.show_marks(channel=channel, selected_slot=None, suggested_point=suggested_point, outliers=outliers)
        return
    trajectory, other = episodes
    paths = [] if trajectory is None else episode_paths.make_paths(memory_map, trajectory, other)
    neighbors: list[atlas.MapPoint] = []
    if _HAS_NEIGHBORS.read():
        rows, _ = _find_nearest(memory_map, slot)
        neighbors = _list_points(memory_map, rows)
    atlas.show_marks(
        channel=channel,
        selected_slot=slot,
        selected_point=_find_point(memory_map, slot),
        neighbors=neighbors,
        paths=paths,
        steps_per_mark=episode_paths.STEPS_PER_MARK,
    )


def _list_points(memory_map: MemoryMap, rows: NDArray[np.int64] | list[int]) -> list[atlas.MapPoint]:
    """List the points of nodes by their rows in the snapshot, without the nodes that have no coordinates."""
    points = memory_map.coordinates[rows]
    return points[np.isfinite(points).all(axis=1)].tolist()


def _find_point(memory_map: MemoryMap, slot: int) -> atlas.MapPoint | None:
    """Find the point of a node; None if it is not in the snapshot or has no coordinates."""
    row = memory_map.snapshot.row_of(slot)
    if row is None:
        return None
    point = memory_map.coordinates[row]
    return point.tolist() if np.isfinite(point).all() else None


def _get_outliers(memory_map: MemoryMap) -> list[Outlier]:
    return memory_data.get_outliers(
        memory_map.choice.snapshot_key.url,
        memory_map.embedding_key,
        memory_map.embedded,
        delta_space=memory_map.delta_space,
    )


def _show_outliers(memory_map: MemoryMap) -> None:
    """List the nodes of a map whose return differs most from that of their neighbors. A row selects its node."""
    outliers = _get_outliers(memory_map)
    if not outliers:
        messages.empty(
            "This memory has too few nodes to compare neighbors, or no return differs from that of its neighbors.",
            "Click a point of the map, or type a memory id.",
        )
        return
    st.markdown("##### States that the memory confuses", help=_OUTLIERS_HELP)
    st.markdown(f"Their return H differs most from the mean H of their {OUTLIER_NEIGHBORS} nearest neighbors.")
    returns = {"H [return]": "%.4g", "neighbors' H": "%.4g", "difference": "%+.4g"}
    frame = pd.DataFrame(
        [
            (outlier.slot, outlier.h, outlier.neighbors_h, outlier.h - outlier.neighbors_h, outlier.episode)
            for outlier in outliers
        ],
        columns=["memory", *returns, "episode"],
    )
    _show_nodes(
        frame, memory_map, key=f"outliers-{memory_map.choice.side.channel}-{memory_map.embedding_key}",
        alt="The nodes whose return differs most from that of their neighbors. Select a cell to select its node.",
        column_config={name: st.column_config.NumberColumn(format=text) for name, text in returns.items()},
    )  # fmt: skip
    searched = f"Searched: {outliers[0].searched}. " if outliers[0].searched else ""
    st.caption(f"{searched}Rings mark them on the map. Click a row or any point of the map to select its node.")


def _show_nodes(
    frame: pd.DataFrame, memory_map: MemoryMap, *, key: str, alt: str, column_config: dict[str, Any] | None = None
) -> None:
    """Draw a table of nodes, with their slots in the column "memory". A click on a row selects its node."""
    slots: list[int] = frame["memory"].tolist()

    def on_select() -> None:
        cells = st.session_state[key]["selection"]["cells"]
        if cells and cells[0][0] < len(slots):
            _select_node(memory_map.choice.side.prefix, slots[cells[0][0]])

    st.dataframe(
        frame, hide_index=True, height="content", key=key, on_select=on_select, selection_mode="single-cell", alt=alt,
        column_config=column_config,
    )  # fmt: skip


def _show_node(memory_map: MemoryMap, slot: int, bar: DeltaGenerator) -> _TwoEpisodes | None:
    """Draw the values of a node, the choice of an episode to compare with, the neighbors, and the replay.

    If the episode was removed by thinning, or is not part of the open bundle (a file with exported runs), only the
    values of the node are drawn.

    Returns:
        The episode that wrote the node and the episode to compare with. The second is None if none is selected.
        (None, None) if the node exists, but its episode was removed. None if the node does not exist.
    """
    run = memory_map.run
    try:
        detail = get_node(data.database(), memory_map.snapshot, slot)
    except DataRemovedError as exc:
        _show_values(memory_map.snapshot, slot)
        messages.error(exc)
        return None, None
    except EmtcError as exc:
        messages.error(exc)
        return None
    with bar:
        _show_links(run, memory_map.snapshot, detail)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"##### Memory {detail.slot}", width="stretch")
        other = episode_paths.choose_other_episode(run, memory_map, detail)
        has_neighbors = st.toggle("Neighbors", **_HAS_NEIGHBORS.bind(), help=_NEIGHBORS_HELP)
        with st.popover("Fields", help="All values of this memory"):
            st.dataframe(make_fields(run, detail), hide_index=True, height="content")
    if other is not None:
        episode_paths.show_gate_values(detail.trajectory, other)
    _show_values(memory_map.snapshot, detail.slot)
    if has_neighbors:
        _show_nearest(memory_map, detail.slot)
    _show_replay(memory_map, detail, other)
    return detail.trajectory, other


def _show_links(run: RunRow, snapshot: Snapshot, detail: NodeDetail) -> None:
    """Draw the button that selects the stored successor, and the link to the replay of the episode."""
    if detail.idx_next is not None:
        is_in_snapshot = snapshot.row_of(detail.idx_next) is not None
        reason = "" if is_in_snapshot else ", which is not in this sample of the memory"
        st.button(
            "Next",
            icon=":material/arrow_forward:",
            key="successor",
            disabled=not is_in_snapshot,
            help=f"Selects the stored successor of this memory, memory {detail.idx_next}{reason}",
            on_click=POINT.write,
            args=(detail.idx_next,),
        )
    st.page_link(
        "../pages/replay.py",
        label="Replay",
        icon=":material/smart_display:",
        help="Open this episode on Replay",
        width="content",
        query_params=view.add_bundle({RUN.name: run.id, EPISODE.name: str(detail.episode), START.name: str(detail.t)}),
    )


def _show_values(snapshot: Snapshot, slot: int) -> None:
    """Draw the values of a node as tiles."""
    row = snapshot.row_of(slot)
    if row is None:
        return
    delta_mem = float(snapshot.delta_mem[row])
    visits = f"{format_count(int(snapshot.n_xi[row]))} / {format_count(int(snapshot.n_call[row]))}"
    tiles = (  # label, value, tooltip; t is the step in its episode at which the node was written
        ("H", format_number(float(snapshot.h[row])), "Highest return-to-go recorded from this state [return]"),
        (
            "ξ",
            NODE_QUANTITIES["xi"].value_names[int(snapshot.xi[row])],
            "Whether a successful episode visited this state",
        ),
        ("N_ξ/N_call", visits, "Visits by successful episodes / all visits"),
        ("Δ_mem", format_number(delta_mem), "Consistency error along the stored successor [return]"),
        ("β", format_number(float(snapshot.beta[row])), "Gate coefficient at the snapshot"),
        ("t", format_count(int(snapshot.t[row])), "Step of the episode that wrote this memory"),
    )
    with st.container(horizontal=True, gap="small"):
        for label, value, help_text in tiles:
            st.metric(label, value, help=help_text, width="content")


def _show_nearest(memory_map: MemoryMap, slot: int) -> None:
    """List the nearest nodes, nearest first. A click on a row selects its node."""
    frame = tabulate_nearest(memory_map, *_find_nearest(memory_map, slot))
    _show_nodes(
        frame, memory_map, key=f"nearest-{memory_map.snapshot.id}-{slot}",
        alt="The nearest nodes in the embedding. Select a cell to select its node.",
    )  # fmt: skip
    delta = memory_map.delta
    merging = f" States within δ = {delta:g} are merged into one node." if delta else ""
    n_episodes = frame["episode"].nunique()
    is_sample = memory_map.snapshot.whole is not None  # set only if the snapshot is a sample of the memory
    sample = " They are the nearest nodes of this sample of the memory." if is_sample else ""
    st.caption(
        f"{n_episodes} episodes wrote these {len(frame)} nodes.{sample}{merging} Click a row to select its node."
    )


def _find_nearest(memory_map: MemoryMap, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the nearest nodes; return their rows in the snapshot and their distances."""
    row = memory_map.snapshot.row_of(slot)
    if row is None:
        return np.empty(0, np.int64), np.empty(0)
    # `embedded` is the snapshot with the embedding of the map, and `embedding_key` identifies this embedding.
    # The result is the embedding in the space in which the memory compares nodes.
    embedding = memory_data.get_compared_embedding(
        memory_map.choice.snapshot_key.url,
        memory_map.embedding_key,
        memory_map.embedded,
        delta_space=memory_map.delta_space,
    )
    return find_nearest(embedding, row, _N_NEIGHBORS)


def _show_replay(memory_map: MemoryMap, detail: NodeDetail, other: Trajectory | None) -> None:
    """Draw the player of the episode that wrote the node, and exports. The player starts at the step of the node."""
    run = memory_map.run
    trajectory = detail.trajectory
    outcome = "won" if trajectory.won else "not won"
    title = f"Episode {detail.episode}, {outcome}, return {format_number(trajectory.episode_return)}"
    chart = draw_chart("trajectory", Episode(trajectory, title), TrajectoryOptions(title=title))
    scene = draw_scene(run.env, run.map, trajectory.state)
    canvas.show_episode(scene, chart, key="point-replay", start=detail.t, title=title)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"**{escape_markdown(title)}**. It wrote this memory at t = {detail.t}. The map shows its path.")
        pin.show_with_export(
            chart, key="point-trajectory", stem=f"{run.id}-episode-{detail.episode}", page="memory", run=run,
            facts={"episode": detail.episode},
        )  # fmt: skip
        episodes = [trajectory] if other is None else [trajectory, other]
        pin.show_export(
            partial(snapshot_map.make_selected_figure, memory_map, episodes),
            label="Map with path", key="point-map", stem=f"{run.id}-{memory_map.snapshot.env_step}",
            help="Export the map with the path of this episode, and of the episode that it is compared with",
        )  # fmt: skip
    st.caption(escape_markdown(chart.caption))
