"""Storage of the replay buffer: rows, one per step.

The fields that the networks read are packed: a row is one block of bytes, so that one copy stores the rows of an
episode and one gather reads the rows of a batch. All rows are allocated once for the maximum number of rows of a run,
so that no data are copied when the buffer grows. On the host, the operating system provides a memory page when its
first row is written; on a GPU the memory is allocated at once.

Rewards and gates are on the host, because they are sent with each batch. If the rows are on a GPU, the host also has a
copy of the states, so that it can search states in the episodic memory without waiting for the GPU.

The module `buffer` maps episodes to rows; `sizes` lists the fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError
from emtc_core.packing import PackedLayout, make_host_block
from emtc_core.replay_buffer.sizes import HOST_FIELDS, count_row_bytes, list_fields

COPY_BYTES = 32 * 2**20
"""Block size of copies between a GPU and a checkpoint. A copy of a whole field would need the buffer's size again."""
_WORD = torch.int64
"""Rows are copied as numbers of this type: fewer and larger ones than bytes."""


@dataclass(frozen=True)
class StepTensors:
    """The fields of a batch that the networks read, as views of time-major tensors on the device.

    Source: the mini-batch of Algorithm 3.
    """

    obs: Tensor  # [B, T+1, N, O] [observation features]
    state: Tensor  # [B, T+1, S] [state features]
    avail: Tensor  # [B, T+1, N, A] boolean; in the padding only action 0 is available
    action: Tensor  # [B, T, N] action indices, int64


