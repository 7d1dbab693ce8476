"""What a stored episode was: its frames, drawn by its environment where that can, and its name.

A scene is never an error: where nobody can draw the states, the scene has no units, says why and carries the states
themselves.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import number
from app.analysis.quantities import name_outcome
from emtc_core.envs.base import Scene, empty_scene, is_picture
from emtc_core.envs.registry import make_scene
from emtc_core.errors import EmtcError
from storage.models import PLAYBACKS_AT_MOST
from storage.queries.episodes import Trajectory

_log = logging.getLogger(__name__)


def name_episode(config: Mapping[str, Any], trajectory: Trajectory, *, training: bool) -> str:
    """Which episode it is and how it ended: "Training episode 12, won, return 18.5"."""
    kind = "Training episode"
    if not training:
        asked = trajectory.episode >= PLAYBACKS_AT_MOST
        kind = f"{'Asked for' if asked else 'Evaluation'} at step {trajectory.env_step}, episode"
    outcome = name_outcome(config, won=trajectory.won, episode_return=trajectory.episode_return)
    return f"{kind} {trajectory.episode}, {outcome}, return {number(trajectory.episode_return)}"


def draw_scene(env: str, map: str, states: NDArray[np.float32], actions: NDArray[np.int64] | None = None) -> Scene:
    """Turn stored states into frames; a scene that cannot be drawn says why and carries the states."""
    try:
        scene = make_scene(env, map, states, actions)
        fault = find_fault(scene, len(states))
    except EmtcError as exc:
        return empty_scene(map, states, str(exc))
    except Exception as exc:  # a stranger's module may draw it, and the episode's values are still worth a look
        _log.warning("the scene of %s %s could not be drawn", env, map, exc_info=exc)
        return empty_scene(map, states, f"Its environment failed to draw it ({type(exc).__name__}); see the app's log.")
    if fault:
        return empty_scene(map, states, f"Its environment drew a scene that cannot be shown: {fault}.")
    return scene if scene.position.size or scene.values is not None else replace(scene, values=states)


def find_fault(scene: Scene, frames: int) -> str:
    """What a scene breaks of its contract, or nothing."""
    units = len(scene.kind)
    shapes = {
        "position": (frames, units, 2),
        "health": (frames, units),
        "shield": (frames, units),
        "alive": (frames, units),
        "team": (units,),
        "radius": (units,),
    }
    for name, shape in shapes.items():
        found = np.shape(getattr(scene, name))
        if found != shape:
            return f"{name} has shape {found} instead of {shape}"
    if scene.target is not None and scene.target.shape != (frames, units):
        return f"target has shape {scene.target.shape} instead of {(frames, units)}"
    if scene.picture and (scene.values is None or not is_picture(scene.picture, scene.values)):
        return f"its values hold no picture of {scene.picture}"
    if not all(np.isfinite(each).all() for each in (scene.position, scene.health, scene.shield, scene.radius)):
        return "a position, health or radius is no number"
    if not np.isin(scene.team, (0, 1, 2)).all():
        return "a team is none of 0, 1 and 2"
    low, high = np.array(scene.bounds[:2], float), np.array(scene.bounds[2:], float)
    return "" if np.isfinite([low, high]).all() and (low < high).all() else "its field has no area"
