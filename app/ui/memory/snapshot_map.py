"""The upper part of the Memory page: the choice of snapshot and projection, the map, and an optional second map.

A map shows the nodes of a snapshot at two coordinates. t-SNE and UMAP compute them for some of the nodes, which are the
landmarks, and place the other nodes between them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import escape_markdown, format_count
from app.analysis.projections.linear import AXIS_PAIRS, LabeledPoints, select_axes
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
from app.analysis.settings import name_run_algo
from app.figures.kinds.maps import Cloud
from app.figures.named.memory_map import (
    AtlasOptions,
    MapNodes,
    describe_collapse,
    describe_paths,
    make_traces,
    name_memory,
)
from app.figures.registry import find_figure
from app.figures.theme import ENDED_STATUSES
from app.ui import data, memory_data, messages
from app.ui.memory import atlas, projection_job
from app.ui.memory.columns import Columns, make_columns
from app.ui.page_state import Choice, Flag, Integer, Text
from app.ui.widgets import run_picker
from emtc_core.config.base import MEMORY_ALGO_PREFIXES
from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.episodes import Trajectory
from storage.queries.memory import Snapshot
from storage.queries.run_search import RunFilter
from storage.runs.rows import RunRow

OWN = "own"
EMBEDDINGS = {
    OWN: "the run's embedder",
    "tcse": "TCSE (new fit)",
    "dcae": "dCAE (new fit)",
    "random": "random projection",
}
METHODS = {"axes": "Axes", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
LANDMARK_COUNTS = (2000, 5000, 10_000, 20_000, MAX_LANDMARKS)
MAX_NODES_IN_FILE = 100_000
"""Maximum number of nodes in an exported or pinned map. The map on the page shows all nodes."""
MAX_SELECTION_CHARACTERS = 8000
_PAGES = ("memory", "replay")
"""Replay shows the first map, too."""
COLOR = Choice("color", *_PAGES)
PALETTE = Choice("scale", *_PAGES)
CAMERA = Text("camera", *_PAGES, max_characters=64)
LASSO = Text("lasso", *_PAGES, max_characters=MAX_SELECTION_CHARACTERS)
RANGES = Text("ranges", *_PAGES, max_characters=MAX_SELECTION_CHARACTERS)
_TWO_MAPS = Flag("two", "memory")
_SECOND_RUN = Choice("b_run", "memory")
_SLIDER_WIDTH = 180
_TWO_MAPS_HELP = (
    "Shows a second snapshot, projection or run. The maps share color and filters. Maps of one run also share the "
    "selection and the point under the pointer, and under the same projection the camera."
)


@dataclass(frozen=True)
class Side:
    """One of the page's two maps, with its parameters in the URL."""

    channel: str  # name of the map in the messages between browser and page
    prefix: str  # of the names of its parameters
    snapshot: Choice
    method: Choice
    pair: Choice
    points: Choice  # number of landmarks
    seed: Integer
    embedder: Choice


def _make_side(channel: str, prefix: str, *pages: str) -> Side:
    return Side(
        channel,
        prefix,
        snapshot=Choice(f"{prefix}snap", *pages, in_url_as_default=True),
        method=Choice(f"{prefix}method", *pages),
        pair=Choice(f"{prefix}pair", *pages),
        points=Choice(f"{prefix}points", *pages),
        seed=Integer(f"{prefix}map_seed", *pages, default=0, low=0, high=2**31 - 1),
        embedder=Choice(f"{prefix}embedder", *pages),
    )


FIRST, SECOND = _make_side("atlas", "", *_PAGES), _make_side("atlas-b", "b_", "memory")


@dataclass(frozen=True)
class ProjectionChoice:
    """How a snapshot is projected."""

    method: str
    pair: int  # index of the pair of axes
    n: int  # number of landmarks of t-SNE or UMAP
    seed: int
    embedder: str


