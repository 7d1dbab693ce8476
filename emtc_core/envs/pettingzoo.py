"""Anyone's PettingZoo parallel environment, by import path: `--env pettingzoo --map module:factory`.

Description: a game that is wrapped already (`zoo.examples`), or `module:factory`, which names something to call
    without arguments that returns a `ParallelEnv`; the current folder is searched too
    (`plugins.home_folder`). The agents are `possible_agents`, in that order, all episode long.
Actions: discrete spaces; an agent with fewer actions than the widest never sees the others available. A mask
    is read from the observation (`{"observation": …, "action_mask": …}`) or from the agent's info.
Observations: each agent's space flattened (a category becomes one-hot), padded with zeros to the widest.
State: the environment's own `state()` where it has one, otherwise all observations in agent order.
Rewards: the mean of all agents' rewards, or their sum (`env.pettingzoo.team_reward`). One team is assumed:
    agents with opposed rewards would be averaged away.
Episode end: when no agent is left: terminated if the game ended for any of the last ones, else truncated;
    also truncated after `env.pettingzoo.episode_limit` steps. An agent that left earlier observes zeros and
    has action 0 alone. An episode is won if an agent's info says `won`, `is_success` or `battle_won`; where none
    ever does (`tells_success`), `memory.success = return_threshold` says what counts as a success.
Arguments: `env.pettingzoo.*` of the configuration.
Differences from the original: reward bounds are unknown; replays are drawn only if the module has a function
    `make_scene(states) -> Scene` and this machine lists it (`trust`), because the map of a stored run is a row's word;
    otherwise the state's entries are, under the names of the module's `STATE_NAMES` if it has as many, and as a picture
    if `STATE_PICTURE = (height, width)` or `(height, width, 3)` says so.
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
    Scene,
    VectorEnv,
    blank_observation,
    copy_observation,
    empty_scene,
    is_picture,
    refuse_obstacle,
    refuse_unavailable,
)
from emtc_core.envs.trust import is_allowed, why_unlisted
from emtc_core.envs.zoo import examples
from emtc_core.envs.zoo.examples import EXAMPLES
from emtc_core.errors import EnvUnavailableError
from emtc_core.install import how_to_install
from emtc_core.plugins import import_from_home

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

HOW_TO_GET = how_to_install("pettingzoo")
PLACEHOLDER = "module:factory"
"""Stands in the list of maps, which are anything that can be imported."""
_WRAPPED = "emtc_core.envs.zoo.wrapped"

_WON_KEYS = ("won", "is_success", "battle_won")


def list_maps() -> list[str]:
    """List the form that a map takes, for anything can be imported, and the wrapped games that this machine has."""
    return [PLACEHOLDER, *examples.list_installed()]


def find_obstacle() -> str:
    """Only the package itself can be missing."""
    return "" if find_spec("pettingzoo") else "the package pettingzoo is not installed."


def find_info(config: EnvConfig) -> EnvInfo | None:
    """Sizes of a stranger's game are known once it has been made; only the form of its map is checked."""
    if config.map in EXAMPLES:
        return examples.make_info(config)
    _split(config.map)
    return None


def make_env(config: EnvConfig, *, n_envs: int) -> VectorEnv:
    """Make `n_envs` environments in this process."""
    refuse_obstacle("pettingzoo", find_obstacle(), HOW_TO_GET)
    if config.map in EXAMPLES and (lacks := examples.missing(config.map)):
        obstacle = f"{config.map} lacks {' and '.join(lacks)}."
        refuse_obstacle("pettingzoo", obstacle, how_to_install(examples.EXTRA))
    factory = _load_factory(config.map)
    try:
        envs = [factory() for _ in range(n_envs)]
    except Exception as error:  # anything may go wrong in a stranger's code; the cause stays in the traceback
        raise EnvUnavailableError(
            f"{config.map} failed when it was called: {error!r}.", reason="factory_failed", subject="env.map"
        ) from error
    if not hasattr(envs[0], "possible_agents"):
        raise EnvUnavailableError(
            f"{config.map} must make a parallel environment of PettingZoo, got {type(envs[0])}.",
            reason="not_parallel",
            subject="env.map",
        )
    if hasattr(envs[0], "agent_iter"):
        raise EnvUnavailableError(
            f"{config.map} must make a parallel environment of PettingZoo, and its agents take turns. "
            "Name what makes its parallel form, often parallel_env in the same module.",
            reason="takes_turns",
            subject="env.map",
        )
    return PettingZooEnv(envs, map=config.map, config=config.pettingzoo)


def make_scene(map: str, states: NDArray[np.float32]) -> Scene:
    """Let the module draw its states if it can and this machine lists it; otherwise an empty field that says why."""
    if map in EXAMPLES:
        return examples.make_scene(map, states)
    _split(map)
    if not is_allowed(map):
        return empty_scene(map, states, why_unlisted(map))
    return _draw(map, states)


