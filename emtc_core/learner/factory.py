"""From configuration to parts: the only place that asks which algorithm this is."""

from collections.abc import Iterable

import torch
from torch import nn

from emtc_core.config.run import RunConfig, split_algo
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.intrinsic import IntrinsicReward
from emtc_core.learner.mixers.qmix import QmixMixer
from emtc_core.learner.mixers.qplex import QplexMixer
from emtc_core.learner.mixers.vdn import VdnMixer
from emtc_core.learner.networks import SharedAgent, input_width


def agent_sees_id(config: RunConfig) -> bool:
    """Tell whether the agent's input carries its id; CDS tells agents apart by their heads instead."""
    return config.backbone != "cds"


def uses_incentive(config: RunConfig) -> bool:
    """Tell whether r_p enters the target: EMTC and EMU with the incentive enabled."""
    return split_algo(config.algo)[0] in ("emtc", "emu") and config.incentive.enabled


def make_backbone(config: RunConfig, info: EnvInfo) -> Backbone:
    """Make the value system with PyTorch's default initialisation."""
    n_inputs = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=agent_sees_id(config))
    agent = SharedAgent(n_inputs, info.n_actions, config.train.hidden)
    return ValueBackbone(agent, make_mixer(config, info))


def make_mixer(config: RunConfig, info: EnvInfo) -> nn.Module:
    """Make the mixing rule of a scalar backbone; CDS mixes by QPLEX."""
    if config.backbone == "vdn":
        return VdnMixer()
    if config.backbone == "qmix":
        return QmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim)
    return QplexMixer(
        config.qplex,
        n_agents=info.n_agents,
        n_actions=info.n_actions,
        state_dim=info.state_dim,
        obs_dim=info.obs_dim,
        agent_block=info.agent_block,
    )


def make_intrinsic(config: RunConfig, info: EnvInfo, *, device: torch.device) -> list[IntrinsicReward]:
    """Make the intrinsic rewards that the algorithm adds to the target."""
    return []


def make_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make RMSprop as PyMARL sets it, or Adam as DMIX does."""
    parameters = list(parameters)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, eps=1e-5)
    return torch.optim.RMSprop(parameters, lr=config.lr, alpha=0.99, eps=1e-5)
