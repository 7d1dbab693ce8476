"""A slow reading of one MAPPO update: one episode, one step, one agent at a time, in float64.

A single pass over the rollout, right after collection, so the old policy is the present one.
"""

import torch
from torch import Tensor

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.rollout.episode import Episode
from tests.reference.mixers import Params

FRESH_DEVIATION = 0.1  # the floor of the variance is 0.01, the mean 0
EPS = 1e-5
HUBER_DELTA = 10.0


def real(x) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def layer_norm(p: Params, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return p[f"{name}.weight"] * centred / torch.sqrt((centred**2).mean() + 1e-5) + p[f"{name}.bias"]


def network(p: Params, x: Tensor) -> Tensor:
    """LayerNorm, two times (Linear, ReLU, LayerNorm), Linear: modules 0 to 7 of a sequence."""
    x = layer_norm(p, "0", x)
    x = layer_norm(p, "3", torch.relu(p["1.weight"] @ x + p["1.bias"]))
    x = layer_norm(p, "6", torch.relu(p["4.weight"] @ x + p["4.bias"]))
    return p["7.weight"] @ x + p["7.bias"]


def one_hot(i: int, n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[i]


def log_policy(actor: Params, episode: Episode, t: int, i: int, info: EnvInfo) -> dict[int, Tensor]:
    """Log probability of each available action."""
    logits = network(actor, torch.cat([real(episode.obs[t, i]), one_hot(i, info.n_agents)]))
    allowed = [a for a in range(info.n_actions) if episode.avail[t, i, a]]
    total = torch.logsumexp(torch.stack([logits[a] for a in allowed]), 0)
    return {a: logits[a] - total for a in allowed}


def critic_value(critic: Params, episode: Episode, t: int, i: int, info: EnvInfo) -> Tensor:
    state, obs = real(episode.state[t]), real(episode.obs[t, i])
    return network(critic, torch.cat([state, obs, one_hot(i, info.n_agents)]))[0]


def huber(error: Tensor, delta: float) -> Tensor:
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - 0.5 * delta)


def losses(
    actor: Params, critic: Params, episodes: list[Episode], config: RunConfig, info: EnvInfo
) -> tuple[Tensor, Tensor, Tensor]:
    """Return policy loss, value loss and entropy of a first update, the value normalisation being fresh."""
    gamma, lam = config.train.gamma, config.mappo.gae_lambda
    advantages: list[float] = []
    returns: list[float] = []
    policies: list[dict[int, Tensor]] = []
    values: list[Tensor] = []
    taken: list[int] = []
    alive: list[bool] = []
    for episode in episodes:
        for i in range(info.n_agents):
            out = [critic_value(critic, episode, t, i, info) for t in range(episode.length + 1)]
            v = [FRESH_DEVIATION * float(x.detach()) for x in out]
            ended = episode.terminated or (episode.truncated and not config.train.bootstrap_on_timeout)
            advantage = 0.0
            backwards = []
            for t in range(episode.length - 1, -1, -1):
                following = 0.0 if t == episode.length - 1 and ended else v[t + 1]
                delta = float(episode.reward[t]) + gamma * following - v[t]
                advantage = delta + gamma * lam * advantage
                backwards.append(advantage)
            for t, gain in enumerate(reversed(backwards)):
                advantages.append(gain)
                returns.append(gain + v[t])
                policies.append(log_policy(actor, episode, t, i, info))
                values.append(out[t])
                taken.append(int(episode.action[t, i]))
                alive.append(bool(episode.avail[t, i, 1:].any()))
    living = [k for k in range(len(alive)) if alive[k]]
    mean = sum(advantages[k] for k in living) / len(living)
    deviation = (sum((advantages[k] - mean) ** 2 for k in living) / len(living)) ** 0.5
    policy = entropy = torch.zeros((), dtype=torch.float64)
    for k in living:
        ratio = torch.exp(policies[k][taken[k]] - policies[k][taken[k]].detach())
        policy = policy - ratio * (advantages[k] - mean) / (deviation + EPS) / len(living)
        entropy = entropy - sum(torch.exp(x) * x for x in policies[k].values()) / len(living)
    # After its first observation a debiased average is that observation's.
    centre = sum(returns) / len(returns)
    variance = max(sum(r**2 for r in returns) / len(returns) - centre**2, 1e-2)
    value = torch.zeros((), dtype=torch.float64)
    for k, v_k in enumerate(values):
        target = (returns[k] - centre) / variance**0.5
        value = value + huber(target - v_k, HUBER_DELTA) / len(values)
    return policy, value, entropy
