"""The upper part of the Memory page: the choice of snapshot and projection, the map, and an optional second map.

A node is one stored state of the episodic memory. A snapshot contains all nodes at one env step, or a sample of them. A
map shows each node of a snapshot at two coordinates, which a projection computes from the embedding of the node. t-SNE
and UMAP compute the coordinates of some nodes, the landmarks, and place the other nodes between them.

A pin stores a figure of the page in the notebook, with the values from which it can be made again. A bundle is a file
with exported runs; a thin bundle has no snapshots.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import escape_markdown, format_count
from app.analysis.projections.linear import LabeledPoints
from app.analysis.projections.snapshots import (
    BACKGROUND,
    MAX_LANDMARKS,
    MIN_POINTS,
    count_distinct_embeddings,
    describe_equal_embeddings,
    make_projection_params,
    read_initial_projection,
)
from app.analysis.samples import count_nodes, describe_sample
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, parse_numbers
from app.analysis.settings import get_delta_space, name_run_algo
from app.figures.kinds.maps import Cloud
from app.figures.named.memory_map import (
    AtlasOptions,
    MapNodes,
    MapOptions,
    describe_collapse,
    describe_paths,
    make_traces,
    name_memory,
)
from app.figures.options import METHOD_NAMES
from app.figures.registry import find_figure
from app.figures.theme import ENDED_STATUSES
from app.ui import data, memory_data, messages
from app.ui.memory import atlas, projection_job
from app.ui.memory.columns import Columns, make_columns
from app.ui.memory_data import SnapshotKey
from app.ui.page_state import Choice, Flag, Text
from app.ui.widgets import run_picker
from app.ui.widgets.option_widget import OptionWidget
from emtc_core.config.base import MEMORY_ALGO_PREFIXES
from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.episodes import Trajectory
from storage.queries.memory import Snapshot, list_runs_with_snapshots, list_snapshots
from storage.queries.projections import find_embedding, find_projection
from storage.queries.run_search import RunFilter, run_names
from storage.queries.runs import find_run_names
from storage.runs.rows import RunRow, find_run

RUN_EMBEDDER = "own"
"""Key of the run's embedder."""
EMBEDDERS = {
    RUN_EMBEDDER: "the run's embedder",
    "tcse": "TCSE (new fit)",
    "dcae": "dCAE (new fit)",
    "random": "random projection",
}
"""Key of an embedder → its label. TCSE and dCAE are the encoders of EMTC and of EMU."""
LANDMARK_COUNTS = (2000, 5000, 10_000, 20_000, MAX_LANDMARKS)
"""Numbers of landmarks that can be chosen."""
_DEFAULT_LANDMARKS = 5000
METHODS = ("pca", "tsne", "umap")
"""Projections that can be chosen on the page: keys in `METHOD_NAMES`."""
MAX_NODES_IN_FILE = 100_000
"""Maximum number of nodes in an exported or pinned map. The map on the page shows all nodes."""
MAX_SELECTION_CHARACTERS = 8000
_PAGES = ("memory", "replay")
"""Pages with the first map. Only the Memory page has a second map."""
# URL parameters of the view and of the selection. Both maps have the same.
COLOR = Choice(AtlasOptions.get_option("color").parameter, *_PAGES)
CAMERA = Text("camera", *_PAGES, max_characters=64)
LASSO = Text("lasso", *_PAGES, max_characters=MAX_SELECTION_CHARACTERS)
RANGES = Text("ranges", *_PAGES, max_characters=MAX_SELECTION_CHARACTERS)
_TWO_MAPS = Flag("two", "memory")
_SECOND_RUN = Choice("b_run", "memory")
_SLIDER_WIDTH_PX = 180
"""Width of the choice of the snapshot."""
_TWO_MAPS_HELP = (
    "Shows a second snapshot, projection or run. The maps share color and filters. Maps of one run also share the "
    "selection and the point under the pointer, and under the same projection the camera."
)