class PettingZooEnv:
    """B parallel environments stepped one after the other."""

    def __init__(
        self,
        envs: "list[ParallelEnv[Any, Any, Any]]",
        *,
        map: str,
        config: PettingZooConfig,
        draw: Callable[[NDArray[np.float32]], Scene] | None = None,
    ) -> None:
        self._envs = envs
        self._draws = draw
        self.n_envs = len(envs)
        self._reader = _Reader(envs[0], map)
        self._config = config
        self.info = self._reader.make_info(map, config.episode_limit)
        self._map = map
        self._t = 0
        self._over = np.ones(len(envs), bool)
        self._last: Observation = blank_observation(self.info, self.n_envs)
        self._tells_success = False

    @property
    def tells_success(self) -> bool:
        """Whether any agent's info has said so far that an episode was won, or was not."""
        return self._tells_success

    def reset(self, seed: int | None = None) -> Observation:
        """Reset every environment; copy b is seeded with `derive_seed(seed, "pettingzoo", b)`."""
        self._t = 0
        self._over[:] = False
        self._last = blank_observation(self.info, self.n_envs)
        for copy, env in enumerate(self._envs):
            own = None if seed is None else derive_seed(seed, "pettingzoo", copy)
            observations, infos = env.reset(seed=own)
            self._read(copy, env, observations, infos)
            self._tells_success |= any(map(_mentions_success, infos.values()))
        return copy_observation(self._last)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Step every environment that still runs."""
        check_shape("actions", actions, (self.n_envs, self.info.n_agents))
        refuse_unavailable(actions, self._last.avail, self._over)
        self._t += 1
        self._last.reward[:] = 0
        self._last.infos.clear()
        for copy, env in enumerate(self._envs):
            if not self._over[copy]:
                self._advance(copy, env, actions[copy])
        return copy_observation(self._last)

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Draw stored states if the environment's module can; whoever made it trusts it."""
        if self._draws is not None:
            return self._draws(states)
        return examples.make_scene(self._map, states) if self._map in EXAMPLES else _draw(self._map, states)

    def close(self) -> None:
        """Close every environment once."""
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    def _advance(self, copy: int, env: "ParallelEnv[Any, Any, Any]", actions: NDArray[np.integer]) -> None:
        reader, last = self._reader, self._last
        chosen = {agent: reader.to_action(agent, actions[reader.index[agent]]) for agent in env.agents}
        observations, rewards, terminations, truncations, infos = env.step(chosen)
        total = sum(float(rewards.get(agent, 0.0)) for agent in reader.agents)
        last.reward[copy] = total / len(reader.agents) if self._config.team_reward == "mean" else total
        self._read(copy, env, observations, infos)
        finished = not env.agents or all(
            terminations.get(agent, True) or truncations.get(agent, True) for agent in env.agents
        )
        ended = finished and (any(terminations.values()) or not any(truncations.values()))
        last.terminated[copy] = ended
        last.truncated[copy] = not ended and (finished or self._t >= self.info.episode_limit)
        self._over[copy] = last.terminated[copy] | last.truncated[copy]
        for name, value in _numbers(infos).items():
            last.infos.setdefault(name, np.full(self.n_envs, np.nan, np.float32))[copy] = value
        self._tells_success |= any(map(_mentions_success, infos.values()))
        last.won[copy] = self._over[copy] and any(_says_won(info) for info in infos.values())

    def _read(
        self, copy: int, env: "ParallelEnv[Any, Any, Any]", observations: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> None:
        reader, last = self._reader, self._last
        for agent in reader.agents:
            row = reader.index[agent]
            present = agent in observations and agent in env.agents
            last.avail[copy, row] = reader.mask(agent, observations, infos) if present else reader.idle
            last.obs[copy, row] = reader.flatten(agent, observations[agent]) if agent in observations else 0
        last.state[copy] = reader.state(env, last.obs[copy])


class _Reader:
    """What the spaces of one environment say: sizes, flattening, masks."""

    def __init__(self, env: "ParallelEnv[Any, Any, Any]", map: str) -> None:
        from gymnasium import spaces

        self._spaces = spaces
        self.agents: list[Any] = list(env.possible_agents)  # PettingZoo's agent ids are of any type
        self.index = {agent: row for row, agent in enumerate(self.agents)}
        self._space = {agent: _observed(env.observation_space(agent)) for agent in self.agents}
        self._first = {}
        self._count = {}
        for agent in self.agents:
            space = env.action_space(agent)
            if not isinstance(space, spaces.Discrete):
                raise EnvUnavailableError(
                    f"{map} must have discrete actions, got {space} for {agent}. Let it choose among some with "
                    "emtc_core.envs.zoo.wrapped.ChosenActions.",
                    reason="not_discrete",
                    subject="env.map",
                )
            self._first[agent], self._count[agent] = int(space.start), int(space.n)
        self.n_actions = max(self._count.values())
        self.idle = np.arange(self.n_actions) == 0
        self.obs_dim = max(spaces.flatdim(space) for space in self._space.values())
        self._state_dim = _own_state_dim(env)
        self.state_dim = self._state_dim or len(self.agents) * self.obs_dim

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
        return self._first[agent] + int(action)

    def flatten(self, agent: Any, observation: Any) -> NDArray[np.float32]:
        content = observation["observation"] if _has_mask(observation) else observation
        flat = np.asarray(self._spaces.flatten(self._space[agent], content), np.float32)
        return np.pad(flat, (0, self.obs_dim - len(flat)))

    def mask(self, agent: Any, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> NDArray[np.bool_]:
        """Actions that the agent has; all of its own where nobody says otherwise."""
        observation, info = observations[agent], infos.get(agent, {})
        source = observation if _has_mask(observation) else info
        own = np.asarray(source.get("action_mask", np.ones(self._count[agent])), bool)
        return np.pad(own, (0, self.n_actions - len(own)))

    def state(self, env: "ParallelEnv[Any, Any, Any]", obs: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._state_dim:
            return obs.ravel()
        return np.asarray(env.state(), np.float32).ravel()


def _split(map: str) -> tuple[str, str]:
    if map in EXAMPLES:
        return _WRAPPED, EXAMPLES[map].factory
    module, colon, factory = map.partition(":")
    if not (colon and factory.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise EnvUnavailableError(
            f"env.map must read {PLACEHOLDER} for pettingzoo, got {map!r}.", reason="not_a_factory", subject="env.map"
        )
    return module, factory


def _draw(map: str, states: NDArray[np.float32]) -> Scene:
    module = _load_module(map)
    draw = getattr(module, "make_scene", None)
    if draw is not None:
        return draw(states)
    note = "This environment does not say how to draw its states: its module has no make_scene(states)."
    names: tuple[object, ...] = tuple(getattr(module, "STATE_NAMES", ()))
    picture: tuple[int, ...] = tuple(getattr(module, "STATE_PICTURE", ()))
    if is_picture(picture, states):
        note = f"What is drawn is the state itself, a picture of {' × '.join(str(side) for side in picture[:2])}."
    return empty_scene(map, states, note, tuple(str(name) for name in names), picture=picture)


def _load_module(map: str) -> ModuleType:
    module, _ = _split(map)
    try:
        return import_from_home(module)
    except ImportError as error:
        reason = str(error).rstrip(".")
        raise EnvUnavailableError(
            f"env.map names a module that cannot be imported: {reason}.", reason="not_importable", subject="env.map"
        ) from error
    except Exception as error:  # anything may go wrong in a stranger's code; the cause stays in the traceback
        raise EnvUnavailableError(
            f"env.map names a module that failed when it was imported: {error!r}.",
            reason="import_failed",
            subject="env.map",
        ) from error


def _load_factory(map: str) -> "Callable[[], ParallelEnv[Any, Any, Any]]":
    module, name = _load_module(map), _split(map)[1]
    factory = getattr(module, name, None)
    if not callable(factory):
        raise EnvUnavailableError(
            f"{module.__name__} has nothing to call by the name {name!r}.", reason="not_callable", subject="env.map"
        )
    return cast("Callable[[], ParallelEnv[Any, Any, Any]]", factory)  # what it returns is seen when it is called


def _observed(space: Any) -> Any:
    """The space of the observation itself, without a mask beside it."""
    parts = getattr(space, "spaces", None)
    return space["observation"] if isinstance(parts, dict) and _has_mask(parts) else space


def _has_mask(observation: Any) -> bool:
    return isinstance(observation, Mapping) and "action_mask" in observation and "observation" in observation


def _own_state_dim(env: "ParallelEnv[Any, Any, Any]") -> int:
    """Length of the environment's own state; 0 where it has none."""
    from gymnasium import spaces

    space = getattr(env, "state_space", None)
    return spaces.flatdim(space) if isinstance(space, spaces.Box) else 0


def _mentions_success(info: Any) -> bool:
    return isinstance(info, Mapping) and any(key in info for key in _WON_KEYS)


def _numbers(infos: Mapping[Any, Any]) -> dict[str, float]:
    """Mean over the agents of every number that their infos name."""
    told: dict[str, list[float]] = {}
    for info in infos.values():
        for name, value in info.items() if isinstance(info, Mapping) else ():
            if name not in _WON_KEYS and isinstance(value, bool | int | float | np.number | np.bool_):
                told.setdefault(str(name), []).append(float(value))
    return {name: sum(values) / len(values) for name, values in told.items()}


def _says_won(info: Any) -> bool:
    return isinstance(info, Mapping) and any(bool(info.get(key, False)) for key in _WON_KEYS)
