"""The protocol of an intrinsic reward: what it adds to the target, and how it learns from the same batch."""

from typing import Protocol

import torch
from torch import Tensor

from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.networks import Sequence
from emtc_core.replay_buffer.buffer import StateDict


class IntrinsicReward(Protocol):
    """Curiosity (EMC) or diversity (CDS)."""

    def prepare(self, seq: Sequence) -> None:
        """Compute what does not wait for the learner's own pass over the batch; comes before `reward`."""
        ...

    def reward(self, seq: Sequence, online: Unrolled, *, env_step: int) -> Tensor:
        """Weigh the intrinsic reward of every transition for the target: [T, B], detached."""
        ...

    def train(self, seq: Sequence, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
        """Learn from the batch that the learner has just used."""
        ...

    def on_episodes(self, episodes: int) -> None:
        """Count collected episodes, for whatever is trained by episodes."""
        ...

    def copy_target(self) -> None:
        """Synchronise target copies with the learner's."""
        ...

    def get_state(self) -> StateDict:
        """Return networks, optimisers and counters."""
        ...

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        ...
