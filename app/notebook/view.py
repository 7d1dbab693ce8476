"""Where a pinned figure came from: page, URL state, the runs as they were, and what its recipe needs.

A view comes back from the database as a stranger's JSON: whatever cannot be read is dropped.

What the exports write: entries with their figures read back, and the addresses of their views.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from app.analysis.format import clock
from app.notebook.frozen import Figure, note_of, thaw
from emtc_core import __version__
from emtc_core.errors import EmtcError
from storage.engine import Database
from storage.notebook import EntryRow, get_entry, get_figure
from storage.runs.rows import RunRow

PAGES = ("home", "live", "memory", "replay", "compare", "sweeps", "method", "launch")
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
    """Read a stored view; None if there is none, or its page is unknown."""
    if not stored or stored.get("page") not in PAGES:
        return None
    facts, runs = stored.get("facts"), stored.get("runs")
    return View(
        page=str(stored["page"]),
        query=_read_query(stored.get("query")),
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
