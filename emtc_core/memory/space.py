"""Positions of nodes and their search: scaling, live grid, frozen grid, and an index for any distance.

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
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.index.incremental import IncrementalIndex, make_nearest_index
from emtc_core.memory.nodes import NodeTable
from emtc_core.memory.scaling import Scaling, identity_scaling
from emtc_core.memory.write import Index

NO_UIDS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Frozen:
    """Scaling, positions and uids of the nodes at the last target update.

    Source: EMU's tree, which is rebuilt at target updates (A13).
    """

    scaling: Scaling
    z: Points  # [M, X] [normalized embedding]
    uid: NDArray[np.int64]  # [M] uids, dimensionless
    grid: GridIndex


class Space:
    """Scaled positions of the nodes, and nearest-neighbor search."""

    def __init__(self, config: MemoryConfig, *, dim: int, device: str) -> None:
        self._config = config
        self.scaling = identity_scaling(dim)
        self._grid = GridIndex(config.delta, config.delta_metric)
        self._frozen: Frozen | None = None
        if config.index == "stale_target_update":
            self._frozen = self._freeze(self.scaling, np.zeros((0, dim)), NO_UIDS)
        self._nearest = IncrementalIndex(
            lambda: make_nearest_index(config.delta_metric, device=device), config.delta_metric
        )

    @property
    def scaling_of_lookups(self) -> Scaling:
        """Scaling of the queries: that of the index."""
        return self._frozen.scaling if self._frozen else self.scaling

    def visible(self) -> Index:
        """Return the grid that lookups use, for the compiled code of Algorithm 2."""
        frozen = self._frozen
        grid = frozen.grid if frozen else self._grid
        uid = frozen.uid if frozen else NO_UIDS
        return Index(grid.cells(), uid, frozen is None)

    def follow(self, table: NodeTable) -> None:
        """Grow the live grid to the size of the table. Must be called before a write."""
        if self._frozen is None:
            self._grid.reserve(table.z, table.size)

    def rescale(self, table: NodeTable, scaling: Scaling) -> None:
        """Scale all nodes again and rebuild the live index."""
        self.scaling = scaling
        scaling.apply(table.x[: table.size], out=table.z[: table.size])
        if self._frozen is None:
            self._grid.build(table.z, table.size)
            self._nearest.invalidate()

    def freeze(self, table: NodeTable) -> None:
        """Use a copy of the current nodes for all lookups until the next call."""
        uid = table.nodes["uid"][: table.size].copy()
        self._frozen = self._freeze(self.scaling, table.z[: table.size].copy(), uid)
        self._nearest.invalidate()

    def _freeze(self, scaling: Scaling, z: Points, uid: NDArray[np.int64]) -> Frozen:
        grid = GridIndex(self._config.delta, self._config.delta_metric)
        grid.build(z)
        return Frozen(scaling, z, uid, grid)

    def find(self, table: NodeTable, q: Points) -> Slots:
        """Find the nearest node within delta for each query.

        Source: the nearest node within delta of Algorithm 2.

        Args:
            table: The nodes.
            q: [Q, X] [normalized embedding], in `scaling_of_lookups`.

        Returns:
            [Q], slot indices; -1 if there is no node within delta.
        """
        grid = self._frozen.grid if self._frozen else self._grid
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
        z = self._frozen.z if self._frozen else table.z[: table.size]
        return self._drop_evicted(table, self._nearest.query(z, q))

    def count_visible(self, table: NodeTable) -> int:
        """Count the nodes that a lookup searches."""
        return len(self._frozen.uid) if self._frozen else table.size

    def note_written(self, slots: Slots) -> None:
        """Register slots whose nodes may be new or may have moved. A frozen index does not change.

        Source: bookkeeping.

        Args:
            slots: [K], slot indices; -1 is skipped.
        """
        if self._frozen is None:
            self._nearest.note_written(slots)

    def _drop_evicted(self, table: NodeTable, slots: Slots) -> Slots:
        """Replace slots of frozen nodes that were evicted since then by -1."""
        if self._frozen is None or not len(self._frozen.uid):
            return slots
        same = table.nodes["uid"][np.maximum(slots, 0)] == self._frozen.uid[np.maximum(slots, 0)]
        return np.where((slots >= 0) & same, slots, -1)

    def get_state(self) -> dict[str, Any]:
        """Copy scaling and frozen nodes for a checkpoint. `set_state` rebuilds the grids from them."""
        state: dict[str, Any] = {"scaling": _scaling_state(self.scaling), "frozen": None}
        if self._frozen:
            frozen = self._frozen
            state["frozen"] = {
                "scaling": _scaling_state(frozen.scaling),
                "z": torch.from_numpy(frozen.z.copy()),
                "uid": torch.from_numpy(frozen.uid.copy()),
            }
        return state

    def set_state(self, state: Mapping[str, Any], table: NodeTable) -> None:
        """Restore the result of `get_state`. The table must be restored before."""
        self.rescale(table, _make_scaling(state["scaling"]))
        if state["frozen"] is not None:
            frozen = state["frozen"]
            self._frozen = self._freeze(_make_scaling(frozen["scaling"]), frozen["z"].numpy(), frozen["uid"].numpy())
            self._nearest.invalidate()

    def list_faults(self, table: NodeTable) -> list[str]:
        """List the broken invariants of positions and index, as sentences."""
        faults = []
        z = table.z[: table.size]
        if not np.array_equal(z, self.scaling.apply(table.x[: table.size])):
            faults.append("the position of a node differs from its scaled embedding")
        if self._frozen is None and table.size:
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
        "is_fine": scaling.is_fine,
    }


def _make_scaling(state: Mapping[str, Any]) -> Scaling:
    is_fine = state.get("is_fine", False)  # absent in older checkpoints
    return Scaling(state["mean"].numpy().copy(), state["divisor"].numpy().copy(), is_fine)
