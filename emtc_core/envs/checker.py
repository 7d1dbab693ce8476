"""Check that an environment follows the rules of `VectorEnv`, by playing random episodes.

`check_env` is for everyone who writes an environment. The rules of a game itself are tested in the tests of that game.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import EnvInfo, Observation, VectorEnv

_ARRAYS = ("obs", "state", "avail", "reward", "terminated", "truncated", "won")
_REWARD_TOLERANCE = 1e-4
"""A reward may exceed `info.reward_range` by this rounding error."""


def random_actions(avail: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample one available action per agent, uniformly.

    Source: PyMARL's random action selection.

    Args:
        avail: [B, N, A] boolean, available actions.
        rng: Source of the random numbers.

    Returns:
        [B, N], action indices. 0 for an agent without an available action, as in an ended episode.
    """
    return np.where(avail, rng.random(avail.shape), -1.0).argmax(axis=-1)


def check_env(env: VectorEnv, *, steps: int = 200, seed: int = 0, reproducible: bool = True) -> list[str]:
    """Play random actions and list the rules of `VectorEnv` that the environment breaks.

    Args:
        env: The environment. It is reset, but not closed.
        steps: Number of vector steps. A new episode starts whenever all copies have ended.
        seed: Seed of the episodes and of the actions.
        reproducible: Whether equal seeds and actions must give equal episodes. False for an engine that
            cannot guarantee that, such as StarCraft II.

    Returns:
        One sentence per broken rule; empty if there is none.
    """
    check = _Check(env.info, env.n_envs)
    check.check_info()
    _check_episodes(env, check, steps, seed)
    _check_illegal_action(env, check, seed)
    if reproducible:
        first, second = (_record_arrays(env, min(steps, 30), seed) for _ in range(2))
        same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        check.require(same, "Equal seeds and actions must give equal episodes.")
    return list(check.faults)


def list_observation_faults(info: EnvInfo, n_envs: int, observation: Observation) -> list[str]:
    """List the rules of `VectorEnv` that the sizes or the arrays of one observation break.

    Source: `VectorEnv`.

    Args:
        info: Sizes and bounds of the environment.
        n_envs: Number of copies, B.
        observation: An observation after a reset or a step.

    Returns:
        One sentence per broken rule; empty if there is none.
    """
    check = _Check(info, n_envs)
    check.check_info()
    check.check_arrays(observation)
    return list(check.faults)


