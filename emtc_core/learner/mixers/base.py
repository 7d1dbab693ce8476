"""Inputs and result of a mixer. R is the number of transitions, flattened over time and episodes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo


@dataclass(frozen=True)
class MixInputs:
    """Inputs of a mixer, one row per transition."""

    q_taken: Tensor  # [R, N] Q_i of the chosen actions
    q_max: Tensor  # [R, N] largest Q_i over the available actions, detached
    action: Tensor  # [R, N] chosen actions
    state: Tensor  # [R, S]
    obs: Tensor  # [R, N, O]


@dataclass(frozen=True)
class Mixed:
    """Result of a mixer."""

    q_tot: Tensor  # [R]
    regularizer: Tensor | None = None  # [R] additional loss, if the mixer has one


class Mixer(Protocol):
    """A rule that computes Q_tot from the agents' values. Q_tot must not decrease when a greedy Q_i increases."""

    def __call__(self, inputs: MixInputs) -> Mixed: ...


MixerTable = dict[str, Callable[[RunConfig, EnvInfo], nn.Module]]
"""Type of `MIXERS` in the modules of this folder: function that makes the mixing rule, by configured name."""
