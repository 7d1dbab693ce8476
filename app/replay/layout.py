"""Compute the layout of an episode: positions, rings, arrows, labels and legend.

The player in the browser and the files draw the numbers of an `EpisodeLayout` with the sizes and colors of `STYLE`.
They only convert field units, the length units of the environment, to pixels. A frame shows one state. For moments
between two frames, they mix the values of both frames linearly.

In an environment without units, such as agents and enemies, the entries of its state are drawn as a strip of colors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.figures.theme import AGENT_COLOR, NEUTRAL_COLOR, OPPONENT_COLOR
from app.replay.replay import EpisodeView, quantize_values
from emtc_core.envs.scene import Scene, find_passes, keep_last_position

Floats = NDArray[np.float64]

MARGIN = 0.08
"""Margin around the outermost unit, as a fraction of the width of the field."""
MIN_HALF_SIZE = np.array([0.22, 0.125])
"""Minimum half width and half height of the visible part of a field, as fractions of the width of the field."""
MIN_ASPECT = 1.8
"""Minimum of width / height of the visible part of a field."""
MAX_ASPECT = 2.2
MIN_RADIUS_PX = 8.0
"""Smallest radius of a drawn unit."""
MIN_BALL_RADIUS_PX = 4.0
"""Smallest radius of a drawn neutral unit, for example a ball."""
MOVED_APART = "Overlapping units are drawn apart."
AGENT_TEAM = 0
"""Numbers of teams in `Scene.team`. The same for the next two."""
OPPONENT_TEAM = 1
NEUTRAL_TEAM = 2
TEAM_COLORS = (AGENT_COLOR, OPPONENT_COLOR, NEUTRAL_COLOR)
"""Colors by the number of the team."""
_FIELD_WIDTH_PX = 620.0
"""Typical width of a drawn field. `separate_units` converts `MIN_RADIUS_PX` to field units with it."""
_SEPARATION_ROUNDS = 12
_SEPARATION_FACTOR = 1.15
"""Minimum distance of two units, as a multiple of the sum of their radii. It is above 1, because units have rings."""
_MAX_SHIFT = 1.5
"""Largest distance between a unit's position and the position at which it is drawn [radii of the unit]."""
_MIN_LOSS = 1e-6
"""Smallest loss of health or shield that is drawn as a hit, as a fraction of the full health."""


class Team(NamedTuple):
    """Name and color of a team. Opponents are squares, so that teams differ also by shape and not only by color."""

    name: str
    color: str
    is_square: bool = False


@dataclass(frozen=True)
class FieldStyle:
    """Sizes [px], durations [steps], opacities and colors of the marks on a field."""

    body_edge: float = 1.5
    square_size: float = 0.9
    """Half the side of an opponent's square, as a fraction of its radius."""
    label_sizes: tuple[float, float] = (9, 13)
    """Smallest and largest font size of a label. The font size is the radius of the unit within these limits."""
    label_outline: float = 3
    trail_steps: int = 8
    trail_width: float = 2
    trail_opacity: float = 0.6
    hit_color: str = "#ffb000"
    hit_width: float = 4
    hit_steps: float = 1
    """Duration of the orange edge of a unit that was hit."""
    death_width: float = 3
    death_steps: float = 2
    """Duration of the growing ring around a unit that died."""
    death_sizes: tuple[float, float] = (1.2, 2.4)
    """First and last radius of the growing ring, as multiples of the radius of the unit."""
    cross_size: float = 0.6
    """Half the side of the cross of a dead unit, as a fraction of its radius."""
    cross_width: float = 2
    cross_opacity: float = 0.45
    ring_width: float = 3
    health_offset: float = 2.5
    """Distance of the ring of health from the edge of the unit."""
    shield_offset: float = 5.5
    """Distance of the ring of the shield."""
    carrier_offset: float = 4
    """Distance of the ring of the player who has the ball."""
    aim_width: float = 1.6
    aim_opacity: float = 0.7
    aim_dash: tuple[float, float] = (5, 4)
    pass_width: float = 2.5
    pass_opacity: float = 0.9
    pass_steps: int = 8
    """Number of steps in which the arrow of a pass fades after the pass."""
    arrow_clearance: float = 3
    """Distance of an arrow from the edge of the unit to which it points."""
    arrow_tip: float = 3
    """Length of the head beyond the end of the arrow's line."""
    arrow_back: float = 6
    """Length of the head before the end of the arrow's line."""
    arrow_half_width: float = 4


STYLE = FieldStyle()


