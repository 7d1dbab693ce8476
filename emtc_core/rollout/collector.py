"""Plays rounds of B environments with one forward pass per step, and collects the episodes of a PPO rollout.

Stage before: environment; after: episodic memory. The seed of each round depends only on the run's seed and the round's
number, so a checkpoint does not need the state of the environments.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.envs.base import Observation, VectorEnv
from emtc_core.errors import EnvDataError
from emtc_core.rollout.episode import Episode

ARRAYS = ("obs", "state", "avail", "action", "reward")


class Actor(Protocol):
    """The methods of a learner that the collector calls."""

    def start_episodes(self, n_envs: int) -> None:
        """Reset hidden states: every environment starts a new episode."""
        ...

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Select the action of every agent.

        Source: the epsilon-greedy action selection of PyMARL.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            epsilon: Probability of a random action.
            rng: Generator of the random actions.

        Returns:
            [B, N], action indices.
        """
        ...


class Collector:
    """Plays rounds of one episode per environment."""

    def __init__(self, env: VectorEnv, *, reward_scale: float, seed: int, stream: str) -> None:
        self._env = env
        self._reward_scale = reward_scale
        self._seed = seed
        self._stream = stream

    def collect(
        self,
        actor: Actor,
        *,
        epsilon: float,
        round: tuple[int, ...],
        between_steps: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        """Play one episode in every environment.

        Args:
            actor: Selects the actions.
            epsilon: Probability of a random action; 0 is greedy.
            round: Numbers that select the random streams of this round.
            between_steps: Called before every step. An exception in it discards the round; a later call with the same
                numbers plays it again.

        Returns:
            B episodes in the order of the environments.

        Raises:
            EnvDataError: If a reward, an observation or a state is NaN or infinite.
        """
        rng = make_generator(self._seed, f"{self._stream}-actions", *round)
        observation = self._env.reset(derive_seed(self._seed, self._stream, *round))
        actor.start_episodes(self._env.n_envs)
        frames, actions = [observation], []
        running = np.ones(self._env.n_envs, bool)
        while running.any():
            between_steps()
            action_BN = actor.act(observation.obs, observation.avail, epsilon=epsilon, rng=rng)
            observation = self._env.step(action_BN)
            frames.append(observation)
            actions.append(action_BN)
            running &= ~(observation.terminated | observation.truncated)
        return self._make_episodes(frames, actions, epsilon)

    def _make_episodes(
        self, frames: list[Observation], actions: list[NDArray[np.int64]], epsilon: float
    ) -> list[Episode]:
        obs = np.stack([f.obs for f in frames], axis=1)  # [B, T+1, N, O]
        state = np.stack([f.state for f in frames], axis=1)  # [B, T+1, S]
        avail = np.stack([f.avail for f in frames], axis=1)  # [B, T+1, N, A]
        action = np.stack(actions, axis=1)  # [B, T, N]
        reward = np.stack([f.reward for f in frames[1:]], axis=1)  # [B, T]
        ended = np.stack([f.terminated | f.truncated for f in frames[1:]], axis=1)
        length = ended.argmax(axis=1) + 1
        last = frames[-1]
        self._check_finite("observation", obs, length + 1, first_step=0)
        self._check_finite("state", state, length + 1, first_step=0)
        self._check_finite("reward", reward, length, first_step=1)
        return [
            Episode(
                obs=obs[b, : T + 1].copy(),
                state=state[b, : T + 1].copy(),
                avail=avail[b, : T + 1].copy(),
                action=action[b, :T].copy(),
                reward=reward[b, :T] * np.float32(self._reward_scale),
                terminated=bool(last.terminated[b]),
                truncated=bool(last.truncated[b]),
                won=bool(last.won[b]),
                episode_return=float(reward[b, :T].sum(dtype=np.float64)),
                epsilon=epsilon,
                infos=_average_infos(frames[1 : T + 1], b),
            )
            for b, T in enumerate(length.tolist())
        ]

    def _check_finite(
        self, name: str, values: NDArray[np.float32], length: NDArray[np.int64], *, first_step: int
    ) -> None:
        """Raise if one of the values [B, T, ...] of the first `length` steps [B] is NaN or infinite."""
        if np.isfinite(values).all():
            return
        is_faulty = ~np.isfinite(values).reshape(*values.shape[:2], -1).all(axis=2)
        is_faulty &= np.arange(values.shape[1]) < length[:, None]
        if not is_faulty.any():
            return  # only after the end of an episode, where the values are not used
        t, copy = min((int(row.argmax()), b) for b, row in enumerate(is_faulty) if row.any())
        info = self._env.info
        step_values = np.atleast_1d(values[copy, t])
        fault = float(step_values[~np.isfinite(step_values)][0])
        raise EnvDataError(
            f"The environment {info.env} ({info.map}) returned {fault} in the {name} of step "
            f"{t + first_step} of an episode.",
            hint="Correct the environment. Check it with: emtc_core.envs.checker.check_env(env)",
        )


class RolloutBuffer:
    """Collects whole episodes until they have `rollout_steps` transitions."""

    def __init__(self, rollout_steps: int) -> None:
        self._rollout_steps = rollout_steps
        self._episodes: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Add one episode."""
        self._episodes.append(episode)

    def pop_when_full(self) -> list[Episode]:
        """Return all episodes and empty the buffer if it is full; else return an empty list."""
        if sum(e.length for e in self._episodes) < self._rollout_steps:
            return []
        episodes, self._episodes = self._episodes, []
        return episodes

    def get_state(self) -> list[dict[str, Any]]:
        """Return the episodes as tensors and plain values, for a checkpoint."""
        return pack_episodes(self._episodes)

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Restore the result of `get_state`."""
        self._episodes = unpack_episodes(state)


def pack_episodes(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Convert episodes to tensors and plain values, for a checkpoint."""
    packed: list[dict[str, Any]] = []
    for episode in episodes:
        values = {f.name: getattr(episode, f.name) for f in fields(episode)}
        packed.append({name: torch.from_numpy(x) if name in ARRAYS else x for name, x in values.items()})
    return packed


def unpack_episodes(state: Sequence[dict[str, Any]]) -> list[Episode]:
    """Restore the episodes from the result of `pack_episodes`."""
    return [
        Episode(**{name: value.numpy() if name in ARRAYS else value for name, value in saved.items()})
        for saved in state
    ]


def _average_infos(frames: Sequence[Observation], b: int) -> dict[str, float]:
    """Compute the mean of every info of environment b over the steps in which its value is finite."""
    values: dict[str, list[float]] = {}
    for frame in frames:
        for name, values_B in frame.infos.items():
            if np.isfinite(values_B[b]):
                values.setdefault(name, []).append(float(values_B[b]))
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
