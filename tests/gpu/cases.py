"""Inputs of the comparisons: random episodes of 3s_vs_5z, learners with equal weights, equal batches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.learner.learner import Learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.targets import LearnerStats, make_incentive_inputs
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode

CPU = torch.device("cpu")
MAP = "3s_vs_5z"
N_ENVS = 32


@dataclass(frozen=True)
class Sizes:
    """Sizes of the comparisons."""

    batch: int = 16
    """Episodes per update."""
    length: int = 40
    """Maximum length of an episode [env steps]."""
    updates: int = 20
    acting_steps: int = 50
    """Steps in N_ENVS environments. At each step, the greedy actions are compared."""
    states: int = 65_536
    """Number of states that are embedded."""
    nodes: int = 100_000
    """Memory nodes among which the nearest is searched."""
    queries: int = 2000
    training_steps: int = 12_000
    """Env steps of a training that is stopped half-way, and three times those of a training that changes the device."""


FULL = Sizes()
SMALL = Sizes(batch=3, length=6, updates=3, acting_steps=4, states=400, nodes=2000, queries=100, training_steps=400)
"""For the imitated GPU."""


@dataclass(frozen=True)
class Case:
    """One algorithm and its training episodes."""

    config: RunConfig
    info: EnvInfo
    episodes: tuple[Episode, ...]


def map_info() -> EnvInfo:
    """Return the sizes of 3s_vs_5z."""
    info = get_env_info(resolve(map=MAP).env)
    assert info is not None, "skirmish is part of this project"
    return info


def make_case(algo: str, sizes: Sizes) -> Case:
    """Make the configuration of a run on 3s_vs_5z, and random episodes for two batches."""
    overrides = {"train.batch": sizes.batch, "train.deterministic": True}
    if algo == "mappo":
        overrides |= {"mappo.epochs": 1, "mappo.minibatches": 1}
    config, info, rng = resolve(map=MAP, algo=algo, overrides=overrides), map_info(), np.random.default_rng(0)
    lengths = rng.integers(max(1, sizes.length // 2), sizes.length + 1, 2 * sizes.batch)
    episodes = [make_episode(info, int(length), rng, terminated=i % 4 != 0) for i, length in enumerate(lengths)]
    return Case(config, info, tuple(episodes))


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
        recalled = None
        if case.config.uses_memory:  # one tenth of the recalled values is missing
            shape = batch.ends.shape
            h_next, rho_next = rng.random((2, *shape))
            is_found = rng.random(shape) < 0.9
            recalled = make_incentive_inputs(10 * h_next, rho_next, is_found)
        updated = learner.update(batch, recalled, env_step=0)
        stats.append(replace(updated, numbers=updated.numbers.clone()))  # the next update may overwrite it
    return stats


def fill_buffer(case: Case, device: torch.device) -> ReplayBuffer:
    """Add the episodes of a case to a replay buffer, with a random gate per transition."""
    buffer = ReplayBuffer(len(case.episodes), case.info, device=device)
    rng = np.random.default_rng(1)
    for episode in case.episodes:
        buffer.add(episode, beta=rng.random(episode.length))
    return buffer


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
    learner.start_episodes(N_ENVS)
    actions = []
    for _ in range(steps):
        obs = rng.standard_normal((N_ENVS, info.n_agents, info.obs_dim), np.float32)
        avail = np.ones((N_ENVS, info.n_agents, info.n_actions), np.bool_)
        actions.append(learner.act(obs, avail, epsilon=0.0, rng=rng))
    return np.stack(actions)


def assert_same_state(one: Any, other: Any, path: str = "state") -> None:
    """Compare all bits of two nested states of tensors and plain values, on whatever devices. NaN equals NaN."""
    if isinstance(one, Tensor):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{path}: {m}")
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same_state(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_state(a, b, f"{path}.{i}")
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, path)
    else:
        assert one == other or (one != one and other != other), path


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
