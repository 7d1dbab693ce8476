"""JaxMARL's SMAX, the published StarCraft-like benchmark, with B battles in one compiled step.

Description: units of six types against SMAX's heuristic enemy. All battles run in one compiled call (`vmap` under
    `jit`) on the device that JAX finds. Rules and array layouts are SMAX's, not SMAC's.
Actions: 0-3 move north, east, south, west; 4 stop; 5+k attack enemy k. Dead units can only stop.
Observations: SMAX's unit list: the other allies, the enemies, the agent itself.
State: SMAX's world state: per unit health, position, cooldown and type bits, then teams and types.
Rewards: share of the enemies' health taken, and 1 for a victory.
Episode end: `terminated` when one side has no unit left, `truncated` after 100 steps.
Arguments: none.
Differences from the original: an ended battle keeps its last state; SMAX would restart it.
"""

import os
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, derive_seed
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import (
    EnvInfo,
    Observation,
    VectorEnv,
    blank_observation,
    check_actions,
    check_can_run,
    check_map,
    check_was_reset,
)
from emtc_core.envs.scene import Scene, keep_last_position
from emtc_core.install import get_install_command

HOW_TO_GET = f"{get_install_command('smax')}; for a GPU also: pip install 'jax[cuda12]'"

EPISODE_LIMIT = 100
MOVES = ("north", "east", "south", "west", "stop")
KINDS = ("marine", "marauder", "stalker", "zealot", "zergling", "hydralisk")
RADII = np.array([0.375, 0.5625, 0.625, 0.5, 0.375, 0.625], np.float32)
"""Unit radius per kind, in field units."""
REACH = np.array([5, 6, 6, 2, 2, 5], np.float32)
"""Attack range per kind, between the centers of two units, in field units."""
SIZE = 32.0
"""Side length of the square field."""

_OWN_FEATURES = 4 + len(KINDS)
"""Entries of one unit in the state, and of the agent itself in its observation."""
_UNIT_FEATURES = 7 + len(KINDS)
"""Entries of every other unit in an observation."""

ARMIES: dict[str, tuple[int, int]] = {
    "3m": (3, 3),
    "2s3z": (5, 5),
    "25m": (25, 25),
    "3s5z": (8, 8),
    "8m": (8, 8),
    "5m_vs_6m": (5, 6),
    "10m_vs_11m": (10, 11),
    "27m_vs_30m": (27, 30),
    "3s5z_vs_3s6z": (8, 9),
    "3s_vs_5z": (3, 5),
    "6h_vs_8z": (6, 8),
    "smacv2_5_units": (5, 5),
    "smacv2_10_units": (10, 10),
    "smacv2_20_units": (20, 20),
}
"""Number of allies and of enemies per map."""


def list_maps() -> list[str]:
    """List SMAX's maps."""
    return list(ARMIES)


def find_unavailable_reason() -> str:
    """Check that the package is installed. JAX needs nothing else, because it can always use the CPU."""
    return "" if find_spec("jaxmarl") and find_spec("jax") else "the package jaxmarl is not installed."


def find_info(config: EnvConfig) -> EnvInfo:
    """Return the sizes of a map."""
    check_map("smax", config.map, list_maps())
    n, e = ARMIES[config.map]
    return EnvInfo(
        env="smax",
        map=config.map,
        n_agents=n,
        n_actions=len(MOVES) + e,
        obs_dim=_UNIT_FEATURES * (n - 1 + e) + _OWN_FEATURES,
        state_dim=(_OWN_FEATURES + 2) * (n + e),
        episode_limit=EPISODE_LIMIT,
        reward_range=(0.0, 2.0),
        agent_block=_OWN_FEATURES,
        action_names=(*MOVES, *(f"attack {k}" for k in range(e))),
        enemy_names=tuple(f"enemy {k}" for k in range(e)),
    )


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Make `n_envs` battles that share one compiled step."""
    info = find_info(config)
    check_can_run("smax", find_unavailable_reason(), HOW_TO_GET)
    return SmaxEnv(info, n_envs=n_envs)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make the frames of one episode from its world states.

    Args:
        map: Name of the map.
        states: [T, S] [state features]. Source: the `world_state` of JaxMARL's SMAX.
    """
    info = find_info(EnvConfig(name="smax", map=map))
    check_shape("states", states, (None, info.state_dim))
    units = sum(ARMIES[map])
    rows_TUF = states[:, : units * _OWN_FEATURES].reshape(len(states), units, _OWN_FEATURES)
    types = states[0, -units:].astype(int)
    alive = rows_TUF[..., 0] > 0
    return Scene(
        position=keep_last_position(rows_TUF[..., 1:3], alive),
        health=rows_TUF[..., 0].copy(),
        shield=np.zeros_like(rows_TUF[..., 0]),
        alive=alive,
        team=np.repeat(np.array([0, 1], np.int8), ARMIES[map]),
        radius=RADII[types],
        reach=REACH[types],
        kind=tuple(KINDS[kind] for kind in types),
        bounds=(0.0, 0.0, SIZE, SIZE),
        title=f"smax {map}",
        note="SMAX, a simplified StarCraft-like game; not StarCraft II.",
    )


