"""A slow reading of the CDS reward: one step and one agent at a time."""

import torch
from torch import Tensor

from emtc_core.config.backbones import CdsConfig
from tests.reference.mixers import Params, linear


def p_error(p: Params, z: Tensor, obs_next: Tensor) -> Tensor:
    hidden = torch.relu(linear(p, "p.2", torch.relu(linear(p, "p.0", z))))
    return sum((linear(p, "p.4", hidden)[d] - obs_next[d]) ** 2 for d in range(len(obs_next)))


def q_error(p: Params, z: Tensor, agent: Tensor, obs_next: Tensor) -> Tensor:
    hidden = torch.relu(linear(p, "q_first", torch.cat([z, agent])))
    hidden = torch.relu(linear(p, "q_second", torch.cat([hidden, agent])))
    return sum((linear(p, "q_last", hidden)[d] - obs_next[d]) ** 2 for d in range(len(obs_next)))


def mixture(config: CdsConfig, agent: int, policies: Tensor) -> Tensor:
    """Average policies [history, identity, A] into P_i."""
    n = len(policies)
    if config.policy_mixture == "agents":
        return sum(policies[j, j] for j in range(n)) / n
    if config.policy_mixture == "heads":
        return sum(policies[agent, k] for k in range(n)) / n
    return sum(policies[j, agent] for j in range(n)) / n


def reward(
    p: Params,
    config: CdsConfig,
    *,
    hidden_before: Tensor,
    obs: Tensor,
    action: list[int],
    obs_next: Tensor,
    q_by_identity: Tensor,
) -> float:
    """Compute cds.beta times the mean over agents of r_i for one step.

    `hidden_before` [N, H], `obs` and `obs_next` [N, O], `q_by_identity` [history, identity, A].
    """
    n, n_actions = len(action), q_by_identity.shape[-1]
    policies = torch.softmax(q_by_identity, -1)
    total = 0.0
    for i in range(n):
        z = torch.cat([hidden_before[i], obs[i], torch.eye(n_actions, dtype=obs.dtype)[action[i]]])
        agent = torch.eye(n, dtype=obs.dtype)[i]
        prediction = -config.b1 * q_error(p, z, agent, obs_next[i]) + p_error(p, z, obs_next[i])
        average = mixture(config, i, policies)
        pi = torch.softmax(config.b1 * q_by_identity[i, i], -1)
        divergence = sum(pi[a] * torch.log(pi[a] / average[a]) for a in range(n_actions))
        total += float(prediction + config.b2 * divergence)
    return config.beta * total / n
