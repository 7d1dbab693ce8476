"""Steps B environments with one forward per step and hands over their finished episodes, or gathers a rollout of them.

The stage before is the environment, the stage after the episodic memory. Each round starts from a seed
that only the run's seed and the round decide, so a resumed run needs no environment state.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.envs.base import Observation, VectorEnv
from emtc_core.rollout.episode import Episode

ARRAYS = ("obs", "state", "avail", "action", "reward")


class Actor(Protocol):
    """What the collector needs of a learner."""

    def begin(self, n_envs: int) -> None:
        """Forget hidden states: every environment starts a new episode."""
        ...

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N] for observations [B, N, O]."""
        ...


class Collector:
    """Rounds of one episode per environment, in a fixed order."""

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
            actor: Chooses the actions.
            epsilon: Probability of a random action; 0 is greedy.
            round: Numbers that select this round's random streams.
            between_steps: Called before every step; what it raises abandons the round, which can be played
                again from its numbers.

        Returns:
            B episodes in the order of the environments.
        """
        rng = make_generator(self._seed, f"{self._stream}-actions", *round)
        observation = self._env.reset(derive_seed(self._seed, self._stream, *round))
        actor.begin(self._env.n_envs)
        frames, actions = [observation], []
        running = np.ones(self._env.n_envs, bool)
        while running.any():
            between_steps()
            action_BN = actor.act(observation.obs, observation.avail, epsilon=epsilon, rng=rng)
            observation = self._env.step(action_BN)
            frames.append(observation)
            actions.append(action_BN)
            running &= ~(observation.terminated | observation.truncated)
        return self._cut(frames, actions, epsilon)

    def _cut(self, frames: list[Observation], actions: list[NDArray[np.int64]], epsilon: float) -> list[Episode]:
        obs = np.stack([f.obs for f in frames], axis=1)  # [B, T+1, N, O]
        state = np.stack([f.state for f in frames], axis=1)  # [B, T+1, S]
        avail = np.stack([f.avail for f in frames], axis=1)  # [B, T+1, N, A]
        action = np.stack(actions, axis=1)  # [B, T, N]
        reward = np.stack([f.reward for f in frames[1:]], axis=1)  # [B, T]
        ended = np.stack([f.terminated | f.truncated for f in frames[1:]], axis=1)
        length = ended.argmax(axis=1) + 1
        last = frames[-1]
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


class RolloutBuffer:
    """Gathers whole episodes until they hold a rollout's worth of transitions."""

    def __init__(self, rollout_steps: int) -> None:
        self._rollout_steps = rollout_steps
        self._episodes: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Keep one episode."""
        self._episodes.append(episode)

    def pop_when_full(self) -> list[Episode]:
        """Hand over everything once the rollout is full, else nothing."""
        if sum(e.length for e in self._episodes) < self._rollout_steps:
            return []
        taken, self._episodes = self._episodes, []
        return taken

    def get_state(self) -> list[dict[str, Any]]:
        """Collect the episodes as tensors and plain values."""
        return pack_episodes(self._episodes)

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Restore what `get_state` collected."""
        self._episodes = unpack_episodes(state)


def pack_episodes(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Turn episodes into tensors and plain values, for a checkpoint."""
    return [{f.name: _plain(getattr(episode, f.name)) for f in fields(episode)} for episode in episodes]


def unpack_episodes(state: Sequence[dict[str, Any]]) -> list[Episode]:
    """Turn back what `pack_episodes` returned."""
    return [
        Episode(**{name: value.numpy() if name in ARRAYS else value for name, value in saved.items()})
        for saved in state
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | float | int | dict) else torch.from_numpy(value)


def _average_infos(frames: Sequence[Observation], copy: int) -> dict[str, float]:
    """Average every number of one copy's infos over the steps that had it."""
    told: dict[str, list[float]] = {}
    for frame in frames:
        for name, values_B in frame.infos.items():
            if np.isfinite(values_B[copy]):
                told.setdefault(name, []).append(float(values_B[copy]))
    return {name: sum(values) / len(values) for name, values in told.items()}
