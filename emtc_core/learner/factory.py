"""Make the parts of a learner from the configuration: value systems, optimizers and intrinsic rewards."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import PluginError
from emtc_core.learner import backbones
from emtc_core.learner.backbones.base import Backbone, BackboneTable, Unrolled
from emtc_core.learner.backbones.value import make_value_backbone
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.networks import DiverseAgent, SequenceBatch, copy_network
from emtc_core.plugins import find_plugin
from emtc_core.replay_buffer.buffer import StateDict

_MODULES = [import_module(f"{backbones.__name__}.{module.name}") for module in iter_modules(backbones.__path__)]
BACKBONES: BackboneTable = {name: make for m in _MODULES for name, make in getattr(m, "BACKBONES", {}).items()}


class IntrinsicReward(Protocol):
    """Curiosity (EMC) or diversity (CDS)."""

    def prepare(self, seq: SequenceBatch) -> None:
        """Compute everything that does not need the learner's forward pass. Call this before `reward`."""
        ...

    def reward(self, seq: SequenceBatch, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute the weighted intrinsic reward of every transition.

        Source: the codes of CDS and EMC.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far, for annealed weights.

        Returns:
            [T, B] [reward], detached.
        """
        ...

    def train(self, seq: SequenceBatch, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
        """Train the networks of the intrinsic reward on the batch.

        Args:
            seq: The batch of the learner's current update.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far.
            generator: Source of randomness.
        """
        ...

    def on_episodes(self, episodes: int) -> None:
        """Set the number of collected episodes, for training schedules that count episodes."""
        ...

    def copy_target(self) -> None:
        """Copy the online networks to their targets, whenever the learner copies its own."""
        ...

    def get_state(self) -> StateDict:
        """Return networks, optimizers and counters."""
        ...

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        ...


def make_backbone(config: RunConfig, info: EnvInfo) -> Backbone:
    """Make the value system with PyTorch's default initialization.

    A name that is not in `BACKBONES` is that of a plug-in: a backbone, or a mixer.

    Raises:
        PluginError: If a plug-in does not make a `Backbone`.
    """
    if config.backbone in BACKBONES:
        return BACKBONES[config.backbone](config, info)
    plugin = find_plugin(config.backbone)
    if plugin is None or plugin.kind != "backbone":
        return make_value_backbone(config, info)
    backbone = plugin.bind(config.plugin)(config, info)
    if not isinstance(backbone, Backbone):
        raise PluginError("must make a Backbone", key=f"backbone {plugin.name}", value=type(backbone).__name__)
    return backbone


def make_target(online: Backbone) -> Backbone:
    """Make a copy of a backbone for bootstrapping, without gradients."""
    target = copy_network(online)
    target.become_target()
    return target


def make_intrinsic(
    config: RunConfig, info: EnvInfo, online: Backbone, *, device: torch.device
) -> list[IntrinsicReward]:
    """Make the intrinsic rewards of the configuration. A reward with weight 0 is omitted.

    Args:
        config: Settings of the run.
        info: Sizes of the environment.
        online: The learner's value system.
        device: Device of the networks.
    """
    parts: list[IntrinsicReward] = []
    if isinstance(online.agent, DiverseAgent) and config.cds.beta > 0:
        parts.append(Diversity(config.cds, info, online.agent, hidden=config.train.hidden, device=device))
    curiosity = config.curiosity
    if curiosity.is_on:
        n_inputs = online.agent.fc1.in_features
        parts.append(Curiosity(curiosity, config.train, n_inputs=n_inputs, n_actions=info.n_actions, device=device))
    return parts


def make_optimizer(
    config: TrainConfig, parameters: Iterable[nn.Parameter], *, capturable: bool = False
) -> torch.optim.Optimizer:
    """Make RMSprop with the settings of PyMARL, or Adam with those of DMIX.

    Args:
        config: Settings of the training.
        parameters: Parameters to train.
        capturable: Whether its steps are part of a CUDA graph.
    """
    parameters = list(parameters)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, eps=1e-5, capturable=capturable)
    return torch.optim.RMSprop(parameters, lr=config.lr, alpha=0.99, eps=1e-5, capturable=capturable)
