"""Memory map: the nodes of a snapshot in a plane, colored by one quantity. Also the chart of selected nodes.

A node is one stored state of the episodic memory, and a snapshot is a stored copy of the memory. The figures are named
`memory-atlas` and `memory-selection`. The page Memory passes the snapshot that it shows. The other callers set options
for snapshot, projection, sample and selection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from app.analysis.projections.linear import AXIS_PAIRS, DEFAULT_SIGNS, LabeledPoints, compute_pca, select_axes
from app.analysis.projections.snapshots import describe_equal_embeddings, project_snapshot, sample_rows
from app.analysis.samples import describe_nodes, explain_sample
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, compute_node_values, has_coordinates
from app.figures.figure import FigureKind, get_single_run
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Cloud, Trace, describe_color_limits
from app.figures.options import METHOD_NAMES, MethodOptions, Option, convert_with, list_choices, read_episodes
from app.figures.theme import BETA_COLOR, DELTA_MEM_COLOR, NEUTRAL_COLOR, VIRIDIS, WIN_RATE_COLOR
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import Trajectory, get_trajectory
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.runs.rows import RunRow

MAX_POINTS = 20_000
"""Number of nodes that are drawn by default."""
MAX_POINTS_WITH_FIELDS = 100_000
"""Largest number of points with all quantities. For more points, the columns would be larger than the image."""
SELECTION_QUANTITIES = ("h", "delta_mem", "beta", "t")
"""Quantities in the figure of a selection."""
MAX_PATH_STEPS = 200
"""A path ends after this step of the episode."""
MAX_PATH_INTERVAL = 10
"""Number of steps between two points of a path, unless the path would have fewer than `MIN_PATH_POINTS` points."""
MIN_PATH_POINTS = 12
_QUANTILE_LEVELS = np.linspace(0.0, 1.0, 101)


def _read_color(value: Any) -> str:
    if value not in NODE_QUANTITIES:
        raise ValueError(value)
    return str(value)


def _read_axis_signs(value: Any) -> tuple[int, int]:
    """Read the signs, 1 or -1, of the two axes of a PCA from two numbers."""
    first, second = (-1 if int(sign) < 0 else 1 for sign in value)
    return first, second


class MapOptions(MethodOptions):
    """Options for the snapshot, the projection and the selection of nodes."""

    snapshot: Annotated[int | None, Option(rule="the id of a snapshot")] = None
    n_landmarks: Annotated[
        int | None,
        Field(alias="n"),
        Option(
            "Landmarks",
            "Number of nodes in the layout, sampled evenly over return and time. The other nodes are placed between "
            "them.",
            rule="a number of landmarks",
            url_parameter="points",
        ),
    ] = None
    seed: Annotated[
        int,
        Field(ge=0, le=2**31 - 1),
        Option(
            "Seed",
            "Seed of the landmarks and of the method. The same seed gives the same map.",
            rule=f"a whole number from 0 to {2**31 - 1}",
            url_parameter="map_seed",
        ),
    ] = 0
    axis_pair: Annotated[
        int,
        Field(alias="pair", ge=0, lt=len(AXIS_PAIRS)),
        Option("Axes", rule=f"an index below {len(AXIS_PAIRS)} of a pair of embedding axes"),
    ] = 0
    fit: Annotated[Literal["all", "landmarks"], Option(rule="all or landmarks: the nodes to which a PCA is fitted")] = (
        "landmarks"
    )
    axis_signs: Annotated[
        tuple[int, int],
        Field(alias="turn"),
        convert_with(_read_axis_signs),
        Option(rule="two signs for the two axes of a PCA"),
    ] = DEFAULT_SIGNS
    lasso: Annotated[str, Option(rule="the corners of a polygon on the map, x,y;x,y;x,y")] = ""
    ranges: Annotated[str, Option(rule="ranges of quantities, for example h:0.5:2;t:0:40")] = ""


class AtlasOptions(MapOptions):
    """Options of the figure `memory-atlas`."""

    color: Annotated[
        str,
        convert_with(_read_color),
        Option(
            help="Quantity for the color of the memory atlas. Default: h",
            rule=list_choices(NODE_QUANTITIES),
            has_flag=True,
        ),
    ] = "h"
    n_drawn: Annotated[int | None, Field(alias="drawn"), Option(rule="a number of nodes")] = None
    color_scale: Annotated[tuple[str, ...], Field(alias="scale"), Option(rule="colors from low to high")] = VIRIDIS
    title: str = ""
    caption: str = ""
    paths: Annotated[
        tuple[int, ...],
        convert_with(partial(read_episodes, min_count=1)),
        Option(rule="the numbers of one or two episodes, for example 120 or 120,87"),
    ] = ()
    """Episodes whose paths are drawn over the nodes."""


@dataclass(frozen=True)
class MapNodes:
    """The nodes of a memory map: the data of the figure `memory-atlas`."""

    snapshot: Snapshot
    rows: NDArray[np.int64]
    """Rows of the snapshot to draw, shape [n]."""
    points: LabeledPoints
    """Coordinates of all nodes of the snapshot, shape [M, 2], with the labels of the axes."""
    title: str
    caption: str
    all_quantities: bool = False
    """Whether the figure contains all quantities of the nodes, for the data in exported files."""
    traces: tuple[Trace, ...] = ()
    """Paths of episodes."""


class SelectedNodes(NamedTuple):
    """Selected nodes of a memory map: the data of the figure `memory-selection`."""

    snapshot: Snapshot
    selected: NDArray[np.bool_]
    """Mask of the selected nodes, shape [M]."""
    on_map: NDArray[np.bool_]
    """Mask of the nodes on the map, shape [M]."""
    run: str
    """Name of the run."""
    description: str
    """Description of the selection."""


def draw_memory(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    coordinates: NDArray[np.float32],
    *,
    x_label: str,
    y_label: str,
    quantity: str,
    title: str,
    caption: str,
    all_quantities: bool = False,
    colors: tuple[str, ...] = VIRIDIS,
) -> Cloud:
    """Draw nodes of a snapshot. They are drawn in random order, so that no range of values covers another one.

    Args:
        snapshot: The snapshot.
        rows: Rows of the snapshot to draw, shape [n].
        coordinates: Coordinates of these rows, shape [n, 2].
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        quantity: Key of the quantity for the color. Points without a value are drawn first, behind the others.
        title: Title of the figure.
        caption: Caption of the figure.
        all_quantities: Add the other quantities of the points, if there are at most `MAX_POINTS_WITH_FIELDS` points.
        colors: Color scale, low to high.

    Raises:
        ValueError: If the shape of `coordinates` does not match `rows`.
    """
    if coordinates.shape != (len(rows), 2):
        raise ValueError(f"coordinates must have shape ({len(rows)}, 2), got {coordinates.shape}")
    value = compute_node_values(snapshot, quantity)[rows]
    shuffled = np.random.default_rng(0).permutation(len(rows))
    has_value = np.isfinite(value[shuffled])
    order = np.concatenate([shuffled[~has_value], shuffled[has_value]])
    keys = NODE_QUANTITIES if all_quantities and len(rows) <= MAX_POINTS_WITH_FIELDS else ()
    return Cloud(
        name="memory-atlas",
        title=title,
        x_label=x_label,
        y_label=y_label,
        x=np.ascontiguousarray(coordinates[order, 0]),
        y=np.ascontiguousarray(coordinates[order, 1]),
        slot=snapshot.slot[rows][order],
        value=value[order],
        quantity=NODE_QUANTITIES[quantity],
        caption=caption,
        fields=tuple((key, compute_node_values(snapshot, key)[rows][order]) for key in keys),
        scale=colors,
    )


def draw_selection(
    snapshot: Snapshot, selected: NDArray[np.bool_], on_map: NDArray[np.bool_], *, run: str, description: str
) -> Chart:
    """Draw the quantiles of H, Δ_mem, β and t of the selected nodes and of the other nodes on the map.

    Args:
        snapshot: The snapshot.
        selected: Mask of the selected nodes, shape [M].
        on_map: Mask of the nodes on the map, shape [M].
        run: Name of the run.
        description: Description of the selection, for the caption.
    """
    selected_on_map = selected & on_map
    rest_on_map = on_map & ~selected
    panels = []
    for key in SELECTION_QUANTITIES:
        quantity = NODE_QUANTITIES[key]
        values = compute_node_values(snapshot, key)
        selected_line = _draw_quantiles("selected", BETA_COLOR, values[selected_on_map], width=2.4)
        rest_line = _draw_quantiles("rest", NEUTRAL_COLOR, values[rest_on_map], width=1.6)
        panels.append(Panel(quantity.name, quantity.unit, (selected_line, rest_line)))
    caption = (
        f"{int(selected_on_map.sum()):,} of {int(on_map.sum()):,} nodes selected on the map of {run} "
        f"at env step {snapshot.env_step:,}: {description}. "
        "Quantiles: x % of the nodes have at most the value y. Nodes without a value are left out. "
        f"{explain_sample(snapshot)}"
    ).rstrip()
    title = f"Selected memories of {run}"
    return Chart("memory-selection", title, "share of nodes [%]", tuple(panels), caption, caption, columns=2)


def _draw_quantiles(name: str, color: str, values: NDArray[np.float32], *, width: float) -> Line:
    """Draw the quantiles of the finite values; NaN if no value is finite."""
    finite = values[np.isfinite(values)].astype(np.float64)
    quantiles = np.full(len(_QUANTILE_LEVELS), np.nan)
    if len(finite):
        quantiles = np.quantile(finite, _QUANTILE_LEVELS)
    return Line(name, color, 100 * _QUANTILE_LEVELS, quantiles, width=width)


def name_memory(snapshot: Snapshot, run: str) -> str:
    """Make the title of a map: "Episodic memory of 3m EMTC at step 2000", or "Sample of the episodic memory …"."""
    memory = "Episodic memory" if snapshot.whole is None else "Sample of the episodic memory"
    return f"{memory} of {run} at step {snapshot.env_step}"


def name_path(episode: Trajectory) -> str:
    """Name the path of an episode: "episode 12, won, return 18.3"."""
    outcome = "won" if episode.won else "not won"
    return f"episode {episode.episode}, {outcome}, return {episode.episode_return:.1f}"


def make_traces(
    episodes: Sequence[Trajectory], snapshot: Snapshot, coordinates: NDArray[np.float32]
) -> tuple[Trace, ...]:
    """Make the paths of one or two episodes on a map.

    The path of the better episode is green, the other path is orange. A single path is green if the episode was won.
    """
    if not episodes:
        return ()
    best = max(episodes, key=lambda episode: (episode.won, episode.episode_return))
    is_single_loss = len(episodes) == 1 and not best.won
    traces = []
    for episode in episodes:
        is_green = episode is best and not is_single_loss
        color = WIN_RATE_COLOR if is_green else DELTA_MEM_COLOR  # green or orange
        traces.append(make_trace(episode, snapshot, coordinates, color=color))
    return tuple(traces)


def make_trace(episode: Trajectory, snapshot: Snapshot, coordinates: NDArray[np.float32], *, color: str) -> Trace:
    """Make the path of an episode on a map. `coordinates` are those of all nodes of the snapshot, shape [M, 2].

    Raises:
        ConfigError: If the episode has no memory.
    """
    if episode.slots is None:
        raise ConfigError(
            f"Episode {episode.episode} has no memory", hint="Choose a run of an EMTC, EMU or EMC algorithm."
        )
    length = min(episode.length, MAX_PATH_STEPS)
    interval = max(1, min(MAX_PATH_INTERVAL, length // MIN_PATH_POINTS))
    t = np.arange(0, length, interval)
    rows = snapshot.rows_of(episode.slots[t])
    is_in_snapshot = rows >= 0
    x, y = np.where(is_in_snapshot[:, None], coordinates[rows], np.nan).astype(np.float32).T
    errors = np.full(len(t), np.nan) if episode.delta_mem is None else episode.delta_mem[t]
    return Trace(name_path(episode), color, t, x, y, errors)


def get_last_snapshot(db: Database, run: RunRow) -> Snapshot:
    """Read the newest memory snapshot of a run.

    Raises:
        ConfigError: If the run has no snapshot.
    """
    snapshots = list_snapshots(db, run.id)
    if snapshots.empty:
        raise ConfigError(
            f"Run {run.id} has no snapshot of a memory", hint="Choose a run of an EMTC, EMU or EMC algorithm."
        )
    return get_snapshot(db, int(snapshots["id"].iloc[-1]))


def get_selected_snapshot(db: Database, run: RunRow, options: MapOptions) -> Snapshot:
    """Read the snapshot with the id in the option `snapshot`. Default: the newest snapshot of the run.

    Raises:
        ConfigError: If the snapshot belongs to another run, or if the run has no snapshot.
    """
    snapshot_id = options.snapshot
    if snapshot_id is None:
        return get_last_snapshot(db, run)
    snapshot = get_snapshot(db, snapshot_id)
    if snapshot.run_id != run.id:
        raise ConfigError(
            f"must be a snapshot of run {run.id}, but is of run {snapshot.run_id}", key="snapshot", value=snapshot_id
        )
    return snapshot


def compute_coordinates(db: Database, snapshot: Snapshot, options: MapOptions) -> LabeledPoints:
    """Compute the coordinates of all nodes [M] for the options of the map (`MapOptions`)."""
    method = options.method or "pca"
    seed = options.seed
    n = options.n_landmarks or snapshot.size
    if method == "axes":
        return select_axes(snapshot.embedding, AXIS_PAIRS[options.axis_pair])
    if method == "pca":
        fit_rows = None if options.fit == "all" else sample_rows(snapshot, n=n, seed=seed)
        return compute_pca(snapshot.embedding, fit_on=fit_rows, signs=options.axis_signs)
    name = METHOD_NAMES[method]
    projection = project_snapshot(db, snapshot.id, method=method, n=n, seed=seed)
    return LabeledPoints(projection.coordinates, f"{name} 1 [1]", f"{name} 2 [1]")


def read_selection(options: MapOptions) -> NodeSelection:
    """Read the selection from the options `lasso` and `ranges`. Without them, all nodes are selected."""
    return NodeSelection.parse(options.lasso, options.ranges)


def _read_atlas(db: Database, rows: Sequence[RunRow], options: AtlasOptions) -> MapNodes:
    run = get_single_run("memory-atlas", rows)
    nodes = _read_nodes(db, run, options)
    episodes = [get_trajectory(db, run.id, number) for number in options.paths]
    traces = make_traces(episodes, nodes.snapshot, nodes.points.coordinates)
    caption = f"{nodes.caption}{describe_paths(traces)}"
    return replace(nodes, traces=traces, caption=caption)


def describe_paths(traces: Sequence[Trace]) -> str:
    """Make the sentence about paths for a caption; empty without paths."""
    if not traces:
        return ""
    names = "; ".join(trace.label for trace in traces)
    return f" Paths: the nodes that the episode retrieved in its first {MAX_PATH_STEPS} steps ({names})."


def describe_collapse(snapshot: Snapshot) -> str:
    """Make the sentence about equal embeddings for a caption; empty if enough nodes have different embeddings."""
    sentence = describe_equal_embeddings(snapshot.embedding)
    return f" {sentence}" if sentence else ""


def _read_nodes(db: Database, run: RunRow, options: AtlasOptions) -> MapNodes:
    """Read the nodes of the map without paths. The options of the page Memory apply only if `n_landmarks` is set."""
    snapshot = get_selected_snapshot(db, run, options)
    title = name_memory(snapshot, run.name)
    if options.n_landmarks is None:
        return _read_default_map(db, snapshot, title, method=options.method or "pca")
    points = compute_coordinates(db, snapshot, options)
    selection = read_selection(options)
    max_points = options.n_drawn or options.n_landmarks or snapshot.size
    drawn_rows = sample_rows(snapshot, n=max_points, seed=options.seed)
    if options.n_drawn is not None:
        is_selected = selection.mask(snapshot, points.coordinates)
        drawn_rows = drawn_rows[is_selected[drawn_rows]]
    selection_text = f", selected: {selection.description}" if selection else ""
    nodes_text = describe_nodes(len(drawn_rows), snapshot)
    caption = f"Showing {nodes_text}{selection_text}.{describe_collapse(snapshot)}"
    return MapNodes(snapshot, drawn_rows, points, title, caption)


def _read_default_map(db: Database, snapshot: Snapshot, title: str, *, method: str) -> MapNodes:
    """Read the stored projection for the default landmarks, or compute it. Draw a sample of the nodes."""
    coordinates = project_snapshot(db, snapshot.id, method=method).coordinates
    name = METHOD_NAMES[method]
    points = LabeledPoints(coordinates, f"{name} 1", f"{name} 2")
    drawn_rows = sample_rows(snapshot, n=MAX_POINTS, seed=0)
    is_sample = len(drawn_rows) < snapshot.size
    sampling = ", stratified by return and time, seed 0" if is_sample else ""
    caption = f"Showing {describe_nodes(len(drawn_rows), snapshot)}{sampling}.{describe_collapse(snapshot)}"
    return MapNodes(snapshot, drawn_rows, points, title, caption)


def _draw_atlas(nodes: MapNodes, options: AtlasOptions) -> Cloud:
    cloud = draw_memory(
        nodes.snapshot,
        nodes.rows,
        nodes.points.coordinates[nodes.rows],
        x_label=nodes.points.x_label,
        y_label=nodes.points.y_label,
        quantity=options.color,
        title=options.title or nodes.title,
        caption=options.caption or f"{nodes.caption}{_describe_colors(options.color)}",
        all_quantities=nodes.all_quantities,
        colors=options.color_scale,
    )
    return replace(cloud, traces=nodes.traces)


def _describe_colors(quantity_key: str) -> str:
    """Make the sentence about the ends of the color scale for a caption; empty for a quantity with yes and no."""
    limits = describe_color_limits(NODE_QUANTITIES[quantity_key])
    return f" Color scale: {limits}." if limits else ""


def _read_selected(db: Database, rows: Sequence[RunRow], options: MapOptions) -> SelectedNodes:
    run = get_single_run("memory-selection", rows)
    selection = read_selection(options)
    if not selection:
        raise ConfigError("memory-selection needs the option lasso or ranges to select nodes")
    snapshot = get_selected_snapshot(db, run, options)
    coordinates = compute_coordinates(db, snapshot, options).coordinates
    selected = selection.mask(snapshot, coordinates)
    on_map = has_coordinates(coordinates)
    return SelectedNodes(snapshot, selected, on_map, run.name, selection.description)


def _draw_selected(nodes: SelectedNodes, options: MapOptions) -> Chart:
    snapshot, selected, on_map, run, description = nodes
    return draw_selection(snapshot, selected, on_map, run=run, description=description)


FIGURES = (
    FigureKind(
        "memory-atlas", _draw_atlas, _read_atlas, AtlasOptions, needs_runs=True,
        question="Which states are in the memory of a run?",
    ),
    FigureKind(
        "memory-selection", _draw_selected, _read_selected, MapOptions, needs_runs=True,
        question="How do the selected memories differ from the others?",
    ),
)  # fmt: skip
