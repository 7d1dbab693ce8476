"""Convert pinned figures and their views to JSON and back, and read the entries of the notebook for export.

The button *Pin* of a figure creates an entry of the research notebook. The entry stores the figure as data, so that
it can be drawn after its run was deleted. `freeze` converts a figure to this data, and `thaw` converts it back. The
numbers have nine significant digits, and a missing number is null. Long lines and large clouds of points are thinned,
which the figure's note states.

The entry also stores the view: the page, its URL parameters, the runs at that time, and the options of the figure.
Stored views and figures can come from any author and any version, so parts that cannot be read are ignored. Exported
Jupyter notebooks import `thaw` and `unpack` from this module.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import format_count, format_time
from app.analysis.selection import NodeQuantity
from app.figures.kinds import AnyFigure as Figure
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace
from app.figures.thinning import thin_line
from app.navigation import PAGES, get_path
from emtc_core import __version__
from emtc_core.errors import EmtcError, StorageError
from storage.engine import Database
from storage.notebook import EntryRow, get_entry, get_figure
from storage.runs.rows import RunRow

Query = dict[str, list[str]]
"""URL parameters: name → values."""

MAX_POINTS = 5000
"""Maximum number of stored points of a cloud."""
MAX_POINTS_PER_LINE = 2000
"""Maximum number of stored points of a line."""
MAX_POINTS_OF_LINES = 60_000
"""Maximum number of stored points of all lines, unless `_MIN_POINTS_PER_LINE` requires more."""
_MIN_POINTS_PER_LINE = 200
_SIGNIFICANT_DIGITS = 9
_CLASSES = (Chart, Panel, Line, Mark, Cloud, NodeQuantity, Heatmap, Grid, Maps, Trace)
_CLASS_BY_NAME: dict[str, type] = {cls.__name__: cls for cls in _CLASSES}
"""Classes of stored figures. The names are part of the stored format."""
_STORED_RUN_FIELDS = ("id", "name", "algo", "env", "map", "seed", "env_steps", "target_steps", "status")
"""Fields of a run that a view stores, because the run can be deleted later."""


@dataclass(frozen=True)
class PinnedView:
    """The page on which a figure was pinned, with its URL parameters, its runs and the options of the figure."""

    page: str
    query: Query
    figure_name: str
    options: dict[str, Any]
    """Options of the figure."""
    run_ids: tuple[str, ...]

    @property
    def relative_url(self) -> str:
        """Path and query string, relative to the URL of the app."""
        query = urlencode(self.query, doseq=True)
        path = f"/{get_path(self.page)}"
        return f"{path}?{query}" if query else path


@dataclass(frozen=True)
class NotebookEntry:
    """An entry with its figure and its view. Its text, its dates and the runs that it cites are in `row`."""

    row: EntryRow
    frozen: dict[str, Any] | None
    """The figure as JSON values, as it is stored. None if the entry has no figure."""
    figure: Figure | None
    """The same figure as an object. None if the entry has no figure, or if this version cannot read it."""
    view: PinnedView | None
    figure_error: str = ""
    """Why this version cannot read the figure; empty if it can."""

    @property
    def title(self) -> str:
        """The title in one line."""
        return " ".join(self.row.title.split()) or "Untitled"

    @property
    def dates(self) -> str:
        """Number of the entry and times of its creation and last change."""
        created = f"Entry {self.row.id}, {format_time(self.row.created_at)}"
        is_edited = self.row.updated_at != self.row.created_at
        return f"{created}, edited {format_time(self.row.updated_at)}" if is_edited else created

    @property
    def caption(self) -> str:
        """The figure's caption, and the note about thinned data."""
        parts = (self.figure.caption if self.figure else "", get_note(self.frozen or {}))
        return " ".join(part for part in parts if part)

    @property
    def cited_run_lines(self) -> list[str]:
        """One line for every cited run, which describes the run."""
        return [describe_cited_run(run) for run in self.row.cited_runs]


