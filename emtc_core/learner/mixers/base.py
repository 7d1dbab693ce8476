"""Inputs and result of a mixer. R is the number of transitions, flattened over time and episodes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo


@dataclass(frozen=True)
class MixInputs:
    """Inputs of a mixer, one row per transition.

    Source: the mixers of QMIX and QPLEX.
    """

    q_taken: Tensor  # [R, N] Q_i of the actions [return]
    q_max: Tensor  # [R, N] largest Q_i over the available actions [return], detached
    action: Tensor  # [R, N] action indices
    state: Tensor  # [R, S] [state features]
    obs: Tensor  # [R, N, O] [observation features]


@dataclass(frozen=True)
class Mixed:
    """Result of a mixer. Source: the mixers of QMIX and QPLEX."""

    q_tot: Tensor  # [R] [return]
    regularizer: Tensor | None = None  # [R] additional [loss], if the mixer has one


class Mixer(Protocol):
    """A rule that computes Q_tot from the agents' values. Q_tot must not decrease when a greedy Q_i increases."""

    def __call__(self, inputs: MixInputs) -> Mixed: ...


MixerTable = dict[str, Callable[[RunConfig, EnvInfo], nn.Module]]
"""Type of `MIXERS` in the modules of this folder: function that makes the mixing rule, by configured name."""
