"""Where a pinned figure came from: page, URL state, the runs as they were, and what its recipe needs.

A view comes back from the database as a stranger's JSON: whatever cannot be read is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from emtc_core import __version__
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
    """Say in one line what a cited run was."""
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