@dataclass(frozen=True, kw_only=True)
class EpisodeLayout:
    """The layout of one episode: T frames of U units on a field, or of S entries of the state if U is 0."""

    title: str
    scene: Scene
    """The stored scene with changed bounds, note and positions: those of the visible part, the text below the field,
    and the drawn positions. A dead unit has the position at which it was drawn last.
    """
    target: NDArray[np.int16]  # [T, U] index of the unit at which a living unit aims; -1: none
    hit: Floats  # [T, U] 1 if the unit loses health or shield in the step after the frame; falls to 0 in `hit_steps`
    death: Floats  # [T, U] 1 if the unit dies in the step after the frame; falls to 0 in `death_steps`
    passes: NDArray[np.int32]  # [P, 4] as in `find_passes`
    min_radius_px: Floats  # [U]
    labels: list[str]  # [U]
    legend: list[Team]
    """The teams that are on the field."""
    has_rings: bool
    """Whether rings of health and shield are drawn."""
    entries: list[str]  # [S] names of the state's entries
    levels: NDArray[np.uint8] | None  # [T, S] as in `quantize_values`

    @property
    def frames(self) -> int:
        """Number of frames T."""
        return len(self.scene.health)

    @property
    def units(self) -> int:
        """Number of units U."""
        return len(self.scene.kind)


class Moment(NamedTuple):
    """The values of U units at one moment, mixed from those of two frames."""

    position: Floats  # [U, 2] [field units]
    presence: Floats  # [U] opacity: 1 alive, 0 dead
    health: Floats  # [U]
    shield: Floats  # [U]
    hit: Floats  # [U] opacity of the orange edge
    death: Floats  # [U] opacity of the growing ring


def lay_out_episodes(sides: Sequence[EpisodeView]) -> list[EpisodeLayout]:
    """Compute the layouts of one or two episodes. They have the same marks, and the same scale if possible."""
    has_rings = any(bool((side.scene.health < 1).any()) for side in sides)
    teams = list_teams(sides)
    return [
        _lay_out_episode(side, bounds, teams, has_rings=has_rings)
        for side, bounds in zip(sides, crop_fields(sides), strict=True)
    ]


def mix_frames(layout: EpisodeLayout, frame: float) -> Moment:
    """Compute the values of the units at a moment between two frames, as `mixUnit` in the scripts of the player.

    Args:
        layout: The episode.
        frame: The moment [frames], for example 2.5.
    """
    t = int(frame)
    t_next = min(t + 1, layout.frames - 1)
    fraction = frame - t

    def mix(values: NDArray[Any]) -> Floats:
        return values[t].astype(np.float64) * (1 - fraction) + values[t_next].astype(np.float64) * fraction

    return Moment(
        position=mix(layout.scene.position),
        presence=mix(layout.scene.alive),
        health=mix(layout.scene.health),
        shield=mix(layout.scene.shield),
        hit=np.maximum(0.0, layout.hit[t] - fraction / STYLE.hit_steps),
        death=np.maximum(0.0, layout.death[t] - fraction / STYLE.death_steps),
    )


def list_teams(sides: Sequence[EpisodeView]) -> list[Team]:
    """List the teams in the order of their numbers. If all neutral units are of one kind, their team has its name."""
    neutral_kinds: set[str] = set()
    for side in sides:
        for kind, team in zip(side.scene.kind, side.scene.team.tolist(), strict=True):
            if team == NEUTRAL_TEAM:
                neutral_kinds.add(kind)
    neutral_name = neutral_kinds.pop() if len(neutral_kinds) == 1 else "neutral"
    names = ("agents", "opponents", neutral_name)
    return [
        Team(name, color, is_square=number == OPPONENT_TEAM)
        for number, (name, color) in enumerate(zip(names, TEAM_COLORS, strict=True))
    ]


def label_units(scene: Scene) -> list[str]:
    """Number the agents from 0, as in the method, and also the opponents. Neutral units get an empty label.

    In a team of several kinds, the label begins with the first letters of the kind: "s0", "z1".
    """
    teams = scene.team.tolist()
    kinds_by_team: dict[int, list[str]] = {AGENT_TEAM: [], OPPONENT_TEAM: [], NEUTRAL_TEAM: []}
    for kind, team in zip(scene.kind, teams, strict=True):
        kinds_by_team[team].append(kind)
    prefixes_by_team = {team: _abbreviate(kinds) for team, kinds in kinds_by_team.items()}
    next_number = dict.fromkeys(kinds_by_team, 0)
    labels: list[str] = []
    for kind, team in zip(scene.kind, teams, strict=True):
        if team == NEUTRAL_TEAM:
            labels.append("")
        else:
            labels.append(f"{prefixes_by_team[team][kind]}{next_number[team]}")
        next_number[team] += 1
    return labels