def make_view(
    *,
    page: str,
    figure: str,
    query: Mapping[str, Sequence[str]],
    runs: Sequence[RunRow],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Make the JSON object of a view.

    Args:
        page: Name of the page.
        figure: Name of the figure.
        query: URL parameters of the page.
        runs: Runs in the figure.
        facts: Options of the figure, by name. `read_view` returns them as `PinnedView.options`.
    """
    return {
        "page": page,
        "query": {name: list(values) for name, values in query.items()},
        "figure": figure,
        "facts": json.loads(json.dumps(dict(facts)), parse_constant=lambda _: None),  # NaN is not JSON
        "runs": [
            {name: getattr(run, name) for name in _STORED_RUN_FIELDS}
            | {"versions": run.versions, "code_version": str(run.versions.get("emtc_lab", ""))}
            for run in runs
        ],
        "code_version": __version__,
    }


def read_view(stored: Mapping[str, Any] | None) -> PinnedView | None:
    """Read a stored view; None if there is none, or its page is unknown."""
    if not stored or stored.get("page") not in PAGES:
        return None
    query: Query = {}
    parameters = stored.get("query")
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            values = value if isinstance(value, list) else [value]
            query[str(name)] = [str(item) for item in values]
    options = stored.get("facts")
    run_ids: list[str] = []
    runs = stored.get("runs")
    if isinstance(runs, list):
        run_ids = [str(run["id"]) for run in runs if isinstance(run, Mapping) and "id" in run]
    return PinnedView(
        page=str(stored["page"]),
        query=query,
        figure_name=str(stored.get("figure", "")),
        options=dict(options) if isinstance(options, Mapping) else {},
        run_ids=tuple(run_ids),
    )


def make_view_url(view: PinnedView, app_url: str | None) -> str | None:
    """Return the full URL of a view; None if the URL of the app is not known or not a web address."""
    if app_url is None or not app_url.startswith(("http://", "https://")):
        return None
    return app_url.rstrip("/") + view.relative_url


def describe_cited_run(run: Mapping[str, Any]) -> str:
    """Describe a cited run in one line, as it was when the figure was pinned."""
    name_and_task = f"{run.get('name', '')} ({run.get('id', '')}), {run.get('algo', '')} on {run.get('env', '')} "
    progress = f"{run.get('map', '')}, seed {run.get('seed', '')}, at env step {run.get('env_steps', '')}"
    code_version = run.get("code_version")
    code = f", code {code_version}" if code_version else ""
    return f"{name_and_task}{progress}{code}"


def read_entries(
    db: Database, ids: Sequence[int], *, link_parameters: Mapping[str, str] | None = None
) -> list[NotebookEntry]:
    """Read entries with their figures and views, in the given order.

    Args:
        db: An open database.
        ids: The entries.
        link_parameters: URL parameters that are added to each view, for example the key of the open bundle (a file
            with exported runs).

    Raises:
        EntryNotFoundError: If an entry does not exist.
    """
    entries: list[NotebookEntry] = []
    for entry_id in ids:
        row = get_entry(db, entry_id)
        frozen = get_figure(db, entry_id)
        figure = None
        figure_error = ""
        try:
            figure = thaw(frozen) if frozen else None
        except EmtcError as exc:
            figure_error = str(exc)
        view = read_view(row.view)
        if view is not None:
            added_query = {name: [value] for name, value in (link_parameters or {}).items()}
            view = replace(view, query=view.query | added_query)
        entries.append(NotebookEntry(row, frozen, figure, view, figure_error))
    return entries


def freeze(figure: Figure) -> dict[str, Any]:
    """Thin a figure and convert it to JSON values. Their `note` states which data were omitted."""
    thinned, note = thin(figure)
    return {"version": 1, "note": note, "figure": _encode(thinned)}


def thaw(frozen: Mapping[str, Any]) -> Figure:
    """Convert the JSON values that `freeze` returned back to a figure.

    Raises:
        StorageError: If this version cannot read the values.
    """
    try:
        figure = _decode(frozen["figure"])
    except (KeyError, TypeError, ValueError) as exc:
        raise StorageError("This figure was frozen by another version of EMTC Lab and cannot be drawn.") from exc
    if not isinstance(figure, Figure):
        raise StorageError("The figure of this entry is not valid. You can edit the text, or delete the entry.")
    return figure


def pack(frozen: Mapping[str, Any]) -> str:
    """Compress a frozen figure to one line of text, which `unpack` reads."""
    return base64.b64encode(zlib.compress(json.dumps(frozen).encode(), 9)).decode()


def unpack(text: str) -> dict[str, Any]:
    """Decompress the text that `pack` returned."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def get_note(frozen: Mapping[str, Any]) -> str:
    """Return the note about omitted data of a frozen figure; empty if it is complete."""
    note = frozen.get("note")
    return note if isinstance(note, str) else ""


def thin(figure: Figure) -> tuple[Figure, str]:
    """Omit points of a figure that has more than `MAX_POINTS`, or too many per line.

    Returns:
        The figure, and a note about the omitted points. The note is empty if no point was omitted.
    """
    if isinstance(figure, Cloud):
        return _thin_cloud(figure)
    if isinstance(figure, Maps):
        clouds_and_notes = [_thin_cloud(panel) for panel in figure.panels]
        note = next((note for _, note in clouds_and_notes if note), "")
        return replace(figure, panels=tuple(cloud for cloud, _ in clouds_and_notes)), note
    if isinstance(figure, Heatmap):
        return figure, ""
    lengths = [len(line.x) for _, line in figure.panel_lines]
    longest = max(lengths, default=0)
    limit_of_all_lines = MAX_POINTS_OF_LINES // max(1, len(lengths))
    limit = max(_MIN_POINTS_PER_LINE, min(MAX_POINTS_PER_LINE, limit_of_all_lines))
    if longest <= limit:
        return figure, ""
    panels = []
    for panel in figure.panels:
        lines = tuple(thin_line(line, limit) for line in panel.lines)
        panels.append(replace(panel, lines=lines))
    note = f"Frozen with at most {format_count(limit)} of {format_count(longest)} points per line; extremes are kept."
    return replace(figure, panels=tuple(panels)), note


def _thin_cloud(cloud: Cloud) -> tuple[Cloud, str]:
    cloud = replace(cloud, fields=())  # quantities of the points that are not drawn
    n = len(cloud.x)
    if n <= MAX_POINTS:
        return cloud, ""
    # The points are in random order, so evenly spaced indices select a random sample.
    indices = np.linspace(0, n - 1, MAX_POINTS).astype(np.int64)
    arrays = {name: getattr(cloud, name)[indices] for name in ("x", "y", "slot", "value")}
    note = f"Frozen with {format_count(MAX_POINTS)} of the {format_count(n)} points that were shown."
    return replace(cloud, **arrays), note


def _encode(value: Any) -> Any:
    """Convert a value of a figure to JSON values."""
    if is_dataclass(value):
        encoded = {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **encoded}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": _encode_array(value)}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    return _encode_float(value) if isinstance(value, float) else value


def _encode_array(array: NDArray[Any]) -> Any:
    if array.ndim > 1:
        return [_encode_array(row) for row in array]
    return [_encode_float(item) if isinstance(item, float) else item for item in array.tolist()]


def _encode_float(value: float) -> float | None:
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}") if np.isfinite(value) else None


def _decode(value: Any) -> Any:
    """Convert JSON values to a value of a figure.

    Raises:
        KeyError, TypeError, ValueError: If they are not valid.
    """
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        dtype = np.dtype(str(value["dtype"]))
        if dtype.kind == "f":
            return np.asarray(value["values"], dtype=np.float64).astype(dtype)  # converts None to NaN
        if dtype.kind not in "iub":
            raise ValueError(f"an array must have numbers, got {dtype}")
        return np.asarray(value["values"], dtype=dtype)
    cls = _CLASS_BY_NAME[value["type"]]
    field_names = {field.name for field in fields(cls)}
    return cls(**{name: _decode(item) for name, item in value.items() if name in field_names})
