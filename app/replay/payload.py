"""One or two episodes → the bytes that the player in the browser reads, once.

Pack arrays with a JSON header into the one bytes payload that a canvas component takes.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.figures.kinds.chart import Chart, Panel
from app.figures.named.trajectories import NAMES
from app.figures.theme import AGENTS, NEUTRAL, OPPONENTS, VIRIDIS
from app.replay.replay import Side, count_actions, join_values, level_picture, level_values, show_actions
from emtc_core.envs.base import Scene

_TYPES = {"float32": "f4", "int32": "i4", "uint8": "u1"}


def pack_payload(meta: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Pack a header and float, integer or boolean arrays (sent as float32, int32, uint8); bytes stay bytes."""
    entries, chunks, offset = [], [], 0
    for name, array in arrays.items():
        narrow = _narrow(array)
        entries.append({"name": name, "dtype": _TYPES[narrow.dtype.name], "offset": offset, "size": int(narrow.size)})
        chunk = narrow.tobytes()
        chunks.append(chunk + b"\0" * (-len(chunk) % 4))
        offset += len(chunks[-1])
    header = json.dumps({"meta": meta, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return struct.pack("<I", len(header)) + header + b"".join(chunks)


def _narrow(array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.dtype.name in ("bool", "uint8"):
        return np.ascontiguousarray(array, dtype=np.uint8)
    kind = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
    return np.ascontiguousarray(array, dtype=kind)


MARGIN = 2.5
"""Field units around the outermost unit."""
SMALLEST_REACH = np.array([7.0, 4.0])
ASPECT, WIDEST = 1.5, 2.2
"""Width over height, at least and at most."""
TEAMS = (("agents", AGENTS), ("opponents", OPPONENTS), ("neutral", NEUTRAL))

Arrays = dict[str, NDArray[np.generic]]


def make_payload(sides: Sequence[Side], *, start: int = 0) -> bytes:
    """Pack the frames of each side, and the values of all of them over one time axis."""
    chart = join_values(list(sides))
    arrays: Arrays = {"t": np.arange(max(0, max(side.frames for side in sides) - 1), dtype=np.float32)}
    frames = max(side.frames for side in sides)
    seen = enumerate(zip(sides, frame_sides(sides), strict=True))
    hurt = any(bool((side.scene.health < 1).any()) for side in sides)
    described = " Beside it: ".join(side.title for side in sides)
    meta: dict[str, object] = {
        "frames": frames,
        "start": max(0, min(start, frames - 1)),
        "sides": [_pack_side(side, number, arrays, bounds) | {"bars": hurt} for number, (side, bounds) in seen],
        "teams": [{"name": name, "color": color} for name, color in name_teams(sides)],
        "panels": _pack_panels(chart, sides, arrays),
        "names": list(NAMES[: len(sides)]) if len(sides) > 1 else [""],
        "ramp": list(VIRIDIS),
        "alt": f"{described}. Replay of {frames - 1} steps with {_count_units(sides)}. "
        "Space plays and pauses, arrows step.",
    }
    return pack_payload(meta | {"key": _fingerprint(meta, arrays)}, arrays)


def name_teams(sides: Sequence[Side]) -> list[tuple[str, str]]:
    """The teams' names with their colours; who belongs to none by what it is, where all of these are the same."""
    units = [unit for side in sides for unit in zip(side.scene.kind, side.scene.team.tolist(), strict=True)]
    kinds = {kind for kind, team in units if team == 2}
    neutral = kinds.pop() if len(kinds) == 1 else "neutral"
    return [*TEAMS[:2], (neutral, TEAMS[2][1])]


def _fingerprint(meta: dict[str, object], arrays: Arrays) -> str:
    """A digest of this content, so that the same payload once more leaves the cursor where it is."""
    found = hashlib.sha1(repr(sorted(meta.items())).encode(), usedforsecurity=False)
    for name, array in arrays.items():
        found.update(name.encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _count_units(sides: Sequence[Side]) -> str:
    counts = [len(side.scene.kind) for side in sides]
    return f"{' and '.join(map(str, counts))} units"


def _pack_side(side: Side, number: int, arrays: Arrays, bounds: list[float]) -> dict[str, object]:
    scene = side.scene
    own: Arrays = {
        "position": scene.position,
        "health": scene.health,
        "shield": scene.shield,
        "alive": scene.alive,
        "radius": scene.radius,
    }
    if scene.target is not None:
        own["target"] = scene.target.astype(np.int32)
    if scene.walkable is not None:
        own["walkable"] = scene.walkable
    if scene.markings is not None:
        own["markings"] = scene.markings
    values = None if side.has_units else scene.values
    if values is not None:
        own["values"] = np.asarray(values, np.float32)
        own["levels"] = level_values(values)
        if scene.picture:
            own["pixels"] = level_picture(values, scene.picture)
    if side.actions is not None:
        own["action"] = side.actions.astype(np.int32)
    arrays |= {f"{number}-{name}": array for name, array in own.items()}
    return {
        "title": side.title,
        "frames": side.frames,
        "units": scene.health.shape[1],
        "bounds": bounds,
        "team": scene.team.astype(int).tolist(),
        "kind": list(scene.kind),
        "labels": label_units(scene),
        "cells": list(scene.walkable.shape) if scene.walkable is not None else None,
        "note": scene.note,
        "picture": list(scene.picture) if "pixels" in own else None,
        "entries": [] if values is None else name_entries(scene),
        "actions": [vars(action) for action in show_actions(side.action_names, count_actions(side))],
        "agents": 0 if side.actions is None else side.actions.shape[1],
    }


def name_entries(scene: Scene) -> list[str]:
    """Names of the state's entries, the environment's or numbers from 0."""
    size = 0 if scene.values is None else scene.values.shape[1]
    return list(scene.value_names) if len(scene.value_names) == size else [f"state {k}" for k in range(size)]


def _pack_panels(chart: Chart, sides: Sequence[Side], arrays: Arrays) -> list[dict[str, object]]:
    packed = [_pack_panel(panel, number, arrays, pair=len(sides) > 1) for number, panel in enumerate(chart.panels)]
    if any(count_actions(side) for side in sides):
        packed.append({"title": "actions", "unit": "", "kind": "actions", "lines": []})
    return packed


def _pack_panel(panel: Panel, number: int, arrays: Arrays, *, pair: bool) -> dict[str, object]:
    lines: list[dict[str, object]] = []
    for i, line in enumerate(panel.lines):
        name = f"line-{number}-{i}"
        arrays[name] = line.y
        lines.append(
            {
                "name": line.name,
                "label": panel.title if pair else "",  # no legend in each panel: the titles above show both looks
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


def frame_sides(sides: Sequence[Side]) -> list[list[float]]:
    """Crop the field of each side; episodes on the same field show the same part of it, so that places compare."""
    scenes = [side.scene for side in sides]
    if len({(scene.bounds, scene.title) for scene in scenes}) == 1 and all(side.has_units for side in sides):
        together = np.concatenate([scene.position.reshape(-1, 2) for scene in scenes])
        return [_crop(together, scenes[0].bounds)] * len(scenes)
    return [visible_bounds(scene) for scene in scenes]


def visible_bounds(scene: Scene) -> list[float]:
    """Crop the field to where this episode takes place, with a margin, so that units are as large as possible."""
    return _crop(scene.position.reshape(-1, 2), scene.bounds)


def _crop(seen: NDArray[np.float32], bounds: tuple[float, float, float, float]) -> list[float]:
    low, high = np.array(bounds[:2], float), np.array(bounds[2:], float)
    if not len(seen):
        return [float(edge) for edge in bounds]  # a scene that nobody can draw has no units
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    reach = np.maximum((seen.max(axis=0) - seen.min(axis=0)) / 2 + MARGIN, SMALLEST_REACH)
    reach[0] = max(reach[0], reach[1] * ASPECT)
    reach[1] = max(reach[1], reach[0] / WIDEST)
    from_, to = centre - reach, centre + reach
    from_ += np.maximum(low - from_, 0) - np.maximum(to - high, 0)  # moved inside the field where it juts out
    to = from_ + 2 * reach
    return [float(edge) for edge in (*np.maximum(from_, low), *np.minimum(to, high))]


def label_units(scene: Scene) -> list[str]:
    """Number the agents as the method does, from 0, and the opponents likewise."""
    seen = {0: 0, 1: 0, 2: 0}
    labels: list[str] = []
    for team in scene.team.tolist():
        labels.append("" if team == 2 else str(seen[team]))
        seen[team] += 1
    return labels