def separate_units(scene: Scene, width: float) -> NDArray[np.float32]:
    """Move overlapping living units apart, so that each is visible.

    In each of `_SEPARATION_ROUNDS` rounds, two units that overlap move apart along the line through their centers, each
    by half of the overlap. Units with the same center move along x. Neutral units, such as a ball, do not move.

    Args:
        scene: The scene, with T frames of U units.
        width: Width of the visible part of the field [field units].

    Returns:
        Positions [T, U, 2] [field units].

    Source: own layout, for drawing only.
    """
    position = scene.position.astype(np.float64)
    n_frames, n_units = scene.alive.shape
    can_move = scene.alive & (scene.team != NEUTRAL_TEAM)  # [T, U]
    radius = np.maximum(scene.radius, MIN_RADIUS_PX / _FIELD_WIDTH_PX * width).astype(np.float64)  # [U]
    min_distance = _SEPARATION_FACTOR * (radius[:, None] + radius[None, :])  # [U, U] of two centers
    is_pair = can_move[:, :, None] & can_move[:, None, :] & ~np.eye(n_units, dtype=bool)  # [T, U, U]
    direction_of_same_center = np.sign(np.arange(n_units)[:, None] - np.arange(n_units)[None, :])  # [U, U] 1 or -1
    max_shift = _MAX_SHIFT * radius[None, :, None]
    frames = np.arange(n_frames)  # the C frames in which units still overlap
    for _ in range(_SEPARATION_ROUNDS):
        # Find the overlap of each pair of units.
        moved = position[frames]  # [C, U, 2]
        offset = moved[:, :, None] - moved[:, None, :]  # [C, U, U, 2]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        overlap = np.where(is_pair[frames], np.maximum(min_distance - distance, 0), 0)
        # Keep only the frames with an overlap.
        has_overlap = overlap.any(axis=(1, 2))
        if not has_overlap.any():
            break
        frames = frames[has_overlap]
        moved = moved[has_overlap]
        offset = offset[has_overlap]
        distance = distance[has_overlap]
        overlap = overlap[has_overlap]
        # Move each unit by half of its overlaps, but not too far from its true position.
        direction = offset / np.maximum(distance, 1e-6)[..., None]
        is_same_center = distance < 1e-6
        direction[..., 0] = np.where(is_same_center, direction_of_same_center, direction[..., 0])
        moved = moved + (direction * overlap[..., None]).sum(axis=2) / 2
        true_position = scene.position[frames]
        position[frames] = true_position + np.clip(moved - true_position, -max_shift, max_shift)
    return position.astype(np.float32)


def crop_fields(sides: Sequence[EpisodeView]) -> list[tuple[float, float, float, float]]:
    """Crop the field of each episode. If both are on the same field, they get the same part, for comparison.

    Returns:
        x0, y0, x1, y1 of each episode [field units].
    """
    scenes = [side.scene for side in sides]
    is_one_field = len({(scene.bounds, scene.title) for scene in scenes}) == 1
    if is_one_field and all(side.has_units for side in sides):
        positions = np.concatenate([scene.position.reshape(-1, 2) for scene in scenes])
        return [crop_field(positions, scenes[0].bounds)] * len(scenes)
    return [crop_field(scene.position.reshape(-1, 2), scene.bounds) for scene in scenes]


def crop_field(
    positions: NDArray[np.float32], bounds: tuple[float, float, float, float]
) -> tuple[float, float, float, float]:
    """Crop a field to the positions [n, 2] of units with a margin, so that the units are drawn as large as possible.

    Returns:
        x0, y0, x1, y1 of a rectangle inside `bounds` [field units].
    """
    if not len(positions):
        x0, y0, x1, y1 = bounds
        return float(x0), float(y0), float(x1), float(y1)
    # All arrays are (x, y). Compute the rectangle around all positions, with a margin and limits of its shape.
    field_low = np.array(bounds[:2], float)
    field_high = np.array(bounds[2:], float)
    lowest = positions.min(axis=0)
    highest = positions.max(axis=0)
    center = (lowest + highest) / 2
    width = field_high[0] - field_low[0]
    half_size = np.maximum((highest - lowest) / 2 + MARGIN * width, MIN_HALF_SIZE * width)
    half_size[0] = max(half_size[0], half_size[1] * MIN_ASPECT)
    half_size[1] = max(half_size[1], half_size[0] / MAX_ASPECT)
    # Move the rectangle into the field.
    low = center - half_size
    high = center + half_size
    low += np.maximum(field_low - low, 0) - np.maximum(high - field_high, 0)
    high = low + 2 * half_size
    # Cut the part that is still outside, because the rectangle is larger than the field.
    x0, y0 = np.maximum(low, field_low).tolist()
    x1, y1 = np.minimum(high, field_high).tolist()
    return x0, y0, x1, y1


