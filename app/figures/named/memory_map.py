"""Map of a memory: the nodes of a snapshot in a plane, colored by one quantity; and selected nodes against the others.

The page Memory passes the snapshot that it shows. The other callers set options for snapshot, projection, sample and
selection.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import AXIS_PAIRS, DEFAULT_SIGNS, LabeledPoints, compute_pca, select_axes
from app.analysis.projections.snapshots import project_snapshot, sample_rows
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, compute_node_values, has_place
from app.figures.figure import FigureKind, FigureOption, Options, get_single_run
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Cloud
from app.figures.theme import BETA, NEUTRAL, VIRIDIS
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.runs.rows import RunRow

MAX_POINTS = 20_000
"""Number of nodes that are drawn by default."""
MAX_POINTS_WITH_FIELDS = 100_000
"""Largest number of points with all quantities. For more points, the columns would be larger than the image."""
SELECTION_QUANTITIES = ("h", "delta_mem", "beta", "t")
"""Quantities in the figure of a selection."""
_METHOD_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
_QUANTILE_LEVELS = np.linspace(0.0, 1.0, 101)


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
    """Draw nodes of a snapshot. The order of drawing is random, so that no range of values hides another one.

    Args:
        snapshot: The snapshot.
        rows: Rows of the snapshot to draw, shape [n].
        coordinates: Coordinates of these rows, shape [n, 2].
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        quantity: Key of the quantity for the color. Points without a value are drawn first, below the others.
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
    groups = (("selected", BETA, selected & on_map), ("rest", NEUTRAL, on_map & ~selected))
    panels = []
    for key in SELECTION_QUANTITIES:
        quantity, values = NODE_QUANTITIES[key], compute_node_values(snapshot, key)
        lines = []
        for name, color, mask in groups:
            group_values = values[mask]
            finite = group_values[np.isfinite(group_values)].astype(np.float64)
            quantiles = np.quantile(finite, _QUANTILE_LEVELS) if len(finite) else np.full(len(_QUANTILE_LEVELS), np.nan)
            width = 2.4 if name == "selected" else 1.6
            lines.append(Line(name, color, 100 * _QUANTILE_LEVELS, quantiles, width=width))
        panels.append(Panel(quantity.name, quantity.unit, tuple(lines)))
    n, total = int(groups[0][2].sum()), int(on_map.sum())
    caption = (
        f"{n:,} of {total:,} nodes selected on the map of {run} at env step {snapshot.env_step:,}: {description}. "
        "Quantiles: x % of the nodes have at most the value y. Nodes without a value are left out."
    )
    title = f"Selected memories of {run}"
    return Chart("memory-selection", title, "share of nodes [%]", tuple(panels), caption, caption, columns=2)


def get_last_snapshot(db: Database, run: RunRow) -> Snapshot:
    """Read the newest memory snapshot of a run.

    Raises:
        ConfigError: If the run has no snapshot.
    """
    snapshots = list_snapshots(db, run.id)
    if snapshots.empty:
        raise ConfigError(f"Run {run.id} has no snapshot of a memory", hint="Choose a run of an EMTC or EMU algorithm.")
    return get_snapshot(db, int(snapshots["id"].iloc[-1]))


def get_selected_snapshot(db: Database, run: RunRow, options: Options) -> Snapshot:
    """Read the snapshot with the id in the option `snapshot`. Default: the newest snapshot of the run.

    Raises:
        ConfigError: If the snapshot belongs to another run, or if the run has no snapshot.
    """
    snapshot_id = options.get("snapshot")
    if snapshot_id is None:
        return get_last_snapshot(db, run)
    snapshot = get_snapshot(db, snapshot_id)
    if snapshot.run_id != run.id:
        raise ConfigError(
            f"must be a snapshot of run {run.id}, but is of run {snapshot.run_id}", key="snapshot", value=snapshot_id
        )
    return snapshot


def compute_coordinates(db: Database, snapshot: Snapshot, options: Options) -> LabeledPoints:
    """Compute the coordinates of all nodes [M] for the options of the map (`MAP_OPTIONS` and `method`)."""
    method, seed, n = options.method or "pca", options.get("seed", 0), options.get("n") or snapshot.size
    if method == "axes":
        return select_axes(snapshot.embedding, AXIS_PAIRS[options.get("pair", 0)])
    if method == "pca":
        fit_rows = None if options.get("fit") == "all" else sample_rows(snapshot, n=n, seed=seed)
        return compute_pca(snapshot.embedding, fit_on=fit_rows, signs=options.get("turn", DEFAULT_SIGNS))
    name = _METHOD_NAMES.get(method, method)
    projection = project_snapshot(db, snapshot.id, method=method, n=n, seed=seed)
    return LabeledPoints(projection.coordinates, f"{name} 1 [1]", f"{name} 2 [1]")


