"""Parallel environments of PettingZoo, by import path: `--env pettingzoo --map module:factory`.

Description: a map is `module:factory`, the import path of a callable without arguments that returns a `ParallelEnv`.
    Modules in the current folder are found too (`emtc_core.user_modules`). The agents are `possible_agents`, in that
    order, during the whole episode.
Actions: discrete spaces. All agents get the largest number of actions; the additional ones are never available. A mask
    is read from the observation (`{"observation": …, "action_mask": …}`) or from the agent's info.
Observations: each agent's space, flattened (a category becomes one-hot) and padded with zeros to the largest one.
State: the environment's `state()` if it has a `state_space`; if not, all observations in agent order.
Rewards: the mean of all agents' rewards, or their sum (`env.pettingzoo.team_reward`). The agents are treated as one
    team: rewards of opponents would cancel each other.
Episode end: when no agent is left. It is terminated if the game terminated any of the last agents, else truncated.
    It is also truncated after `env.pettingzoo.episode_limit` steps. An agent that left earlier observes zeros, and
    only action 0 is available to it. An episode is won if an agent's info has a true `won`, `is_success` or
    `battle_won`. If no info ever has one of them, use `memory.success = return_threshold`.
Arguments: `env.pettingzoo.*` of the configuration.
Differences from the original: the reward bounds are unknown.
Replays: the state values, without a picture. The module is not imported for a replay, because the map of a stored run
    may come from another user.
"""

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, derive_seed
from emtc_core.config.train import EnvConfig, PettingZooConfig
from emtc_core.envs.base import (
    EnvInfo,
    Observation,
    VectorEnv,
    blank_observation,
    check_actions,
    check_can_run,
    check_was_reset,
    copy_observation,
)
from emtc_core.envs.scene import Scene, empty_scene
from emtc_core.errors import EnvDataError, EnvUnavailableError
from emtc_core.install import get_install_command
from emtc_core.user_modules import has_user_module, import_user_module

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

HOW_TO_GET = get_install_command("pettingzoo")
PLACEHOLDER = "module:factory"
"""Represents all importable maps in the list of maps."""
_WON_KEYS = ("won", "is_success", "battle_won")


def list_maps() -> list[str]:
    """List the form of a map."""
    return [PLACEHOLDER]


def find_unavailable_reason() -> str:
    """Return why the environment is unavailable; an empty text if it is available."""
    return "" if find_spec("pettingzoo") else "the package pettingzoo is not installed."


def find_info(config: EnvConfig) -> EnvInfo | None:
    """Check the form of the map and return None, because only a started environment has the sizes."""
    _parse_map(config.map)
    return None


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Make `n_envs` environments in this process.

    Raises:
        EnvUnavailableError: If a package is missing, the map cannot be imported, or the factory fails or returns
            something other than a parallel environment.
    """
    check_can_run("pettingzoo", find_unavailable_reason(), HOW_TO_GET)
    check_module(config.map)
    factory = _load_factory(config.map)
    try:
        envs = [factory() for _ in range(n_envs)]
    except Exception as error:  # a user's code may raise anything; the traceback contains the cause
        raise EnvUnavailableError(f"{config.map} failed when it was called: {error!r}.") from error
    if not hasattr(envs[0], "possible_agents"):
        raise EnvUnavailableError(f"{config.map} must make a parallel environment of PettingZoo, got {type(envs[0])}.")
    if hasattr(envs[0], "agent_iter"):
        raise EnvUnavailableError(
            f"{config.map} must make a parallel environment of PettingZoo, but its agents take turns. "
            "Use the function that makes the parallel form, often parallel_env in the same module."
        )
    return PettingZooEnv(envs, map=config.map, config=config.pettingzoo)


def check_module(map: str) -> None:
    """Check that the top-level module of a map is found, without an import.

    Raises:
        EnvUnavailableError: If it is not found.
    """
    module = _parse_map(map)[0].partition(".")[0]
    if not has_user_module(module):
        raise EnvUnavailableError(f"env.map names a module that cannot be imported: No module named {module!r}.")


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Make a scene that shows the state values. The module of the map is not imported.

    Args:
        map: `module:factory`.
        states: [T, S] [state features]. Source: `Observation.state` of each step.
    """
    return empty_scene(map, states, "No picture for this environment.")


