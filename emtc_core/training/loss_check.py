"""Check that every loss of a training is finite.

The trainer passes every loss to `LossCheck`. It checks for NaN and infinity at the next update, before a metrics row
and before a checkpoint. On a GPU the loss is copied in the background, so that an update does not wait for the device.
If a loss is not finite, its batch is saved to a file. On a GPU, its steps are read from the replay buffer for this,
where a newer episode may have replaced one of the batch.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.atomic_file import replace_atomically
from emtc_core.devices import AsyncCopy, fetch
from emtc_core.errors import NonFiniteLossError
from emtc_core.learner.targets import IncentiveInputs
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode

UpdateInputs = tuple[Batch, IncentiveInputs | None] | Sequence[Episode]
"""Data of one update: a replayed batch with its memory values, or the episodes of a rollout."""


@dataclass(frozen=True)
class PendingLoss:
    """A loss that is being copied from the device."""

    update: int
    loss: AsyncCopy
    inputs: UpdateInputs


class LossCheck:
    """Checks that the loss of every update is finite."""

    def __init__(self, folder: Path) -> None:
        """Save the batches of losses that are not finite in `folder`, which is created when needed."""
        self._folder = folder
        self._pending: deque[PendingLoss] = deque()

    def add(self, update: int, loss: Tensor, inputs: UpdateInputs) -> None:
        """Add the loss of one update. Does not wait for the device.

        Source: implementation detail.

        Args:
            update: Number of the update.
            loss: A scalar [loss].
            inputs: The data of the update, saved if the loss is not finite.
        """
        self._pending.append(PendingLoss(update, fetch(loss), inputs))

    def check(self, *, wait: bool = False) -> None:
        """Check the losses that have arrived on the host; with `wait`, wait for all of them.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite. Its batch is saved before.
        """
        while self._pending and (wait or self._pending[0].loss.has_arrived()):
            pending = self._pending.popleft()
            if not math.isfinite(loss := pending.loss.wait().item()):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path = self._folder / f"non-finite-update-{pending.update:09d}.npz"
                with replace_atomically(path, private=True) as file:
                    np.savez_compressed(file, allow_pickle=False, **_list_arrays(pending.inputs))
                raise NonFiniteLossError(
                    f"The training loss became {loss} at update {pending.update}. Lower train.lr or "
                    f"train.reward_scale. The batch is saved in {path}"
                )


def _list_arrays(inputs: UpdateInputs) -> dict[str, NDArray[np.generic]]:
    """Return the data of an update as NumPy arrays; the episodes of a rollout are concatenated."""
    if isinstance(inputs, tuple):
        batch, incentive = inputs
        assert isinstance(batch, Batch), "the other kind of inputs is a list"
        fields = vars(batch) | vars(batch.steps.tensors) | ({} if incentive is None else vars(incentive))
        del fields["steps"]
        return {name: x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    names = ("obs", "state", "avail", "action", "reward")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in inputs]) for name in names}
    return arrays | {"length": np.array([episode.length for episode in inputs])}
