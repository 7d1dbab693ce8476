"""A copy of all nodes' states on a GPU. A re-projection sends only the states that changed since the last one.

At 1M nodes of 3s_vs_5z the states have 272 MB, and about 1,000 rows change between two re-projections. If the table has
grown, the buffers are allocated again and all rows are sent. The old buffers are freed first, so the GPU never has more
than one copy of the table. A write to the memory marks the changed rows. The embedder reads the states on the GPU.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import send
from emtc_core.memory.nodes import NodeTable, Slots

TRANSFER_BYTES = 32 * 2**20
"""Maximum size of one transfer, which limits the pinned host memory."""


class DeviceStates:
    """States [rows, S] float32 and time steps [rows] of all nodes, in slot order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.invalidate()

    def invalidate(self) -> None:
        """Delete the copy, so that the next update sends every row."""
        self._state: Tensor | None = None
        self._t: Tensor | None = None
        self._changed: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def mark_written(self, slots: Slots) -> None:
        """Mark rows for the next update. Rows that are not on the device yet are always sent.

        Source: implementation detail.

        Args:
            slots: [K], slot indices.
        """
        self._changed[slots[slots < len(self._changed)]] = True

    def update(self, table: NodeTable) -> tuple[Tensor, Tensor]:
        """Send the changed rows to the device.

        Source: implementation detail.

        Args:
            table: The nodes.

        Returns:
            States [M, S] [state features] and time steps [M] [steps] of all nodes, on the device, in slot order.
        """
        rows, state_dim = table.state.shape
        if self._state is None or self._t is None or len(self._state) != rows:
            self.invalidate()  # the old buffers are free before the new ones take memory
            self._state = torch.empty(rows, state_dim, device=self._device)
            self._t = torch.empty(rows, dtype=torch.int32, device=self._device)
            self._changed = np.ones(rows, np.bool_)
        slots = np.flatnonzero(self._changed[: table.size])
        at_once = max(1, TRANSFER_BYTES // (4 * state_dim))
        for batch in np.split(slots, range(at_once, len(slots), at_once)) if len(slots) else []:
            device_slots = send(batch, self._device)
            self._state.index_copy_(0, device_slots, send(table.state[batch], self._device))
            self._t.index_copy_(0, device_slots, send(table.nodes["t"][batch], self._device))
        self._changed[: table.size] = False
        return self._state[: table.size], self._t[: table.size]
