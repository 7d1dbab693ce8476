"""Selection of memory nodes on the memory map, by lasso and by ranges of values, and statistics of the selected nodes.

A node is a stored state of the episodic memory. The memory map is a projection of the nodes to the plane.
`NODE_QUANTITIES` lists the quantities of a node that can be used for the colors of the map and for ranges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from emtc_core.errors import ConfigError
from storage.queries.memory import Snapshot


@dataclass(frozen=True)
class NodeQuantity:
    """A quantity of a memory node."""

    key: str
    name: str
    unit: str
    meaning: str
    is_binary: bool = False
    is_integer: bool = False
    value_names: tuple[str, ...] = ()
    """Names of the values 0, 1, …; empty if the values are numbers."""
    no_effect: float | None = None
    """The value of ordinary nodes: on which the gate has no effect, or with one visit. Maps draw these nodes gray and
    small, below the others."""
    is_log: bool = False
    """Whether the color scale is logarithmic."""


NODE_QUANTITIES: dict[str, NodeQuantity] = {
    q.key: q
    for q in (
        NodeQuantity("h", "H", "return", "highest return-to-go that was reached from the state"),
        NodeQuantity(
            "xi", "ξ", "yes or no", "desirable: part of a successful episode", is_binary=True,
            value_names=("not yet", "desirable"),
        ),
        NodeQuantity("delta_mem", "Δ_mem", "return", "consistency error along the stored successor", no_effect=0.0,
        is_log=True),
        NodeQuantity("beta", "β", "fraction", "gate coefficient of that error at the snapshot's τ", no_effect=1.0),
        NodeQuantity("t", "t", "steps", "step of the episode at which the state was visited", is_integer=True),
        NodeQuantity("success", "N_ξ ÷ N_call", "fraction", "fraction of the visits in successful episodes"),
        NodeQuantity("n_call", "N_call", "visits", "number of visits of the state", is_integer=True, no_effect=1.0,
        is_log=True),
        NodeQuantity("age", "age", "env steps", "env steps since the visit that wrote the state of the node",
        is_integer=True),
        NodeQuantity("episode", "episode", "number", "training episode that wrote the state of the node",
        is_integer=True),
    )
}  # fmt: skip


MAX_CORNERS: Final = 200
"""Maximum number of corners of a lasso."""
DESCRIBED_QUANTITIES: Final = ("h", "delta_mem", "beta", "t")
"""Quantities whose quantiles `tabulate_selection` computes."""
_QUANTILES: Final = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}


def compute_node_values(snapshot: Snapshot, key: str) -> NDArray[np.float32]:
    """Compute a quantity of all nodes [M].

    Args:
        snapshot: The memory.
        key: Key in `NODE_QUANTITIES`.

    Raises:
        KeyError: If the quantity does not exist.
    """
    if key == "success":
        success_fraction = snapshot.n_xi / np.maximum(snapshot.n_call, 1)
        return np.where(snapshot.n_call > 0, success_fraction, np.nan).astype(np.float32)
    return getattr(snapshot, NODE_QUANTITIES[key].key).astype(np.float32)


@dataclass(frozen=True)
class NodeSelection:
    """A lasso in the plane of a projection, and ranges of quantities including both ends.

    An empty selection selects all nodes that have coordinates. A node without a value is outside every range of it.
    """

    polygon: tuple[tuple[float, float], ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @classmethod
    def parse(cls, polygon: str = "", ranges: str = "") -> Self:
        """Parse "x,y;x,y;x,y" and "h:0.5:2;t:0:40".

        Raises:
            ConfigError: If the lasso or the ranges are invalid.
        """
        corners = tuple(_parse_corner(part) for part in polygon.split(";") if part)
        if corners and not 3 <= len(corners) <= MAX_CORNERS:
            raise ConfigError(f"must have 3 to {MAX_CORNERS} corners, has {len(corners)}", key="polygon")
        return cls(corners, dict(_parse_range(part) for part in ranges.split(";") if part))

    def __bool__(self) -> bool:
        return bool(self.polygon or self.ranges)

    @property
    def description(self) -> str:
        """The selection in words: "H 0.5 – 2, inside a lasso"."""
        parts = [f"{NODE_QUANTITIES[key].name} {low:.4g} – {high:.4g}" for key, (low, high) in self.ranges.items()]
        if self.polygon:
            parts.append("inside a lasso")
        return ", ".join(parts)

    def mask(self, snapshot: Snapshot, coordinates: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Compute the mask [M] of the selected nodes.

        Args:
            snapshot: The memory.
            coordinates: Coordinates [M, 2] of the projection; nodes with NaN are never selected.
        """
        selected = has_coordinates(coordinates)
        for key, (low, high) in self.ranges.items():
            values = compute_node_values(snapshot, key).astype(np.float64)
            selected &= (values >= low) & (values <= high)
        if self.polygon:
            rows = np.flatnonzero(selected)
            selected[rows] = _is_inside(np.array(self.polygon), coordinates[rows].astype(np.float64))
        return selected


