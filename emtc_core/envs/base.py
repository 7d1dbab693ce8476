"""The environment interface, vectorised and framework-free, the same for every game; what a registry asks of each.

What lives here: the protocol, its values, the scene that a replay draws, whom an action in it is meant for, and the
arrays of adapters that gather single games into one batch. An environment that has ended is absorbing: it repeats its
last observation with reward 0 until it is reset, so that a batch can run in step until its slowest episode ends.

One module per environment answers the questions of `Adapter`; the sentences about unknown maps and the scene of states
that nobody can draw are here, too. What does not live here: any game, and the list of environments (`registry.py`).
"""

import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from emtc_core.errors import EnvUnavailableError

if TYPE_CHECKING:  # the settings are half of an engine's worker's start, which needs none of them
    from emtc_core.config.train import EnvConfig

HEALERS = frozenset({"medivac"})
"""Kinds of units whose target slots name agents, as SMAC's medivacs' do."""
_ATTACK = re.compile(r"attack (\d+)", re.ASCII)


@dataclass(frozen=True)
class EnvInfo:
    """The sizes and bounds that learners and pages need; `agent_block` is d_u of the attention mixer."""

    env: str
    map: str
    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    reward_range: tuple[float, float]
    agent_block: int = 0
    """Width of one agent's own block; the first n_agents * agent_block state entries. 0: none, use obs."""
    action_names: tuple[str, ...] = ()
    enemy_names: tuple[str, ...] = ()
    repeats_starts: bool = True
    """Whether a reset with an equal seed gives an equal start."""


@dataclass(frozen=True)
class Observation:
    """What B environments show after a reset or a step (fresh arrays, never views of internal buffers)."""

    obs: NDArray[np.float32]  # [B, N, O]
    state: NDArray[np.float32]  # [B, S]
    avail: NDArray[np.bool_]  # [B, N, A]
    reward: NDArray[np.float32]  # [B], 0 after a reset
    terminated: NDArray[np.bool_]  # [B] the game itself ended (won, lost, drawn)
    truncated: NDArray[np.bool_]  # [B] the time limit cut it; never true together with terminated
    won: NDArray[np.bool_]  # [B] the episode ended in success
    infos: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # [B] numbers of this step; NaN: none


@dataclass(frozen=True)
class Scene:
    """T drawable frames of one episode, rebuilt from stored states alone.

    Positions are in field units, `health` and `shield` are fractions in [0, 1], units of team 0 are the
    agents in agent order. A dead unit has `alive` False and keeps its last position.
    """

    position: NDArray[np.float32]  # [T, U, 2]
    health: NDArray[np.float32]  # [T, U]
    shield: NDArray[np.float32]  # [T, U]
    alive: NDArray[np.bool_]  # [T, U]
    team: NDArray[np.int8]  # [U] 0 = agents, 1 = opponents, 2 = neutral (a ball)
    radius: NDArray[np.float32]  # [U] field units
    kind: tuple[str, ...]  # [U] "marine", "zealot", "player", "ball"…
    bounds: tuple[float, float, float, float]  # x0, y0, x1, y1 of the field
    walkable: NDArray[np.bool_] | None = None  # [X, Y] unit cells from (0, 0), True where units may stand
    markings: NDArray[np.float32] | None = None  # [L, 4] segments x0, y0, x1, y1 painted on the field
    title: str = ""
    note: str = ""  # e.g. that this is a simulator, not StarCraft II
    target: NDArray[np.int16] | None = field(default=None)  # [T, U] unit aimed at after frame t, -1 none
    values: NDArray[np.float32] | None = None  # [T, S] the states themselves, where nobody knows how to draw them
    value_names: tuple[str, ...] = ()  # [S] where the environment gives them
    picture: tuple[int, ...] = ()  # height, width[, 3]: the first of `values`, row by row, where they are a picture


