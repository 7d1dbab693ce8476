"""Between the steps: where a unit is and how much of it is left at any moment of an episode.

`assets/field.js` does the same in the browser; a test compares the two.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import Scene

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moment:
    """What U units look like at one moment."""

    place: Floats  # [U, 2]
    health: Floats  # [U]
    shield: Floats  # [U]
    presence: Floats  # [U] 1 alive, 0 dead, between the two while it dies
    target: NDArray[np.int64]  # [U] -1 where it aims at nothing


def moment_at(scene: Scene, frame: float) -> Moment:
    """Interpolate the scene; what a unit becomes dead between two frames fades where it stood."""
    last = len(scene.health) - 1
    frame = min(max(float(frame), 0.0), float(last))
    t = int(frame)
    after = min(t + 1, last)
    part = frame - t
    moves = np.where(scene.alive[after], part, 0.0)[:, None]
    place = scene.position[t] * (1 - moves) + scene.position[after] * moves

    def between(values: NDArray[np.generic]) -> Floats:
        return np.asarray(values[t], np.float64) * (1 - part) + np.asarray(values[after], np.float64) * part

    aims = np.full(scene.health.shape[1], -1) if scene.target is None else scene.target[t].astype(np.int64)
    return Moment(
        place=np.asarray(place, np.float64),
        health=between(scene.health),
        shield=between(scene.shield),
        presence=between(scene.alive),
        target=np.where(scene.alive[t], aims, -1),
    )


def list_moments(frames: int, most: int, *, most_per_step: int) -> tuple[Floats, float]:
    """Choose at most `most` moments, first and last frame among them, and how many of them make one step.

    A short episode has moments between its steps, a long one leaves steps out.
    """
    steps = frames - 1
    if steps < 1:
        return np.zeros(1), 1.0
    per_step = float(min(most_per_step, (most - 1) // steps)) if steps < most else (most - 1) / steps
    moments = np.linspace(0, steps, round(steps * per_step) + 1)
    return moments, per_step