@dataclass(frozen=True)
class MapSide:
    """One of the page's two maps (left or right), with the URL parameters of its choices."""

    channel: str
    """Name of the map in the messages between browser and page."""
    prefix: str
    """Prefix of the names of the URL parameters."""
    snapshot: Choice
    method: OptionWidget
    n_landmarks: OptionWidget
    seed: OptionWidget
    embedder: Choice


def _make_side(channel: str, prefix: str, *pages: str) -> MapSide:
    return MapSide(
        channel,
        prefix,
        snapshot=Choice(f"{prefix}snap", *pages, in_url_as_default=True),
        method=OptionWidget(MapOptions, "method", *pages, kind="buttons", prefix=prefix),
        n_landmarks=OptionWidget(MapOptions, "n", *pages, prefix=prefix),
        seed=OptionWidget(MapOptions, "seed", *pages, kind="number", prefix=prefix),
        embedder=Choice(f"{prefix}embedder", *pages),
    )


FIRST_MAP = _make_side("atlas", "", *_PAGES)
SECOND_MAP = _make_side("atlas-b", "b_", "memory")


@dataclass(frozen=True)
class ProjectionChoice:
    """How a snapshot is projected. A notebook entry stores these values under the names of the fields."""

    method: str
    """One of `METHODS`."""
    n: int
    """Number of landmarks of t-SNE or UMAP."""
    seed: int
    embedder: str
    """Key in `EMBEDDERS`."""


@dataclass(frozen=True)
class MapChoice:
    """The choices of one map: a snapshot and how it is projected."""

    run: RunRow
    side: MapSide
    snapshot_key: SnapshotKey
    """Key of the cached reads of the snapshot."""
    snapshot: Snapshot
    projection: ProjectionChoice

    @property
    def columns(self) -> Columns:
        """Every quantity of the snapshot's nodes."""
        return make_columns(self.snapshot_key)


@dataclass(frozen=True)
class MemoryMap:
    """A map with the coordinates of its nodes."""

    choice: MapChoice
    points: LabeledPoints
    """Coordinates of every node of the snapshot; NaN if the projection does not contain the node."""
    method: str
    """Key of the projection that is drawn. It is PCA until the chosen projection has been computed."""
    name: str
    """Name of the projection that is drawn."""
    embedded: Snapshot
    """The snapshot with the embedding that is projected: by the run's embedder, or by a newly fitted one."""

    @property
    def run(self) -> RunRow:
        """The run of the memory."""
        return self.choice.run

    @property
    def coordinates_key(self) -> str:
        """A text that identifies the coordinates."""
        projection = self.choice.projection
        settings = f"{projection.n}-{projection.seed}-{projection.embedder}"
        return f"{self.choice.snapshot_key.name}-{self.name}-{settings}"

    @property
    def embedding_key(self) -> str:
        """A text that identifies the embedding, independent of the projection."""
        if self.embedded is self.snapshot:
            return self.choice.snapshot_key.name
        projection = self.choice.projection
        return f"{self.choice.snapshot_key.name}-{projection.embedder}-{projection.seed}"

    @property
    def delta(self) -> float:
        """Merge radius: a state within this distance of a node is stored in that node. 0: not known."""
        return float(self.run.config.get("memory", {}).get("delta", 0.0))

    @property
    def delta_space(self) -> Literal["raw", "normalized"]:
        """Space in which the memory compares embeddings."""
        return get_delta_space(self.run.config)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot with the run's embedding."""
        return self.choice.snapshot

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """Coordinates [M, 2]."""
        return self.points.coordinates

    @property
    def pinned_values(self) -> dict[str, Any]:
        """The values from which a notebook entry computes the same coordinates and the same selection."""
        values = asdict(self.choice.projection)
        values["snapshot"] = self.snapshot.id
        values["method"] = self.method
        values["fit"] = "all"  # a PCA is fitted to all nodes
        if self.method == "pca":
            values["turn"] = memory_data.get_axis_signs(
                self.choice.snapshot_key
            )  # 1 or -1 per axis; -1: the axis is flipped
        has_selection = bool(read_selection())
        for parameter in (LASSO, RANGES):
            values[parameter.name] = parameter.read() if has_selection else ""
        return values


