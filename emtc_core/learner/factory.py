"""From configuration to parts: value systems by name, optimisers, and the protocol and choice of intrinsic rewards."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner import backbones
from emtc_core.learner.backbones.base import Backbone, BackboneTable, Unrolled
from emtc_core.learner.backbones.value import make_value_backbone
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.networks import DiverseAgent, Sequence, copy_network
from emtc_core.learner.parts import Team
from emtc_core.replay_buffer.buffer import StateDict

_MODULES = [import_module(f"{backbones.__name__}.{each.name}") for each in iter_modules(backbones.__path__)]
BACKBONES: BackboneTable = {name: make for m in _MODULES for name, make in getattr(m, "BACKBONES", {}).items()}


class IntrinsicReward(Protocol):
    """Curiosity (EMC) or diversity (CDS)."""

    by_episode: bool
    """Whether `reward` reads nothing but the episodes it is given, so that parts of a batch may ask at once."""

    def use(self, team: Team) -> None:
        """Compute on several threads."""
        ...

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


def make_backbone(config: RunConfig, info: EnvInfo) -> Backbone:
    """Make the value system with PyTorch's default initialisation; a name from outside is a mixing rule's."""
    return BACKBONES.get(config.backbone, make_value_backbone)(config, info)


def make_target(online: Backbone) -> Backbone:
    """Copy a backbone for bootstrapping, without gradients."""
    target = copy_network(online)
    target.become_target()
    return target


def make_intrinsic(
    config: RunConfig, info: EnvInfo, online: Backbone, *, device: torch.device
) -> list[IntrinsicReward]:
    """Make the intrinsic rewards that the configuration adds to the target; a weight of 0 makes none."""
    parts: list[IntrinsicReward] = []
    if isinstance(online.agent, DiverseAgent) and config.cds.beta > 0:
        parts.append(Diversity(config.cds, info, online.agent, hidden=config.train.hidden, device=device))
    curiosity = config.curiosity
    if curiosity.is_on:
        n_inputs = online.agent.fc1.in_features
        parts.append(Curiosity(curiosity, config.train, n_inputs=n_inputs, n_actions=info.n_actions, device=device))
    return parts


def make_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make RMSprop as PyMARL sets it, or Adam as DMIX does."""
    parameters = list(parameters)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, eps=1e-5)
    return torch.optim.RMSprop(parameters, lr=config.lr, alpha=0.99, eps=1e-5)
