"""Where the units of an episode are drawn: the visible part of the field, and overlapping units moved apart."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.replay.replay import EpisodeView
from emtc_core.envs.scene import Scene

MARGIN = 0.08
"""Margin around the outermost unit, as a fraction of the width of the field."""
MIN_HALF_SIZE = np.array([0.22, 0.125])
"""Minimum half width and half height of the visible part of a field, as fractions of the width of the field."""
MIN_ASPECT, MAX_ASPECT = 1.8, 2.2
"""Limits of width / height of the visible part of a field."""
MIN_RADIUS_PX = 8.0
"""Smallest radius of a drawn unit [px]."""
_FIELD_WIDTH_PX = 620.0
"""Typical width of a drawn field [px]. It gives the smallest radius in field units."""
_ROUNDS = 12
_MAX_SHIFT = 1.5
"""Largest distance between a unit's position and the position at which it is drawn [its radii]."""
MOVED_APART = "Overlapping units are drawn apart."


def lay_out_fields(sides: Sequence[EpisodeView]) -> list[tuple[Scene, list[float]]]:
    """Compute what is drawn of each episode.

    Returns:
        For each episode, its scene with the positions at which the units are drawn, and the visible part of its field,
        x0, y0, x1, y1 [field units]. If units were moved apart, the scene has a note about it.
    """
    fields: list[tuple[Scene, list[float]]] = []
    for side, bounds in zip(sides, crop_fields(sides), strict=True):
        scene = side.scene
        position = separate_units(scene, bounds[2] - bounds[0]) if side.has_units else scene.position
        if not np.array_equal(position, scene.position):
            note = f"{scene.note} {MOVED_APART}".strip()
            scene = replace(scene, position=position, note=note)
        fields.append((scene, bounds))
    return fields


def separate_units(scene: Scene, width: float) -> NDArray[np.float32]:
    """Move overlapping living units apart, so that each can be recognized.

    In each of `_ROUNDS` rounds, two units that overlap move apart along the line through their centers, each by half of
    the overlap. Units with the same center move along x. Neutral units, for example a ball, stay at their positions.

    Args:
        scene: The scene, with T frames of U units.
        width: Width of the visible part of the field [field units].

    Returns:
        Positions [T, U, 2] [field units].

    Source: own layout, for drawing only.
    """
    position = scene.position.astype(np.float64)
    frames, units = scene.alive.shape
    can_move = scene.alive & (scene.team != 2)  # [T, U]
    radius = np.maximum(scene.radius, MIN_RADIUS_PX / _FIELD_WIDTH_PX * width).astype(np.float64)  # [U]
    reach = 1.15 * (radius[:, None] + radius[None, :])  # [U, U] smallest distance of two centers, with their rings
    is_pair = can_move[:, :, None] & can_move[:, None, :] & ~np.eye(units, dtype=bool)
    order = np.sign(np.arange(units)[:, None] - np.arange(units)[None, :])  # [U, U]
    max_shift = _MAX_SHIFT * radius[None, :, None]
    crowded = np.arange(frames)
    for _ in range(_ROUNDS):
        here = position[crowded]
        offset = here[:, :, None] - here[:, None, :]  # [C, U, U, 2]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        overlap = np.where(is_pair[crowded], np.maximum(reach - distance, 0), 0)
        is_crowded = overlap.any(axis=(1, 2))
        if not is_crowded.any():
            break
        crowded, here = crowded[is_crowded], here[is_crowded]
        offset, distance, overlap = offset[is_crowded], distance[is_crowded], overlap[is_crowded]
        direction = offset / np.maximum(distance, 1e-6)[..., None]
        is_same = distance < 1e-6
        direction[..., 0] = np.where(is_same, order, direction[..., 0])
        here = here + (direction * overlap[..., None]).sum(axis=2) / 2
        true = scene.position[crowded]
        position[crowded] = true + np.clip(here - true, -max_shift, max_shift)
    return position.astype(np.float32)


def crop_fields(sides: Sequence[EpisodeView]) -> list[list[float]]:
    """Crop the field of each episode. Episodes on the same field get the same part, so that they can be compared.

    Returns:
        x0, y0, x1, y1 of each episode [field units].
    """
    scenes = [side.scene for side in sides]
    if len({(scene.bounds, scene.title) for scene in scenes}) == 1 and all(side.has_units for side in sides):
        positions = np.concatenate([scene.position.reshape(-1, 2) for scene in scenes])
        return [_crop(positions, scenes[0].bounds)] * len(scenes)
    return [crop_field(scene) for scene in scenes]


def crop_field(scene: Scene) -> list[float]:
    """Crop the field to the units of an episode with a margin, so that units are drawn as large as possible.

    Returns:
        x0, y0, x1, y1 [field units].
    """
    return _crop(scene.position.reshape(-1, 2), scene.bounds)


def _crop(positions: NDArray[np.float32], bounds: tuple[float, float, float, float]) -> list[float]:
    """Return x0, y0, x1, y1 of a rectangle inside `bounds` that contains all positions [n, 2]."""
    if not len(positions):
        return [float(edge) for edge in bounds]
    low, high = np.array(bounds[:2], float), np.array(bounds[2:], float)
    first, last = positions.min(axis=0), positions.max(axis=0)
    center = (first + last) / 2
    width = high[0] - low[0]
    half_size = np.maximum((last - first) / 2 + MARGIN * width, MIN_HALF_SIZE * width)
    half_size[0] = max(half_size[0], half_size[1] * MIN_ASPECT)
    half_size[1] = max(half_size[1], half_size[0] / MAX_ASPECT)
    start, end = center - half_size, center + half_size
    start += np.maximum(low - start, 0) - np.maximum(end - high, 0)  # moved into the field
    end = start + 2 * half_size
    return [float(edge) for edge in (*np.maximum(start, low), *np.minimum(end, high))]
