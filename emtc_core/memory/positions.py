"""Positions of nodes and their search: scaling, live grid, stale grid, and an index for any distance.

`EpisodicMemory` decides when the scaling and the indexes are rebuilt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.config.memory import MemoryConfig
from emtc_core.memory.index.base import Points, Slots
from emtc_core.memory.index.device import make_nearest_index
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.index.incremental import IncrementalIndex
from emtc_core.memory.nodes import NodeTable
from emtc_core.memory.scaling import Scaling, identity_scaling
from emtc_core.memory.write import LookupIndex

NO_UIDS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class StaleIndex:
    """Scaling, positions and uids of the nodes at the last target update.

    Source: EMU's tree, which is rebuilt at target updates (A13).
    """

    scaling: Scaling
    z: Points  # [M, X] [normalized embedding]
    uid: NDArray[np.int64]  # [M] uids, dimensionless
    grid: GridIndex


class NodePositions:
    """Scaled positions of the nodes, and nearest-neighbor search."""

    def __init__(self, config: MemoryConfig, *, dim: int, device: str) -> None:
        self._config = config
        self.scaling = identity_scaling(dim)
        self._grid = GridIndex(config.delta, config.delta_metric)
        self._stale: StaleIndex | None = None
        if config.index == "stale_target_update":
            self._stale = self._make_stale_index(self.scaling, np.zeros((0, dim)), NO_UIDS)
        metric, index_device = config.delta_metric, "cpu" if config.index_device == "cpu" else device
        self._nearest = IncrementalIndex(lambda: make_nearest_index(metric, device=index_device), metric)

    @property
    def scaling_of_lookups(self) -> Scaling:
        """Scaling of the queries: that of the index."""
        return self._stale.scaling if self._stale else self.scaling

    def lookup_index(self) -> LookupIndex:
        """Return the grid that lookups use, for the compiled code of Algorithm 2."""
        stale = self._stale
        grid = stale.grid if stale else self._grid
        uid = stale.uid if stale else NO_UIDS
        return LookupIndex(grid.cells(), uid, stale is None)

    def reserve(self, table: NodeTable) -> None:
        """Grow the live grid to the size of the table. Must be called before a write."""
        if self._stale is None:
            self._grid.reserve(table.z, table.size)

    def rescale(self, table: NodeTable, scaling: Scaling) -> None:
        """Scale all nodes again and rebuild the live index."""
        self.scaling = scaling
        scaling.apply(table.x[: table.size], out=table.z[: table.size])
        if self._stale is None:
            self._grid.build(table.z, table.size)
            self._nearest.invalidate()

    def rebuild_stale_index(self, table: NodeTable) -> None:
        """Use a copy of the current nodes for all lookups until the next call."""
        uid = table.nodes["uid"][: table.size].copy()
        self._stale = self._make_stale_index(self.scaling, table.z[: table.size].copy(), uid)
        self._nearest.invalidate()

    def _make_stale_index(self, scaling: Scaling, z: Points, uid: NDArray[np.int64]) -> StaleIndex:
        grid = GridIndex(self._config.delta, self._config.delta_metric)
        grid.build(z)
        return StaleIndex(scaling, z, uid, grid)

    def find(self, table: NodeTable, q: Points) -> Slots:
        """Find the nearest node within delta for each query.

        Source: the nearest node within delta of Algorithm 2.

        Args:
            table: The nodes.
            q: [Q, X] [normalized embedding], in `scaling_of_lookups`.

        Returns:
            [Q], slot indices; -1 if there is no node within delta.
        """
        grid = self._stale.grid if self._stale else self._grid
        return self._drop_evicted(table, grid.query(q)[0])

    def find_nearest(self, table: NodeTable, q: Points) -> Slots:
        """Find the nearest node at any distance for each query.

        Source: the nearest node of Algorithm 2.

        Args:
            table: The nodes.
            q: [Q, X] [normalized embedding], in `scaling_of_lookups`.

        Returns:
            [Q], slot indices; -1 if there are no nodes.
        """
        z = self._stale.z if self._stale else table.z[: table.size]
        return self._drop_evicted(table, self._nearest.query(z, q))

    def count_searched_nodes(self, table: NodeTable) -> int:
        """Count the nodes that a lookup searches."""
        return len(self._stale.uid) if self._stale else table.size

    def mark_written(self, slots: Slots) -> None:
        """Register slots whose nodes may be new or may have moved. A stale index does not change.

        Source: implementation detail.

        Args:
            slots: [K], slot indices; -1 is skipped.
        """
        if self._stale is None:
            self._nearest.mark_written(slots)

    def _drop_evicted(self, table: NodeTable, slots: Slots) -> Slots:
        """Replace slots of stale nodes that were evicted since then by -1."""
        if self._stale is None or not len(self._stale.uid):
            return slots
        same = table.nodes["uid"][np.maximum(slots, 0)] == self._stale.uid[np.maximum(slots, 0)]
        return np.where((slots >= 0) & same, slots, -1)

    def get_state(self) -> dict[str, Any]:
        """Copy scaling and stale nodes for a checkpoint. `set_state` rebuilds the grids from them."""
        state: dict[str, Any] = {"scaling": _scaling_state(self.scaling), "stale": None}
        if self._stale:
            stale = self._stale
            state["stale"] = {
                "scaling": _scaling_state(stale.scaling),
                "z": torch.from_numpy(stale.z.copy()),
                "uid": torch.from_numpy(stale.uid.copy()),
            }
        return state

    def set_state(self, state: Mapping[str, Any], table: NodeTable) -> None:
        """Restore the result of `get_state`. The table must be restored before."""
        self.rescale(table, _make_scaling(state["scaling"]))
        if state["stale"] is not None:
            stale = state["stale"]
            self._stale = self._make_stale_index(
                _make_scaling(stale["scaling"]), stale["z"].numpy(), stale["uid"].numpy()
            )
            self._nearest.invalidate()

    def list_faults(self, table: NodeTable) -> list[str]:
        """List the broken invariants of positions and index, as sentences."""
        faults = []
        z = table.z[: table.size]
        if not np.array_equal(z, self.scaling.apply(table.x[: table.size])):
            faults.append("the position of a node differs from its scaled embedding")
        if self._stale is None and table.size:
            slots, distances = self._grid.query(z)
            if (distances != 0).any() or (slots > np.arange(table.size)).any():
                faults.append("a search at the position of a node does not find it")
            if self._grid.count() != table.size:
                faults.append(f"the index has {self._grid.count()} nodes, the table {table.size}")
        return faults


def _scaling_state(scaling: Scaling) -> dict[str, Any]:
    return {
        "mean": torch.from_numpy(scaling.mean.copy()),
        "divisor": torch.from_numpy(scaling.divisor.copy()),
        "is_float64": scaling.is_float64,
    }


def _make_scaling(state: Mapping[str, Any]) -> Scaling:
    return Scaling(state["mean"].numpy().copy(), state["divisor"].numpy().copy(), state["is_float64"])
