"""Which nodes of a memory a researcher chose on the map, by lasso and by ranges of values, and what they are.

The quantities of a memory's nodes: what a map can be coloured by and a choice can be made by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from emtc_core.errors import ConfigError
from storage.queries.memory import Snapshot


@dataclass(frozen=True)
class Quantity:
    """What a point's colour can mean."""

    key: str
    name: str
    unit: str
    meaning: str
    binary: bool = False
    whole: bool = False
    words: tuple[str, ...] = ()
    """What its values are called, from 0 up, where people say words for them."""


QUANTITIES: dict[str, Quantity] = {
    q.key: q
    for q in (
        Quantity("h", "H", "return", "highest return-to-go ever seen from the state"),
        Quantity(
            "xi", "ξ", "yes or no", "desirable: part of a successful episode", binary=True,
            words=("not yet", "desirable"),
        ),
        Quantity("delta_mem", "Δ_mem", "return", "consistency error along the stored successor"),
        Quantity("beta", "β", "fraction", "gate coefficient of that error at the snapshot's τ"),
        Quantity("t", "t", "steps", "step of the episode at which the state was met", whole=True),
        Quantity("success", "N_ξ ÷ N_call", "fraction", "share of the visits that belong to successes"),
        Quantity("n_call", "N_call", "visits", "how often the state was met", whole=True),
        Quantity("age", "age", "env steps", "since the state that stands in the node was met", whole=True),
        Quantity("episode", "episode", "number", "the training episode whose state stands in the node", whole=True),
    )
}  # fmt: skip


def values_of(snapshot: Snapshot, color: str) -> NDArray[np.float32]:
    """Compute the coloured quantity of every node [M].

    Raises:
        KeyError: If there is no such quantity.
    """
    if color == "success":
        share = snapshot.n_xi / np.maximum(snapshot.n_call, 1)
        return np.where(snapshot.n_call > 0, share, np.nan).astype(np.float32)
    return getattr(snapshot, QUANTITIES[color].key).astype(np.float32)


MOST_CORNERS: Final = 200
DESCRIBED: Final = ("h", "delta_mem", "beta", "t")
_QUANTILES: Final = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}


