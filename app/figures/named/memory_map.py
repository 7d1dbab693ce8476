"""The map of a memory: a snapshot's nodes in a plane, coloured by one quantity, and a selection against the rest.

Memory draws both from what it shows; everything else asks for a snapshot, a projection, a sample and a choice by name.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import AXIS_PAIRS, NO_TURN, Drawn, draw_axes, draw_pca
from app.analysis.projections.snapshots import project_snapshot, sample_rows
from app.analysis.selection import QUANTITIES, Choice, has_place, values_of
from app.figures.figure import FigureKind, Options, Own, one_run
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Cloud
from app.figures.theme import BETA, NEUTRAL, VIRIDIS
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.runs.rows import RunRow

SHOWN = 20_000
_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
MOST_WITH_FIELDS = 100_000
"""Beyond, the columns of numbers would weigh more than the picture."""


def draw_memory(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    coordinates: NDArray[np.float32],
    *,
    x_label: str,
    y_label: str,
    color: str,
    title: str,
    caption: str,
    every_quantity: bool = False,
    colors: tuple[str, ...] = VIRIDIS,
) -> Cloud:
    """Draw the chosen rows [n] at coordinates [n, 2]; in a fixed random order, so that no value hides another.

    Points without a value lie at the bottom. `every_quantity` of up to `MOST_WITH_FIELDS` points comes along.

    Raises:
        ValueError: If there is not one place for each row.
    """
    if coordinates.shape != (len(rows), 2):
        raise ValueError(f"coordinates must have shape ({len(rows)}, 2), got {coordinates.shape}")
    value = values_of(snapshot, color)[rows]
    shuffled = np.random.default_rng(0).permutation(len(rows))
    known = np.isfinite(value[shuffled])
    order = np.concatenate([shuffled[~known], shuffled[known]])
    told = QUANTITIES if every_quantity and len(rows) <= MOST_WITH_FIELDS else ()
    return Cloud(
        name="memory-atlas",
        title=title,
        x_label=x_label,
        y_label=y_label,
        x=np.ascontiguousarray(coordinates[order, 0]),
        y=np.ascontiguousarray(coordinates[order, 1]),
        slot=snapshot.slot[rows][order],
        value=value[order],
        quantity=QUANTITIES[color],
        caption=caption,
        fields=tuple((key, values_of(snapshot, key)[rows][order]) for key in told),
        scale=colors,
    )


DRAWN = ("h", "delta_mem", "beta", "t")
_PARTS = np.linspace(0.0, 1.0, 101)


def draw_selection(
    snapshot: Snapshot, chosen: NDArray[np.bool_], among: NDArray[np.bool_], *, run: str, words: str
) -> Chart:
    """Draw the quantiles of H, Δ_mem, β and t of the chosen nodes [M] and of the rest of those on the map.

    A curve at 40 % says which value four nodes in ten do not exceed.
    """
    parts = (("selected", BETA, chosen & among), ("rest", NEUTRAL, among & ~chosen))
    panels = []
    for key in DRAWN:
        quantity, values = QUANTITIES[key], values_of(snapshot, key)
        lines = tuple(
            Line(name, color, 100 * _PARTS, _quantiles(values[mask]), width=2.4 if name == "selected" else 1.6)
            for name, color, mask in parts
        )
        panels.append(Panel(quantity.name, quantity.unit, lines))
    n, total = int(parts[0][2].sum()), int(among.sum())
    caption = (
        f"{n:,} of {total:,} nodes selected on the map of {run} at env step {snapshot.env_step:,}: {words}. "
        "At each share the value that so many nodes do not exceed; nodes without a value are left out."
    )
    title = f"Selected memories of {run}"
    return Chart("memory-selection", title, "share of nodes [%]", tuple(panels), caption, caption, columns=2)


def _quantiles(values: NDArray[np.float32]) -> NDArray[np.float64]:
    known = values[np.isfinite(values)].astype(np.float64)
    return np.quantile(known, _PARTS) if len(known) else np.full(len(_PARTS), np.nan)


def last_snapshot(db: Database, run: RunRow) -> Snapshot:
    """Read the newest snapshot of a run's memory.

    Raises:
        ConfigError: If there is none.
    """
    snapshots = list_snapshots(db, run.id)
    if snapshots.empty:
        raise ConfigError(f"Run {run.id} has no snapshot of a memory", hint="Choose a run of an EMTC or EMU algorithm.")
    return get_snapshot(db, int(snapshots["id"].iloc[-1]))


def chosen_snapshot(db: Database, run: RunRow, options: Options) -> Snapshot:
    """Read the snapshot that the option `snapshot` names by its id, else the newest.

    Raises:
        ConfigError: If it is of another run, or there is none.
    """
    wanted = options.get("snapshot")
    if wanted is None:
        return last_snapshot(db, run)
    snapshot = get_snapshot(db, wanted)
    if snapshot.run_id != run.id:
        raise ConfigError(
            f"must be a snapshot of run {run.id}, but is of run {snapshot.run_id}", key="snapshot", value=wanted
        )
    return snapshot


def place_nodes(db: Database, snapshot: Snapshot, options: Options) -> Drawn:
    """Place every node [M] as the options of the map say: method, its axes or signs, landmarks and seed."""
    method, seed, n = options.method or "pca", options.get("seed", 0), options.get("n") or snapshot.size
    if method == "axes":
        return draw_axes(snapshot.embedding, AXIS_PAIRS[options.get("pair", 0)])
    if method == "pca":
        fitted = None if options.get("fit") == "all" else sample_rows(snapshot, n=n, seed=seed)
        return draw_pca(snapshot.embedding, fit_on=fitted, turn=options.get("turn", NO_TURN))
    name = _NAMES.get(method, method)
    projection = project_snapshot(db, snapshot.id, method=method, n=n, seed=seed)
    return Drawn(projection.coordinates, f"{name} 1 [1]", f"{name} 2 [1]")


def read_choice(options: Options) -> Choice:
    """The selection that lasso and ranges describe; an empty one keeps every node."""
    return Choice.parse(options.get("lasso", ""), options.get("ranges", ""))


def _memory_atlas(db: Database, rows: Sequence[RunRow], options: Options) -> Cloud:
    run, color = one_run("memory-atlas", rows), options.color or "h"
    snapshot = chosen_snapshot(db, run, options)
    usual = f"Memory of {run.name} at step {snapshot.env_step}"
    if "n" not in options.own:
        return _usual_map(db, snapshot, options, color=color, title=options.get("title", usual))
    drawn, choice = place_nodes(db, snapshot, options), read_choice(options)
    shown = sample_rows(
        snapshot, n=options.get("drawn", options.get("n")) or snapshot.size, seed=options.get("seed", 0)
    )
    shown = shown[choice.mask(snapshot, drawn.coordinates)[shown]] if "drawn" in options.own else shown
    kept = f", chosen: {choice.words}" if choice else ""
    return draw_memory(
        snapshot,
        shown,
        drawn.coordinates[shown],
        x_label=drawn.x_label,
        y_label=drawn.y_label,
        color=color,
        colors=options.get("scale", VIRIDIS),
        title=options.get("title", usual),
        caption=options.get("caption", f"Showing {len(shown)} of {snapshot.size} nodes{kept}."),
    )


def _usual_map(db: Database, snapshot: Snapshot, options: Options, *, color: str, title: str) -> Cloud:
    """Draw a snapshot by the stored projection of its usual landmarks, computed where it is missing."""
    method = options.method or "pca"
    projection = project_snapshot(db, snapshot.id, method=method)
    shown = sample_rows(snapshot, n=SHOWN, seed=0)
    caption = f"Showing {len(shown)} of {snapshot.size} nodes, stratified by return and time, seed 0."
    return draw_memory(
        snapshot,
        shown,
        projection.coordinates[shown],
        x_label=f"{method} 1",
        y_label=f"{method} 2",
        color=color,
        colors=options.get("scale", VIRIDIS),
        title=title,
        caption=options.get("caption", caption),
    )


def _memory_selection(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run, choice = one_run("memory-selection", rows), read_choice(options)
    if not choice:
        raise ConfigError("memory-selection needs a lasso or ranges: what is held against the rest?")
    snapshot = chosen_snapshot(db, run, options)
    drawn = place_nodes(db, snapshot, options)
    chosen, among = choice.mask(snapshot, drawn.coordinates), has_place(drawn.coordinates)
    return draw_selection(snapshot, chosen, among, run=run.name, words=choice.words)


def _read_pair(value: Any) -> int:
    return range(len(AXIS_PAIRS)).index(int(value))


def _read_turn(value: Any) -> tuple[int, int]:
    first, second = (-1 if int(sign) < 0 else 1 for sign in value)
    return first, second


def _read_colors(value: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in value)


PLACES = (
    Own("snapshot", int, "the id of a snapshot"),
    Own("n", int, "a number of landmarks"),
    Own("seed", int, "a whole number"),
    Own("pair", _read_pair, f"a number below {len(AXIS_PAIRS)}, which names two axes of the embedding"),
    Own("fit", str, "all, or landmarks: what decides the directions of a PCA"),
    Own("turn", _read_turn, "two signs, by which the directions of a PCA are shown"),
    Own("lasso", str, "the corners of a polygon on the map, x,y;x,y;x,y"),
    Own("ranges", str, "ranges of quantities, as h:0.5:2;t:0:40"),
)
"""How a snapshot's nodes are placed and chosen."""
_TEXTS = (Own("title", str, "a text"), Own("caption", str, "a text"))
_DRAWN = (Own("drawn", int, "a number of nodes"), Own("scale", _read_colors, "colours from low to high"))
FIGURES = (
    FigureKind(
        "memory-atlas", _memory_atlas, frozenset({"color", "method"}), needs_runs=True,
        own=(*PLACES, *_DRAWN, *_TEXTS), question="What does the memory of a run hold?",
    ),
    FigureKind(
        "memory-selection", _memory_selection, frozenset({"method"}), needs_runs=True, own=PLACES,
        question="How do chosen memories differ from the rest?",
    ),
)  # fmt: skip
