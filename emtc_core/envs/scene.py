"""The scene that a replay draws: frames of one episode, computed from its stored states."""

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

HEALERS = frozenset({"medivac"})
"""Unit kinds whose target actions select an agent instead of an enemy, as in SMAC."""
_ATTACK = re.compile(r"attack (\d+)", re.ASCII)


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
    reach: NDArray[np.float32] | None = None  # [U] weapon range from the center of the unit, 0: no weapon [map units]
    carrier: NDArray[np.int16] | None = None  # [T] index of the unit that has the ball; -1: none


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


def find_passes(scene: Scene) -> NDArray[np.int32]:
    """Find the passes of an episode: the ball goes from one unit to another unit of its team.

    Source: `Scene.carrier`.

    Args:
        scene: T frames of U units.

    Returns:
        [P, 4], one row per pass: last frame of the passing unit, first frame of the receiving unit, and the indices of
        both units. No rows if the scene has no ball.
    """
    if scene.carrier is None:
        return np.zeros((0, 4), np.int32)
    frames = np.flatnonzero(scene.carrier >= 0)
    units = scene.carrier[frames].astype(np.int64)
    first, second = units[:-1], units[1:]
    is_pass = (first != second) & (scene.team[first] == scene.team[second])
    return np.stack([frames[:-1], frames[1:], first, second], axis=1)[is_pass].astype(np.int32)


def empty_scene(title: str, states: NDArray[np.float32], note: str, names: tuple[str, ...] = ()) -> Scene:
    """Make a scene without units that shows the state values instead.

    Args:
        title: Title of the scene.
        states: [T, S] [state features]. Source: `Observation.state` of each step.
        note: Why there are no units.
        names: One name per state entry; ignored if there are not S names.
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
