"""A slow reading of the gated TD loss: one episode, one step, one agent at a time, from whole episodes.

Nothing is padded here, so agreement also says that padding and masking are right.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.rollout.episode import Episode
from tests.reference import mixers
from tests.reference.mixers import Params


@dataclass
class Memory:
    """Recalled H and rho of each successor; None is a miss."""

    h_next: list[list[float | None]]
    rho_next: list[list[float]]
    beta: list[list[float]]


@dataclass
class AgentTrace:
    """One agent's values along an episode, steps 0..T."""

    hidden: list[Tensor]
    q: list[Tensor]
    private: list[Tensor | None]


def sub(p: Params, prefix: str) -> Params:
    return {name.removeprefix(prefix + "."): x for name, x in p.items() if name.startswith(prefix + ".")}


def real(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(x, np.float64))


def gru(p: Params, x: Tensor, h: Tensor) -> Tensor:
    size = len(h)
    from_x = p["rnn.weight_ih_l0"] @ x + p["rnn.bias_ih_l0"]
    from_h = p["rnn.weight_hh_l0"] @ h + p["rnn.bias_hh_l0"]
    r = torch.sigmoid(from_x[:size] + from_h[:size])
    z = torch.sigmoid(from_x[size : 2 * size] + from_h[size : 2 * size])
    n = torch.tanh(from_x[2 * size :] + r * from_h[2 * size :])
    return (1.0 - z) * n + z * h


def trace(p: Params, episode: Episode, agent: int, info: EnvInfo, *, with_id: bool) -> AgentTrace:
    """Unroll one agent over steps 0..T."""
    h = torch.zeros(p["rnn.weight_hh_l0"].shape[1], dtype=torch.float64)
    out = AgentTrace([], [], [])
    for t in range(episode.length + 1):
        last = torch.zeros(info.n_actions, dtype=torch.float64)
        if t > 0:
            last[episode.action[t - 1, agent]] = 1.0
        parts = [real(episode.obs[t, agent]), last]
        if with_id:
            parts.append(torch.eye(info.n_agents, dtype=torch.float64)[agent])
        h = gru(p, torch.relu(mixers.linear(p, "fc1", torch.cat(parts))), h)
        q = mixers.linear(p, "fc2", h)
        private = None
        if "head.weight" in p:
            private = h @ p["head.weight"][agent] + p["head.bias"][agent]
            q = q + private
        out.hidden.append(h)
        out.q.append(q)
        out.private.append(private)
    return out


def best_action(q: Tensor, avail: np.ndarray) -> int:
    allowed = [a for a in range(len(q)) if avail[a]]
    return max(allowed, key=lambda a: float(q[a].detach()))


def mix(p: Params, config: RunConfig, info: EnvInfo, q, q_max, action, state, obs) -> tuple[Tensor, Tensor]:
    """Join one row; return Q_tot and the mixer's own loss."""
    zero = torch.zeros((), dtype=torch.float64)
    if config.backbone == "vdn":
        return mixers.vdn(q), zero
    if config.backbone == "qmix" or (config.backbone == "cds" and config.cds.mixer == "qmix"):
        return mixers.qmix(sub(p, "mixer"), q, state), zero
    block = info.agent_block
    own = [state[i * block : (i + 1) * block] if block else obs[i] for i in range(info.n_agents)]
    return mixers.qplex(sub(p, "mixer"), q, q_max, action, state, own, config=config.qplex, n_actions=info.n_actions)


def ends(episode: Episode, config: RunConfig) -> bool:
    return episode.terminated or (episode.truncated and not config.train.bootstrap_on_timeout)


def loss(
    online: Params,
    target: Params,
    episodes: list[Episode],
    config: RunConfig,
    info: EnvInfo,
    memory: Memory | None,
) -> Tensor:
    """Average the squared gated TD error over real transitions and add the backbone's own terms."""
    squares, extras, episodic = [], [], []
    gamma = config.train.gamma
    with_id = config.backbone != "cds"
    for e, episode in enumerate(episodes):
        agents = range(info.n_agents)
        now = [trace(sub(online, "agent"), episode, i, info, with_id=with_id) for i in agents]
        with torch.no_grad():
            then = [trace(sub(target, "agent"), episode, i, info, with_id=with_id) for i in agents]
        for t in range(episode.length):
            action = [int(episode.action[t, i]) for i in agents]
            q = [now[i].q[t][action[i]] for i in agents]
            q_max = [now[i].q[t][best_action(now[i].q[t], episode.avail[t, i])].detach() for i in agents]
            q_tot, extra = mix(online, config, info, q, q_max, action, real(episode.state[t]), real(episode.obs[t]))
            with torch.no_grad():
                chooser = now if config.train.double_q else then
                following = [best_action(chooser[i].q[t + 1], episode.avail[t + 1, i]) for i in agents]
                q_bar, _ = mix(
                    target,
                    config,
                    info,
                    [then[i].q[t + 1][following[i]] for i in agents],
                    [then[i].q[t + 1][best_action(then[i].q[t + 1], episode.avail[t + 1, i])] for i in agents],
                    following,
                    real(episode.state[t + 1]),
                    real(episode.obs[t + 1]),
                )
                last = t == episode.length - 1 and ends(episode, config)
                y = real(episode.reward[t]) + (0.0 if last else gamma * q_bar)
                y = y + gated_incentive(config, memory, e, t, q_bar, last=last)
            squares.append((q_tot - y) ** 2)
            extras.append(extra + private_l1(config, [now[i].private[t] for i in agents]))
            if config.ec.enabled and memory is not None:
                h_next = memory.h_next[e][t]
                wanted = None if h_next is None else real(episode.reward[t]) + (0.0 if last else gamma * h_next)
                episodic.append((wanted - q_tot) ** 2 if wanted is not None else 0.0 * q_tot)
    total = sum(squares) / len(squares) + sum(extras) / len(extras)
    return total + config.ec.weight * sum(episodic) / len(episodic) if episodic else total


def gated_incentive(config: RunConfig, memory: Memory | None, e: int, t: int, q_bar: Tensor, *, last: bool) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64)
    if memory is None or not config.uses_incentive or memory.h_next[e][t] is None:
        return zero
    if last and config.incentive.mask_terminal:
        return zero
    gap = memory.h_next[e][t] - q_bar
    if config.incentive.clamp == "positive":
        gap = torch.clamp(gap, min=0.0)
    return memory.beta[e][t] * config.train.gamma * memory.rho_next[e][t] * gap


def private_l1(config: RunConfig, private: list[Tensor | None]) -> Tensor:
    values = [x for x in private if x is not None]
    if not values:
        return torch.zeros((), dtype=torch.float64)
    return config.cds.l1 * torch.cat(values).abs().mean()
