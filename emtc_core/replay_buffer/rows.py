"""Storage of the replay buffer: rows, one per step, and a sampling weight for each episode.

Each field is one array, allocated once for the maximum number of rows of a run, so that no data are copied when the
buffer grows. On the host, the operating system provides a memory page when its first row is written; on a GPU the
memory is allocated at once. A batch from the host is gathered in pinned memory and copied to a GPU in the background.

Weights are computed from TD errors that may still be on a GPU. Weights from the host are used from the next draw on.
Weights from a GPU are used one draw later, always. So the host can start update k + 1 without waiting for update k, and
the result does not depend on timing.

The module `buffer` maps episodes to rows; `training.memory_plan` chooses the device.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.devices import AsyncCopy, fetch, send
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError

PAGE_ROWS = 16
FIELDS = ("obs", "state", "avail", "action", "reward", "beta")

COPY_BYTES = 32 * 2**20
"""Block size of copies between a GPU and a checkpoint. A copy of a whole field would need the buffer's size again."""

SMALLEST = 1e-8
"""Lower bound of a sampling weight."""


def count_max_pages(capacity: int, info: EnvInfo, most_steps: int | None) -> int:
    """Compute an upper bound of the number of pages.

    Args:
        capacity: Maximum number of episodes; each fills T + 1 rows.
        info: Gives the maximum length of an episode.
        most_steps: Maximum number of env steps that are ever added; None: no limit.
    """
    pages = capacity * -(-(info.episode_limit + 1) // PAGE_ROWS)
    if most_steps is None:
        return pages
    return min(pages, most_steps // PAGE_ROWS + min(capacity, most_steps))


def row_bytes(info: EnvInfo) -> int:
    """Return the size of one row [bytes]."""
    return sum(width * dtype.itemsize for width, dtype in _layout(info).values())


def _layout(info: EnvInfo) -> dict[str, tuple[int, torch.dtype]]:
    return {
        "obs": (info.n_agents * info.obs_dim, torch.float32),
        "state": (info.state_dim, torch.float32),
        "avail": (info.n_agents * info.n_actions, torch.bool),
        "action": (info.n_agents, torch.int64),
        "reward": (1, torch.float32),
        "beta": (1, torch.float32),
    }


class ReplayRows:
    """One array per field with all rows; a row is zero until it is written."""

    def __init__(self, info: EnvInfo, n_rows: int, *, home: torch.device, device: torch.device) -> None:
        """Allocate the rows.

        Args:
            info: Sizes of one step.
            n_rows: Number of rows.
            home: Device of the rows.
            device: Device of the batches.

        Raises:
            ConfigError: If there is not enough memory.
        """
        self._info, self._home, self._device = info, home, device
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

        Source: bookkeeping.

        Args:
            rows: [R], row indices.
            values: Field name -> [R, ...] [unit varies].
        """
        at = send(rows, self._home)
        for name, array in values.items():
            self._fields[name][at] = send(array, self._home).reshape(len(rows), -1)

    def put(self, rows: NDArray[np.int64], values: Mapping[str, Tensor]) -> None:
        """Write rows from the result of `take`.

        Source: bookkeeping.

        Args:
            rows: [R], row indices.
            values: Field name -> tensor of shape [R, width] [unit varies].
        """
        at = torch.from_numpy(rows).to(self._home)
        for name in FIELDS:
            for part in self._split(name, len(rows)):
                self._fields[name][at[part]] = values[name][part].to(self._home)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Copy rows to the host. On a GPU this needs at most `COPY_BYTES` of extra memory.

        Source: bookkeeping.

        Args:
            rows: [R], row indices.

        Returns:
            Field name -> tensor of shape [R, width] [unit varies].
        """
        at = torch.from_numpy(rows).to(self._home)
        copies = {}
        for name, values in self._fields.items():
            copies[name] = torch.empty((len(rows), values.shape[1]), dtype=values.dtype)
            for part in self._split(name, len(rows)):
                if self._home.type == "cpu":
                    torch.index_select(values, 0, at[part], out=copies[name][part])
                else:
                    copies[name][part] = values.index_select(0, at[part])
        return copies

    def _split(self, name: str, n_rows: int) -> list[slice]:
        """Split the rows of a field into blocks of at most `COPY_BYTES`."""
        values = self._fields[name]
        step = max(1, COPY_BYTES // (values.shape[1] * values.element_size()))
        return [slice(start, start + step) for start in range(0, n_rows, step)]

    def read(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy rows of one field to the host.

        Source: bookkeeping.

        Args:
            name: Name of the field.
            rows: [R], row indices.

        Returns:
            Array of shape [R, width] [unit varies].
        """
        return self._fields[name][torch.from_numpy(rows).to(self._home)].cpu().numpy()

    def gather(self, rows_TB: NDArray[np.int64]) -> dict[str, Tensor]:
        """Make a batch of T + 1 steps of B episodes on the device.

        Source: bookkeeping.

        Args:
            rows_TB: [T+1, B], row indices.

        Returns:
            Tensors by field: [B, T+1, ...] for obs, state and avail, [B, T, ...] for the others. They are views of
            time-major tensors.
        """
        n_steps, n_batch = rows_TB.shape
        info = self._info
        index = send(rows_TB, self._home).reshape(-1)
        transitions = index[: (n_steps - 1) * n_batch]

        def select(name: str, at: Tensor, *shape: int) -> Tensor:
            return self._select(name, at).view(-1, n_batch, *shape).transpose(0, 1)

        return {
            "obs": select("obs", index, info.n_agents, info.obs_dim),
            "state": select("state", index, info.state_dim),
            "avail": select("avail", index, info.n_agents, info.n_actions),
            "action": select("action", transitions, info.n_agents),
            "reward": select("reward", transitions),
            "beta": select("beta", transitions),
        }

    def _select(self, name: str, at: Tensor) -> Tensor:
        values = self._fields[name]
        if self._home == self._device or self._device.type != "cuda":
            return values.index_select(0, at).to(self._device)
        pinned = torch.empty((len(at), values.shape[1]), dtype=values.dtype, pin_memory=True)
        return torch.index_select(values, 0, at, out=pinned).to(self._device, non_blocking=True)

    def _allocate(self, n_rows: int) -> dict[str, Tensor]:
        try:
            if self._home.type == "cpu":  # np.zeros gets memory pages from the system when they are first written
                return {
                    name: torch.from_numpy(np.zeros((n_rows, width), str(dtype).removeprefix("torch.")))
                    for name, (width, dtype) in _layout(self._info).items()
                }
            return {
                name: torch.zeros((n_rows, width), dtype=dtype, device=self._home)
                for name, (width, dtype) in _layout(self._info).items()
            }
        except (MemoryError, ValueError, torch.OutOfMemoryError) as exc:  # np.zeros: ValueError for the largest sizes
            size = n_rows * row_bytes(self._info) / 1e9
            rule = f"must be smaller: the replay buffer may need {size:,.1f} GB, which {self._home.type} does not have"
            raise ConfigError(rule, key="train.replay") from exc


@dataclass
class PendingWeights:
    """Weights that are not used yet. The index of an episode that was replaced since then is -1.

    Source: bookkeeping.
    """

    indices: NDArray[np.int64]  # [K] indices in the buffer
    weights: AsyncCopy  # [K]


class Priorities:
    """One sampling weight per episode of a replay buffer."""

    def __init__(self, capacity: int, *, lag: int) -> None:
        """Set all weights to 1. A new weight takes effect after `lag` further calls of `set`."""
        self._weight = np.ones(capacity)
        self._lag = lag
        self._pending: deque[PendingWeights] = deque()

    def reset(self, index: int) -> None:
        """Set the weight of a new episode to 1, and drop pending weights of the episode that it replaces."""
        self._weight[index] = 1.0
        for pending in self._pending:
            pending.indices[pending.indices == index] = -1

    def set(self, indices: NDArray[np.integer], weights: Tensor) -> None:
        """Set the sampling weights of episodes.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.

        Args:
            indices: [K], indices in the buffer.
            weights: [K], > 0 [unit varies].
        """
        self._pending.append(PendingWeights(np.array(indices, np.int64), fetch(weights)))
        self._apply_due()

    def draw(self, n: int, size: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Sample n of the first `size` indices without replacement, with probability proportional to weight ** alpha.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.

        Args:
            n: Number of indices.
            size: Number of episodes in the buffer.
            alpha: Exponent of the weights.
            rng: Random generator.

        Returns:
            Indices, shape [n].
        """
        weight = self._weight[:size] ** alpha
        return rng.choice(size, n, replace=False, p=weight / weight.sum())

    def get_state(self, size: int) -> dict[str, Any]:
        """Return the weights of the first `size` episodes and the pending weights, for a checkpoint."""
        pending = [{"places": torch.from_numpy(p.indices.copy()), "weights": p.weights.wait()} for p in self._pending]
        return {"priority": torch.from_numpy(self._weight[:size].copy()), "coming_priorities": pending}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""
        weight = state["priority"].numpy()
        self._weight[: len(weight)] = weight
        saved = state.get("coming_priorities", [])  # absent in older checkpoints
        self._pending = deque(PendingWeights(p["places"].numpy().copy(), AsyncCopy(p["weights"])) for p in saved)
        self._apply_due()

    def _apply_due(self) -> None:
        while len(self._pending) > self._lag:
            pending = self._pending.popleft()
            is_valid = pending.indices >= 0
            weights = np.maximum(pending.weights.wait().numpy(), SMALLEST)
            self._weight[pending.indices[is_valid]] = weights[is_valid]
