"""Cached curves of several runs together, those of opened bundles beside one's own. Shared values: never mutate.

A run of a bundle is `id@key` here, and its configuration says where it is from: so it never joins the seeds of one's
own variant, and every legend, table and exported file names its origin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import streamlit as st

from app.analysis.compared import ComparedRuns, combine_curves
from app.analysis.quantities import AUTO, Quantity, RateName, find_quantity, get_success_threshold
from app.analysis.rates import RatedSeeds
from app.analysis.series import SeedRun, make_seeds, read_seeds
from app.analysis.settings import ORIGIN
from app.ui import data, view
from emtc_core.metrics import sort_metrics
from storage.bundles.bundle_cache import Bundle
from storage.queries import curves as stored_curves
from storage.queries import runs
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow


def read_compared(run_ids: Sequence[str], quantity: str, rate: RateName = AUTO) -> ComparedRuns:
    """Read the curves of several runs; at most five seconds old. One statement for each curve table of a database.

    The default win rate of a task is chosen over its runs of all databases together.

    Args:
        run_ids: The runs, of this database and of opened bundles.
        quantity: Key of the quantity that is drawn.
        rate: The win rate by which the runs are compared.
    """
    parts = [_read_evaluations(*source) for source in _addresses(run_ids)]
    rows = {run_id: row for part in parts for run_id, row in part.rows.items()}
    greedy = [seed for part in parts for seed in part.greedy]
    return combine_curves(rows, greedy, partial(_read_curves, run_ids), quantity=quantity, rate=rate)


@dataclass(frozen=True)
class _Part:
    """The runs of one database: as stored, with their evaluations; and as they are compared, with greedy win rates."""

    stored: list[RunRow]
    evaluations: pd.DataFrame
    rows: dict[str, RunRow]
    greedy: list[SeedRun]


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_evaluations(url: str, run_ids: tuple[str, ...], key: str, name: str) -> _Part:
    db = data.open_url(url)
    rows = runs.get_rows(db, run_ids)
    frame = stored_curves.evaluation_curves(db, [row.id for row in rows])
    marked = [_mark_row(row, key, name) for row in rows]
    return _Part(rows, frame, {row.id: row for row in marked}, _mark(make_seeds(rows, frame), key, name))


def _read_curves(run_ids: Sequence[str], quantity: Quantity) -> RatedSeeds:
    seeds = [seed for source in _addresses(run_ids) for seed in _read_part(*source, quantity.key)]
    return RatedSeeds(seeds, quantity)


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_part(url: str, run_ids: tuple[str, ...], key: str, name: str, quantity: str) -> list[SeedRun]:
    part, drawn = _read_evaluations(url, run_ids, key, name), find_quantity(quantity)
    if drawn.is_evaluation:
        return _mark(make_seeds(part.stored, part.evaluations, drawn), key, name)
    return _mark(read_seeds(data.open_url(url), part.stored, drawn), key, name)


def _mark(seeds: list[SeedRun], key: str, name: str) -> list[SeedRun]:
    """Mark the runs of a bundle as such, wherever they go from here."""
    if not key:
        return seeds
    return [replace(seed, id=view.address(seed.id, key), settings={**seed.settings, ORIGIN: name}) for seed in seeds]


def _mark_row(row: RunRow, key: str, name: str) -> RunRow:
    if not key:
        return row
    config = {**row.config, ORIGIN: name}
    return replace(row, id=view.address(row.id, key), name=f"{row.name} · {name}", config=config)


def shared_metrics(run_ids: Sequence[str]) -> list[str]:
    """List every number that any of these runs logged."""
    logged = {name for url, _, ids in _sources(run_ids) for name in _shared_metrics(url, tuple(ids))}
    return sort_metrics(logged)


@st.cache_data(ttl=5, show_spinner=False)
def _shared_metrics(url: str, run_ids: tuple[str, ...]) -> list[str]:
    return stored_curves.list_logged_metrics(data.open_url(url), run_ids)


def decided_by_return(run_ids: Sequence[str]) -> bool:
    """Whether in every one of these runs the return decides what a success is."""
    rules = [_are_decided_by_return(url, tuple(ids)) for url, _, ids in _sources(run_ids) if ids]
    return bool(rules) and all(rules)


@st.cache_data(ttl=5, show_spinner=False)
def _are_decided_by_return(url: str, run_ids: tuple[str, ...]) -> bool:
    configs = runs.run_configs(data.open_url(url), run_ids).values()
    return bool(configs) and all(get_success_threshold(config) is not None for config in configs)


def names_beside(run_ids: Sequence[str]) -> dict[str, str]:
    """Names of those of these runs that are in bundles, by `id@key`."""
    found: dict[str, str] = {}
    for url, bundle, ids in _sources(run_ids):
        if bundle is not None:
            names = data.names_in(url, ids)
            found |= {
                view.address(run_id, bundle.key): _name(names[run_id], bundle) for run_id in ids if run_id in names
            }
    return found


def runs_beside(bundle: Bundle, wanted: RunFilter) -> dict[str, str]:
    """Names of the runs of a bundle that match, by `id@key`, newest first."""
    names, _ = runs.run_names(data.open_url(bundle.url), wanted, limit=None)
    return {view.address(run_id, bundle.key): _name(name, bundle) for run_id, name in names.items()}


def _name(name: str, bundle: Bundle) -> str:
    return f"{name} · {bundle.name}"


def _addresses(run_ids: Sequence[str]) -> list[tuple[str, tuple[str, ...], str, str]]:
    """List the URL of each database, its runs, and the key and the name of its bundle; empty texts for one's own."""
    return [
        (url, tuple(ids), found.key if found else "", found.name if found else "")
        for url, found, ids in _sources(run_ids)
    ]


def _sources(run_ids: Sequence[str]) -> Iterator[tuple[str, Bundle | None, list[str]]]:
    """Find the database of each part of the runs; those of a bundle that is not here are left out."""
    parts = view.split(run_ids)
    yield data.database_url(), None, parts.pop("", [])
    for key, ids in parts.items():
        if (found := view.find(key)) is not None:
            yield found.url, found, ids
