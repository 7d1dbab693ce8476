"""From configuration to parts: value systems by name, intrinsic rewards, optimisers."""

import copy
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

import torch
from torch import nn

from emtc_core.config.run import RunConfig
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner import backbones
from emtc_core.learner.backbones.base import Backbone, BackboneTable
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.intrinsic import IntrinsicReward
from emtc_core.learner.networks import DiverseAgent

_MODULES = [import_module(f"{backbones.__name__}.{each.name}") for each in iter_modules(backbones.__path__)]
BACKBONES: BackboneTable = {name: make for m in _MODULES for name, make in getattr(m, "BACKBONES", {}).items()}


def make_backbone(config: RunConfig, info: EnvInfo) -> Backbone:
    """Make the value system with PyTorch's default initialisation."""
    return BACKBONES[config.backbone](config, info)


def make_target(online: Backbone) -> Backbone:
    """Copy a backbone for bootstrapping, without gradients."""
    target = copy.deepcopy(online).requires_grad_(False)
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
    if curiosity.scale > 0 or (curiosity.emulate_floor_bug and curiosity.decay_stop > 0):
        n_inputs = online.agent.fc1.in_features
        parts.append(Curiosity(curiosity, config.train, n_inputs=n_inputs, n_actions=info.n_actions, device=device))
    return parts


def make_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make RMSprop as PyMARL sets it, or Adam as DMIX does."""
    parameters = list(parameters)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, eps=1e-5)
    return torch.optim.RMSprop(parameters, lr=config.lr, alpha=0.99, eps=1e-5)
