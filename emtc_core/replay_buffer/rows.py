"""Storage of the replay buffer: rows, one per step.

Each field is one array, allocated once for the maximum number of rows of a run, so that no data are copied when the
buffer grows. On the host, the operating system provides a memory page when its first row is written; on a GPU the
memory is allocated at once. A batch from the host is gathered in pinned memory and copied to a GPU in the background.

The module `buffer` maps episodes to rows; `sizes` lists the fields.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError
from emtc_core.replay_buffer.sizes import count_row_bytes, list_fields

FIELDS = ("obs", "state", "avail", "action", "reward", "beta")

COPY_BYTES = 32 * 2**20
"""Block size of copies between a GPU and a checkpoint. A copy of a whole field would need the buffer's size again."""


class ReplayRows:
    """One array per field with all rows; a row is zero until it is written."""

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
        self._info, self._storage_device, self._device = info, storage_device, device
        self._fields = self._allocate(n_rows)

    def __len__(self) -> int:
        return len(self._fields["reward"])

    def reserve(self, n_rows: int) -> None:
        """Grow to at least `n_rows` rows. Needed only if a run adds more steps than were announced."""
        if n_rows <= len(self):
            return
        old = self._fields
        self._fields = self._allocate(max(n_rows, len(self) + len(self) // 2))
        for name, values in old.items():
            self._fields[name][: len(values)] = values

    def write(self, rows: NDArray[np.int64], values: Mapping[str, NDArray[np.generic]]) -> None:
        """Write rows of some or all fields.

        Source: implementation detail.

        Args:
            rows: [R], row indices.
            values: Field name -> [R, ...] [unit varies].
        """
        index = send(rows, self._storage_device)
        for name, array in values.items():
            self._fields[name][index] = send(array, self._storage_device).reshape(len(rows), -1)

    def put(self, rows: NDArray[np.int64], values: Mapping[str, Tensor]) -> None:
        """Write rows from the result of `take`.

        Source: implementation detail.

        Args:
            rows: [R], row indices.
            values: Field name -> tensor of shape [R, width] [unit varies].
        """
        index = torch.from_numpy(rows).to(self._storage_device)
        for name in FIELDS:
            for part in self._split(name, len(rows)):
                self._fields[name][index[part]] = values[name][part].to(self._storage_device)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Copy rows to the host. On a GPU this needs at most `COPY_BYTES` of extra memory.

        Source: implementation detail.

        Args:
            rows: [R], row indices.

        Returns:
            Field name -> tensor of shape [R, width] [unit varies].
        """
        index = torch.from_numpy(rows).to(self._storage_device)
        copies = {}
        for name, values in self._fields.items():
            copies[name] = torch.empty((len(rows), values.shape[1]), dtype=values.dtype)
            for part in self._split(name, len(rows)):
                if self._storage_device.type == "cpu":
                    torch.index_select(values, 0, index[part], out=copies[name][part])
                else:
                    copies[name][part] = values.index_select(0, index[part])
        return copies

    def _split(self, name: str, n_rows: int) -> list[slice]:
        """Split the rows of a field into blocks of at most `COPY_BYTES`."""
        values = self._fields[name]
        step = max(1, COPY_BYTES // (values.shape[1] * values.element_size()))
        return [slice(start, start + step) for start in range(0, n_rows, step)]

    def read(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy rows of one field to the host.

        Source: implementation detail.

        Args:
            name: Name of the field.
            rows: [R], row indices.

        Returns:
            Array of shape [R, width] [unit varies].
        """
        return self._fields[name][torch.from_numpy(rows).to(self._storage_device)].cpu().numpy()

    def gather(self, rows_TB: NDArray[np.int64]) -> dict[str, Tensor]:
        """Make a batch of T + 1 steps of B episodes on the device.

        Source: implementation detail.

        Args:
            rows_TB: [T+1, B], row indices.

        Returns:
            Tensors by field: [B, T+1, ...] for obs, state and avail, [B, T, ...] for the others. They are views of
            time-major tensors.
        """
        n_steps, n_batch = rows_TB.shape
        info = self._info
        states = send(rows_TB, self._storage_device).reshape(-1)
        transitions = states[: (n_steps - 1) * n_batch]

        def select(name: str, index: Tensor, *shape: int) -> Tensor:
            return self._select(name, index).view(-1, n_batch, *shape).transpose(0, 1)

        return {
            "obs": select("obs", states, info.n_agents, info.obs_dim),
            "state": select("state", states, info.state_dim),
            "avail": select("avail", states, info.n_agents, info.n_actions),
            "action": select("action", transitions, info.n_agents),
            "reward": select("reward", transitions),
            "beta": select("beta", transitions),
        }

    def _select(self, name: str, index: Tensor) -> Tensor:
        values = self._fields[name]
        if self._storage_device == self._device or self._device.type != "cuda":
            return values.index_select(0, index).to(self._device)
        pinned = torch.empty((len(index), values.shape[1]), dtype=values.dtype, pin_memory=True)
        return torch.index_select(values, 0, index, out=pinned).to(self._device, non_blocking=True)

    def _allocate(self, n_rows: int) -> dict[str, Tensor]:
        fields = list_fields(self._info).items()
        try:
            if self._storage_device.type == "cpu":
                # np.zeros gets memory pages from the system when they are first written
                return {name: torch.from_numpy(np.zeros((n_rows, width), kind)) for name, (width, kind) in fields}
            return {
                name: torch.zeros((n_rows, width), dtype=getattr(torch, kind), device=self._storage_device)
                for name, (width, kind) in fields
            }
        except (MemoryError, ValueError, torch.OutOfMemoryError) as exc:  # np.zeros: ValueError for the largest sizes
            size = n_rows * count_row_bytes(self._info) / 1e9
            device = self._storage_device.type
            rule = f"must be smaller: the replay buffer may need {size:,.1f} GB, which {device} does not have"
            raise ConfigError(rule, key="train.replay") from exc