@dataclass(frozen=True)
class MapChoice:
    """A snapshot and how it is projected."""

    run: RunRow
    side: Side
    snapshot: Snapshot
    stamp: str  # creation time, which distinguishes snapshots with a reused id
    projection: ProjectionChoice

    @property
    def columns(self) -> Columns:
        """Every quantity of the snapshot's nodes."""
        return make_columns(self.snapshot, self.stamp)


@dataclass(frozen=True)
class MemoryMap:
    """A map with its computed projection."""

    choice: MapChoice
    points: LabeledPoints  # coordinates of every node of the snapshot; NaN if the projection does not contain the node
    method: str  # key of the projection that is drawn: PCA while another one is not computed
    name: str  # of the projection
    embedded: Snapshot  # the snapshot with the embedding that is drawn: the run's, or that of a newly fitted embedder

    @property
    def run(self) -> RunRow:
        """The run of the memory."""
        return self.choice.run

    @property
    def plane(self) -> str:
        """A unique key of the coordinates."""
        chosen = self.choice.projection
        settings = f"{chosen.pair}-{chosen.n}-{chosen.seed}-{chosen.embedder}"
        return f"{self.snapshot.id}-{self.choice.stamp}-{self.name}-{settings}"

    @property
    def embedding(self) -> str:
        """A unique key of the embedding, independent of the projection."""
        chosen, nodes = self.choice.projection, f"{self.snapshot.id}-{self.choice.stamp}"
        return nodes if self.embedded is self.snapshot else f"{nodes}-{chosen.embedder}-{chosen.seed}"

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot with the run's embedding."""
        return self.choice.snapshot

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """Coordinates [M, 2]."""
        return self.points.coordinates

    @property
    def facts(self) -> dict[str, Any]:
        """The values from which a notebook entry computes the same coordinates and the same selection."""
        has_selection = bool(read_selection())
        selection = {text.name: text.read() if has_selection else "" for text in (LASSO, RANGES)}
        axis_signs = {"turn": memory_data.get_axis_signs(self.snapshot)} if self.method == "pca" else {}
        values = asdict(self.choice.projection)
        # "fit": a PCA is fitted to all nodes
        return values | {"snapshot": self.snapshot.id, "method": self.method, "fit": "all"} | axis_signs | selection


def choose(run: RunRow, side: Side, other_snapshot: int | None = None) -> MapChoice | None:
    """Draw the choices of a map; None if the run has no memory to draw.

    Args:
        run: The run.
        side: Which of the two maps.
        other_snapshot: Id of the first map's snapshot, if it is of the same run. The default is then another snapshot,
            or another projection if there is only one.
    """
    snapshots = memory_data.list_snapshots(run.id)
    if not len(snapshots):
        _show_empty(run)
        return None
    row = _choose_snapshot(snapshots, side, other_snapshot)
    is_same = row["id"] == other_snapshot and len(snapshots) == 1
    projection = _choose_projection(side, default="axes" if is_same else "pca")
    stamp = str(row["created_at"])
    snapshot = memory_data.get_snapshot(row["id"], stamp)
    if snapshot.size == 0:
        messages.empty("The memory is empty in this snapshot.", "Choose a later snapshot.")
        return None
    return MapChoice(run, side, snapshot, stamp, projection)


def is_second_map_on() -> bool:
    """Draw the switch for two maps; return its state."""
    with st.container(key="two_maps", width="content"):
        return bool(st.toggle("Two maps", **_TWO_MAPS.bind(), help=_TWO_MAPS_HELP))


