"""An episode on the field with its values under the same time cursor; the data are sent once."""

import hashlib

import numpy as np
import streamlit as st
from streamlit.components.v2 import component

from app.components.assets import read_asset, read_script
from app.components.packing import pack_payload
from app.figures.chart import Chart
from app.format import escape_markdown
from app.theme import AGENTS, NEUTRAL, OPPONENTS
from emtc_core.envs.base import Scene

_playback = component(
    "emtc_lab_playback",
    html=read_asset("playback.html"),
    css=read_asset("playback.css"),
    js=read_script("playback.js"),
)
MARGIN = 2.5
"""Field units around the outermost unit."""
SMALLEST_REACH = np.array([7.0, 4.0])
ASPECT, WIDEST = 1.5, 2.2
"""Width over height, at least and at most."""
_TEAMS = (("agents", AGENTS), ("opponents", OPPONENTS), ("ball", NEUTRAL))


def show(scene: Scene, chart: Chart, *, key: str, start: int = 0, title: str = "") -> None:
    """Draw the episode, first frame `start`; the lines of `chart` share its time axis."""
    if not scene.position.size and scene.note:
        st.info(escape_markdown(scene.note), icon=":material/visibility_off:")  # why nothing can be drawn
    payload = make_payload(scene, chart, start=start, title=title)
    _playback(key=key, data=payload)


def make_payload(scene: Scene, chart: Chart, *, start: int, title: str) -> bytes:
    """Pack frames and lines for the browser."""
    frames, units = scene.health.shape
    arrays: dict[str, np.ndarray] = {
        "position": scene.position,
        "health": scene.health,
        "shield": scene.shield,
        "alive": scene.alive,
        "radius": scene.radius,
        "t": np.arange(max(0, frames - 1), dtype=np.float32),
    }
    if scene.target is not None:
        arrays["target"] = scene.target.astype(np.int32)
    if scene.walkable is not None:
        arrays["walkable"] = scene.walkable
    if scene.markings is not None:
        arrays["markings"] = scene.markings
    panels = []
    for p, panel in enumerate(chart.panels):
        lines = []
        for i, line in enumerate(panel.lines):
            arrays[f"line-{p}-{i}"] = line.y
            lines.append({"name": line.name, "color": line.color, "array": f"line-{p}-{i}"})
        panels.append(
            {
                "title": panel.title,
                "unit": panel.unit,
                "range": list(panel.range) if panel.range else None,
                "zero": panel.from_zero,
                "lines": lines,
            }
        )
    meta = {
        "frames": frames,
        "units": units,
        "start": max(0, min(start, frames - 1)),
        "bounds": visible_bounds(scene),
        "team": scene.team.astype(int).tolist(),
        "kind": list(scene.kind),
        "labels": _labels(scene),
        "teams": [{"name": name, "color": color} for name, color in _TEAMS],
        "cells": list(scene.walkable.shape) if scene.walkable is not None else None,
        "bars": bool((scene.health < 1).any()),
        "note": scene.note,
        "panels": panels,
        "alt": f"{title}. Replay of {frames - 1} steps with {units} units. Space plays and pauses, arrows step.",
    }
    fingerprint = hashlib.sha1(scene.position.tobytes() + str(start).encode(), usedforsecurity=False)
    return pack_payload(meta | {"key": fingerprint.hexdigest()}, arrays)


def visible_bounds(scene: Scene) -> list[float]:
    """Crop the field to where this episode takes place, with a margin, so that units are as large as possible."""
    low, high = np.array(scene.bounds[:2], float), np.array(scene.bounds[2:], float)
    seen = scene.position.reshape(-1, 2)
    if not len(seen):
        return [float(edge) for edge in scene.bounds]  # a scene that nobody can draw has no units
    centre = (seen.min(axis=0) + seen.max(axis=0)) / 2
    reach = np.maximum((seen.max(axis=0) - seen.min(axis=0)) / 2 + MARGIN, SMALLEST_REACH)
    reach[0] = max(reach[0], reach[1] * ASPECT)
    reach[1] = max(reach[1], reach[0] / WIDEST)
    from_, to = centre - reach, centre + reach
    from_ += np.maximum(low - from_, 0) - np.maximum(to - high, 0)  # moved inside the field where it juts out
    to = from_ + 2 * reach
    return [float(edge) for edge in (*np.maximum(from_, low), *np.minimum(to, high))]


def _labels(scene: Scene) -> list[str]:
    """Number the agents as the method does, from 0, and the opponents likewise."""
    seen = {0: 0, 1: 0, 2: 0}
    labels = []
    for team in scene.team.tolist():
        labels.append("" if team == 2 else str(seen[team]))
        seen[team] += 1
    return labels
