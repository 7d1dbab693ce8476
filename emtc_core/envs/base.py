"""The environment interface: vectorized, independent of any framework, the same for every game.

Contents: the protocol `VectorEnv` with its data classes, the scene that a replay draws, the protocol `Adapter` of the
environment modules, and checks that several adapters share. The list of environments is in `registry.py`.

An ended episode is absorbing: `step` repeats its last observation with reward 0 until the next `reset`. So a batch can
be stepped together until its slowest episode ends.
"""

import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from emtc_core.errors import EmtcError, EnvUnavailableError

if TYPE_CHECKING:  # loading the settings takes half of the start time of a football worker, which does not use them
    from emtc_core.config.train import EnvConfig

HEALERS = frozenset({"medivac"})
"""Unit kinds whose target actions select an agent instead of an enemy, as in SMAC."""
_ATTACK = re.compile(r"attack (\d+)", re.ASCII)


class ResetNeededError(EmtcError):
    """`step` was called before the first `reset`."""


@dataclass(frozen=True)
class EnvInfo:
    """Sizes and bounds of one environment and map."""

    env: str
    map: str
    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    """Maximum number of steps of an episode."""
    reward_range: tuple[float, float]
    agent_block: int = 0
    """Width of one agent's block in the state (d_u of the attention mixer).

    The first n_agents * agent_block entries of the state are these blocks. 0: no such blocks, the mixer uses obs.
    """
    action_names: tuple[str, ...] = ()
    enemy_names: tuple[str, ...] = ()
    repeats_starts: bool = True
    """Whether two resets with the same seed give the same start."""