def read_selection(options: Options) -> NodeSelection:
    """Read the selection from the options `lasso` and `ranges`. Without them, all nodes are selected."""
    return NodeSelection.parse(options.get("lasso", ""), options.get("ranges", ""))


def _memory_atlas(db: Database, rows: Sequence[RunRow], options: Options) -> Cloud:
    run, color = get_single_run("memory-atlas", rows), options.color or "h"
    snapshot = get_selected_snapshot(db, run, options)
    title = options.get("title", f"Memory of {run.name} at step {snapshot.env_step}")
    if "n" not in options.extra_options:
        return _draw_default_map(db, snapshot, options, color=color, title=title)
    projection, selection = compute_coordinates(db, snapshot, options), read_selection(options)
    max_points = options.get("drawn", options.get("n")) or snapshot.size
    drawn_rows = sample_rows(snapshot, n=max_points, seed=options.get("seed", 0))
    if "drawn" in options.extra_options:
        drawn_rows = drawn_rows[selection.mask(snapshot, projection.coordinates)[drawn_rows]]
    selection_text = f", selected: {selection.words}" if selection else ""
    return draw_memory(
        snapshot,
        drawn_rows,
        projection.coordinates[drawn_rows],
        x_label=projection.x_label,
        y_label=projection.y_label,
        quantity=color,
        colors=options.get("scale", VIRIDIS),
        title=title,
        caption=options.get("caption", f"Showing {len(drawn_rows)} of {snapshot.size} nodes{selection_text}."),
    )


def _draw_default_map(db: Database, snapshot: Snapshot, options: Options, *, color: str, title: str) -> Cloud:
    """Draw a snapshot with its stored projection for the default landmarks. A missing projection is computed."""
    method = options.method or "pca"
    projection = project_snapshot(db, snapshot.id, method=method)
    rows = sample_rows(snapshot, n=MAX_POINTS, seed=0)
    caption = f"Showing {len(rows)} of {snapshot.size} nodes, stratified by return and time, seed 0."
    return draw_memory(
        snapshot,
        rows,
        projection.coordinates[rows],
        x_label=f"{method} 1",
        y_label=f"{method} 2",
        quantity=color,
        colors=options.get("scale", VIRIDIS),
        title=title,
        caption=options.get("caption", caption),
    )


def _memory_selection(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run, selection = get_single_run("memory-selection", rows), read_selection(options)
    if not selection:
        raise ConfigError("memory-selection needs the option lasso or ranges to select nodes")
    snapshot = get_selected_snapshot(db, run, options)
    coordinates = compute_coordinates(db, snapshot, options).coordinates
    selected, on_map = selection.mask(snapshot, coordinates), has_place(coordinates)
    return draw_selection(snapshot, selected, on_map, run=run.name, description=selection.words)


def _read_pair(value: Any) -> int:
    return range(len(AXIS_PAIRS)).index(int(value))


def _read_signs(value: Any) -> tuple[int, int]:
    first, second = (-1 if int(sign) < 0 else 1 for sign in value)
    return first, second


def _read_colors(value: Any) -> tuple[str, ...]:
    return tuple(str(color) for color in value)


MAP_OPTIONS = (
    FigureOption("snapshot", int, "the id of a snapshot"),
    FigureOption("n", int, "a number of landmarks"),
    FigureOption("seed", int, "an integer"),
    FigureOption("pair", _read_pair, f"an index below {len(AXIS_PAIRS)} of a pair of embedding axes"),
    FigureOption("fit", str, "all or landmarks: the nodes to which a PCA is fitted"),
    FigureOption("turn", _read_signs, "two signs for the two axes of a PCA"),
    FigureOption("lasso", str, "the corners of a polygon on the map, x,y;x,y;x,y"),
    FigureOption("ranges", str, "ranges of quantities, for example h:0.5:2;t:0:40"),
)
"""Options for the snapshot, the projection and the selection of nodes."""
_TEXT_OPTIONS = (FigureOption("title", str, "a text"), FigureOption("caption", str, "a text"))
_DRAWING_OPTIONS = (
    FigureOption("drawn", int, "a number of nodes"),
    FigureOption("scale", _read_colors, "colors from low to high"),
)
FIGURES = (
    FigureKind(
        "memory-atlas", _memory_atlas, frozenset({"color", "method"}), needs_runs=True,
        extra_options=(*MAP_OPTIONS, *_DRAWING_OPTIONS, *_TEXT_OPTIONS),
        question="Which states are in the memory of a run?",
    ),
    FigureKind(
        "memory-selection", _memory_selection, frozenset({"method"}), needs_runs=True, extra_options=MAP_OPTIONS,
        question="How do the selected memories differ from the others?",
    ),
)  # fmt: skip