def choose_second(run: RunRow, first: MapChoice) -> MapChoice | None:
    """Draw the choices of the second map in one bar; None if its run has no memory to draw."""
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        names = {run.id: run.name} | data.run_names(RunFilter())[0] | data.names_of(_SECOND_RUN.list_texts())
        with_map = memory_data.runs_with_snapshots()
        names = dict(sorted(names.items(), key=lambda item: (item[0] != run.id, item[0] not in with_map)))
        run_id = st.selectbox(
            "Run of the second map",
            **_SECOND_RUN.bind(
                list(names),
                lambda run_id: f"{names[run_id]} · {run_id}",
                on_change=partial(SECOND.snapshot.write, None),  # a snapshot of the former run
            ),
            width=220,
        )
        try:
            second_run = data.get_run(str(run_id))
        except EmtcError:  # the run was deleted in the meantime
            second_run = run
        return choose(second_run, SECOND, first.snapshot.id if second_run.id == run.id else None)


def show(choice: MapChoice, other: MapChoice | None = None) -> MemoryMap:
    """Draw a map. With an `other` map, both use the same color limits and share view and selection."""
    memory_map = _project(choice)
    if equal := describe_equal_embeddings(memory_map.embedded.embedding):
        st.warning(equal, icon=":material/compress:")
    points, name = memory_map.points, memory_map.name
    limits_of_maps = [map_choice.columns.color_limits for map_choice in (choice, other) if map_choice]
    color_limits = {
        key: (min(limits[key][0] for limits in limits_of_maps), max(limits[key][1] for limits in limits_of_maps))
        for key in limits_of_maps[0]
    }
    snapshot, projection = choice.snapshot, choice.projection
    # Maps with the same group share color, filters and selection. Maps with the same kind share the camera, because
    # their coordinates can be compared.
    atlas.show(
        choice.columns, points, color_limits, view=read_view(), plane=memory_map.plane,
        identity=atlas.MapIdentity(
            channel=choice.side.channel, group="" if other is None else "memories", run=choice.run.id,
            nodes=f"{snapshot.id}-{choice.stamp}",
            kind=f"{projection.method}-{projection.pair}-{projection.embedder}",
        ),
        alt=f"{name_memory(snapshot, choice.run.name)}, {name}.", is_sample=snapshot.whole is not None,
    )  # fmt: skip
    return memory_map


