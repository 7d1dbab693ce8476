"""A figure ↔ plain JSON values, so that a notebook entry can be drawn when its run is long gone.

Every number is kept to nine digits; a missing one is null. Long curves and big clouds are thinned, and the note
beside the figure says so.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import count
from app.analysis.selection import Quantity
from app.figures.kinds import AnyFigure as Figure
from app.figures.kinds.chart import Chart, Line, Mark, Panel, Values
from app.figures.kinds.cloud import Cloud, Maps, Trace
from app.figures.kinds.heatmap import Grid, Heatmap
from emtc_core.errors import StorageError

MOST_POINTS = 5000
"""Of a cloud."""
MOST_PER_LINE = 2000
MOST_IN_ALL_LINES = 60_000
_FEWEST_PER_LINE = 200
_DIGITS = 9
_KINDS = (Chart, Panel, Line, Mark, Cloud, Quantity, Heatmap, Grid, Maps, Trace)
_TYPES: dict[str, type] = {kind.__name__: kind for kind in _KINDS}


def freeze(figure: Figure) -> dict[str, Any]:
    """Turn a figure into JSON values: `figure`, and `note`, which says what was left out."""
    thinned, note = thin(figure)
    return {"version": 1, "note": note, "figure": _encode(thinned)}


def thaw(frozen: Mapping[str, Any]) -> Figure:
    """Make the figure again.

    Raises:
        StorageError: If this version does not understand what was frozen.
    """
    try:
        figure = _decode(frozen["figure"])
    except (KeyError, TypeError, ValueError) as exc:
        raise StorageError("This figure was frozen by another version of EMTC Lab and cannot be drawn.") from exc
    if not isinstance(figure, Figure):
        raise StorageError("This entry holds something that is no figure. Edit its text, or delete it.")
    return figure


def pack(frozen: Mapping[str, Any]) -> str:
    """Write a frozen figure as one short line of text; `unpack` reads it."""
    return base64.b64encode(zlib.compress(json.dumps(frozen).encode(), 9)).decode()


def unpack(text: str) -> dict[str, Any]:
    """Read what `pack` wrote."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def note_of(frozen: Mapping[str, Any]) -> str:
    """What was left out when the figure was frozen; empty when nothing was."""
    note = frozen.get("note")
    return note if isinstance(note, str) else ""


def thin(figure: Figure) -> tuple[Figure, str]:
    """Leave out points beyond the limits and say which."""
    if isinstance(figure, Cloud):
        return _thin_cloud(figure)
    if isinstance(figure, Maps):
        thinned = [_thin_cloud(panel) for panel in figure.panels]
        return replace(figure, panels=tuple(cloud for cloud, _ in thinned)), next(
            (note for _, note in thinned if note), ""
        )
    if isinstance(figure, Heatmap):
        return figure, ""
    lengths = [len(line.x) for _, line in figure.lines]
    most = max(_FEWEST_PER_LINE, min(MOST_PER_LINE, MOST_IN_ALL_LINES // max(1, len(lengths))))
    if max(lengths, default=0) <= most:
        return figure, ""
    panels = tuple(
        replace(panel, lines=tuple(_thin_line(line, most) for line in panel.lines)) for panel in figure.panels
    )
    note = f"Frozen with at most {count(most)} of {count(max(lengths))} points per line; extremes are kept."
    return replace(figure, panels=panels), note


def _thin_cloud(cloud: Cloud) -> tuple[Cloud, str]:
    cloud = replace(cloud, fields=())  # the picture needs its own quantity alone
    n = len(cloud.slot)
    if n <= MOST_POINTS:
        return cloud, ""
    keep = np.linspace(0, n - 1, MOST_POINTS).astype(np.int64)  # the points come in random order
    parts = {name: getattr(cloud, name)[keep] for name in ("x", "y", "slot", "value")}
    return replace(cloud, **parts), f"Frozen with {count(MOST_POINTS)} of the {count(n)} points that were shown."


def _thin_line(line: Line, most: int) -> Line:
    if len(line.x) <= most:
        return line
    keep = _extremes(line.y, most)
    low, high = (None if band is None else band[keep] for band in (line.low, line.high))
    n = line.n[keep] if isinstance(line.n, np.ndarray) else line.n
    return replace(line, x=line.x[keep], y=line.y[keep], low=low, high=high, n=n)


def _extremes(y: Values, most: int) -> NDArray[np.int64]:
    """Choose at most `most` places: both ends, and of each stretch the least and the greatest value."""
    edges = np.linspace(0, len(y), (most - 2) // 2 + 1).astype(np.int64)
    keep = [0, len(y) - 1]
    for first, end in pairwise(edges):
        part = y[first:end]
        known = np.flatnonzero(np.isfinite(part))
        if len(known):
            keep += [first + known[part[known].argmin()], first + known[part[known].argmax()]]
        else:
            keep.append(first)  # a gap stays a gap
    return np.unique(np.asarray(keep, np.int64))


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {"type": type(value).__name__} | {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": _numbers(value)}
    if isinstance(value, tuple | list):
        return [_encode(each) for each in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    return _number(value) if isinstance(value, float) else value


def _numbers(array: NDArray[Any]) -> Any:
    if array.ndim > 1:
        return [_numbers(row) for row in array]
    return [_number(each) if isinstance(each, float) else each for each in array.tolist()]


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(each) for each in value)
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        return _array(value)
    kind = _TYPES[value["type"]]
    known = {f.name for f in fields(kind)}
    return kind(**{name: _decode(part) for name, part in value.items() if name in known})


def _array(value: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(str(value["dtype"]))
    if dtype.kind == "f":
        return np.asarray(value["values"], dtype=np.float64).astype(dtype)  # None becomes NaN
    if dtype.kind not in "iub":
        raise ValueError(f"arrays hold numbers, got {dtype}")
    return np.asarray(value["values"], dtype=dtype)