def choose_map(run: RunRow, side: MapSide, other_snapshot: int | None = None) -> MapChoice | None:
    """Draw the choices of snapshot and projection; None if the run has no memory to draw.

    Args:
        run: The run.
        side: Which of the two maps.
        other_snapshot: Id of the first map's snapshot, if it is of the same run. The default is then another snapshot.
    """
    snapshots = data.cached(list_snapshots, ttl=2)(run.id)
    if not len(snapshots):
        _show_empty(run)
        return None
    snapshot_row = _choose_snapshot(snapshots, side, other_snapshot)
    projection = _choose_projection(side)
    snapshot_key = SnapshotKey(data.database_url(), snapshot_row["id"], str(snapshot_row["created_at"]))
    snapshot = memory_data.get_snapshot(snapshot_key)
    if snapshot.size == 0:
        messages.empty("The memory is empty in this snapshot.", "Choose a later snapshot.")
        return None
    return MapChoice(run, side, snapshot_key, snapshot, projection)


def is_second_map_on() -> bool:
    """Draw the switch for two maps; return its state."""
    with st.container(key="two_maps", width="content"):
        return bool(st.toggle("Two maps", **_TWO_MAPS.bind(), help=_TWO_MAPS_HELP))


def choose_second_map(run: RunRow, first: MapChoice) -> MapChoice | None:
    """Draw the choices of the second map in one bar; None if its run has no memory to draw."""
    listed_names, _ = data.cached(run_names, ttl=2)(RunFilter())
    selected_names = data.cached(find_run_names, ttl=5)(_SECOND_RUN.list_texts())
    names = {run.id: run.name} | listed_names | selected_names
    runs_with_map = data.cached(list_runs_with_snapshots, ttl=60)()
    # First the run of the first map, then the runs with a map, then the others.
    run_ids = sorted(names, key=lambda run_id: (run_id != run.id, run_id not in runs_with_map))
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        run_id = st.selectbox(
            "Run of the second map",
            **_SECOND_RUN.bind(
                run_ids,
                lambda run_id: f"{names[run_id]} · {run_id}",
                on_change=partial(SECOND_MAP.snapshot.write, None),  # it is a snapshot of the former run
            ),
            width=220,
        )
        try:
            second_run = find_run(data.database(), str(run_id))
        except EmtcError:  # the run was deleted in the meantime
            second_run = run
        other_snapshot = first.snapshot.id if second_run.id == run.id else None
        return choose_map(second_run, SECOND_MAP, other_snapshot)


def make_map(choice: MapChoice) -> MemoryMap:
    """Compute or read the coordinates of a map. Draw what the user must know about them, such as a missing projection.

    Call this above the columns of two maps, so that the maps are at the same height.
    """
    memory_map = _project(choice)
    warning = describe_equal_embeddings(memory_map.embedded.embedding)
    if warning:
        st.warning(warning, icon=":material/compress:")
    return memory_map


def draw_map(memory_map: MemoryMap, other: MapChoice | None = None) -> None:
    """Draw a map. With an `other` map, both use the same color limits and share view and selection."""
    choice = memory_map.choice
    snapshot = choice.snapshot
    projection = choice.projection
    identity = atlas.MapIdentity(
        channel=choice.side.channel,
        group="" if other is None else "memories",
        run=choice.run.id,
        nodes=choice.snapshot_key.name,
        kind=f"{projection.method}-{projection.embedder}",
    )
    atlas.show(
        choice.columns,
        memory_map.points,
        _combine_color_limits(choice, other),
        identity=identity,
        coordinates_key=memory_map.coordinates_key,
        view=read_view(),
        alt=f"{name_memory(snapshot, choice.run.name)}, {memory_map.name}.",
        n_memory_nodes=snapshot.size if snapshot.whole is None else snapshot.whole.size,
    )


