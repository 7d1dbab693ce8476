"""The environment contract as a program: plays an environment at random and lists what it breaks.

What lives here: `check_env`, for everyone who brings an environment, and the random legal actions that it
plays. What does not: a game's own rules; those are the tests of that game.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import EnvInfo, Observation, VectorEnv

_REWARD_SLACK = 1e-4
"""Rounding that a reward may show past its stated range."""


def random_actions(avail: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one available action per agent, uniformly: [B, N] from [B, N, A].

    An agent with no available action, as in an episode that is over, gets action 0.
    """
    return np.where(avail, rng.random(avail.shape), -1.0).argmax(axis=-1)


def check_env(env: VectorEnv, *, steps: int = 200, seed: int = 0, reproducible: bool = True) -> list[str]:
    """Play at random and list the broken rules of `VectorEnv`, each as one sentence; empty is a pass.

    Args:
        env: The environment; it is reset, and left open.
        steps: Vector steps to play, over as many episodes as they hold.
        seed: Seed of the episodes and of the actions.
        reproducible: Whether equal seeds and actions must give equal episodes. False for a game whose
            engine cannot promise that, such as StarCraft II.
    """
    check = _Check(env.info, env.n_envs)
    check.info_is_consistent()
    _play(env, check, steps, seed)
    _check_illegal_action(env, check, seed)
    if reproducible:
        _check_seeding(env, check, min(steps, 30), seed)
    return list(check.faults)


@dataclass
class _Check:
    """Rules over observations; every broken one is noted once."""

    info: EnvInfo
    n_envs: int
    faults: dict[str, None] = field(default_factory=dict)

    def that(self, holds: bool | np.bool_, rule: str) -> None:
        if not holds:
            self.faults[rule] = None

    def info_is_consistent(self) -> None:
        info = self.info
        for name in ("n_agents", "n_actions", "obs_dim", "state_dim", "episode_limit"):
            self.that(getattr(info, name) >= 1, f"info.{name} must be at least 1, got {getattr(info, name)}.")
        low, high = info.reward_range
        self.that(low <= high, f"info.reward_range must be ordered, got {info.reward_range}.")
        named = len(info.action_names)
        self.that(named in (0, info.n_actions), f"info.action_names must name all actions, got {named}.")
        blocks = info.n_agents * info.agent_block
        self.that(blocks <= info.state_dim, f"info.agent_block: {blocks} entries do not fit the state.")

    def arrays_fit(self, seen: Observation) -> None:
        info, copies = self.info, self.n_envs
        wanted: dict[str, tuple[type, tuple[int, ...]]] = {
            "obs": (np.float32, (copies, info.n_agents, info.obs_dim)),
            "state": (np.float32, (copies, info.state_dim)),
            "avail": (np.bool_, (copies, info.n_agents, info.n_actions)),
            "reward": (np.float32, (copies,)),
            "terminated": (np.bool_, (copies,)),
            "truncated": (np.bool_, (copies,)),
            "won": (np.bool_, (copies,)),
        }
        for name, (dtype, shape) in wanted.items():
            array = getattr(seen, name)
            self.that(array.shape == shape, f"{name} must have shape {shape}, got {array.shape}.")
            self.that(array.dtype == dtype, f"{name} must be {dtype.__name__}, got {array.dtype}.")
        for name in ("obs", "state", "reward"):
            self.that(np.isfinite(getattr(seen, name)).all(), f"{name} must be finite.")

    def start_is_clean(self, seen: Observation) -> None:
        self.that(not seen.reward.any(), "reward must be 0 after a reset.")
        flags = seen.terminated | seen.truncated | seen.won
        self.that(not flags.any(), "terminated, truncated and won must be False after a reset.")
        self.that(seen.avail.any(axis=-1).all(), "Every agent must have an available action.")

    def step_is_lawful(self, before: Observation, after: Observation, t: int) -> None:
        was_over, over = before.terminated | before.truncated, after.terminated | after.truncated
        low, high = self.info.reward_range
        inside = (after.reward >= low - _REWARD_SLACK) & (after.reward <= high + _REWARD_SLACK)
        self.that(inside.all(), f"reward must stay in {self.info.reward_range}.")
        both = after.terminated & after.truncated
        self.that(not both.any(), "terminated and truncated must never be true together.")
        self.that(not (after.won & ~over).any(), "won may only be true once the episode is over.")
        early = after.truncated & ~was_over & (t > self.info.episode_limit)
        self.that(not early.any() and (over.all() or t < self.info.episode_limit), "episode_limit must end all.")
        self.that(after.avail[~over].any(axis=-1).all(), "Every agent must have an available action.")

    def end_is_absorbing(self, before: Observation, after: Observation) -> None:
        over = before.terminated | before.truncated
        self.that(not after.reward[over].any(), "A copy that is over must give reward 0.")
        for name in ("obs", "state", "avail", "terminated", "truncated", "won"):
            same = np.array_equal(getattr(before, name)[over], getattr(after, name)[over])
            self.that(same, f"A copy that is over must repeat its last {name}.")


def _play(env: VectorEnv, check: _Check, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen, t = env.reset(seed), 0
    check.arrays_fit(seen)
    check.start_is_clean(seen)
    for _ in range(steps):
        if (seen.terminated | seen.truncated).all():
            after = env.step(rng.integers(0, check.info.n_actions, seen.avail.shape[:2]))
            check.end_is_absorbing(seen, after)
            seen, t = env.reset(), 0
            check.start_is_clean(seen)
        kept = seen.state.copy(), seen.obs.copy()
        after, t = env.step(random_actions(seen.avail, rng)), t + 1
        fresh = np.array_equal(kept[0], seen.state) and np.array_equal(kept[1], seen.obs)
        check.that(fresh, "An observation must not change when the next step is played.")
        check.arrays_fit(after)
        check.step_is_lawful(seen, after, t)
        check.end_is_absorbing(seen, after)
        seen = after


def _check_illegal_action(env: VectorEnv, check: _Check, seed: int) -> None:
    """Play an action that is not available, where one exists, and one outside the action set."""
    seen = env.reset(seed)
    legal = random_actions(seen.avail, np.random.default_rng(seed))
    outside = np.full_like(legal, check.info.n_actions)
    trials = [("outside the action set", outside)]
    if not seen.avail[0, 0].all():
        illegal = legal.copy()
        illegal[0, 0] = seen.avail[0, 0].argmin()
        trials.append(("that `avail` forbids", illegal))
    for words, actions in trials:
        try:
            env.step(actions)
        except ValueError:
            continue
        check.that(False, f"An action {words} must raise ValueError.")


def _check_seeding(env: VectorEnv, check: _Check, steps: int, seed: int) -> None:
    first, again = _trajectory(env, steps, seed), _trajectory(env, steps, seed)
    same = all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    check.that(same, "Equal seeds and actions must give equal episodes.")


def _trajectory(env: VectorEnv, steps: int, seed: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    seen = env.reset(seed)
    record: list[NDArray[Any]] = [seen.obs, seen.state]
    for _ in range(steps):
        seen = env.step(random_actions(seen.avail, rng))
        record += [seen.obs, seen.state, seen.avail, seen.reward, seen.terminated]
    return record
