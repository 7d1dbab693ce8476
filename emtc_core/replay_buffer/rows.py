"""What the replay buffer holds of its episodes: rows, one per step, and a sampling weight for each episode.

Rows lie in one stretch of memory per field, reserved once for as many rows as a run can fill, so that nothing is
copied while it grows. On the host the system gives the memory when a row is first written; a GPU gives it at once. A
batch from the host is gathered in pinned memory and travels to a GPU in the background.

Weights are set from errors that may still be on their way from a GPU. One set from the host counts from the next draw.
Those of a GPU count one draw later, always: the host then asks for update k + 1 without waiting for update k, and
nothing depends on which of them was faster.

What does not live here: which rows belong to which episode (buffer.py), and which device to choose (memory_plan.py).
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
"""Copied together between a GPU and a checkpoint: a whole field at once would need the memory of the buffer again."""

SMALLEST = 1e-8


def most_pages(capacity: int, info: EnvInfo, most_steps: int | None) -> int:
    """Bound the pages that `capacity` episodes fill, T + 1 rows each, in a run of so many env steps; None: no bound."""
    pages = capacity * -(-(info.episode_limit + 1) // PAGE_ROWS)
    if most_steps is None:
        return pages
    return min(pages, most_steps // PAGE_ROWS + min(capacity, most_steps))


def row_bytes(info: EnvInfo) -> int:
    """Count the bytes of one row."""
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
    """Columns of all rows, zero until they are written."""

    def __init__(self, info: EnvInfo, n_rows: int, *, home: torch.device, device: torch.device) -> None:
        """Reserve rows in `home`; batches are made on `device`.

        Raises:
            ConfigError: If there is not so much memory.
        """
        self._info, self._home, self._device = info, home, device
        self._fields = self._reserve(n_rows)

    def __len__(self) -> int:
        return len(self._fields["reward"])

    def reserve(self, n_rows: int) -> None:
        """Make room for so many rows at least; only where more come than the run was said to have."""
        if n_rows <= len(self):
            return
        old = self._fields
        self._fields = self._reserve(max(n_rows, len(self) + len(self) // 2))
        for name, values in old.items():
            self._fields[name][: len(values)] = values

    def write(self, rows: NDArray[np.int64], values: Mapping[str, NDArray[np.generic]]) -> None:
        """Write rows of some or all fields; each field [R, ...]."""
        at = send(rows, self._home)
        for name, array in values.items():
            self._fields[name][at] = send(array, self._home).reshape(len(rows), -1)

    def put(self, rows: NDArray[np.int64], values: Mapping[str, Tensor]) -> None:
        """Write rows as `take` returned them."""
        at = torch.from_numpy(rows).to(self._home)
        for name in FIELDS:
            for part in self._parts(name, len(rows)):
                self._fields[name][at[part]] = values[name][part].to(self._home)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Copy rows to the host, [R, width] each; a GPU needs room for `COPY_BYTES` of them at a time."""
        at = torch.from_numpy(rows).to(self._home)
        copies = {}
        for name, values in self._fields.items():
            copies[name] = torch.empty((len(rows), values.shape[1]), dtype=values.dtype)
            for part in self._parts(name, len(rows)):
                if self._home.type == "cpu":
                    torch.index_select(values, 0, at[part], out=copies[name][part])
                else:
                    copies[name][part] = values.index_select(0, at[part])
        return copies

    def _parts(self, name: str, n_rows: int) -> list[slice]:
        """Divide rows of a field into parts of at most `COPY_BYTES`."""
        values = self._fields[name]
        step = max(1, COPY_BYTES // (values.shape[1] * values.element_size()))
        return [slice(start, start + step) for start in range(0, n_rows, step)]

    def read(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy rows of one field to the host."""
        return self._fields[name][torch.from_numpy(rows).to(self._home)].cpu().numpy()

    def gather(self, rows_TB: NDArray[np.int64]) -> dict[str, Tensor]:
        """Make a batch of T + 1 steps of B episodes on the device, by field: [B, T (+ 1), ...].

        Tensors are views of time-major storage.
        """
        n_steps, n_batch = rows_TB.shape
        info = self._info
        index = send(rows_TB, self._home).reshape(-1)
        transitions = index[: (n_steps - 1) * n_batch]

        def pick(name: str, at: Tensor, *shape: int) -> Tensor:
            return self._select(name, at).view(-1, n_batch, *shape).transpose(0, 1)

        return {
            "obs": pick("obs", index, info.n_agents, info.obs_dim),
            "state": pick("state", index, info.state_dim),
            "avail": pick("avail", index, info.n_agents, info.n_actions),
            "action": pick("action", transitions, info.n_agents),
            "reward": pick("reward", transitions),
            "beta": pick("beta", transitions),
        }

    def _select(self, name: str, at: Tensor) -> Tensor:
        values = self._fields[name]
        if self._home == self._device or self._device.type != "cuda":
            return values.index_select(0, at).to(self._device)
        pinned = torch.empty((len(at), values.shape[1]), dtype=values.dtype, pin_memory=True)
        return torch.index_select(values, 0, at, out=pinned).to(self._device, non_blocking=True)

    def _reserve(self, n_rows: int) -> dict[str, Tensor]:
        try:
            if self._home.type == "cpu":  # NumPy's zeros are the system's, which it provides page by page
                return {
                    name: torch.from_numpy(np.zeros((n_rows, width), str(dtype).removeprefix("torch.")))
                    for name, (width, dtype) in _layout(self._info).items()
                }
            return {
                name: torch.zeros((n_rows, width), dtype=dtype, device=self._home)
                for name, (width, dtype) in _layout(self._info).items()
            }
        except (MemoryError, ValueError, torch.OutOfMemoryError) as exc:  # NumPy calls the largest sizes a ValueError
            size = n_rows * row_bytes(self._info) / 1e9
            rule = f"must be smaller: the replay buffer may need {size:,.1f} GB, which {self._home.type} does not have"
            raise ConfigError(rule, key="train.replay") from exc


@dataclass
class Coming:
    """Weights not yet in force; episodes that have left since are -1."""

    places: NDArray[np.int64]
    weights: AsyncCopy


class Priorities:
    """One weight for each place of a replay buffer."""

    def __init__(self, places: int, *, lag: int) -> None:
        """Start at 1 everywhere; `lag` is how many draws a weight comes late."""
        self._weight = np.ones(places)
        self._lag = lag
        self._coming: deque[Coming] = deque()

    def reset(self, place: int) -> None:
        """Begin anew at 1, for another episode."""
        self._weight[place] = 1.0
        for coming in self._coming:
            coming.places[coming.places == place] = -1

    def set(self, places: NDArray[np.integer], weights: Tensor) -> None:
        """Set the weights (> 0) of these places."""
        self._coming.append(Coming(np.array(places, np.int64), fetch(weights)))
        self._apply_due()

    def draw(self, n: int, among: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw n different ones of the first `among` places, by weight to the power alpha."""
        weight = self._weight[:among] ** alpha
        return rng.choice(among, n, replace=False, p=weight / weight.sum())

    def get_state(self, size: int) -> dict[str, Any]:
        """Return the weights of the first places, and those that are coming."""
        coming = [{"places": torch.from_numpy(c.places.copy()), "weights": c.weights.wait()} for c in self._coming]
        return {"priority": torch.from_numpy(self._weight[:size].copy()), "coming_priorities": coming}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        weight = state["priority"].numpy()
        self._weight[: len(weight)] = weight
        saved = state.get("coming_priorities", [])  # absent in older checkpoints
        self._coming = deque(Coming(c["places"].numpy().copy(), AsyncCopy(c["weights"])) for c in saved)
        self._apply_due()

    def _apply_due(self) -> None:
        while len(self._coming) > self._lag:
            coming = self._coming.popleft()
            held = coming.places >= 0
            weights = np.maximum(coming.weights.wait().numpy(), SMALLEST)
            self._weight[coming.places[held]] = weights[held]
