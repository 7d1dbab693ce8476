"""Action values of the target network for stored episodes, cached until the next copy of the online network.

An update needs Q_i of the target network at all steps of its episodes. The target network changes only every
`train.target_interval` episodes, so an episode that was sampled since the last copy need not be computed again.

The last bits of a value depend on the other episodes that are computed with it, because matrix products are computed in
blocks of rows. Therefore the values are part of a checkpoint: a resumed run then equals an uninterrupted one.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.learner.backbones.base import Backbone, Unrolled
from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.networks import DiverseAgent, SequenceBatch, SharedAgent
from emtc_core.learner.targets import greedy

Floats = NDArray[np.floating]


def can_cache(target: Backbone) -> bool:
    """Whether the action values of an episode depend on nothing but the weights, and the mixer needs nothing else.

    This excludes DMIX, which draws random quantile fractions, and the value systems of plug-ins.
    """
    return type(target) is ValueBackbone and type(target.agent) in (SharedAgent, DiverseAgent)


class TargetValues:
    """Action values [T + 1, N, A] of the target network by index of the episode in the replay buffer."""

    def __init__(self) -> None:
        self._q: dict[int, Floats] = {}

    def __len__(self) -> int:
        return len(self._q)

    def discard(self, index: int) -> None:
        """Remove the values of an episode that was replaced in the replay buffer."""
        self._q.pop(index, None)

    def clear(self) -> None:
        """Remove all values, because the weights of the target network have changed."""
        self._q.clear()

    @torch.no_grad()
    def unroll(self, target: ValueBackbone, seq: SequenceBatch, indices: NDArray[np.int64]) -> Unrolled:
        """Run the target network over the episodes without stored values, and store these.

        Source: implementation detail.

        Args:
            target: The target network.
            seq: The batch.
            indices: [B], indices of its episodes in the replay buffer.

        Returns:
            The same values as `target.unroll`, up to rounding, without hidden states.
        """
        cached = [self._q.get(index) for index in indices.tolist()]
        q = seq.inputs.new_empty(seq.avail.shape)
        is_missing = np.array([values is None for values in cached])
        if is_missing.any():
            selected, rows = seq.rows.select_sequences(is_missing)
            hidden = target.agent.unroll(seq.inputs[selected], rows.repeat(q.shape[1]))
            q[selected] = target.agent.values(hidden)
        q_PNA = q.numpy()
        for index, rows_of_episode, values in zip(indices.tolist(), seq.rows.list_sequences(), cached, strict=True):
            if values is None:
                self._q[index] = q_PNA[rows_of_episode]
            else:
                q_PNA[rows_of_episode] = values
        best, action = greedy(q, seq.avail)
        return Unrolled(hidden=q.new_empty(0), q=q, best=best, greedy=action)

    def get_state(self) -> dict[str, Any]:
        """Return the values of all episodes one after another, with the index and the number of states of each."""
        indices = sorted(self._q)
        values = [self._q[index] for index in indices]
        return {
            "index": torch.tensor(indices, dtype=torch.int64),
            "n_steps": torch.tensor([len(q) for q in values], dtype=torch.int64),
            "q": torch.from_numpy(np.concatenate(values)) if values else torch.empty(0),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""
        q = state["q"].numpy()
        bounds = [0, *state["n_steps"].cumsum(0).tolist()]
        values = [q[start:end].copy() for start, end in pairwise(bounds)]
        self._q = dict(zip(state["index"].tolist(), values, strict=True))