@dataclass(frozen=True)
class Choice:
    """A lasso in the plane of a projection and ranges of quantities, ends included; empty chooses every node.

    A node without a value passes no range on it; a node without a place is in no lasso.
    """

    polygon: tuple[tuple[float, float], ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @classmethod
    def parse(cls, polygon: str = "", ranges: str = "") -> Self:
        """Read "x,y;x,y;x,y" and "h:0.5:2;t:0:40".

        Raises:
            ConfigError: If they mean nothing.
        """
        corners = tuple(_corner(part) for part in polygon.split(";") if part)
        if corners and not 3 <= len(corners) <= MOST_CORNERS:
            raise ConfigError(f"must have 3 to {MOST_CORNERS} corners, has {len(corners)}", key="polygon")
        return cls(corners, dict(_range(part) for part in ranges.split(";") if part))

    def __bool__(self) -> bool:
        return bool(self.polygon or self.ranges)

    @property
    def words(self) -> str:
        """What is chosen, as "H 0.5 – 2, inside a lasso"."""
        said = [f"{QUANTITIES[key].name} {low:.4g} – {high:.4g}" for key, (low, high) in self.ranges.items()]
        return ", ".join([*said, *(["inside a lasso"] if self.polygon else [])])

    def mask(self, snapshot: Snapshot, coordinates: NDArray[np.float32]) -> NDArray[np.bool_]:
        """A mask of the nodes [M]: whether it is chosen, given its place [M, 2]; NaN: it has none."""
        chosen = has_place(coordinates)
        for key, (low, high) in self.ranges.items():
            values = values_of(snapshot, key).astype(np.float64)
            chosen &= (values >= low) & (values <= high)
        if self.polygon:
            rows = np.flatnonzero(chosen)
            chosen[rows] = _inside(np.array(self.polygon), coordinates[rows].astype(np.float64))
        return chosen


def has_place(coordinates: NDArray[np.float32]) -> NDArray[np.bool_]:
    """A mask of the nodes that the projection [M, 2] gives a place."""
    return np.isfinite(coordinates[:, 0]) & np.isfinite(coordinates[:, 1])


def _corner(text: str) -> tuple[float, float]:
    numbers = read_numbers(text, ",")
    if len(numbers) != 2:
        raise ConfigError('must have corners "x,y"', key="polygon", value=text)
    return numbers[0], numbers[1]


def _range(text: str) -> tuple[str, tuple[float, float]]:
    key, _, ends = text.partition(":")
    numbers = read_numbers(ends, ":")
    if key not in QUANTITIES or len(numbers) != 2:
        raise ConfigError(f'must be "quantity:from:to" with one of {", ".join(QUANTITIES)}', key="ranges", value=text)
    return key, (numbers[0], numbers[1])


def read_numbers(text: str, separator: str) -> list[float]:
    """Read finite numbers; none where any part is not one."""
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        return []
    return numbers if all(map(isfinite, numbers)) else []


def _inside(polygon: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Even-odd rule, corner after corner, as the browser applies it (`keepInside` in assets/atlas_points.js)."""
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    inside = np.zeros(len(places), bool)
    near = np.flatnonzero(((places >= low) & (places <= high)).all(axis=1))
    x, y = places[near, 0], places[near, 1]
    within = np.zeros(len(near), bool)
    for (ax, ay), (bx, by) in zip(polygon, np.roll(polygon, 1, axis=0), strict=True):
        if ay != by:
            within ^= ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    inside[near] = within
    return inside


def describe(snapshot: Snapshot, chosen: NDArray[np.bool_], among: NDArray[np.bool_]) -> pd.DataFrame:
    """Hold the chosen nodes against the rest of those on the map: one row per number, columns selected and rest.

    Shares leave out what has no value: Δ_mem and β of a node without a successor, ξ never.
    """
    parts = {"selected": chosen & among, "rest": among & ~chosen}
    rows: list[dict[str, object]] = []

    def add(name: str, unit: str, values: Mapping[str, float]) -> None:
        rows.append({"what": name, "unit": unit, **values})

    add("nodes", "", {part: float(mask.sum()) for part, mask in parts.items()})
    add("episodes of origin", "", {part: float(len(np.unique(snapshot.episode[m]))) for part, m in parts.items()})
    add("desirable, ξ", "fraction", {part: _mean(snapshot.xi[m]) for part, m in parts.items()})
    add("success, ΣN_ξ ÷ ΣN_call", "fraction", {part: _success(snapshot, m) for part, m in parts.items()})
    for key in DESCRIBED:
        quantity, values = QUANTITIES[key], values_of(snapshot, key)
        for label, part_of in _QUANTILES.items():
            numbers = {part: _quantile(values[m], part_of) for part, m in parts.items()}
            add(f"{quantity.name}, {label}", quantity.unit, numbers)
    return pd.DataFrame(rows)


def list_nodes(snapshot: Snapshot, coordinates: NDArray[np.float32], rows: NDArray[np.int64]) -> pd.DataFrame:
    """List nodes with their place and every quantity, by slot."""
    place = {"slot": snapshot.slot[rows], "x": coordinates[rows, 0], "y": coordinates[rows, 1]}
    return pd.DataFrame({**place, **{key: values_of(snapshot, key)[rows] for key in QUANTITIES}})


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _success(snapshot: Snapshot, mask: NDArray[np.bool_]) -> float:
    visits = int(snapshot.n_call[mask].sum())
    return float(snapshot.n_xi[mask].sum() / visits) if visits else float("nan")


def _quantile(values: NDArray[np.float32], part: float) -> float:
    known = values[np.isfinite(values)].astype(np.float64)
    return float(np.quantile(known, part)) if len(known) else float("nan")