@dataclass
class _Check:
    """Rules for observations. Each broken rule is recorded once, in `faults`."""

    info: EnvInfo
    n_envs: int
    faults: dict[str, None] = field(default_factory=dict)

    def require(self, is_met: bool | np.bool_, rule: str) -> None:
        if not is_met:
            self.faults[rule] = None

    def check_info(self) -> None:
        info = self.info
        for name in ("n_agents", "n_actions", "obs_dim", "state_dim", "episode_limit"):
            self.require(getattr(info, name) >= 1, f"info.{name} must be at least 1, got {getattr(info, name)}.")
        low, high = info.reward_range
        self.require(low <= high, f"info.reward_range must be ordered, got {info.reward_range}.")
        n_names = len(info.action_names)
        self.require(n_names in (0, info.n_actions), f"info.action_names must name all actions, got {n_names}.")
        blocks = info.n_agents * info.agent_block
        self.require(blocks <= info.state_dim, f"info.agent_block: {blocks} entries do not fit the state.")

    def check_arrays(self, observation: Observation) -> None:
        info, copies = self.info, self.n_envs
        expected: dict[str, tuple[type, tuple[int, ...]]] = {
            "obs": (np.float32, (copies, info.n_agents, info.obs_dim)),
            "state": (np.float32, (copies, info.state_dim)),
            "avail": (np.bool_, (copies, info.n_agents, info.n_actions)),
            "reward": (np.float32, (copies,)),
            "terminated": (np.bool_, (copies,)),
            "truncated": (np.bool_, (copies,)),
            "won": (np.bool_, (copies,)),
        }
        for name, (dtype, shape) in expected.items():
            array = getattr(observation, name)
            self.require(array.shape == shape, f"{name} must have shape {shape}, got {array.shape}.")
            self.require(array.dtype == dtype, f"{name} must be {dtype.__name__}, got {array.dtype}.")
        for name in ("obs", "state", "reward"):
            self.require(np.isfinite(getattr(observation, name)).all(), f"{name} must be finite.")

    def check_start(self, observation: Observation) -> None:
        self.require(not observation.reward.any(), "reward must be 0 after a reset.")
        flags = observation.terminated | observation.truncated | observation.won
        self.require(not flags.any(), "terminated, truncated and won must be False after a reset.")
        self.require(observation.avail.any(axis=-1).all(), "Every agent must have an available action.")

    def check_step(self, before: Observation, after: Observation, t: int) -> None:
        was_over, over = before.terminated | before.truncated, after.terminated | after.truncated
        low, high = self.info.reward_range
        in_range = (after.reward >= low - _REWARD_TOLERANCE) & (after.reward <= high + _REWARD_TOLERANCE)
        self.require(in_range.all(), f"reward must stay in {self.info.reward_range}.")
        both = after.terminated & after.truncated
        self.require(not both.any(), "terminated and truncated must never be true together.")
        self.require(not (after.won & ~over).any(), "won may only be true once the episode is over.")
        late = after.truncated & ~was_over & (t > self.info.episode_limit)
        self.require(not late.any() and (over.all() or t < self.info.episode_limit), "episode_limit must end all.")
        self.require(after.avail[~over].any(axis=-1).all(), "Every agent must have an available action.")

    def check_ended_copies(self, before: Observation, after: Observation) -> None:
        over = before.terminated | before.truncated
        self.require(not after.reward[over].any(), "A copy that is over must give reward 0.")
        for name in ("obs", "state", "avail", "terminated", "truncated", "won"):
            same = np.array_equal(getattr(before, name)[over], getattr(after, name)[over])
            self.require(same, f"A copy that is over must repeat its last {name}.")


def _check_episodes(env: VectorEnv, check: _Check, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    observation, t = env.reset(seed), 0
    check.check_arrays(observation)
    check.check_start(observation)
    for _ in range(steps):
        if (observation.terminated | observation.truncated).all():
            after = env.step(rng.integers(0, check.info.n_actions, observation.avail.shape[:2]))
            check.check_ended_copies(observation, after)
            observation, t = env.reset(), 0
            check.check_start(observation)
        before = deepcopy(observation)
        after, t = env.step(random_actions(observation.avail, rng)), t + 1
        changed = [name for name in _ARRAYS if getattr(before, name).tobytes() != getattr(observation, name).tobytes()]
        check.require(not changed, "An observation must not change when the next step is played.")
        check.check_arrays(after)
        check.check_step(before, after, t)
        check.check_ended_copies(before, after)
        observation = after


def _check_illegal_action(env: VectorEnv, check: _Check, seed: int) -> None:
    observation = env.reset(seed)
    legal = random_actions(observation.avail, np.random.default_rng(seed))
    trials = [("outside the action set", np.full_like(legal, check.info.n_actions))]
    if not observation.avail[0, 0].all():
        illegal = legal.copy()
        illegal[0, 0] = observation.avail[0, 0].argmin()
        trials.append(("that `avail` forbids", illegal))
    for description, actions in trials:
        try:
            env.step(actions)
        except ValueError:
            continue
        check.require(False, f"An action {description} must raise ValueError.")


def _record_arrays(env: VectorEnv, steps: int, seed: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    observation = env.reset(seed)
    arrays: list[NDArray[Any]] = [observation.obs, observation.state]
    for _ in range(steps):
        observation = env.step(random_actions(observation.avail, rng))
        arrays += [
            observation.obs,
            observation.state,
            observation.avail,
            observation.reward,
            observation.terminated,
        ]
    return arrays
