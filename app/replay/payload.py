"""Pack one or two episodes for the player in the browser: one `bytes` value with a JSON header and arrays.

An episode of the player is called a side. Its layout contains positions and marks, computed by `layout`.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.figures.named.trajectories import EPISODE_NAMES
from app.figures.theme import VIRIDIS
from app.replay.layout import STYLE, EpisodeLayout, lay_out_episodes, list_teams
from app.replay.replay import EpisodeView, count_actions, join_values, list_action_groups, style_actions

_BROWSER_DTYPES = {"float32": "f4", "int32": "i4", "uint8": "u1"}
"""Names of data types in NumPy → in the scripts of the player."""

Arrays = dict[str, NDArray[np.generic]]
Meta = dict[str, Any]


def make_payload(sides: Sequence[EpisodeView], *, start: int = 0) -> bytes:
    """Pack the layout of each episode, and the values of all episodes over one time axis.

    Args:
        sides: One or two episodes.
        start: First frame that is shown.
    """
    n_frames = max(side.frames for side in sides)
    arrays: Arrays = {}
    layouts = lay_out_episodes(sides)
    panels = join_values(sides).to_component()["panels"]
    if any(count_actions(side) for side in sides):
        panels.append({"title": "actions", "unit": "", "kind": "actions", "lines": []})
    titles = " Compared with: ".join(side.title for side in sides)
    unit_counts = " and ".join(str(layout.units) for layout in layouts)
    meta: Meta = {
        "frames": n_frames,
        "start": max(0, min(start, n_frames - 1)),
        "sides": [
            _pack_side(side, layout, number, arrays)
            for number, (side, layout) in enumerate(zip(sides, layouts, strict=True))
        ],
        "teams": [team._asdict() for team in list_teams(sides)],
        "style": vars(STYLE),
        "action_groups": list_action_groups(sides),
        "panels": panels,
        "names": list(EPISODE_NAMES[: len(sides)]) if len(sides) > 1 else [""],
        "ramp": list(VIRIDIS),
        "alt": f"{titles}. Replay of {n_frames - 1} steps with {unit_counts} units. "
        "Space plays and pauses, arrows step.",
    }
    # The player keeps its position if it gets a payload with the same key again.
    key = hashlib.sha1(pack_payload(meta, arrays), usedforsecurity=False).hexdigest()
    return pack_payload(meta | {"key": key}, arrays)


def pack_payload(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Pack metadata and arrays.

    Args:
        meta: JSON object for the header.
        arrays: Arrays of any shape. Floats are converted to float32, integers to int32, booleans and uint8 to uint8.

    Returns:
        Length of the header (uint32, little-endian), the JSON header, and the arrays, each padded to 4 bytes.
    """
    entries: list[Meta] = []
    chunks: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        if array.dtype.name in ("bool", "uint8"):
            dtype = np.uint8
        else:
            dtype = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
        converted = np.ascontiguousarray(array, dtype=dtype)
        browser_dtype = _BROWSER_DTYPES[converted.dtype.name]
        entries.append({"name": name, "dtype": browser_dtype, "offset": offset, "size": int(converted.size)})
        content = converted.tobytes()
        padding = b"\0" * (-len(content) % 4)
        chunks.append(content + padding)
        offset += len(content) + len(padding)
    header = json.dumps({"meta": meta, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)  # padding to 4 bytes
    return struct.pack("<I", len(header)) + header + b"".join(chunks)


def _pack_side(side: EpisodeView, layout: EpisodeLayout, number: int, arrays: Arrays) -> Meta:
    """Add the arrays of an episode to `arrays`, named "<number of the side>-<name>"; return its other values."""
    scene = layout.scene
    values: dict[str, Any] = vars(scene) | vars(layout)
    del values["scene"]
    values |= {
        "action": side.actions,
        "actions": [vars(style) for style in style_actions(side.action_names, count_actions(side))],
        "agents": 0 if side.actions is None else side.actions.shape[1],
        "frames": layout.frames,
        "units": layout.units,
        "cells": None if scene.walkable is None else scene.walkable.shape,
        "legend": [team._asdict() for team in layout.legend],
    }
    meta: Meta = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[f"{number}-{name}"] = value
        else:
            meta[name] = value
    return meta