def read_view() -> atlas.MapView:
    """Read color, camera and selection from the URL."""
    camera = None
    numbers = parse_numbers(CAMERA.read(), ",")
    if len(numbers) == 3 and numbers[2] > 0:  # the third number is the width of the view
        camera = (numbers[0], numbers[1], numbers[2])
    elif CAMERA.read():
        CAMERA.reject("the whole map")
    return atlas.MapView(
        color=COLOR.select(list(NODE_QUANTITIES), lambda key: NODE_QUANTITIES[key].name, default="h"),
        camera=camera,
        selection=read_selection(),
    )


def read_selection() -> NodeSelection:
    """Read lasso and ranges from the URL."""
    try:
        return NodeSelection.parse(LASSO.read(), RANGES.read())
    except ConfigError:
        for parameter in (LASSO, RANGES):
            if parameter.is_in_url:
                parameter.reject()
        return NodeSelection()


def write_view(event: dict[str, Any]) -> None:
    """Write color and camera of a map into the URL. The browser sends them with the event."""
    for parameter, key in ((COLOR, "color"), (CAMERA, "camera")):
        value = event.get(key)
        parameter.write(str(value)[: CAMERA.max_characters] if value else None)


def write_selection(event: dict[str, Any]) -> None:
    """Write lasso and ranges of a map into the URL. The browser sends them as "polygon" and "filters"."""
    LASSO.write(str(event.get("polygon") or "")[:MAX_SELECTION_CHARACTERS])
    RANGES.write(str(event.get("filters") or "")[:MAX_SELECTION_CHARACTERS])


def make_figure(memory_map: MemoryMap, is_selected: NDArray[np.bool_], episodes: Sequence[Trajectory] = ()) -> Cloud:
    """Draw the selected nodes as a figure for files, at most `MAX_NODES_IN_FILE`, in the colors of the map.

    Args:
        memory_map: The map.
        is_selected: Whether each node of the snapshot is selected, [M].
        episodes: Episodes whose paths are drawn over the nodes.
    """
    snapshot = memory_map.snapshot
    map_view = read_view()
    seed = memory_map.choice.projection.seed
    sampled_nodes = memory_data.get_sample(memory_map.choice.snapshot_key, n=MAX_NODES_IN_FILE, seed=seed)
    drawn_nodes = sampled_nodes[is_selected[sampled_nodes]]
    if snapshot.whole is not None:
        sample = describe_sample(snapshot)
    elif snapshot.size <= MAX_NODES_IN_FILE:
        sample = "all nodes"
    else:
        sample = f"sampled by return × time, seed {seed}"
    selection = f", selection: {map_view.selection.description}" if map_view.selection else ""
    paths = make_traces(episodes, snapshot, memory_map.coordinates)
    caption = (
        f"Showing {count_nodes(len(drawn_nodes), snapshot)}, {sample}{selection} · "
        f"{memory_map.name} · snapshot at env step {format_count(snapshot.env_step)}. "
        f"Color: {NODE_QUANTITIES[map_view.color].meaning}."
        f"{describe_collapse(memory_map.embedded)}{describe_paths(paths)}"
    )
    nodes = MapNodes(
        snapshot,
        drawn_nodes,
        memory_map.points,
        title=name_memory(snapshot, memory_map.run.name),
        caption=caption,
        all_quantities=True,
        traces=paths,
    )
    options = AtlasOptions(color=map_view.color)
    return find_figure("memory-atlas").draw(nodes, options)  # type: ignore[return-value]  # this figure is a Cloud


