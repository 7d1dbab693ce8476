"""Inputs of the checks: random episodes of the map 3s_vs_5z, learners with equal weights, and equal batches.

All random numbers are generated on the host from fixed seeds, so the CPU and the device get the same inputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emtc_core.config.resolve import resolve
from emtc_core.config.run import BACKBONES, RunConfig, list_algos
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.learner.learner import Learner, make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.targets import IncentiveInputs, LearnerStats, make_incentive_inputs
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode

MAP = "3s_vs_5z"
ACTING_ENVS = 32


@dataclass(frozen=True)
class Case:
    """One algorithm and its training episodes."""

    config: RunConfig
    info: EnvInfo
    episodes: tuple[Episode, ...]


def list_builtin_algos() -> list[str]:
    """List the algorithms without those of plug-ins."""
    return [algo for algo in list_algos() if algo.rpartition("-")[2] in (*BACKBONES, "emc")]


def make_case(algo: str, *, batch: int, length: int, overrides: Mapping[str, Any] | None = None) -> Case:
    """Make the configuration of a run on 3s_vs_5z, and random episodes for two batches.

    Args:
        algo: The algorithm.
        batch: Episodes per update.
        length: Maximum length of an episode [env steps].
        overrides: Other settings by their dotted keys.
    """
    single = {"mappo.epochs": 1, "mappo.minibatches": 1} if algo == "mappo" else {}
    config = resolve(map=MAP, algo=algo, overrides={"train.batch": batch, **single, **(overrides or {})})
    info = map_info()
    rng = np.random.default_rng(0)
    episodes = [
        make_episode(info, int(rng.integers(max(1, length // 2), length + 1)), rng, terminated=i % 4 != 0)
        for i in range(2 * batch)
    ]
    return Case(config, info, tuple(episodes))


@cache
def map_info(episode_limit: int | None = None) -> EnvInfo:
    """Return the sizes of 3s_vs_5z, with another episode limit if it is given."""
    info = get_env_info(resolve(map=MAP).env)
    assert info is not None, "skirmish is part of this project"
    return info if episode_limit is None else replace(info, episode_limit=episode_limit)


def make_episode(info: EnvInfo, length: int, rng: np.random.Generator, *, terminated: bool = True) -> Episode:
    """Make a random episode whose states are a random walk; it is truncated if it is not terminated."""
    n, a = info.n_agents, info.n_actions
    state = np.cumsum(0.1 * rng.standard_normal((length + 1, info.state_dim), np.float32), axis=0)
    avail = rng.random((length + 1, n, a)) < 0.7
    avail[..., 1] = True
    reward = rng.random(length).astype(np.float32)
    return Episode(
        obs=rng.standard_normal((length + 1, n, info.obs_dim), np.float32),
        state=state,
        avail=avail,
        action=np.where(avail[:-1], rng.random((length, n, a)), -1.0).argmax(-1),
        reward=reward,
        terminated=terminated,
        truncated=not terminated,
        won=bool(reward[-1] > 0.5),
        episode_return=float(reward.sum()),
    )


def start_learner(case: Case, device: torch.device, state: dict[str, Any] | None = None) -> Learner:
    """Make the learner on a device, and load a state into it if one is given."""
    learner = make_learner(case.config, case.info, device=device, seed=1)
    if state is not None:
        learner.set_state(state)
    return learner


def make_updates(
    learner: Learner, case: Case, buffer: ReplayBuffer, *, count: int, first: int = 0
) -> list[LearnerStats]:
    """Update a learner from a replay buffer. The batches are the same on every device.

    Args:
        learner: The learner. MAPPO is updated from half of the episodes instead.
        case: The algorithm and its episodes.
        buffer: Buffer from `fill_buffer` on the learner's device.
        count: Number of updates.
        first: Number of the first batch.
    """
    numbers, half = range(first, first + count), len(case.episodes) // 2
    if isinstance(learner, MappoLearner):
        return [learner.update_rollout(case.episodes[k % half : k % half + half], env_step=0) for k in numbers]
    stats = []
    for k in numbers:
        rng = np.random.default_rng(k)
        batch = buffer.sample(case.config.train.batch, rng)
        recalled = make_recalled(batch.ends.shape, rng, batch.reward.device) if case.config.uses_memory else None
        stats.append(learner.update(batch, recalled, env_step=0))
    return stats


def fill_buffer(case: Case, device: torch.device) -> ReplayBuffer:
    """Add the episodes of a case to a replay buffer, with a random gate per transition."""
    buffer = ReplayBuffer(len(case.episodes), case.info, device=device)
    rng = np.random.default_rng(1)
    for episode in case.episodes:
        buffer.add(episode, beta=rng.random(episode.length))
    return buffer


def make_recalled(shape: tuple[int, ...], rng: np.random.Generator, device: torch.device) -> IncentiveInputs:
    """Make random recalled values of a memory for the successors of a batch [B, T]. One tenth is missing."""
    h_next, rho_next = rng.random((2, *shape))
    return make_incentive_inputs(10 * h_next, rho_next, rng.random(shape) < 0.9, device=device)


def trained_weights(learner: Learner) -> dict[str, Tensor]:
    """Return the trained parameters by name: networks, and predictors of an intrinsic reward."""
    state = learner.get_state()
    parts = ("actor", "critic") if isinstance(learner, MappoLearner) else ("online", "intrinsic")
    return {name: x for part in parts for name, x in _name_tensors(state[part], part) if x.is_floating_point()}


def gradients(learner: Learner) -> dict[str, Tensor]:
    """Return the gradients of the last update by name."""
    mappo = isinstance(learner, MappoLearner)
    networks = {"actor": learner.actor, "critic": learner.critic} if mappo else {"online": learner.online}
    return {
        f"{part}.{name}": parameter.grad
        for part, network in networks.items()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


def relative_difference(actual: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Return the largest Euclidean distance of two tensors with the same name, relative to the norm of the reference.

    The divisor is at least 1 % of the norm of all reference tensors together.
    """
    if actual.keys() != reference.keys():
        return float("inf")
    norms = {name: float(torch.linalg.vector_norm(x.cpu().double())) for name, x in reference.items()}
    min_divisor = 0.01 * float(np.linalg.norm(list(norms.values())))
    distances = [
        float(torch.linalg.vector_norm(actual[name].cpu().double() - x.cpu().double()))
        / max(norms[name], min_divisor, 1e-30)
        for name, x in reference.items()
    ]
    return float(np.max(distances, initial=0.0))  # propagates NaN


