"""Cached curves of several runs, of the user's database and of opened bundles. Do not mutate cached values.

A run of a bundle has the id `id@key`, and its settings contain the name of the bundle. It is therefore never grouped
with the seeds of the user's own variant, and every legend, table and exported file names the bundle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import streamlit as st

from app.analysis.aggregates import Curve
from app.analysis.compared import ComparedRuns, combine_curves
from app.analysis.quantities import AUTO, Quantity, RateName, find_quantity, get_success_threshold
from app.analysis.rates import RatedSeeds
from app.analysis.series import SeedRun, make_seeds, read_seeds
from app.analysis.settings import ORIGIN
from app.analysis.x_axes import X_AXES, XAxisName, XValues, read_x_values
from app.ui import data, view
from emtc_core.metrics import sort_metrics
from storage.bundles.bundle_cache import Bundle
from storage.queries import curves as stored_curves
from storage.queries import run_search, runs
from storage.queries.run_search import RunFilter
from storage.runs.rows import RunRow


def read_compared(
    run_ids: Sequence[str], quantity: str, rate: RateName = AUTO, x_axis: XAxisName = "env_steps"
) -> ComparedRuns:
    """Read the curves of several runs, cached for 5 s, with one SQL statement per database and curve table.

    The automatic win rate of a task depends on its runs in all databases.

    Args:
        run_ids: Runs of this database and of opened bundles.
        quantity: Key of the drawn quantity: a win rate, its time average, another evaluated quantity, or a metric.
        rate: The win rate by which runs are compared.
        x_axis: The x axis of the drawn curves.
    """
    sources = _list_sources(run_ids)
    parts = [_read_evaluations(*source) for source in sources]
    rows = {run_id: row for part in parts for run_id, row in part.rows.items()}
    greedy = [seed for part in parts for seed in part.greedy]
    compared = combine_curves(rows, greedy, partial(_read_curves, run_ids), quantity=quantity, rate=rate)
    if x_axis == "env_steps":
        return compared
    x_curves: dict[str, Curve] = {}
    for source in sources:
        x_curves |= _read_x_curves(*source, x_axis)
    return replace(compared, x=XValues(X_AXES[x_axis], x_curves))


@dataclass(frozen=True)
class _Part:
    """The runs of one database: as stored, with their evaluations; and marked with the bundle, with greedy curves."""

    stored: list[RunRow]
    evaluations: pd.DataFrame
    rows: dict[str, RunRow]
    greedy: list[SeedRun]


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_evaluations(url: str, run_ids: tuple[str, ...], key: str, name: str) -> _Part:
    db = data.open_url(url)
    rows = runs.get_rows(db, run_ids)
    frame = stored_curves.evaluation_curves(db, [row.id for row in rows])
    marked_rows = [_mark_row(row, key, name) for row in rows]
    greedy = _mark_seeds(make_seeds(rows, frame), key, name)
    return _Part(rows, frame, {row.id: row for row in marked_rows}, greedy)


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_x_curves(url: str, run_ids: tuple[str, ...], key: str, name: str, x_axis: XAxisName) -> dict[str, Curve]:
    rows = _read_evaluations(url, run_ids, key, name).stored
    curves = read_x_values(data.open_url(url), rows, x_axis).curves or {}
    return {view.name_bundle_run(run_id, key) if key else run_id: curve for run_id, curve in curves.items()}


def _read_curves(run_ids: Sequence[str], quantity: Quantity) -> RatedSeeds:
    seeds = [seed for source in _list_sources(run_ids) for seed in _read_part(*source, quantity.key)]
    return RatedSeeds(seeds, quantity)


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_part(url: str, run_ids: tuple[str, ...], key: str, name: str, quantity: str) -> list[SeedRun]:
    part, curve = _read_evaluations(url, run_ids, key, name), find_quantity(quantity)
    if curve.is_evaluation:
        return _mark_seeds(make_seeds(part.stored, part.evaluations, curve), key, name)
    return _mark_seeds(read_seeds(data.open_url(url), part.stored, curve), key, name)


def _mark_seeds(seeds: list[SeedRun], key: str, name: str) -> list[SeedRun]:
    """Add the key of the bundle to the ids and its name to the settings; the user's own runs have an empty key."""
    if not key:
        return seeds
    return [
        replace(seed, id=view.name_bundle_run(seed.id, key), settings={**seed.settings, ORIGIN: name}) for seed in seeds
    ]


def _mark_row(row: RunRow, key: str, name: str) -> RunRow:
    if not key:
        return row
    config = {**row.config, ORIGIN: name}
    return replace(row, id=view.name_bundle_run(row.id, key), name=f"{row.name} · {name}", config=config)


def shared_metrics(run_ids: Sequence[str]) -> list[str]:
    """List the metrics that at least one of these runs recorded."""
    names = {name for url, _, ids in _split_by_database(run_ids) for name in _list_metrics(url, tuple(ids))}
    return sort_metrics(names)


@st.cache_data(ttl=5, max_entries=32, show_spinner=False)
def _list_metrics(url: str, run_ids: tuple[str, ...]) -> list[str]:
    return stored_curves.list_logged_metrics(data.open_url(url), run_ids)


def decided_by_return(run_ids: Sequence[str]) -> bool:
    """Return whether success is defined by the return in all of these runs."""
    rules = [_are_decided_by_return(url, tuple(ids)) for url, _, ids in _split_by_database(run_ids) if ids]
    return bool(rules) and all(rules)


@st.cache_data(ttl=5, max_entries=32, show_spinner=False)
def _are_decided_by_return(url: str, run_ids: tuple[str, ...]) -> bool:
    configs = runs.run_configs(data.open_url(url), run_ids).values()
    return bool(configs) and all(get_success_threshold(config) is not None for config in configs)


def get_bundle_run_names(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the names of the runs that are in bundles: `id@key` → name."""
    result: dict[str, str] = {}
    for url, bundle, ids in _split_by_database(run_ids):
        if bundle is not None:
            names = runs.find_run_names(data.open_url(url), ids)
            result |= {
                view.name_bundle_run(run_id, bundle.key): _add_bundle_name(names[run_id], bundle)
                for run_id in ids
                if run_id in names
            }
    return result


def list_bundle_runs(bundle: Bundle, run_filter: RunFilter) -> dict[str, str]:
    """Return the names of the matching runs of a bundle, newest first: `id@key` → name."""
    names, _ = run_search.run_names(data.open_url(bundle.url), run_filter, limit=None)
    return {view.name_bundle_run(run_id, bundle.key): _add_bundle_name(name, bundle) for run_id, name in names.items()}


def _add_bundle_name(name: str, bundle: Bundle) -> str:
    return f"{name} · {bundle.name}"


def _list_sources(run_ids: Sequence[str]) -> list[tuple[str, tuple[str, ...], str, str]]:
    """List URL, run ids, bundle key and bundle name of each database; key and name are empty for the app's database."""
    return [
        (url, tuple(ids), bundle.key if bundle else "", bundle.name if bundle else "")
        for url, bundle, ids in _split_by_database(run_ids)
    ]


def _split_by_database(run_ids: Sequence[str]) -> Iterator[tuple[str, Bundle | None, list[str]]]:
    """Yield URL, bundle and run ids of each database; skip runs of bundles that are not open."""
    parts = view.group_by_bundle(run_ids)
    yield data.database_url(), None, parts.pop("", [])
    for key, ids in parts.items():
        if (bundle := view.find(key)) is not None:
            yield bundle.url, bundle, ids