@runtime_checkable
class VectorEnv(Protocol):
    """B copies of one game, stepped together."""

    @property
    def info(self) -> EnvInfo: ...

    @property
    def n_envs(self) -> int: ...

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new episode in every copy; copy b's randomness depends on (seed, b) alone.

        With None every copy goes on with its own generator.
        """
        ...

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance one step with actions [B, N].

        Raises:
            ValueError: If a running copy is given an action that its `avail` forbids.
        """
        ...

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Turn the stored states [T, S] of one episode into frames. Needs no engine."""
        ...

    def close(self) -> None:
        """Release processes and engines; idempotent."""
        ...


def blank_observation(info: EnvInfo, copies: int) -> Observation:
    """Make zeroed arrays for `copies` games; nothing is available, nothing is over."""
    return Observation(
        obs=np.zeros((copies, info.n_agents, info.obs_dim), np.float32),
        state=np.zeros((copies, info.state_dim), np.float32),
        avail=np.zeros((copies, info.n_agents, info.n_actions), bool),
        reward=np.zeros(copies, np.float32),
        terminated=np.zeros(copies, bool),
        truncated=np.zeros(copies, bool),
        won=np.zeros(copies, bool),
    )


def copy_observation(seen: Observation) -> Observation:
    """Copy every array, so that what was handed out never changes."""
    arrays = {name: array.copy() for name, array in vars(seen).items() if name != "infos"}
    return Observation(**arrays, infos={name: array.copy() for name, array in seen.infos.items()})


def refuse_unavailable(actions: NDArray[np.integer], avail: NDArray[np.bool_], over: NDArray[np.bool_]) -> None:
    """Refuse actions [B, N] that `avail` [B, N, A] forbids in a copy that is not over.

    Raises:
        ValueError: Naming the first such action, its agent and its copy.
    """
    n_actions = avail.shape[-1]
    inside = (actions >= 0) & (actions < n_actions)
    chosen = np.where(inside, actions, 0)[..., None].astype(np.intp)
    illegal = ~(inside & np.take_along_axis(avail, chosen, axis=-1)[..., 0]) & ~over[:, None]
    if illegal.any():
        copy, agent = np.argwhere(illegal)[0]
        allowed = np.flatnonzero(avail[copy, agent]).tolist()
        raise ValueError(f"action of agent {agent} in copy {copy} must be one of {allowed}, got {actions[copy, agent]}")


def find_targets(scene: Scene, actions: NDArray[np.integer], action_names: tuple[str, ...]) -> NDArray[np.int16] | None:
    """Find the unit that each agent aims at after frame t, from its action there.

    Args:
        scene: T frames of U units, the N agents first.
        actions: [T - 1, N], one row per transition.
        action_names: In action order.

    Returns:
        [T, U], -1 where a unit aims at nothing or at nobody in the scene; None where no action names a target.
    """
    slots = np.array([_slot(name) for name in action_names], np.int64)
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


def _slot(name: str) -> int:
    found = _ATTACK.fullmatch(name)
    return int(found[1]) if found else -1


class Adapter(Protocol):
    """A module with these names at its top level; importing it must load no engine, torch or numba."""

    HOW_TO_GET: str
    """The steps that make the environment usable on a machine without it; one line."""

    def list_maps(self) -> list[str]:
        """List the maps that `--map` takes, in reading order."""
        ...

    def find_obstacle(self) -> str:
        """Why the environment cannot run here, in one sentence; "" when it can."""
        ...

    def find_info(self, config: "EnvConfig") -> EnvInfo | None:
        """Sizes without starting an engine; None where only a started one knows."""
        ...

    def make_env(self, config: "EnvConfig", *, n_envs: int) -> VectorEnv:
        """Start `n_envs` copies of one map."""
        ...

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Draw the stored states [T, S] of one episode; needs nothing installed."""
        ...


def refuse_unknown_map(env: str, map: str, maps: list[str]) -> None:
    """Refuse a map that is not in the list, naming the closest one.

    Raises:
        EnvUnavailableError: If `map` is not in `maps`.
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


def refuse_obstacle(env: str, obstacle: str, how_to_get: str) -> None:
    """Refuse to start an environment that lacks something.

    Raises:
        EnvUnavailableError: If `obstacle` is not empty; its text also says how to get what is missing.
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
    """Make a field without units whose note says why; it carries the states [T, S], and their names if there are S.

    A `picture` of more than S numbers is none.
    """
    nothing = np.zeros((len(states), 0), np.float32)
    return Scene(
        position=np.zeros((len(states), 0, 2), np.float32),
        health=nothing,
        shield=nothing,
        alive=nothing.astype(bool),
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


def is_picture(size: tuple[object, ...], states: NDArray[np.float32]) -> bool:
    """Whether (height, width) or (height, width, 3) is a picture that the states [T, S] begin with."""
    if len(size) not in (2, 3) or size[2:] not in ((), (3,)) or states.ndim != 2:
        return False
    sides = [side for side in size if isinstance(side, int) and side > 0]  # a stranger's module may say anything
    return len(sides) == len(size) and math.prod(sides) <= states.shape[1]
