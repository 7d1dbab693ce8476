"""A copy of all nodes' states on a GPU, so that a re-projection sends only those that changed since the last one.

At 1M nodes of 3s_vs_5z the states are 272 MB, of which some 1,000 rows change between two refits. When the table has
grown, the buffers are made again in its new size and every row is sent: the old ones are free by then, so no more
memory is taken than one copy of the table. Before: write; after: the embedder, which reads the states where they are.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import send
from emtc_core.memory.nodes import NodeTable, Slots, largest_table

PART_BYTES = 32 * 2**20
"""Of states that are sent together: bounds the pinned memory of the host that they pass through."""


def count_state_bytes(states: int, *, capacity: int, state_dim: int) -> int:
    """Bound the bytes on the device for a memory of this many states: nodes, their time steps, a part on its way."""
    return 4 * largest_table(states, capacity=capacity) * (state_dim + 1) + 2 * PART_BYTES


class DeviceStates:
    """States [rows, S] float32 and time steps [rows] of all nodes, in slot order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Send every row at the next update."""
        self._state: Tensor | None = None
        self._t: Tensor | None = None
        self._changed: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def note_written(self, slots: Slots) -> None:
        """Send these rows at the next update; rows that are not on the device yet are sent anyway."""
        self._changed[slots[slots < len(self._changed)]] = True

    def update(self, table: NodeTable) -> tuple[Tensor, Tensor]:
        """Send the changed rows; return the states [size, S] and time steps [size] of all nodes on the device."""
        rows, state_dim = table.state.shape
        if self._state is None or self._t is None or len(self._state) != rows:
            self.forget()  # the old buffers are free before the new ones take memory
            self._state = torch.empty(rows, state_dim, device=self._device)
            self._t = torch.empty(rows, dtype=torch.int32, device=self._device)
            self._changed = np.ones(rows, np.bool_)
        slots = np.flatnonzero(self._changed[: table.size])
        at_once = max(1, PART_BYTES // (4 * state_dim))
        for part in np.split(slots, range(at_once, len(slots), at_once)) if len(slots) else []:
            places = send(part, self._device)
            self._state.index_copy_(0, places, send(table.state[part], self._device))
            self._t.index_copy_(0, places, send(table.nodes["t"][part], self._device))
        self._changed[: table.size] = False
        return self._state[: table.size], self._t[: table.size]
