"""Cached tables of compared runs, from the user's database and from opened bundles. Do not mutate cached values.

A bundle is a file with exported runs. Its runs have the id `id@key` here, where `key` identifies the bundle, and their
settings contain the name of the bundle. They therefore form separate variants, which are never averaged with runs of
the user's database, and every legend, table and exported file names the bundle.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import streamlit as st

from app.analysis.curves import RunTables, read_tables
from app.analysis.intervals import Values
from app.analysis.quantities import get_success_threshold
from app.analysis.settings import BUNDLE_KEY
from app.analysis.x_axes import XAxisName, XValues
from app.ui import data, view
from emtc_core.metrics import sort_metrics
from storage.bundles.bundle_cache import Bundle
from storage.queries import curves as stored_curves
from storage.queries import run_search, runs
from storage.queries.run_search import RunFilter
from storage.runs.rows import RunRow


class _Source(NamedTuple):
    """The compared runs of one database. Key and name of the bundle are empty for the database of this session."""

    url: str
    run_ids: tuple[str, ...]
    bundle_key: str
    bundle_name: str

    def name_run(self, run_id: str) -> str:
        """Return the id of a run on pages: `id@key` for a run of a bundle."""
        return view.name_bundle_run(run_id, self.bundle_key) if self.bundle_key else run_id

    def add_bundle_to_row(self, row: RunRow) -> RunRow:
        """Add the bundle to the id, the name and the settings of a run."""
        if not self.bundle_key:
            return row
        config = {**row.config, BUNDLE_KEY: self.bundle_name}
        return replace(row, id=self.name_run(row.id), name=f"{row.name} · {self.bundle_name}", config=config)

    def add_bundle_to_table(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the bundle to the run ids of a table."""
        return table.assign(run_id=[self.name_run(run_id) for run_id in table["run_id"]])


def read_compared_tables(run_ids: Sequence[str]) -> RunTables:
    """Read the tables of several runs, cached for 5 s, with one SQL statement per database and table.

    Args:
        run_ids: Ids of runs of this database, and `id@key` of runs of opened bundles.
    """
    return _read_joined(tuple(_list_sources(run_ids)))


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read_joined(sources: tuple[_Source, ...]) -> RunTables:
    """Read the tables of several databases and concatenate them."""
    tables = [read_tables(data.open_url(source.url), _read_rows(source)) for source in sources]
    rows: dict[str, RunRow] = {}
    for source, part in zip(sources, tables, strict=True):
        for stored_row in part.rows.values():
            row = source.add_bundle_to_row(stored_row)
            rows[row.id] = row

    def join(read: Callable[[RunTables], pd.DataFrame]) -> pd.DataFrame:
        """Read a table of each database and concatenate these tables."""
        frames = [source.add_bundle_to_table(read(part)) for source, part in zip(sources, tables, strict=True)]
        return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]

    def read_x(name: XAxisName) -> XValues:
        """Read the x values of the runs of all databases."""
        parts = [part.read_x(name) for part in tables]
        if parts[0].curves is None:  # the x axis is the env step, which the tables contain
            return parts[0]
        curves: dict[str, tuple[Values, Values]] = {}
        for source, part in zip(sources, parts, strict=True):
            for run_id, curve in (part.curves or {}).items():
                curves[source.name_run(run_id)] = curve
        return XValues(parts[0].axis, curves)

    def read_metric(metric: str) -> pd.DataFrame:
        return join(lambda part: part.read_metric(metric))

    evaluations = join(lambda part: part.evaluations)
    return RunTables(rows, evaluations, read_metric, read_x)


def _read_rows(source: _Source) -> list[RunRow]:
    return runs.get_rows(data.open_url(source.url), source.run_ids)


def list_recorded_metrics(run_ids: Sequence[str]) -> list[str]:
    """List the metrics that at least one of these runs recorded."""
    names: set[str] = set()
    for url, _, ids in _split_by_database(run_ids):
        names.update(data.cached(stored_curves.list_logged_metrics, ttl=5, url=url)(ids))
    return sort_metrics(names)


def is_success_defined_by_return(run_ids: Sequence[str]) -> bool:
    """Return whether success is defined by the return in all of these runs."""
    rules = [_is_defined_by_return(url, tuple(ids)) for url, _, ids in _split_by_database(run_ids) if ids]
    return bool(rules) and all(rules)


@st.cache_data(ttl=5, max_entries=32, show_spinner=False)
def _is_defined_by_return(url: str, run_ids: tuple[str, ...]) -> bool:
    configs = runs.run_configs(data.open_url(url), run_ids).values()
    return bool(configs) and all(get_success_threshold(config) is not None for config in configs)


def get_bundle_run_names(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the names of the runs that are in bundles: `id@key` → name."""
    result: dict[str, str] = {}
    for url, bundle, ids in _split_by_database(run_ids):
        if bundle is not None:
            names = data.cached(runs.find_run_names, ttl=5, url=url)(ids)
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


def _list_sources(run_ids: Sequence[str]) -> list[_Source]:
    """List the databases of the runs: that of this session, and those of opened bundles."""
    return [
        _Source(url, tuple(ids), bundle.key if bundle else "", bundle.name if bundle else "")
        for url, bundle, ids in _split_by_database(run_ids)
    ]


def _split_by_database(run_ids: Sequence[str]) -> Iterator[tuple[str, Bundle | None, list[str]]]:
    """Yield URL, bundle and run ids of each database; skip runs of bundles that are not open.

    The first database is that of this session, for which the bundle is None. It is also yielded without runs.
    """
    ids_by_key = view.group_by_bundle(run_ids)
    yield data.database_url(), None, ids_by_key.pop("", [])
    for key, ids in ids_by_key.items():
        if (bundle := view.find_bundle(key)) is not None:
            yield bundle.url, bundle, ids