def _lay_out_episode(
    side: EpisodeView, bounds: tuple[float, float, float, float], teams: Sequence[Team], *, has_rings: bool
) -> EpisodeLayout:
    stored = side.scene
    position = stored.position
    if side.has_units:
        position = separate_units(stored, bounds[2] - bounds[0])
    note = _describe_field(stored, has_rings=has_rings, is_moved=not np.array_equal(position, stored.position))
    if side.has_units:
        position = keep_last_position(position, stored.alive)
    values = None if side.has_units else stored.values
    return EpisodeLayout(
        title=side.title,
        scene=replace(stored, bounds=bounds, position=position, values=values, note=note),
        target=_find_living_targets(stored),
        hit=_find_hits(stored),
        death=_find_deaths(stored.alive),
        passes=find_passes(stored),
        min_radius_px=np.where(stored.team == NEUTRAL_TEAM, MIN_BALL_RADIUS_PX, MIN_RADIUS_PX),
        labels=label_units(stored),
        legend=[team for number, team in enumerate(teams) if number in stored.team],
        has_rings=has_rings,
        entries=[] if values is None else _name_entries(stored),
        levels=None if values is None else quantize_values(values),
    )


def _find_hits(scene: Scene) -> Floats:
    """Return 1 where a living unit loses health or shield in the step after the frame, [T, U]."""
    hit = np.zeros(scene.alive.shape)
    loss = (scene.health[:-1] - scene.health[1:]) + (scene.shield[:-1] - scene.shield[1:])
    hit[:-1] = (loss > _MIN_LOSS) & scene.alive[:-1]
    return hit


def _find_deaths(alive: NDArray[np.bool_]) -> Floats:
    """Return 1 where a unit dies in the step after the frame, and the remaining opacity of the ring one frame later."""
    dies = alive[:-1] & ~alive[1:]  # [T - 1, U]
    death = np.zeros(alive.shape)
    death[1:][dies] = 1 - 1 / STYLE.death_steps
    death[:-1][dies] = 1
    return death


def _find_living_targets(scene: Scene) -> NDArray[np.int16]:
    """Return the index of the unit at which each living unit aims, or -1, [T, U]."""
    if scene.target is None:
        return np.full(scene.alive.shape, -1, np.int16)
    is_valid = scene.alive & (scene.target >= 0) & (scene.target < len(scene.kind))
    return np.where(is_valid, scene.target, -1).astype(np.int16)


def _describe_field(scene: Scene, *, has_rings: bool, is_moved: bool) -> str:
    """Describe the marks that are drawn, followed by the note of the scene."""
    sentences: list[str] = []
    if has_rings and scene.position.size:
        sentences.append("Ring: health, outer ring: shield, orange: hit, growing ring: death.")
    if scene.carrier is not None:
        sentences.append("Ring: player with the ball. Arrow: pass.")
    sentences.append(scene.note)
    if is_moved:
        sentences.append(MOVED_APART)
    return " ".join(sentence for sentence in sentences if sentence)


def _name_entries(scene: Scene) -> list[str]:
    """Return the names of the state's entries from the environment, or numbers from 0."""
    n_entries = 0 if scene.values is None else scene.values.shape[1]
    if len(scene.value_names) == n_entries:
        return list(scene.value_names)
    return [f"state {k}" for k in range(n_entries)]


def _abbreviate(kinds: Iterable[str]) -> dict[str, str]:
    """Map each kind to its first letter, or to its first two letters if another kind has the same first letter.

    If there is only one kind, its abbreviation is empty.
    """
    names = list(dict.fromkeys(kinds))
    if len(names) < 2:
        return dict.fromkeys(names, "")
    first_letters = [name[:1] for name in names]
    abbreviations: dict[str, str] = {}
    for name in names:
        is_letter_unique = first_letters.count(name[:1]) == 1
        abbreviations[name] = name[:1] if is_letter_unique else name[:2]
    return abbreviations