@dataclass(frozen=True)
class Observation:
    """Arrays of B environments after a reset or a step. They are new arrays, not views of internal buffers.

    Source: the environment interface of PyMARL, batched.
    """

    obs: NDArray[np.float32]  # [B, N, O] [observation features]
    state: NDArray[np.float32]  # [B, S] [state features]
    avail: NDArray[np.bool_]  # [B, N, A] boolean, whether the action is available
    reward: NDArray[np.float32]  # [B] [reward], 0 after a reset
    terminated: NDArray[np.bool_]  # [B] boolean, the game ended by its own rules: won, lost or drawn
    truncated: NDArray[np.bool_]  # [B] boolean, the time limit ended the episode; never true together with terminated
    won: NDArray[np.bool_]  # [B] boolean, the episode ended in success
    infos: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Name -> [B], further values of this step [unit varies]; NaN: missing."""


@dataclass(frozen=True)
class Scene:
    """T frames of one episode with U units for drawing, computed from stored states only.

    Positions are in field units. The units of team 0 are the agents, in agent order. A dead unit has `alive` False and
    keeps its last position.

    Source: the states, whose layout the environment's module documents.
    """

    position: NDArray[np.float32]  # [T, U, 2] [map units]
    health: NDArray[np.float32]  # [T, U] fraction in [0, 1], dimensionless
    shield: NDArray[np.float32]  # [T, U] fraction in [0, 1], dimensionless
    alive: NDArray[np.bool_]  # [T, U] boolean
    team: NDArray[np.int8]  # [U] index of the team: 0 = agents, 1 = opponents, 2 = neutral (a ball)
    radius: NDArray[np.float32]  # [U] [map units]
    kind: tuple[str, ...]  # U names: "marine", "zealot", "player", "ball"…
    bounds: tuple[float, float, float, float]  # x0, y0, x1, y1 of the field [map units]
    walkable: NDArray[np.bool_] | None = None  # [X, Y] boolean, unit cells from (0, 0) where units can walk
    markings: NDArray[np.float32] | None = None  # [L, 4] line segments x0, y0, x1, y1 painted on the field [map units]
    title: str = ""
    note: str = ""  # for example that this is a simulator, not StarCraft II
    target: NDArray[np.int16] | None = field(default=None)  # [T, U] index of the unit targeted after frame t; -1: none
    values: NDArray[np.float32] | None = None  # [T, S] the states, if the environment cannot draw them [state features]
    value_names: tuple[str, ...] = ()  # S names of the state entries; empty if unknown
    picture: tuple[int, ...] = ()  # height, width[, 3] if `values` begins with a picture, row by row


@runtime_checkable
class VectorEnv(Protocol):
    """B copies of one game that are stepped together."""

    @property
    def info(self) -> EnvInfo:
        """Sizes and bounds, the same for every copy."""
        ...

    @property
    def n_envs(self) -> int:
        """Number of copies, B."""
        ...

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new episode in every copy.

        Args:
            seed: The random numbers of copy b depend only on (seed, b). None: every copy continues with its own
                random generator.
        """
        ...

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every running copy by one step.

        Source: the step of PyMARL's environments, batched.

        Args:
            actions: [B, N], action index of each agent. The row of an ended copy is ignored.

        Returns:
            The observation after the step.

        Raises:
            ResetNeededError: If `reset` was never called.
            ValueError: If `avail` forbids the action of an agent in a running copy.
        """
        ...

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Convert the stored states of one episode to frames. Needs no game engine.

        Args:
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        ...

    def close(self) -> None:
        """Release processes and engines. A second call has no effect."""
        ...


def blank_observation(info: EnvInfo, copies: int) -> Observation:
    """Make an observation of `copies` games filled with zeros: no action is available, no episode has ended."""
    return Observation(
        obs=np.zeros((copies, info.n_agents, info.obs_dim), np.float32),
        state=np.zeros((copies, info.state_dim), np.float32),
        avail=np.zeros((copies, info.n_agents, info.n_actions), bool),
        reward=np.zeros(copies, np.float32),
        terminated=np.zeros(copies, bool),
        truncated=np.zeros(copies, bool),
        won=np.zeros(copies, bool),
    )


def copy_observation(observation: Observation) -> Observation:
    """Copy every array, so that later writes to the internal buffers do not change a returned observation."""
    arrays = {name: array.copy() for name, array in vars(observation).items() if name != "infos"}
    return Observation(**arrays, infos={name: array.copy() for name, array in observation.infos.items()})


def check_was_reset(was_reset: bool) -> None:
    """Check that `reset` was called before `step`.

    Raises:
        ResetNeededError: If it was not.
    """
    if not was_reset:
        raise ResetNeededError("step() was called before the first reset(). Call reset(seed) first.")


def check_actions(actions: NDArray[np.integer], avail: NDArray[np.bool_], over: NDArray[np.bool_]) -> None:
    """Check that the actions of all running copies are available.

    Source: `VectorEnv.step`.

    Args:
        actions: [B, N], action index of each agent.
        avail: [B, N, A] boolean, available actions.
        over: [B] boolean, whether the episode of a copy has ended. Actions of such copies are not checked.

    Raises:
        ValueError: If an action is not available. The message contains the first one with its agent and copy.
    """
    n_actions = avail.shape[-1]
    in_range = (actions >= 0) & (actions < n_actions)
    index = np.where(in_range, actions, 0)[..., None].astype(np.intp)
    illegal = ~(in_range & np.take_along_axis(avail, index, axis=-1)[..., 0]) & ~over[:, None]
    if illegal.any():
        copy, agent = np.argwhere(illegal)[0]
        allowed = np.flatnonzero(avail[copy, agent]).tolist()
        raise ValueError(f"action of agent {agent} in copy {copy} must be one of {allowed}, got {actions[copy, agent]}")


def find_targets(scene: Scene, actions: NDArray[np.integer], action_names: tuple[str, ...]) -> NDArray[np.int16] | None:
    """Find the unit that each agent targets after frame t, from the agent's action at that frame.

    Source: the action names of the environment.

    Args:
        scene: T frames of U units; the first N units are the agents.
        actions: [T - 1, N], action index of each agent, one row per transition.
        action_names: One name per action, in action order. "attack k" targets enemy k; for a healer, agent k.

    Returns:
        [T, U], unit indices, -1 where a unit targets no unit of the scene. None if no action has a target.
    """
    slots = np.array([int(match[1]) if (match := _ATTACK.fullmatch(name)) else -1 for name in action_names], np.int64)
    frames, units = scene.health.shape
    n_agents = int((scene.team == 0).sum())
    if not (slots >= 0).any() or actions.shape != (frames - 1, n_agents):
        return None
    legal = (actions >= 0) & (actions < len(slots))
    slot_TN = np.where(legal, slots[np.where(legal, actions, 0)], -1)
    heals_N = np.array([kind in HEALERS for kind in scene.kind[:n_agents]], bool)
    first_N, count_N = np.where(heals_N, 0, n_agents), np.where(heals_N, n_agents, units - n_agents)
    target = np.full((frames, units), -1, np.int16)
    target[:-1, :n_agents] = np.where((slot_TN >= 0) & (slot_TN < count_N), slot_TN + first_N, -1)
    return target


class Adapter(Protocol):
    """What an environment module must define at its top level. Its import must not load an engine, torch or numba."""

    HOW_TO_GET: str
    """How to install the environment on a machine without it, in one line."""

    def list_maps(self) -> list[str]:
        """List the maps that `--map` accepts, in display order."""
        ...

    def find_unavailable_reason(self) -> str:
        """Return one sentence why the environment cannot run here; "" if it can."""
        ...

    def find_info(self, config: "EnvConfig") -> EnvInfo | None:
        """Return the sizes without starting an engine; None if only a started environment has them."""
        ...

    def make_env(self, config: "EnvConfig", *, n_envs: int) -> VectorEnv:
        """Start `n_envs` copies of one map."""
        ...

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its stored states. Needs no installed game.

        Args:
            map: Name of the map.
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        ...


def check_map(env: str, map: str, maps: list[str]) -> None:
    """Check that a map is in the list of an environment's maps.

    Args:
        env: Name of the environment, for the message.
        map: Name of the map.
        maps: Maps of the environment.

    Raises:
        EnvUnavailableError: If it is not. The message contains the most similar map.
    """
    if map in maps:
        return
    close = get_close_matches(map, maps, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]}? " if close else ""
    raise EnvUnavailableError(
        f"{env} has no map {map!r}.",
        hint=f"{meant}List all maps with: emtc envs",
        reason="unknown_map",
        subject="env.map",
    )


def check_can_run(env: str, obstacle: str, how_to_get: str) -> None:
    """Check that nothing is missing for an environment.

    Args:
        env: Name of the environment, for the message.
        obstacle: Result of `find_unavailable_reason`; "" if nothing is missing.
        how_to_get: How to install the environment.

    Raises:
        EnvUnavailableError: If `obstacle` is not empty.
    """
    if obstacle:
        raise EnvUnavailableError(
            f"{env} cannot run here: {obstacle}", hint=f"To get it: {how_to_get}", reason="missing", subject=env
        )


def empty_scene(
    title: str,
    states: NDArray[np.float32],
    note: str,
    names: tuple[str, ...] = (),
    *,
    picture: tuple[int, ...] = (),
) -> Scene:
    """Make a scene without units that shows the state values instead.

    Args:
        title: Title of the scene.
        states: [T, S] [state features]. Source: `Observation.state` of each step.
        note: Why there are no units.
        names: One name per state entry; ignored if there are not S names.
        picture: Height, width[, 3] of a picture in the state; ignored if it has more than S numbers.
    """
    no_units = np.zeros((len(states), 0), np.float32)
    return Scene(
        position=np.zeros((len(states), 0, 2), np.float32),
        health=no_units,
        shield=no_units,
        alive=no_units.astype(bool),
        team=np.zeros(0, np.int8),
        radius=np.zeros(0, np.float32),
        kind=(),
        bounds=(0.0, 0.0, 1.0, 1.0),
        title=title,
        note=note,
        values=states,
        value_names=names if states.ndim == 2 and len(names) == states.shape[1] else (),
        picture=picture if is_picture(picture, states) else (),
    )


def keep_last_position(position: NDArray[np.float32], alive: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Give dead units their last position. In StarCraft-like states, the entries of a dead unit are 0.

    Args:
        position: [T, U, 2] [map units]. Source: the stored states.
        alive: [T, U] boolean. Source: the stored states.

    Returns:
        [T, U, 2] [map units].
    """
    frame_TU = np.where(alive, np.arange(len(alive))[:, None], 0)
    last_TU = np.maximum.accumulate(frame_TU, axis=0)
    return np.take_along_axis(position, last_TU[..., None], axis=0)


def is_picture(size: tuple[object, ...], states: NDArray[np.float32]) -> bool:
    """Check whether a picture of a given size fits into the states.

    Args:
        size: (height, width) or (height, width, 3) [pixels]. Any other tuple gives False.
        states: [T, S] [state features]. Source: `Observation.state` of each step.
    """
    if len(size) not in (2, 3) or size[2:] not in ((), (3,)) or states.ndim != 2:
        return False
    sides = [side for side in size if isinstance(side, int) and side > 0]  # a plug-in may declare any type
    return len(sides) == len(size) and math.prod(sides) <= states.shape[1]