def greedy_actions(learner: Learner, info: EnvInfo, *, steps: int) -> np.ndarray:
    """Return the greedy actions for random observations [steps, environments, agents]."""
    rng = np.random.default_rng(2)
    learner.start_episodes(ACTING_ENVS)
    actions = []
    for _ in range(steps):
        obs = rng.standard_normal((ACTING_ENVS, info.n_agents, info.obs_dim), np.float32)
        avail = np.ones((ACTING_ENVS, info.n_agents, info.n_actions), np.bool_)
        actions.append(learner.act(obs, avail, epsilon=0.0, rng=rng))
    return np.stack(actions)


def count_differences(one: Any, other: Any) -> int:
    """Count the different values of two nested states of tensors and plain values. NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        a, b = one.detach().cpu(), other.detach().cpu()
        if a.shape != b.shape or a.dtype != b.dtype:
            return max(1, a.numel())
        return int((~((a == b) | ((a != a) & (b != b)))).sum())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        missing = len(one.keys() ^ other.keys())
        return missing + sum(count_differences(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        missing = abs(len(one) - len(other))
        return missing + sum(count_differences(a, b) for a, b in zip(one, other, strict=False))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return int(not np.array_equal(one, other))
    return int(one != other and (one == one or other == other))


def _name_tensors(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            if "optimizer" not in str(key) and "generator" not in str(key) and "target" not in str(key):
                yield from _name_tensors(value, f"{name}.{key}")
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from _name_tensors(value, f"{name}.{i}")
