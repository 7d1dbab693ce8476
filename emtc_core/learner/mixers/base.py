"""What a mixer reads and returns. R rows are (time, episode) pairs, already flattened."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo


@dataclass(frozen=True)
class MixInputs:
    """One row per transition."""

    q_taken: Tensor  # [R, N] Q_i of the chosen actions
    q_max: Tensor  # [R, N] largest Q_i over the available actions, detached
    action: Tensor  # [R, N] chosen actions
    state: Tensor  # [R, S]
    obs: Tensor  # [R, N, O]


@dataclass(frozen=True)
class Mixed:
    """Q_tot per row, and an extra loss per row where the mixer has one."""

    q_tot: Tensor  # [R]
    regularizer: Tensor | None = None  # [R]


class Mixer(Protocol):
    """A rule that joins the agents' values; Q_tot never falls when a greedy Q_i rises."""

    def __call__(self, inputs: MixInputs) -> Mixed: ...


MixerTable = dict[str, Callable[[RunConfig, EnvInfo], nn.Module]]
"""What a module of this folder lists in `MIXERS`: how a mixing rule is made, by the name in `config.run`."""