def has_coordinates(coordinates: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Compute the mask [M] of the nodes that have coordinates in the projection [M, 2]."""
    return np.isfinite(coordinates[:, 0]) & np.isfinite(coordinates[:, 1])


def _parse_corner(text: str) -> tuple[float, float]:
    numbers = parse_numbers(text, ",")
    if len(numbers) != 2:
        raise ConfigError('must have corners "x,y"', key="polygon", value=text)
    return numbers[0], numbers[1]


def _parse_range(text: str) -> tuple[str, tuple[float, float]]:
    key, _, ends = text.partition(":")
    numbers = parse_numbers(ends, ":")
    if key not in NODE_QUANTITIES or len(numbers) != 2:
        raise ConfigError(
            f'must be "quantity:from:to" with one of {", ".join(NODE_QUANTITIES)}', key="ranges", value=text
        )
    return key, (numbers[0], numbers[1])


def parse_numbers(text: str, separator: str) -> list[float]:
    """Parse finite numbers; empty if a part is not one."""
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        return []
    return numbers if all(map(isfinite, numbers)) else []


def _is_inside(polygon: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points [n, 2] are inside a polygon [corners, 2].

    Even-odd rule: a point is inside if a horizontal ray from it to the right crosses an odd number of edges. The
    function `keepInside` in assets/atlas_points.js has the same arithmetic, so that both select the same nodes.
    """
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    is_inside = np.zeros(len(points), bool)
    in_box = np.flatnonzero(((points >= low) & (points <= high)).all(axis=1))
    x = points[in_box, 0]
    y = points[in_box, 1]
    is_odd = np.zeros(len(in_box), bool)
    for (ax, ay), (bx, by) in zip(polygon, np.roll(polygon, 1, axis=0), strict=True):
        if ay != by:
            is_at_height = (ay > y) != (by > y)
            is_left_of_edge = x < (bx - ax) * (y - ay) / (by - ay) + ax
            is_odd ^= is_at_height & is_left_of_edge
    is_inside[in_box] = is_odd
    return is_inside


def tabulate_selection(snapshot: Snapshot, selected: NDArray[np.bool_], on_map: NDArray[np.bool_]) -> pd.DataFrame:
    """Compare the selected nodes with the other nodes on the map: one row per number, columns selected and rest.

    Nodes without a value are left out of its quantiles: Δ_mem and β of a node without a successor. The quantiles of
    Δ_mem are left out if all of them are 0, and those of β if all are 1, which is so in most memories.

    Args:
        snapshot: The memory.
        selected: Mask [M] of the selected nodes.
        on_map: Mask [M] of the nodes on the map.
    """
    masks = {"selected": selected & on_map, "rest": on_map & ~selected}
    has_error = np.isfinite(snapshot.delta_mem)
    rows: list[dict[str, object]] = []

    def add_row(name: str, unit: str, compute: Callable[[NDArray[np.bool_]], float]) -> None:
        numbers = {column: compute(mask) for column, mask in masks.items()}
        rows.append({"what": name, "unit": unit, **numbers})

    add_row("nodes", "", lambda mask: float(mask.sum()))
    add_row("episodes of origin", "", lambda mask: float(len(np.unique(snapshot.episode[mask]))))
    add_row("desirable, ξ", "fraction", lambda mask: _mean(snapshot.xi[mask]))
    add_row("success, ΣN_ξ ÷ ΣN_call", "fraction", lambda mask: _success_rate(snapshot, mask))
    add_row("Δ_mem above 0", "fraction", lambda mask: _mean(snapshot.delta_mem[mask & has_error] > 0))
    for key in DESCRIBED_QUANTITIES:
        quantity = NODE_QUANTITIES[key]
        values = compute_node_values(snapshot, key)
        levels = list(_QUANTILES.values())
        quantiles = [_quantile(values[mask], q) for mask in masks.values() for q in levels]
        if quantity.no_effect is not None and {q for q in quantiles if isfinite(q)} == {quantity.no_effect}:
            continue
        for label, q in _QUANTILES.items():
            add_row(
                f"{quantity.name}, {label}",
                quantity.unit,
                lambda mask, values=values, q=q: _quantile(values[mask], q),
            )
    return pd.DataFrame(rows)


def list_nodes(snapshot: Snapshot, coordinates: NDArray[np.float32], rows: NDArray[np.int64]) -> pd.DataFrame:
    """Tabulate the given nodes: slot, coordinates and all quantities."""
    columns = {"slot": snapshot.slot[rows], "x": coordinates[rows, 0], "y": coordinates[rows, 1]}
    for key in NODE_QUANTITIES:
        columns[key] = compute_node_values(snapshot, key)[rows]
    return pd.DataFrame(columns)


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _success_rate(snapshot: Snapshot, mask: NDArray[np.bool_]) -> float:
    visits = int(snapshot.n_call[mask].sum())
    return float(snapshot.n_xi[mask].sum() / visits) if visits else float("nan")


def _quantile(values: NDArray[np.float32], q: float) -> float:
    finite_values = values[np.isfinite(values)].astype(np.float64)
    return float(np.quantile(finite_values, q)) if len(finite_values) else float("nan")