class ReplayRows:
    """All rows of the replay buffer; a row is zero until it is written."""

    def __init__(self, info: EnvInfo, n_rows: int, *, storage_device: torch.device, device: torch.device) -> None:
        """Allocate the rows.

        Args:
            info: Sizes of one step.
            n_rows: Number of rows.
            storage_device: Device of the rows.
            device: Device of the batches.

        Raises:
            ConfigError: If there is not enough memory.
        """
        self._info, self._storage_device, self.device = info, storage_device, device
        fields = list_fields(info).items()
        self._layout = PackedLayout({name: (shape, getattr(torch, kind)) for name, (shape, kind) in fields})
        self._allocate(n_rows)

    def __len__(self) -> int:
        return len(self._packed)

    def reserve(self, n_rows: int) -> None:
        """Grow to at least `n_rows` rows. Needed only if a run adds more steps than were announced."""
        if n_rows <= len(self):
            return
        packed, host, states = self._packed, self._host, self._states_on_host
        self._allocate(max(n_rows, len(self) + len(self) // 2))
        self._packed[: len(packed)] = packed
        for name, values in host.items():
            self._host[name][: len(values)] = values
        if self._states_on_host is not None and states is not None:
            self._states_on_host[: len(states)] = states

    def write(self, rows: NDArray[np.int64], values: Mapping[str, NDArray[np.generic]]) -> None:
        """Write all fields of rows. The packed fields are written in one transfer.

        Source: implementation detail.

        Args:
            rows: [R], row indices.
            values: Field name -> [R, ...] [unit varies]. A packed field without a value is zero.
        """
        words = self._packed.shape[1]
        layout = PackedLayout({"rows": ((len(rows),), _WORD), "packed": ((len(rows), words), _WORD)})
        block = make_host_block(layout.size_bytes, self._storage_device)
        sent = layout.split(block)
        sent["rows"].copy_(torch.from_numpy(rows))
        for name, field in self._split(sent["packed"]).items():
            if name in values:
                field.copy_(torch.from_numpy(np.ascontiguousarray(values[name])).view(field.shape))
        sent = layout.split(block.to(self._storage_device, non_blocking=True))
        self._packed.index_copy_(0, sent["rows"], sent["packed"])
        for name in HOST_FIELDS:
            self._host[name][rows] = values[name].reshape(-1) if name in values else 0.0
        if self._states_on_host is not None and "state" in values:
            self._states_on_host[rows] = values["state"]

    def put(self, rows: NDArray[np.int64], values: Mapping[str, Tensor]) -> None:
        """Write rows from the result of `take`.

        Source: implementation detail.

        Args:
            rows: [R], row indices.
            values: Field name -> tensor of shape [R, width] [unit varies].
        """
        for part in self._cut(len(rows)):
            self.write(rows[part], {name: x[part].numpy() for name, x in values.items()})

    def take(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Copy rows to the host. On a GPU this needs at most `COPY_BYTES` of extra memory.

        Source: implementation detail.

        Args:
            rows: [R], row indices.

        Returns:
            Field name -> tensor of shape [R, width] [unit varies].
        """
        copies = {name: torch.from_numpy(self._host[name][rows, None]) for name in HOST_FIELDS}
        fields = {name: x.flatten(1) for name, x in self._split(self._packed).items()}
        copies |= {name: torch.empty((len(rows), x.shape[1]), dtype=x.dtype) for name, x in fields.items()}
        index = torch.from_numpy(rows).to(self._storage_device)
        for part in self._cut(len(rows)):
            if self._storage_device.type == "cpu":
                for name, values in fields.items():
                    torch.index_select(values, 0, index[part], out=copies[name][part])
            else:
                for name, values in self._split(self._packed.index_select(0, index[part]).cpu()).items():
                    copies[name][part] = values.flatten(1)
        return copies

    def read_states(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read states from the host.

        Source: implementation detail.

        Args:
            rows: [R], row indices.

        Returns:
            [R, S] [state features].
        """
        if self._states_on_host is not None:
            return self._states_on_host[rows]
        return self._split(self._packed)["state"].index_select(0, torch.from_numpy(rows)).numpy()

    def read_transitions(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read the reward and the gate of transitions.

        Source: implementation detail.

        Args:
            rows: Row indices, any shape.

        Returns:
            Reward, in the learner's unit [reward], and beta, dimensionless; both of the same shape as `rows`.
        """
        reward, beta = (self._host[name].take(rows) for name in HOST_FIELDS)
        return reward, beta

    def gather(self, rows_TB: NDArray[np.int64]) -> StepTensors:
        """Gather T + 1 steps of B episodes on the device of the batches.

        Source: implementation detail.

        Args:
            rows_TB: [T+1, B], row indices.
        """
        rows = torch.from_numpy(np.ascontiguousarray(rows_TB)).view(-1)
        block = self.make_empty_block(len(rows))
        self.gather_into(block, rows, None)
        return self.split_steps(block, rows_TB.shape[1])

    def make_empty_block(self, n_rows: int) -> Tensor:
        """Allocate memory for copies of rows on the device of the batches.

        Source: implementation detail.

        Returns:
            Uninitialized rows, shape [n_rows, words] [unit varies].
        """
        return torch.empty((n_rows, self._packed.shape[1]), dtype=_WORD, device=self.device)

    def gather_into(self, block: Tensor, rows: Tensor, rows_on_device: Tensor | None) -> None:
        """Copy rows to a block of `make_empty_block`. A GPU does this in the background.

        Source: implementation detail.

        Args:
            block: [R, words] [unit varies].
            rows: [R], row indices on the host.
            rows_on_device: [R], row indices, the same on the device of the batches, if they were sent already.
        """
        if self._storage_device == self.device:
            index = send(rows.numpy(), self.device) if rows_on_device is None else rows_on_device
            torch.index_select(self._packed, 0, index, out=block)
            return
        pinned = torch.empty(block.shape, dtype=_WORD, pin_memory=self.device.type == "cuda")
        torch.index_select(self._packed, 0, rows, out=pinned)
        block.copy_(pinned, non_blocking=True)

    def split_steps(self, block: Tensor, n_batch: int) -> StepTensors:
        """Return the fields of gathered rows as views.

        Source: implementation detail.

        Args:
            block: Rows in time-major order, shape [(T+1) * B, words] [unit varies].
            n_batch: B.
        """
        fields = self._split(block)
        obs, state, avail, action = (
            fields[name].unflatten(0, (-1, n_batch)).transpose(0, 1) for name in ("obs", "state", "avail", "action")
        )
        return StepTensors(obs, state, avail, action[:, :-1])

    def _split(self, block: Tensor) -> dict[str, Tensor]:
        """Return the fields of packed rows [R, words] as views [R, ...]."""
        return self._layout.split(block.view(torch.uint8))

    def _cut(self, n_rows: int) -> list[slice]:
        """Cut a number of rows into parts of at most `COPY_BYTES`."""
        step = max(1, COPY_BYTES // self._layout.size_bytes)
        return [slice(start, start + step) for start in range(0, n_rows, step)]

    def _allocate(self, n_rows: int) -> None:
        """Allocate rows of zeros on the storage device, and the fields of the host.

        Raises:
            ConfigError: If there is not enough memory.
        """
        shape = (n_rows, self._layout.size_bytes // _WORD.itemsize)
        try:
            # np.zeros gets memory pages from the system when they are first written
            self._host = {name: np.zeros(n_rows, np.float32) for name in HOST_FIELDS}
            if self._storage_device.type == "cpu":
                self._packed, self._states_on_host = torch.from_numpy(np.zeros(shape, np.int64)), None
                return
            self._packed = torch.zeros(shape, dtype=_WORD, device=self._storage_device)
            self._states_on_host = np.zeros((n_rows, self._info.state_dim), np.float32)
        except (MemoryError, ValueError, torch.OutOfMemoryError) as exc:  # np.zeros: ValueError for the largest sizes
            size = n_rows * count_row_bytes(self._info) / 1e9
            device = self._storage_device.type
            rule = f"must be smaller: the replay buffer may need {size:,.1f} GB, which {device} does not have"
            raise ConfigError(rule, key="train.replay") from exc
