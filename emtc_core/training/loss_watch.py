"""Notices a loss that is NaN or infinite, and keeps the batch that produced it.

The trainer hands over every update and asks before it relies on the weights: at the next update, before a metrics row,
before a checkpoint. On a GPU the loss is copied in the background, so that no update waits for the device.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.device import AsyncCopy, fetch
from emtc_core.errors import NonFiniteLossError
from emtc_core.learner.td import IncentiveInputs
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode

Learned = tuple[Batch, IncentiveInputs | None] | Sequence[Episode]


@dataclass(frozen=True)
class Pending:
    """A loss on its way from the device."""

    update: int
    loss: AsyncCopy
    learned: Learned


class LossWatch:
    """Holds the updates whose loss has not been looked at."""

    def __init__(self, folder: Path) -> None:
        """Keep offending batches in `folder`, made on demand."""
        self._folder = folder
        self._pending: deque[Pending] = deque()

    def watch(self, update: int, loss: Tensor, learned: Learned) -> None:
        """Take note of one update; returns without waiting for the device."""
        self._pending.append(Pending(update, fetch(loss), learned))

    def check(self, *, wait: bool = False) -> None:
        """Look at the losses that have arrived, or at all of them.

        Raises:
            NonFiniteLossError: At the first that is NaN or infinite, after its batch was saved.
        """
        while self._pending and (wait or self._pending[0].loss.is_here()):
            pending = self._pending.popleft()
            if not math.isfinite(loss := pending.loss.wait().item()):
                path = self._save(pending)
                raise NonFiniteLossError(
                    f"The training loss became {loss} at update {pending.update}. Lower train.lr or "
                    f"train.reward_scale. The batch is kept in {path}"
                )

    def _save(self, pending: Pending) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"non-finite-update-{pending.update:09d}.npz"
        np.savez_compressed(path, allow_pickle=False, **_arrays(pending.learned))
        return path


def _arrays(learned: Learned) -> dict[str, NDArray[np.generic]]:
    """Lay out what an update saw: a replayed batch with its recall, or the episodes of a rollout end to end."""
    if isinstance(learned, tuple):
        batch, recalled = learned
        fields = vars(batch) | ({} if recalled is None else vars(recalled))
        return {name: x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    names = ("obs", "state", "avail", "action", "reward")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in learned]) for name in names}
    return arrays | {"length": np.array([episode.length for episode in learned])}
