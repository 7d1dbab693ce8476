"""What every value system does: unroll, value the taken actions, bootstrap, compare.

The learner holds two copies, online and target, and knows nothing of mixers or quantiles. Time-major tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.networks import Sequence, SharedAgent, input_width


@dataclass(frozen=True)
class Unrolled:
    """One pass over all T + 1 steps."""

    hidden: Tensor  # [T+1, B, N, H]
    q: Tensor  # [T+1, B, N, A] action values (means, where values are distributions)
    best: Tensor  # [T+1, B, N] largest available q, detached
    greedy: Tensor  # [T+1, B, N] its action
    fractions: Tensor | None = None  # [T+1, B, W] quantile fractions of a distributional backbone


@dataclass(frozen=True)
class Evaluation:
    """Q_tot of T transitions; `quantiles` only where values are distributions."""

    q_tot: Tensor  # [T, B]
    quantiles: Tensor | None = None  # [T, B, W]
    fractions: Tensor | None = None  # [T, B, W]
    regularizer: Tensor | None = None  # [T, B] extra loss per transition


@dataclass(frozen=True)
class TdLoss:
    """Loss and error per transition, unmasked."""

    loss: Tensor  # [T, B]
    error: Tensor  # [T, B] Q_tot minus target


class Backbone(nn.Module, ABC):
    """A value system: one network for all agents and the rule that joins their values."""

    agent: SharedAgent
    agent_id = True
    """Whether the agents' input carries a one-hot id."""

    def become_target(self) -> None:
        """Do what only a target copy does; called once on the copy."""

    @abstractmethod
    def unroll(self, seq: Sequence, generator: torch.Generator) -> Unrolled:
        """Run the agents over whole sequences."""

    @abstractmethod
    def taken(self, unrolled: Unrolled, seq: Sequence) -> Evaluation:
        """Value the actions that were taken, steps 0 to T - 1."""

    @abstractmethod
    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: Sequence) -> Evaluation:
        """Value the actions [T, B, N] at steps 1 to T; called on the target copy."""

    @abstractmethod
    def start(self, unrolled: Unrolled, seq: Sequence) -> Tensor:
        """Value the greedy joint action at step 0: [B]."""

    @abstractmethod
    def td_loss(self, taken: Evaluation, shift: Tensor, discount: Tensor, following: Evaluation) -> TdLoss:
        """Compare with the target shift + discount * following; all [T, B]."""

    @abstractmethod
    def act_values(self, hidden: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Return action values [B, N, A] of hidden states [B, N, H]; None asks for no randomness."""


BackboneTable = dict[str, Callable[[RunConfig, EnvInfo], Backbone]]
"""What a module of this folder lists in `BACKBONES`: how a value system is made, by the name in `config.run`."""


def agent_sizes(config: RunConfig, info: EnvInfo, *, agent_id: bool = True) -> tuple[int, int, int]:
    """Width of an agent's input, its actions, width of its hidden layers."""
    n_inputs = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=agent_id)
    return n_inputs, info.n_actions, config.train.hidden
