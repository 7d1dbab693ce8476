"""The interface of all value systems: unroll, evaluate actions, bootstrap, compute the TD loss.

The learner uses an online and a target copy through this interface only. States are P rows and transitions R rows, as
in `SequenceBatch`; losses and joint values are padded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.networks import SequenceBatch, SharedAgent, input_width


@dataclass(frozen=True)
class Unrolled:
    """Results of the agents' forward pass over all T + 1 steps.

    Source: the recurrent agent of oxwhirl/pymarl.
    """

    hidden: Tensor  # [P, N, H] dimensionless
    q: Tensor  # [P, N, A] action values [return]; means for a distributional backbone
    best: Tensor  # [P, N] largest available q [return], detached
    greedy: Tensor  # [P, N] action index of `best`
    fractions: Tensor | None = None  # [P, W] quantile fractions, dimensionless, of a distributional backbone


@dataclass(frozen=True)
class JointValues:
    """Q_tot of T transitions. `quantiles` and `fractions` are set only by a distributional backbone.

    Source: the mixer of the backbone.
    """

    q_tot: Tensor  # [T, B] [return]
    quantiles: Tensor | None = None  # [T, B, W] [return]
    fractions: Tensor | None = None  # [T, B, W] dimensionless
    regularizer: Tensor | None = None  # [T, B] [loss], added per transition


@dataclass(frozen=True)
class TdLoss:
    """Loss and TD error per transition, not masked (Eq. 10)."""

    loss: Tensor  # [T, B] [loss]
    error: Tensor  # [T, B] Q_tot minus target [return]


class Backbone(nn.Module, ABC):
    """A value system: an agent network shared by all agents, and a rule that computes Q_tot."""

    agent: SharedAgent
    agent_id = True
    """Whether the agents' input contains a one-hot id."""

    def become_target(self) -> None:
        """Change settings that differ for a target copy; called once on the copy."""

    @abstractmethod
    def unroll(self, seq: SequenceBatch, generator: torch.Generator) -> Unrolled:
        """Run the agents over whole sequences; `generator` is for random quantile fractions."""

    @abstractmethod
    def evaluate_taken(self, unrolled: Unrolled, seq: SequenceBatch) -> JointValues:
        """Evaluate the actions that were taken at steps 0 to T - 1."""

    @abstractmethod
    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: SequenceBatch) -> JointValues:
        """Evaluate the actions at steps 1 to T; called on the target copy (Eq. 10).

        Args:
            unrolled: Forward pass of this copy.
            action: [R, N], action indices of the next steps.
            seq: The batch.
        """

    @abstractmethod
    def evaluate_first_step(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor:
        """Compute Q_tot of the greedy joint action at step 0.

        Source: the mixer of the backbone.

        Returns:
            [B] [return].
        """

    @abstractmethod
    def td_loss(self, taken: JointValues, total_reward: Tensor, discount: Tensor, next_values: JointValues) -> TdLoss:
        """Compute the loss with respect to the target total_reward + discount * next_values (Eq. 10).

        Args:
            taken: Q_tot of the actions that were taken, [T, B].
            total_reward: [T, B] [return], reward plus intrinsic reward plus gated incentive.
            discount: [T, B] dimensionless, gamma, or 0 where the target does not bootstrap.
            next_values: Target values of the next step, [T, B].
        """

    @abstractmethod
    def act_values(self, hidden: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Compute the action values of hidden states.

        Source: the agent network of the backbone.

        Args:
            hidden: [B, N, H], hidden states, dimensionless.
            rng: Random generator of a distributional backbone; None: the result is deterministic.

        Returns:
            [B, N, A] [return].
        """


BackboneTable = dict[str, Callable[[RunConfig, EnvInfo], Backbone]]
"""Type of `BACKBONES` in the modules of this folder: function that makes the value system, by configured name."""


def agent_sizes(config: RunConfig, info: EnvInfo, *, agent_id: bool = True) -> tuple[int, int, int]:
    """Return the width of an agent's input, the number of actions and the width of the hidden layers.

    Args:
        config: Settings of the run.
        info: Sizes of the environment.
        agent_id: Whether the input contains the one-hot id.
    """
    n_inputs = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=agent_id)
    return n_inputs, info.n_actions, config.train.hidden
