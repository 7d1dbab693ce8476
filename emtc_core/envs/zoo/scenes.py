"""From the stored states of a wrapped game back to what a replay draws; no game needs to be installed.

Places are read from the state where it has them; a state that is a picture is shown as that picture; any other as its
entries over time.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.envs.adapter import empty_scene
from emtc_core.envs.base import Scene
from emtc_core.envs.zoo.examples import EXAMPLES

Floats = NDArray[np.float32]
_MPE_UNIT = 6.0
"""Field units to one of MPE's, whose agents are 0.15 in radius on a field of about 2 by 2."""
_KAZ_FIELD = (32.0, 18.0)
_KAZ_ROWS = {"archer": 2, "knight": 2, "mace": 2, "arrow": 10, "zombie": 10}
_KAZ_TEAM = {"archer": 0, "knight": 0, "mace": 2, "arrow": 2, "zombie": 1}
_OUTSIDE = -5.0
_KAZ_RADIUS = {"archer": 0.6, "knight": 0.6, "mace": 0.3, "arrow": 0.25, "zombie": 0.6}


def make_scene(map: str, states: Floats) -> Scene:
    """Draw the stored states [T, S] of one episode of a wrapped game."""
    example = EXAMPLES[map]
    check_shape("states", states, (None, example.sizes[3]))
    if draw := _DRAWN.get(map):
        return draw(map, states)
    if example.picture:
        height, width = example.picture[:2]
        colors = f" ({example.colors})" if example.colors else ""
        note = f"What is drawn is the state itself, a picture of {height} × {width}{colors}."
        return empty_scene(map, states, note, picture=example.picture)
    return empty_scene(map, states, "The state of this game says no places, so its entries are drawn.")


def _draw_spread(map: str, states: Floats) -> Scene:
    """Draw MPE's agents and landmarks: an observation is velocity, place, then the landmarks seen from there."""
    obs = states.reshape(len(states), 3, 18)
    agents, landmarks = obs[..., 2:4], obs[:, :1, 2:4] + obs[:, 0, 4:10].reshape(-1, 3, 2)
    place = np.concatenate([agents, landmarks], axis=1) * _MPE_UNIT
    edge = float(max(np.abs(place).max(initial=0.0), 1.5 * _MPE_UNIT)) + 1.0
    return _stage(
        map,
        place,
        alive=np.ones(place.shape[:2], bool),
        team=[0, 0, 0, 2, 2, 2],
        radius=[0.15 * _MPE_UNIT] * 3 + [0.08 * _MPE_UNIT] * 3,
        kind=("agent",) * 3 + ("landmark",) * 3,
        bounds=(-edge, -edge, edge, edge),
    )


def _draw_kaz(map: str, states: Floats) -> Scene:
    """Draw archers, knights, their weapons and zombies: a row each of place and heading, zeros for who is not there."""
    rows = states.reshape(len(states), -1, 4)
    kind = tuple(name for name, count in _KAZ_ROWS.items() for _ in range(count))
    alive = np.abs(rows).max(axis=2) > 0
    width, height = _KAZ_FIELD
    place = np.stack([rows[..., 0] * width, (1 - rows[..., 1]) * height], axis=2)
    return _stage(
        map,
        _hide_absent(place, alive, n_agents=4),
        alive=alive,
        team=[_KAZ_TEAM[name] for name in kind],
        radius=[_KAZ_RADIUS[name] for name in kind],
        kind=kind,
        bounds=(0.0, 0.0, width, height),
    )


def _hide_absent(place: Floats, alive: NDArray[np.bool_], *, n_agents: int) -> Floats:
    """Let fallen agents lie where they fell; whatever else is not there waits outside the field until it appears."""
    lain = np.maximum.accumulate(np.where(alive, np.arange(len(alive))[:, None], 0), axis=0)
    comes = np.append(alive[1:], alive[-1:], axis=0)
    soon = np.append(place[1:], place[-1:], axis=0)
    shown = np.where(alive[..., None], place, np.where(comes[..., None], soon, _OUTSIDE))
    shown[:, :n_agents] = np.take_along_axis(place, lain[..., None], axis=0)[:, :n_agents]
    return shown


def _stage(
    title: str,
    place: Floats,
    *,
    alive: NDArray[np.bool_],
    team: list[int],
    radius: list[float],
    kind: tuple[str, ...],
    bounds: tuple[float, float, float, float],
) -> Scene:
    return Scene(
        position=place.astype(np.float32),
        health=np.ones(alive.shape, np.float32),
        shield=np.zeros(alive.shape, np.float32),
        alive=alive,
        team=np.array(team, np.int8),
        radius=np.array(radius, np.float32),
        kind=kind,
        bounds=bounds,
        title=title,
    )


_DRAWN: dict[str, Callable[[str, Floats], Scene]] = {
    "mpe2:simple_spread": _draw_spread,
    "butterfly:knights_archers_zombies": _draw_kaz,
}