def make_selected_figure(memory_map: MemoryMap, episodes: Sequence[Trajectory]) -> Cloud:
    """Draw the nodes that the URL selects, with the paths of episodes, as a figure for files."""
    is_selected = read_selection().mask(memory_map.snapshot, memory_map.coordinates)
    return make_figure(memory_map, is_selected, episodes)


def _show_empty(run: RunRow) -> None:
    """Explain why there is no map. If the run has ended, link the runs that have a snapshot."""
    _explain_missing_snapshots(run)
    if run.live_status not in ENDED_STATUSES:
        return
    run_ids = data.cached(list_runs_with_snapshots, ttl=60)()
    if run_ids:
        st.caption("Runs with a snapshot of their memory:")
        run_picker.show_run_links("memory", run_ids)


def _explain_missing_snapshots(run: RunRow) -> None:
    if not run.config.get("algo", "").startswith(MEMORY_ALGO_PREFIXES):
        messages.empty(
            f"{escape_markdown(name_run_algo(flatten_tree(run.config)))} has no episodic memory.",
            "Choose a run of an EMTC, EMU or EMC algorithm.",
        )
        return
    if run.live_status == "finished":
        messages.empty(
            "This database has no memory snapshots of this finished run.",
            "A thin bundle contains no snapshots, and a run with record.snapshots = 0 records none.",
        )
        return
    if run.live_status in ENDED_STATUSES:
        messages.empty(
            "This run ended before its first snapshot of the memory.",
            "The Live page shows how it ended and whether it can be resumed.",
            page="../pages/live.py",
            label="Open Live",
        )
        return
    messages.empty(
        "This run has no snapshot of its memory yet.",
        "Snapshots are taken at regular intervals. Reload this page later, or watch the progress on Live.",
        page="../pages/live.py",
        label="Open Live",
    )


