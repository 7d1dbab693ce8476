"""From configuration to parts: the only place that asks which algorithm this is."""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn

from emtc_core.config.run import RunConfig
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.backbones.dmix import DmixBackbone, QuantileAgent
from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.intrinsic import IntrinsicReward
from emtc_core.learner.mixers.dmix import DmixMixer
from emtc_core.learner.mixers.qmix import QmixMixer
from emtc_core.learner.mixers.qplex import QplexMixer
from emtc_core.learner.mixers.vdn import VdnMixer
from emtc_core.learner.networks import DiverseAgent, SharedAgent, input_width


def agent_sees_id(config: RunConfig) -> bool:
    """Tell whether the agent's input carries its id; CDS tells agents apart by their heads instead."""
    return config.backbone != "cds"


def make_backbone(config: RunConfig, info: EnvInfo) -> Backbone:
    """Make the value system with PyTorch's default initialisation."""
    n_inputs = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=agent_sees_id(config))
    sizes = (n_inputs, info.n_actions, config.train.hidden)
    if config.backbone == "dmix":
        agent = QuantileAgent(*sizes, n_cos=config.dmix.n_cos)
        mixer = DmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim)
        return DmixBackbone(agent, mixer, config.dmix)
    if config.backbone == "cds":
        return ValueBackbone(DiverseAgent(*sizes, info.n_agents), make_mixer(config, info), l1=config.cds.l1)
    return ValueBackbone(SharedAgent(*sizes), make_mixer(config, info))


def make_target(config: RunConfig, online: Backbone) -> Backbone:
    """Copy a backbone for bootstrapping, without gradients."""
    target = copy.deepcopy(online).requires_grad_(False)
    if isinstance(target, DmixBackbone):
        target.use_target_fractions(config.dmix)
    return target


def make_mixer(config: RunConfig, info: EnvInfo) -> nn.Module:
    """Make the mixing rule of a scalar backbone.

    Raises:
        ConfigError: If no rule of that name is listed in `MIXERS`.
    """
    rule = config.cds.mixer if config.backbone == "cds" else config.backbone
    if rule not in MIXERS:
        raise ConfigError(f"No mixing rule is called {rule}. List it in MIXERS of emtc_core/learner/factory.py.")
    return MIXERS[rule](config, info)


def _make_qplex(config: RunConfig, info: EnvInfo) -> nn.Module:
    return QplexMixer(
        config.qplex,
        n_agents=info.n_agents,
        n_actions=info.n_actions,
        state_dim=info.state_dim,
        obs_dim=info.obs_dim,
        agent_block=info.agent_block,
    )


MIXERS: dict[str, Callable[[RunConfig, EnvInfo], nn.Module]] = {
    "qplex": _make_qplex,
    "qmix": lambda config, info: QmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim),
    "vdn": lambda config, info: VdnMixer(),
}


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