def read_view() -> atlas.MapView:
    """Read color, palette, camera and selection from the URL."""
    numbers = parse_numbers(CAMERA.read(), ",")
    camera = (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and numbers[2] > 0 else None
    if camera is None and CAMERA.read():
        CAMERA.reject("the whole map")
    return atlas.MapView(
        color=COLOR.select(list(NODE_QUANTITIES), lambda key: NODE_QUANTITIES[key].name, default="h"),
        palette=PALETTE.select(list(atlas.PALETTES)),
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
    """Write color, palette and camera of a map into the URL."""
    for parameter, key in ((COLOR, "color"), (PALETTE, "palette"), (CAMERA, "camera")):
        value = event.get(key)
        parameter.write(str(value)[: CAMERA.max_characters] if value else None)


def write_selection(event: dict[str, Any]) -> None:
    """Write lasso ("polygon") and ranges ("filters") of a map into the URL."""
    LASSO.write(str(event.get("polygon") or "")[:MAX_SELECTION_CHARACTERS])
    RANGES.write(str(event.get("filters") or "")[:MAX_SELECTION_CHARACTERS])


def make_figure(memory_map: MemoryMap, is_selected: NDArray[np.bool_], episodes: Sequence[Trajectory] = ()) -> Cloud:
    """Draw the selected nodes [M] as a figure for files, at most `MAX_NODES_IN_FILE`, in the colors of the map.

    Args:
        memory_map: The map.
        is_selected: Mask of the nodes.
        episodes: Episodes whose paths are drawn over the nodes.
    """
    snapshot, view, seed = memory_map.snapshot, read_view(), memory_map.choice.projection.seed
    rows = memory_data.get_sample(snapshot.id, memory_map.choice.stamp, n=MAX_NODES_IN_FILE, seed=seed)
    rows = rows[is_selected[rows]]
    if snapshot.whole is not None:
        sample = describe_sample(snapshot)
    else:
        sample = "all nodes" if snapshot.size <= MAX_NODES_IN_FILE else f"sampled by return × time, seed {seed}"
    selection = f", selection: {view.selection.description}" if view.selection else ""
    caption = (
        f"Showing {count_nodes(len(rows), snapshot)}, {sample}{selection} · "
        f"{memory_map.name} · snapshot at env step {format_count(snapshot.env_step)}"
    )
    paths = make_traces(episodes, snapshot, memory_map.coordinates)
    nodes = MapNodes(
        snapshot,
        rows,
        memory_map.points,
        title=name_memory(snapshot, memory_map.run.name),
        caption=f"{caption}. Color: {NODE_QUANTITIES[view.color].meaning}."
        f"{describe_collapse(memory_map.embedded)}{describe_paths(paths)}",
        all_quantities=True,
        traces=paths,
    )
    colors = atlas.PALETTES[view.palette].colors
    options = AtlasOptions(color=view.color, color_scale=colors)
    return find_figure("memory-atlas").draw(nodes, options)  # type: ignore[return-value]  # this figure is a Cloud


def make_selected_figure(memory_map: MemoryMap, episodes: Sequence[Trajectory]) -> Cloud:
    """Draw the nodes that the URL selects, with the paths of episodes, as a figure for files."""
    selected = read_selection().mask(memory_map.snapshot, memory_map.coordinates)
    return make_figure(memory_map, selected, episodes)


def _show_empty(run: RunRow) -> None:
    """Explain why there is no map. If the run has ended, link the runs that have a snapshot."""
    _explain_missing_snapshots(run)
    if run.live_status in ENDED_STATUSES and (run_ids := memory_data.runs_with_snapshots()):
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


def _choose_snapshot(snapshots: pd.DataFrame, side: Side, other_snapshot: int | None) -> dict[str, Any]:
    rows = {int(row["id"]): row for row in data.rows_of(snapshots)}
    ids = list(rows)
    others = [snapshot_id for snapshot_id in ids if snapshot_id != other_snapshot] or ids
    default = ids[-1] if other_snapshot is None else others[len(others) // 2]
    if len(ids) > 1:
        snapshot_id = st.select_slider(
            "Snapshot at env step",
            **side.snapshot.bind(ids, lambda snapshot_id: format_count(rows[snapshot_id]["env_step"]), default=default),
            width=_SLIDER_WIDTH,
        )
    else:
        snapshot_id = side.snapshot.select(ids, lambda snapshot_id: format_count(rows[snapshot_id]["env_step"]))
        env_step = format_count(rows[snapshot_id]["env_step"])
        st.caption(f"One snapshot so far, at env step {env_step}.", width=_SLIDER_WIDTH)
    return rows[snapshot_id]


def _choose_projection(side: Side, *, default: str) -> ProjectionChoice:
    method = st.segmented_control(
        "Projection", **side.method.bind(list(METHODS), METHODS.__getitem__, default=default), required=True,
        help="Axes and PCA are computed immediately, t-SNE and UMAP in the background.",
    )  # fmt: skip
    pair, n, seed = 0, LANDMARK_COUNTS[1], 0
    if method == "axes":
        pairs = ["x{} · x{}".format(*(axis + 1 for axis in pair)) for pair in AXIS_PAIRS]
        pair = st.selectbox("Axes", **side.pair.bind(range(len(pairs)), pairs.__getitem__), width=130)
    embedder = OWN
    if side is SECOND:
        embedder = st.selectbox(
            "Embedding", **side.embedder.bind(list(EMBEDDINGS), EMBEDDINGS.__getitem__), width=140,
            help="A new embedder is fitted to the states of this snapshot in the background.",
        )  # fmt: skip
    if method in BACKGROUND or embedder != OWN:
        n = st.selectbox(
            "Landmarks", **side.points.bind(LANDMARK_COUNTS, format_count, default=LANDMARK_COUNTS[1]), width=110,
            help="Number of nodes in the layout, sampled evenly over return and time. The other nodes are placed "
            "between them.",
        )  # fmt: skip
        seed = st.number_input(
            "Seed", **side.seed.bind(), step=1, width=100,
            help="Seed of the landmarks and of the method. The same seed gives the same map.",
        )  # fmt: skip
    return ProjectionChoice(str(method), int(pair or 0), int(n or LANDMARK_COUNTS[1]), int(seed or 0), str(embedder))


def _project(choice: MapChoice) -> MemoryMap:
    """Compute axes or PCA; read other projections from the database, and use PCA while they are not computed."""
    snapshot, projection = choice.snapshot, choice.projection
    if projection.embedder != OWN:
        return _project_new_embedding(choice)
    if projection.method == "axes":
        points = select_axes(snapshot.embedding, AXIS_PAIRS[projection.pair])
        return MemoryMap(choice, points, "axes", "embedding axes", snapshot)
    pca = memory_data.get_pca(snapshot.id, choice.stamp)
    if projection.method not in BACKGROUND:
        return MemoryMap(choice, pca, "pca", "PCA", snapshot)
    if count_distinct_embeddings(snapshot.embedding) < MIN_POINTS:
        name = METHODS[projection.method]
        st.info(f"{name} needs at least {MIN_POINTS} nodes with different embeddings. The map shows PCA.")
        return MemoryMap(choice, pca, "pca", "PCA", snapshot)
    stored = _get_or_offer_projection(choice, projection.method)
    if stored is None:
        return MemoryMap(choice, pca, "pca", "PCA, shown until the projection is computed", snapshot)
    return MemoryMap(choice, stored[0], projection.method, stored[1], snapshot)


def _project_new_embedding(choice: MapChoice) -> MemoryMap:
    """Project the embedding of a newly fitted embedder. Until it is computed, project the run's embedding by PCA."""
    snapshot, projection = choice.snapshot, choice.projection
    embedder_name = EMBEDDINGS[projection.embedder]
    embedding = memory_data.find_embedding(snapshot.id, projection.embedder, seed=projection.seed)
    stored = _get_or_offer_projection(choice, "pca" if projection.method == "axes" else projection.method)
    if embedding is None or stored is None:
        pca = memory_data.get_pca(snapshot.id, choice.stamp)
        name = "PCA of the run's embedding, shown until the projection is computed"
        return MemoryMap(choice, pca, "pca", name, snapshot)
    new_snapshot = replace(snapshot, embedding=embedding.coordinates)
    if projection.method == "axes":
        points = select_axes(new_snapshot.embedding, AXIS_PAIRS[projection.pair])
        return MemoryMap(choice, points, "axes", f"embedding axes of {embedder_name}", new_snapshot)
    return MemoryMap(choice, stored[0], projection.method, f"{stored[1]} of {embedder_name}", new_snapshot)


def _get_or_offer_projection(choice: MapChoice, method: str) -> tuple[LabeledPoints, str] | None:
    """Return the stored coordinates and their name. If there are none, draw the button that computes them."""
    snapshot, projection, name = choice.snapshot, choice.projection, METHODS[method]
    n, embedder = min(projection.n, snapshot.size), None if projection.embedder == OWN else projection.embedder
    params = make_projection_params(method, n=n, seed=projection.seed, embedder=embedder)
    stored = memory_data.find_projection(snapshot.id, method, params)
    if stored is None:
        label = name if embedder is None else f"{name} of {EMBEDDINGS[embedder]}"
        projection_job.show(
            snapshot, method=method, label=label, n=n, seed=projection.seed, embedder=embedder,
            key=choice.side.channel,
        )  # fmt: skip
        return None
    init = read_initial_projection(stored.params)
    sample = f"{name} of {format_count(n)} landmarks" if method in BACKGROUND and n < snapshot.size else name
    init_text = "" if init is None else f", initialized from env step {format_count(init.env_step)}"
    return LabeledPoints(stored.coordinates, f"{name} 1 [1]", f"{name} 2 [1]"), f"{sample}{init_text}"
