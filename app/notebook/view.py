"""A pinned figure: its numbers, so that it can be drawn when its run is long gone, and where it came from.

A figure ↔ plain JSON values. Every number is kept to nine digits; a missing one is null. Long curves and big clouds
are thinned, and the note beside the figure says so. Where it came from: page, URL state, the runs as they were, and
what its recipe needs; a view comes back from the database as a stranger's JSON: whatever cannot be read is dropped.
What the exports write: entries with their figures read back, and the addresses of their views.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import clock, count
from app.analysis.selection import Quantity
from app.figures.kinds import AnyFigure as Figure
from app.figures.kinds.chart import Chart, Line, Mark, Panel, Values
from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace
from emtc_core import __version__
from emtc_core.errors import EmtcError, StorageError
from storage.engine import Database
from storage.notebook import EntryRow, get_entry, get_figure
from storage.runs.rows import RunRow

PAGES = ("home", "live", "memory", "replay", "compare", "sweeps", "method", "launch")
RATED_PAGES = ("compare", "sweeps")
"""Pages whose address says which win rate runs are compared by."""
Query = dict[str, list[str]]


@dataclass(frozen=True)
class View:
    """What is known of a figure's origin."""

    page: str
    query: Query
    figure: str  # its name, which chooses the recipe
    facts: dict[str, Any]
    run_ids: tuple[str, ...]

    @property
    def address(self) -> str:
        """Path and query string, relative to the address of the app."""
        query = urlencode(self.query, doseq=True)
        path = "/" if self.page == "home" else f"/{self.page}"
        return f"{path}?{query}" if query else path


def make_view(
    *,
    page: str,
    figure: str,
    query: Mapping[str, Sequence[str]],
    runs: Sequence[RunRow],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write down where a figure is shown now, as JSON values."""
    return {
        "page": page,
        "query": {name: list(values) for name, values in query.items()},
        "figure": figure,
        "facts": dict(facts),
        "runs": [_describe(run) for run in runs],
        "code_version": __version__,
    }


def read_view(stored: Mapping[str, Any] | None) -> View | None:
    """Read a stored view; None if there is none, or its page is unknown.

    A view without `rate` of a page that has it was stored when greedy was the default: it stays greedy.
    """
    if not stored or stored.get("page") not in PAGES:
        return None
    facts, runs, query = stored.get("facts"), stored.get("runs"), _read_query(stored.get("query"))
    if stored["page"] in RATED_PAGES:
        query.setdefault("rate", ["greedy"])
    return View(
        page=str(stored["page"]),
        query=query,
        figure=str(stored.get("figure", "")),
        facts=dict(facts) if isinstance(facts, Mapping) else {},
        run_ids=tuple(str(run["id"]) for run in runs if isinstance(run, Mapping) and "id" in run)
        if isinstance(runs, list)
        else (),
    )


def describe_cited(run: Mapping[str, Any]) -> str:
    """What a cited run was, in one line."""
    code = run.get("code_version")
    text = f"{run.get('name', '')} ({run.get('id', '')}), {run.get('algo', '')} on {run.get('env', '')} "
    text += f"{run.get('map', '')}, seed {run.get('seed', '')}, at env step {run.get('env_steps', '')}"
    return f"{text}, code {code}" if code else text


def _describe(run: RunRow) -> dict[str, Any]:
    names = ("id", "name", "algo", "env", "map", "seed", "env_steps", "target_steps", "status")
    known = {name: getattr(run, name) for name in names}
    return known | {"versions": run.versions, "code_version": str(run.versions.get("emtc_lab", ""))}


def _read_query(stored: object) -> Query:
    if not isinstance(stored, Mapping):
        return {}
    lists = {str(name): value if isinstance(value, list) else [value] for name, value in stored.items()}
    return {name: [str(each) for each in values] for name, values in lists.items()}


@dataclass(frozen=True)
class Gathered:
    """One entry, complete."""

    row: EntryRow
    frozen: dict[str, Any] | None
    figure: Figure | None  # None too when this version cannot read it
    view: View | None

    @property
    def title(self) -> str:
        """The title in one line."""
        return " ".join(self.row.title.split()) or "Untitled"

    @property
    def dates(self) -> str:
        """When it was written and last changed."""
        made = f"Entry {self.row.id}, {clock(self.row.created_at)}"
        return made if self.row.updated_at == self.row.created_at else f"{made}, edited {clock(self.row.updated_at)}"

    @property
    def caption(self) -> str:
        """The figure's caption and what was left out of it."""
        parts = (self.figure.caption if self.figure else "", note_of(self.frozen or {}))
        return " ".join(part for part in parts if part)

    @property
    def origins(self) -> list[str]:
        """One line for every run that it cites."""
        return [describe_cited(run) for run in self.row.cited]


def gather(db: Database, ids: Sequence[int]) -> list[Gathered]:
    """Read entries in the given order.

    Raises:
        EntryNotFoundError: If one does not exist.
    """
    return [_gather(db, entry_id) for entry_id in ids]


def view_link(view: View, address: str | None) -> str | None:
    """Write the full address of a view, if the address of the app is known."""
    if address is None or not address.startswith(("http://", "https://")):
        return None
    return address.rstrip("/") + view.address


def _gather(db: Database, entry_id: int) -> Gathered:
    row = get_entry(db, entry_id)
    frozen = get_figure(db, entry_id)
    try:
        figure = thaw(frozen) if frozen else None
    except EmtcError:  # the text is worth exporting without its figure
        figure = None
    return Gathered(row, frozen, figure, read_view(row.view))


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
