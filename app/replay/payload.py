"""Pack one or two episodes for the player in the browser: one bytes payload with a JSON header and arrays."""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.figures.kinds.chart import Chart, Panel
from app.figures.named.trajectories import NAMES
from app.figures.theme import AGENTS, NEUTRAL, OPPONENTS, VIRIDIS
from app.replay.layout import lay_out_fields
from app.replay.replay import EpisodeView, count_actions, join_values, quantize_values, style_actions
from emtc_core.envs.scene import Scene, find_passes

TEAMS = (("agents", AGENTS), ("opponents", OPPONENTS), ("neutral", NEUTRAL))
"""Name and color of each team."""
_TYPES = {"float32": "f4", "int32": "i4", "uint8": "u1"}

Arrays = dict[str, NDArray[np.generic]]


def pack_payload(meta: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Pack metadata and arrays.

    Args:
        meta: JSON object for the header.
        arrays: Arrays of any shape. Floats are converted to float32, integers to int32, booleans and uint8 to uint8.

    Returns:
        Length of the header (uint32, little-endian), the JSON header, and the arrays, each padded to 4 bytes.
    """
    entries, chunks, offset = [], [], 0
    for name, array in arrays.items():
        if array.dtype.name in ("bool", "uint8"):
            dtype = np.uint8
        else:
            dtype = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
        converted = np.ascontiguousarray(array, dtype=dtype)
        entries.append(
            {"name": name, "dtype": _TYPES[converted.dtype.name], "offset": offset, "size": int(converted.size)}
        )
        chunk = converted.tobytes()
        chunks.append(chunk + b"\0" * (-len(chunk) % 4))
        offset += len(chunks[-1])
    header = json.dumps({"meta": meta, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return struct.pack("<I", len(header)) + header + b"".join(chunks)


def make_payload(sides: Sequence[EpisodeView], *, start: int = 0) -> bytes:
    """Pack the frames of each episode, and the values of all episodes over one time axis.

    Args:
        sides: One or two episodes.
        start: First frame that is shown.
    """
    chart = join_values(list(sides))
    frames = max(side.frames for side in sides)
    arrays: Arrays = {"t": np.arange(max(0, frames - 1), dtype=np.float32)}
    has_damage = any(bool((side.scene.health < 1).any()) for side in sides)
    titles = " Compared with: ".join(side.title for side in sides)
    unit_counts = " and ".join(str(len(side.scene.kind)) for side in sides)
    meta: dict[str, object] = {
        "frames": frames,
        "start": max(0, min(start, frames - 1)),
        "sides": [
            _pack_side(side, scene, number, arrays, bounds, has_rings=has_damage)
            for number, (side, (scene, bounds)) in enumerate(zip(sides, lay_out_fields(sides), strict=True))
        ],
        "teams": [{"name": name, "color": color} for name, color in list_teams(sides)],
        "panels": _pack_panels(chart, sides, arrays),
        "names": list(NAMES[: len(sides)]) if len(sides) > 1 else [""],
        "ramp": list(VIRIDIS),
        "alt": f"{titles}. Replay of {frames - 1} steps with {unit_counts} units. Space plays and pauses, arrows step.",
    }
    digest = hashlib.sha1(repr(sorted(meta.items())).encode(), usedforsecurity=False)
    for name, array in arrays.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    # the player keeps its position if it gets a payload with the same key again
    return pack_payload(meta | {"key": digest.hexdigest()}, arrays)


def list_teams(sides: Sequence[EpisodeView]) -> list[tuple[str, str]]:
    """List name and color of each team. Neutral units are named after their kind if they all have the same kind."""
    units = [unit for side in sides for unit in zip(side.scene.kind, side.scene.team.tolist(), strict=True)]
    neutral_kinds = {kind for kind, team in units if team == 2}
    neutral = neutral_kinds.pop() if len(neutral_kinds) == 1 else "neutral"
    return [*TEAMS[:2], (neutral, TEAMS[2][1])]


def name_entries(scene: Scene) -> list[str]:
    """Return the names of the state's entries from the environment, or numbers from 0."""
    size = 0 if scene.values is None else scene.values.shape[1]
    return list(scene.value_names) if len(scene.value_names) == size else [f"state {k}" for k in range(size)]


def label_units(scene: Scene) -> list[str]:
    """Number the agents from 0, as in the method, and also the opponents. Neutral units get an empty label.

    In a team of several kinds, the label begins with the first letters of the kind: "s0", "z1".
    """
    teams = scene.team.tolist()
    counts = {0: 0, 1: 0, 2: 0}
    prefixes = {
        team: _abbreviate(kind for kind, unit_team in zip(scene.kind, teams, strict=True) if unit_team == team)
        for team in counts
    }
    labels: list[str] = []
    for kind, team in zip(scene.kind, teams, strict=True):
        labels.append("" if team == 2 else f"{prefixes[team][kind]}{counts[team]}")
        counts[team] += 1
    return labels


def describe_field(scene: Scene, *, has_rings: bool) -> str:
    """Describe the marks of the units, followed by the note of the scene. Only the note for a scene without units."""
    marks: list[str] = []
    if has_rings and scene.position.size:
        marks.append("Ring: health, outer ring: shield, orange: hit, growing ring: death.")
    if scene.carrier is not None:
        marks.append("Ring: player with the ball. Arrow: pass.")
    return " ".join([*marks, scene.note]).strip()


def _abbreviate(kinds: Iterable[str]) -> dict[str, str]:
    """Map each kind to its first letter, or to its first two letters if another kind has the same first letter."""
    names = list(dict.fromkeys(kinds))
    if len(names) < 2:
        return dict.fromkeys(names, "")
    first = [name[:1] for name in names]
    return {name: name[: 1 + (first.count(name[:1]) > 1)] for name in names}


def _pack_side(
    side: EpisodeView, scene: Scene, number: int, arrays: Arrays, bounds: list[float], *, has_rings: bool
) -> dict[str, object]:
    """Add the arrays of an episode to `arrays`, named by its number; return its metadata.

    Args:
        side: The episode.
        scene: The scene of the episode, with the positions at which its units are drawn.
        number: Number of the episode, 0 or 1.
        arrays: Gets the arrays.
        bounds: Visible part of the field, x0, y0, x1, y1 [field units].
        has_rings: Whether rings of health and shield are drawn.
    """
    side_arrays: Arrays = {
        "position": scene.position,
        "health": scene.health,
        "shield": scene.shield,
        "alive": scene.alive,
        "radius": scene.radius,
    }
    if scene.target is not None:
        side_arrays["target"] = scene.target.astype(np.int32)
    if scene.reach is not None:
        side_arrays["reach"] = scene.reach
    if scene.carrier is not None:
        side_arrays["carrier"] = scene.carrier.astype(np.int32)
        side_arrays["passes"] = find_passes(scene)
    if scene.walkable is not None:
        side_arrays["walkable"] = scene.walkable
    if scene.markings is not None:
        side_arrays["markings"] = scene.markings
    values = None if side.has_units else scene.values
    if values is not None:
        side_arrays["values"] = np.asarray(values, np.float32)
        side_arrays["levels"] = quantize_values(values)
    if side.actions is not None:
        side_arrays["action"] = side.actions.astype(np.int32)
    arrays |= {f"{number}-{name}": array for name, array in side_arrays.items()}
    return {
        "title": side.title,
        "rings": has_rings,
        "frames": side.frames,
        "units": scene.health.shape[1],
        "bounds": bounds,
        "team": scene.team.astype(int).tolist(),
        "kind": list(scene.kind),
        "labels": label_units(scene),
        "cells": list(scene.walkable.shape) if scene.walkable is not None else None,
        "note": describe_field(scene, has_rings=has_rings),
        "entries": [] if values is None else name_entries(scene),
        "actions": [vars(style) for style in style_actions(side.action_names, count_actions(side))],
        "agents": 0 if side.actions is None else side.actions.shape[1],
    }


def _pack_panels(chart: Chart, sides: Sequence[EpisodeView], arrays: Arrays) -> list[dict[str, object]]:
    """Add the lines of all panels to `arrays`; return the metadata of the panels."""
    panels = [_pack_panel(panel, number, arrays) for number, panel in enumerate(chart.panels)]
    if any(count_actions(side) for side in sides):
        panels.append({"title": "actions", "unit": "", "kind": "actions", "lines": []})
    return panels


def _pack_panel(panel: Panel, number: int, arrays: Arrays) -> dict[str, object]:
    lines: list[dict[str, object]] = []
    for i, line in enumerate(panel.lines):
        name = f"line-{number}-{i}"
        arrays[name] = line.y
        lines.append(
            {
                "name": line.name,
                "label": panel.title,  # no legend: the titles and the teams above have the same dashes and colors
                "color": line.color,
                "dash": list(line.dash) if line.dash else None,
                "side": NAMES.index(line.group) if line.group in NAMES else 0,
                "array": name,
            }
        )
    return {
        "title": panel.title,
        "unit": panel.unit,
        "kind": "lines",
        "range": list(panel.range) if panel.range else None,
        "zero": panel.from_zero,
        "lines": lines,
    }