def _choose_snapshot(snapshots: pd.DataFrame, side: MapSide, other_snapshot: int | None) -> dict[str, Any]:
    """Draw the choice of the snapshot; return its row.

    The default is the newest snapshot. If the other map shows `other_snapshot`, the default is the middle one of the
    other snapshots, by env step.
    """
    by_id = {int(row["id"]): row for row in data.rows_of(snapshots)}
    ids = list(by_id)
    default = ids[-1]
    if other_snapshot is not None:
        remaining_ids = [snapshot_id for snapshot_id in ids if snapshot_id != other_snapshot] or ids
        default = remaining_ids[len(remaining_ids) // 2]

    def format_env_step(snapshot_id: int) -> str:
        return format_count(by_id[snapshot_id]["env_step"])

    if len(ids) > 1:
        bound = side.snapshot.bind(ids, format_env_step, default=default)
        snapshot_id = st.select_slider("Snapshot at env step", **bound, width=_SLIDER_WIDTH_PX)
    else:
        snapshot_id = side.snapshot.select(ids, format_env_step)
        st.caption(f"One snapshot so far, at env step {format_env_step(snapshot_id)}.", width=_SLIDER_WIDTH_PX)
    return by_id[snapshot_id]


def _choose_projection(side: MapSide) -> ProjectionChoice:
    """Draw the choice of the projection, and of the settings that it has."""
    method = side.method.draw(METHODS)
    n_landmarks = _DEFAULT_LANDMARKS
    seed = 0
    embedder = RUN_EMBEDDER
    if side is SECOND_MAP:
        embedder = st.selectbox(
            "Embedding", **side.embedder.bind(list(EMBEDDERS), EMBEDDERS.__getitem__), width=140,
            help="A new embedder is fitted to the states of this snapshot in the background.",
        )  # fmt: skip
    if method in BACKGROUND or embedder != RUN_EMBEDDER:
        n_landmarks = side.n_landmarks.draw(LANDMARK_COUNTS, format_count, default=_DEFAULT_LANDMARKS, width=110)
        seed = side.seed.draw(width=100)
    return ProjectionChoice(
        method=str(method),
        n=int(n_landmarks or _DEFAULT_LANDMARKS),
        seed=int(seed or 0),
        embedder=str(embedder),
    )


def _combine_color_limits(choice: MapChoice, other: MapChoice | None) -> dict[str, tuple[float, float]]:
    """Return the values at the ends of each color scale, over both maps if there are two."""
    limits_by_map = [choice.columns.color_limits]
    if other is not None:
        limits_by_map.append(other.columns.color_limits)
    combined: dict[str, tuple[float, float]] = {}
    for quantity in limits_by_map[0]:
        low = min(limits[quantity][0] for limits in limits_by_map)
        high = max(limits[quantity][1] for limits in limits_by_map)
        combined[quantity] = (low, high)
    return combined


def _project(choice: MapChoice) -> MemoryMap:
    """Compute PCA. Read any other projection from the database; until it has been computed, use PCA."""
    snapshot = choice.snapshot
    projection = choice.projection
    if projection.embedder != RUN_EMBEDDER:
        return _project_new_embedding(choice)
    pca = memory_data.get_pca(choice.snapshot_key)
    pca_map = MemoryMap(choice, pca, method="pca", name="PCA", embedded=snapshot)
    if projection.method not in BACKGROUND:  # the methods that are computed in the background
        return pca_map
    if count_distinct_embeddings(snapshot.embedding) < MIN_POINTS:
        name = METHOD_NAMES[projection.method]
        st.info(f"{name} needs at least {MIN_POINTS} nodes with different embeddings. The map shows PCA.")
        return pca_map
    stored = _get_or_offer_projection(choice, projection.method)
    if stored is None:
        return replace(pca_map, name="PCA, shown until the projection is computed")
    points, name = stored
    return MemoryMap(choice, points, method=projection.method, name=name, embedded=snapshot)


def _project_new_embedding(choice: MapChoice) -> MemoryMap:
    """Project the embedding of a newly fitted embedder. Until it is computed, project the run's embedding by PCA."""
    snapshot = choice.snapshot
    projection = choice.projection
    embedder_name = EMBEDDERS[projection.embedder]
    embedding = find_embedding(data.database(), snapshot.id, projection.embedder, seed=projection.seed)
    stored = _get_or_offer_projection(choice, projection.method)  # the job that computes it also fits the embedder
    if embedding is None or stored is None:
        pca = memory_data.get_pca(choice.snapshot_key)
        name = "PCA of the run's embedding, shown until the projection is computed"
        return MemoryMap(choice, pca, method="pca", name=name, embedded=snapshot)
    embedded = replace(snapshot, embedding=embedding.coordinates)
    points, name = stored
    return MemoryMap(choice, points, projection.method, f"{name} of {embedder_name}", embedded)


def _get_or_offer_projection(choice: MapChoice, method: str) -> tuple[LabeledPoints, str] | None:
    """Return the stored coordinates and their name. If there are none, draw the button that computes them."""
    snapshot = choice.snapshot
    projection = choice.projection
    name = METHOD_NAMES[method]
    n_landmarks = min(projection.n, snapshot.size)
    embedder = None if projection.embedder == RUN_EMBEDDER else projection.embedder
    params = make_projection_params(method, n=n_landmarks, seed=projection.seed, embedder=embedder)
    stored = find_projection(data.database(), snapshot.id, method, params)
    if stored is None:
        label = name if embedder is None else f"{name} of {EMBEDDERS[embedder]}"
        projection_job.show(
            snapshot, method=method, label=label, n=n_landmarks, seed=projection.seed, embedder=embedder,
            key=choice.side.channel,
        )  # fmt: skip
        return None
    points = LabeledPoints(stored.coordinates, x_label=f"{name} 1 [1]", y_label=f"{name} 2 [1]")
    description = name
    if method in BACKGROUND and n_landmarks < snapshot.size:
        description += f" of {format_count(n_landmarks)} landmarks"
    init = read_initial_projection(stored.params)
    if init is not None:
        description += f", initialized from env step {format_count(init.env_step)}"
    return points, description
