"""The scene (positions and health of all units at each step) and the name of a stored episode.

The environment computes the scene from the stored states. `draw_scene` never raises: if the environment cannot draw the
states, the scene has no units and contains the reason and the states.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import format_number
from app.analysis.quantities import name_outcome
from emtc_core.envs.registry import make_scene
from emtc_core.envs.scene import Scene, empty_scene
from emtc_core.errors import EmtcError
from storage.models import MAX_PLAYBACKS
from storage.queries.episodes import Trajectory

_log = logging.getLogger(__name__)


def name_episode(config: Mapping[str, Any], trajectory: Trajectory, *, training: bool) -> str:
    """Name an episode with its outcome: "Training episode 12, won, return 18.5"."""
    kind = "Training episode"
    if not training:
        # playbacks, the episodes of an evaluation that a user has requested, have numbers from MAX_PLAYBACKS on
        is_playback = trajectory.episode >= MAX_PLAYBACKS
        kind = f"{'Requested' if is_playback else 'Evaluation'} at step {trajectory.env_step}, episode"
    outcome = name_outcome(config, won=trajectory.won, episode_return=trajectory.episode_return)
    return f"{kind} {trajectory.episode}, {outcome}, return {format_number(trajectory.episode_return)}"


def draw_scene(env: str, map: str, states: NDArray[np.float32], actions: NDArray[np.int64] | None = None) -> Scene:
    """Make the scene of stored states; a scene without units, with the reason, if it cannot be drawn."""
    try:
        scene = make_scene(env, map, states, actions)
        fault = find_fault(scene, len(states))
    except EmtcError as exc:
        return empty_scene(map, states, str(exc))
    except Exception as exc:  # a plug-in can raise anything, and the values of the episode are still useful
        _log.warning("the scene of %s %s could not be drawn", env, map, exc_info=exc)
        reason = f"The environment failed to draw it ({type(exc).__name__}). See the log of the app."
        return empty_scene(map, states, reason)
    if fault is not None:
        return empty_scene(map, states, f"The environment returned an invalid scene: {fault}.")
    if not scene.position.size and scene.values is None:
        return replace(scene, values=states)
    return scene


def find_fault(scene: Scene, frames: int) -> str | None:
    """Find the first error in the arrays of a scene; None if there is none."""
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
        actual = np.shape(getattr(scene, name))
        if actual != shape:
            return f"{name} has shape {actual} instead of {shape}"
    if scene.target is not None and scene.target.shape != (frames, units):
        return f"target has shape {scene.target.shape} instead of {(frames, units)}"
    if scene.reach is not None and scene.reach.shape != (units,):
        return f"reach has shape {scene.reach.shape} instead of {(units,)}"
    if scene.carrier is not None and (scene.carrier.shape != (frames,) or (scene.carrier >= units).any()):
        return f"carrier must have shape {(frames,)} and indices of units"
    if not all(np.isfinite(values).all() for values in (scene.position, scene.health, scene.shield, scene.radius)):
        return "a position, health, shield or radius is not finite"
    if not np.isin(scene.team, (0, 1, 2)).all():
        return "a team is not 0, 1 or 2"
    low = np.array(scene.bounds[:2], float)
    high = np.array(scene.bounds[2:], float)
    if not (np.isfinite([low, high]).all() and (low < high).all()):
        return "the area of its field is not positive"
    return None
