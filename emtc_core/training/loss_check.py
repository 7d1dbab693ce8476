"""Statistics of updates on their way to the host, and the check that every loss is finite.

On a GPU, the statistics of an update are one tensor, which is copied to the host in the background, so that an update
does not wait for the device. The trainer reads the copies that have arrived at every update, and waits for all of them
before a row of metrics and before a checkpoint. So a NaN or infinite loss ends the training at most some updates late.
The batch of such a loss is saved to a file. On a GPU, its steps are read from the replay buffer for this, where a newer
episode may have replaced one of the batch.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.atomic_file import replace_atomically
from emtc_core.devices import AsyncCopy
from emtc_core.errors import NonFiniteLossError
from emtc_core.learner.targets import IncentiveInputs, LearnerStats
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode

UpdateInputs = tuple[Batch, IncentiveInputs | None] | Sequence[Episode]
"""Data of one update: a replayed batch with its memory values, or the episodes of a rollout."""


@dataclass(frozen=True)
class PendingStats:
    """Statistics of an update that are being copied from the device."""

    update: int
    stats: LearnerStats
    numbers: AsyncCopy
    inputs: UpdateInputs


class LossCheck:
    """Checks that the loss of every update is finite, when its statistics have arrived on the host."""

    def __init__(self, folder: Path) -> None:
        """Save the batches of losses that are not finite in `folder`, which is created when needed."""
        self._folder = folder
        self._pending: deque[PendingStats] = deque()

    def add(self, update: int, stats: LearnerStats, numbers: AsyncCopy, inputs: UpdateInputs) -> None:
        """Add the statistics of one update. Does not wait for the device.

        Args:
            update: Number of the update.
            stats: The statistics. Their tensor is not read.
            numbers: The copy of their tensor.
            inputs: The data of the update, saved if the loss is not finite.
        """
        self._pending.append(PendingStats(update, stats, numbers, inputs))

    def check(self, *, wait: bool = False) -> list[LearnerStats]:
        """Check the losses that have arrived on the host; with `wait`, wait for all of them.

        Returns:
            The statistics that have arrived since the last call, on the host, in the order of the updates.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite. Its batch is saved before.
        """
        if wait and self._pending:
            self._pending[-1].numbers.wait()  # the copies arrive in their order, so this is the only wait
        arrived: list[LearnerStats] = []
        while self._pending and self._pending[0].numbers.has_arrived():
            pending = self._pending.popleft()
            stats = replace(pending.stats, numbers=pending.numbers.wait())
            if not math.isfinite(loss := stats["train/loss"].item()):
                raise self._save(pending, loss)
            arrived.append(stats)
        return arrived

    def _save(self, pending: PendingStats, loss: float) -> NonFiniteLossError:
        """Save the batch of a loss that is not finite, and return the error."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"non-finite-update-{pending.update:09d}.npz"
        with replace_atomically(path, private=True) as file:
            np.savez_compressed(file, allow_pickle=False, **_list_arrays(pending.inputs))
        return NonFiniteLossError(
            f"The training loss became {loss} at update {pending.update}. Lower train.lr or train.reward_scale. The "
            f"batch is saved in {path}"
        )


def _list_arrays(inputs: UpdateInputs) -> dict[str, NDArray[np.generic]]:
    """Return the data of an update as NumPy arrays; the episodes of a rollout are concatenated."""
    if isinstance(inputs, tuple):
        batch, incentive = inputs
        assert isinstance(batch, Batch), "the episodes of a rollout are a list"
        fields = vars(batch) | vars(batch.steps.tensors) | ({} if incentive is None else vars(incentive))
        del fields["steps"]
        return {name: x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    names = ("obs", "state", "avail", "action", "reward")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in inputs]) for name in names}
    return arrays | {"length": np.array([episode.length for episode in inputs])}