class PettingZooEnv:
    """B parallel environments that are stepped one after the other.

    Args:
        envs: The environments, all made by the same factory.
        map: Name of the map, for messages and scenes.
        config: Settings of the adapter.
        draw: Function that makes the scene of a plug-in. None: the scene shows the state values.
    """

    def __init__(
        self,
        envs: "list[ParallelEnv[Any, Any, Any]]",
        *,
        map: str,
        config: PettingZooConfig,
        draw: Callable[[NDArray[np.float32]], Scene] | None = None,
    ) -> None:
        self._envs = envs
        self._draw = draw
        self.n_envs = len(envs)
        self._spaces = _Spaces(envs[0], map)
        self._config = config
        self.info = self._spaces.make_info(map, config.episode_limit)
        self._map = map
        self._t = 0
        self._was_reset = False
        self._over = np.zeros(len(envs), bool)
        self._last: Observation = blank_observation(self.info, self.n_envs)

    def reset(self, seed: int | None = None) -> Observation:
        """Reset every environment; copy b is seeded with `derive_seed(seed, "pettingzoo", b)`."""
        self._was_reset = True
        self._t = 0
        self._over[:] = False
        self._last = blank_observation(self.info, self.n_envs)
        for b, env in enumerate(self._envs):
            env_seed = None if seed is None else derive_seed(seed, "pettingzoo", b)
            observations, infos = env.reset(seed=env_seed)
            self._check_agents(env, observations)
            self._write_observations(b, env, observations, infos)
        return copy_observation(self._last)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every environment that has not ended by one step.

        Source: the Parallel API of PettingZoo.

        Args:
            actions: [B, N], action index of each agent, counted from 0 for every action space.
        """
        check_was_reset(self._was_reset)
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        check_actions(actions, self._last.avail, self._over)
        self._t += 1
        self._last.reward[:] = 0
        self._last.infos.clear()
        for b, env in enumerate(self._envs):
            if not self._over[b]:
                self._step_copy(b, env, actions[b])
        return copy_observation(self._last)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode.

        Args:
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        return make_scene(self._map, states) if self._draw is None else self._draw(states)

    def close(self) -> None:
        """Close every environment once."""
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    def _step_copy(self, b: int, env: "ParallelEnv[Any, Any, Any]", actions: NDArray[np.integer]) -> None:
        spaces, last = self._spaces, self._last
        agent_actions = {agent: spaces.to_action(agent, actions[spaces.index[agent]]) for agent in env.agents}
        observations, rewards, terminations, truncations, infos = env.step(agent_actions)
        self._check_agents(env, observations)
        total = sum(float(rewards.get(agent, 0.0)) for agent in spaces.agents)
        last.reward[b] = total / len(spaces.agents) if self._config.team_reward == "mean" else total
        self._write_observations(b, env, observations, infos)
        finished = not env.agents or all(
            terminations.get(agent, True) or truncations.get(agent, True) for agent in env.agents
        )
        terminated = finished and (any(terminations.values()) or not any(truncations.values()))
        last.terminated[b] = terminated
        last.truncated[b] = not terminated and (finished or self._t >= self.info.episode_limit)
        self._over[b] = last.terminated[b] | last.truncated[b]
        for name, value in _average_infos(infos).items():
            last.infos.setdefault(name, np.full(self.n_envs, np.nan, np.float32))[b] = value
        last.won[b] = self._over[b] and any(map(_is_won, infos.values()))

    def _check_agents(self, env: "ParallelEnv[Any, Any, Any]", observations: Mapping[Any, Any]) -> None:
        """Raise if an agent is not one of `possible_agents`, or an agent of the game has no observation."""
        unknown = [agent for agent in env.agents if agent not in self._spaces.index]
        missing = [agent for agent in env.agents if agent not in observations]
        for agents, fault in ((unknown, "that is not in its possible_agents"), (missing, "without an observation")):
            if agents:
                raise EnvDataError(
                    f"The environment {self._map} has the agent {agents[0]!r} {fault} at step {self._t}.",
                    hint="Correct its possible_agents, agents or observations.",
                )

    def _write_observations(
        self, b: int, env: "ParallelEnv[Any, Any, Any]", observations: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> None:
        spaces, last = self._spaces, self._last
        for agent in spaces.agents:
            row = spaces.index[agent]
            is_active = agent in observations and agent in env.agents
            last.avail[b, row] = spaces.read_mask(agent, observations, infos) if is_active else spaces.idle
            last.obs[b, row] = spaces.flatten(agent, observations[agent]) if agent in observations else 0
        last.state[b] = spaces.read_state(env, last.obs[b])


class _Spaces:
    """Sizes of one environment, and the conversion of its actions, observations, masks and states."""

    def __init__(self, env: "ParallelEnv[Any, Any, Any]", map: str) -> None:
        from gymnasium import spaces

        self._gym_spaces = spaces
        self.agents: list[Any] = list(env.possible_agents)  # PettingZoo's agent ids have any type
        self.index = {agent: row for row, agent in enumerate(self.agents)}
        self._obs_space = {agent: _without_mask(env.observation_space(agent)) for agent in self.agents}
        self._first_action = {}
        self._n_actions = {}
        for agent in self.agents:
            space = env.action_space(agent)
            if not isinstance(space, spaces.Discrete):
                raise EnvUnavailableError(
                    f"{map} must have discrete actions, got {space} for {agent}. Wrap it, so that each action is the "
                    "number of one of its actions."
                )
            self._first_action[agent], self._n_actions[agent] = int(space.start), int(space.n)
        self.n_actions = max(self._n_actions.values())
        self.idle = np.arange(self.n_actions) == 0
        """Mask of an agent that has left: only action 0."""
        self.obs_dim = max(spaces.flatdim(space) for space in self._obs_space.values())
        state_space = getattr(env, "state_space", None)
        self._has_state = isinstance(state_space, spaces.Box) and spaces.flatdim(state_space) > 0
        self.state_dim = spaces.flatdim(state_space) if self._has_state else len(self.agents) * self.obs_dim

    def make_info(self, map: str, episode_limit: int) -> EnvInfo:
        return EnvInfo(
            env="pettingzoo",
            map=map,
            n_agents=len(self.agents),
            n_actions=self.n_actions,
            obs_dim=self.obs_dim,
            state_dim=self.state_dim,
            episode_limit=episode_limit,
            reward_range=(-math.inf, math.inf),
        )

    def to_action(self, agent: Any, action: int) -> int:
        return self._first_action[agent] + int(action)

    def flatten(self, agent: Any, observation: Any) -> NDArray[np.float32]:
        content = observation["observation"] if _has_mask(observation) else observation
        flat = np.asarray(self._gym_spaces.flatten(self._obs_space[agent], content), np.float32)
        return np.pad(flat, (0, self.obs_dim - len(flat)))

    def read_mask(self, agent: Any, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> NDArray[np.bool_]:
        """Return the available actions [A] of an agent; without a mask, all actions of its space."""
        observation, info = observations[agent], infos.get(agent, {})
        source = observation if _has_mask(observation) else info
        mask = np.asarray(source.get("action_mask", np.ones(self._n_actions[agent])), bool)
        return np.pad(mask, (0, self.n_actions - len(mask)))

    def read_state(self, env: "ParallelEnv[Any, Any, Any]", obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the state [S]: the environment's, or the observations `obs` [N, O] one after the other."""
        return np.asarray(env.state(), np.float32).ravel() if self._has_state else obs.ravel()