class SmaxEnv:
    """B battles that are stepped by one compiled call."""

    def __init__(self, info: EnvInfo, *, n_envs: int) -> None:
        self.info = info
        self.n_envs = n_envs
        self._battles = _compile_battles(info.map, n_envs)
        self._seed = 0
        self._round = -1
        self._carry: Any = None  # JAX's nested structure of device arrays
        self._last = blank_observation(info, n_envs)

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new battle in every copy."""
        self._round += 1
        if seed is not None:
            self._seed, self._round = seed, 0
        self._carry, arrays = self._battles.reset(derive_seed(self._seed, "smax", self._round))
        self._last = _make_observation(arrays)
        return self._last

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every battle that has not ended by one step.

        Source: JaxMARL's SMAX.

        Args:
            actions: [B, N], action index of each agent.
        """
        check_was_reset(self._carry is not None)
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        over = self._last.terminated | self._last.truncated
        check_actions(actions, self._last.avail, over)
        valid_actions = np.where(over[:, None], MOVES.index("stop"), actions).astype(np.int32)
        self._carry, arrays = self._battles.step(self._carry, valid_actions)
        self._last = _make_observation(arrays)
        return self._last

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its world states.

        Args:
            states: [T, S] [state features]. Source: the `world_state` of JaxMARL's SMAX.
        """
        return make_scene(self.info.map, states)

    def close(self) -> None:
        """Release the device arrays."""
        self._carry = None


class _Battles:
    """The compiled reset and step of B battles. Only this class imports JAX."""

    def __init__(self, map: str, n_envs: int) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch shares the device
        with redirect_stdout(sys.stderr):  # jaxmarl prints a greeting; standard output is for the command's result
            jaxmarl = import_module("jaxmarl")
            smax = import_module("jaxmarl.environments.smax")
        self._jax: Any = import_module("jax")
        self._game: Any = jaxmarl.make("HeuristicEnemySMAX", scenario=smax.map_name_to_scenario(map))
        self.n_envs = n_envs
        self.reset = self._jax.jit(self._reset)
        self.step = self._jax.jit(self._step)

    def _reset(self, seed: int) -> Any:
        random = self._jax.random
        keys = self._jax.vmap(random.fold_in, (None, 0))(random.PRNGKey(seed), np.arange(self.n_envs))
        return self._jax.vmap(self._reset_one)(keys)

    def _step(self, carry: Any, actions: Any) -> Any:
        return self._jax.vmap(self._step_one)(carry, actions)

    def _reset_one(self, key: Any) -> Any:
        key, reset_key = self._jax.random.split(key)
        obs, state = self._game.reset(reset_key)
        # SMAX starts with entries of weak type, with which JAX would compile the first step and then the others.
        state = self._jax.tree.map(lambda x: self._jax.numpy.asarray(x, x.dtype), state)
        arrays = self._make_arrays(obs, state, 0.0)
        return (key, state, arrays), arrays

    def _step_one(self, carry: Any, actions: Any) -> Any:
        jax, game = self._jax, self._game
        key, state, arrays = carry
        next_key, step_key = jax.random.split(key)
        agent_actions = {agent: actions[i] for i, agent in enumerate(game.agents)}
        obs, next_state, rewards, _, _ = game.step_env(step_key, state, agent_actions)
        next_arrays = self._make_arrays(obs, next_state, rewards[game.agents[0]])
        over = arrays["terminated"] | arrays["truncated"]
        final_arrays = {**arrays, "reward": jax.numpy.zeros_like(arrays["reward"])}
        carry = jax.tree.map(
            lambda old, new: jax.numpy.where(over, old, new),
            (key, state, final_arrays),
            (next_key, next_state, next_arrays),
        )
        return carry, carry[2]

    def _make_arrays(self, obs: Any, state: Any, reward: Any) -> dict[str, Any]:
        """Make the arrays of an `Observation` for one battle."""
        jnp, game = self._jax.numpy, self._game
        avail = game.get_avail_actions(state)
        alive = state.state.unit_alive
        allies, enemies = alive[: game.num_allies].any(), alive[game.num_allies :].any()
        terminated = ~(allies & enemies)
        return {
            "obs": jnp.stack([obs[agent] for agent in game.agents]).astype(jnp.float32),
            "state": obs["world_state"].astype(jnp.float32),
            "avail": jnp.stack([avail[agent] for agent in game.agents]).astype(bool),
            "reward": jnp.asarray(reward, jnp.float32),
            "terminated": terminated,
            "truncated": ~terminated & (state.state.step >= EPISODE_LIMIT),
            "won": allies & ~enemies,
        }


@cache
def _compile_battles(map: str, n_envs: int) -> _Battles:
    """Compile once per map and batch size: compiling takes many seconds, and the result stores no battle."""
    return _Battles(map, n_envs)


def _make_observation(device_arrays: dict[str, Any]) -> Observation:
    """View the device arrays as NumPy arrays. This copies nothing on a CPU, and JAX never changes an array."""
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in device_arrays.items()}
    return Observation(**arrays)