def _parse_map(map: str) -> tuple[str, str]:
    """Return the two parts of `module:factory`.

    Raises:
        EnvUnavailableError: If the map does not have this form.
    """
    module, colon, factory = map.partition(":")
    if not (colon and factory.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise EnvUnavailableError(f"env.map must have the form {PLACEHOLDER} for pettingzoo, got {map!r}.")
    return module, factory


def _load_module(map: str) -> ModuleType:
    module, _ = _parse_map(map)
    try:
        return import_user_module(module)
    except ImportError as error:
        reason = str(error).rstrip(".")
        raise EnvUnavailableError(f"env.map names a module that cannot be imported: {reason}.") from error
    except Exception as error:  # a user's code may raise anything; the traceback contains the cause
        raise EnvUnavailableError(f"env.map names a module that failed when it was imported: {error!r}.") from error


def _load_factory(map: str) -> "Callable[[], ParallelEnv[Any, Any, Any]]":
    module, name = _load_module(map), _parse_map(map)[1]
    factory = getattr(module, name, None)
    if not callable(factory):
        raise EnvUnavailableError(f"{module.__name__} has no callable named {name!r}.")
    return cast("Callable[[], ParallelEnv[Any, Any, Any]]", factory)  # `make_env` checks what it returns


def _without_mask(space: Any) -> Any:
    """Return the observation's space if `space` contains an observation and a mask; else `space`."""
    parts = getattr(space, "spaces", None)
    return space["observation"] if isinstance(parts, dict) and _has_mask(parts) else space


def _has_mask(observation: Any) -> bool:
    return isinstance(observation, Mapping) and "action_mask" in observation and "observation" in observation


def _is_won(info: Any) -> bool:
    return isinstance(info, Mapping) and any(bool(info.get(key, False)) for key in _WON_KEYS)


def _average_infos(infos: Mapping[Any, Any]) -> dict[str, float]:
    """Average every number in the infos over the agents that have it."""
    values: dict[str, list[float]] = {}
    for info in infos.values():
        for name, value in info.items() if isinstance(info, Mapping) else ():
            if name not in _WON_KEYS and isinstance(value, bool | int | float | np.number | np.bool_):
                values.setdefault(str(name), []).append(float(value))
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
