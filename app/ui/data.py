"""Cached reads of runs, episodes and sweeps, keyed by ids and never by arrays. Never change a cached value.

`memory_data` reads memories, and `run_data` reads the curves of one session. `app.jobs` and `storage` write data.
"""

import os
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import invalidate_caches
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd
import streamlit as st

from app.figures.theme import ENDED_STATUSES
from app.jobs.alerts import Alert, list_alerts
from app.jobs.sweeps.control import find_imported
from app.ui import view
from emtc_core.envs.registry import EnvRow, list_envs
from emtc_core.install import read_install_times
from storage.address import DEFAULT_DATABASE, as_address
from storage.bundles.bundle_cache import is_cached
from storage.engine import Database, open_database
from storage.maintenance.sizes import Sizes, measure_sizes
from storage.notebook import list_entries
from storage.queries import curves, episodes, run_search, runs
from storage.queries import gate_state as gates
from storage.queries.episode_search import (
    EpisodePage,
    Extremes,
    count_replayable_episodes,
    find_episodes,
    find_extremes,
    find_playbacks,
    find_replayable_episodes,
)
from storage.queries.episode_search import list_replayable_runs as list_runs_with_states
from storage.queries.episodes import Order, Trajectory
from storage.queries.gate_state import GateState
from storage.queries.run_search import FilterOptions, RunFilter, RunPage, Visibility
from storage.runs import sweeps
from storage.runs.control import EvaluationRequest, list_evaluation_requests
from storage.runs.rows import RunRow, find_run
from storage.runs.training_time import measure_training_s

P = ParamSpec("P")
R = TypeVar("R")
MAX_ENTRIES = 64
"""Maximum number of values that the cache of one read keeps. Without a limit, values stay after their `ttl`."""
MAX_GATES_PER_CALL = 40
"""Number of ended runs whose gate is evaluated in one call, so that a table is drawn without delay."""
_snapshot: ContextVar[tuple[str, Database] | None] = ContextVar("snapshot", default=None)
"""URL and database of the snapshot that `use_one_snapshot` reads."""


def app_url() -> str:
    """Return the URL of the app's database."""
    return as_address(os.environ.get("EMTC_DB", DEFAULT_DATABASE))


def database_url() -> str:
    """Return the URL of the database that this session shows: the app's database, or an opened bundle."""
    bundle = view.bundle()
    return bundle.url if bundle else app_url()


def database() -> Database:
    """Open the database that this session shows, once per server.

    Raises:
        StorageError: If it cannot be opened.
    """
    return _get_database(database_url())


def path_for_commands() -> Path | None:
    """Return the path that commands need as --db; None for the default database and for a server, which has a URL."""
    return None if database_url() == DEFAULT_DATABASE else database().path


def _get_database(url: str) -> Database:
    """Return the snapshot of this database inside `use_one_snapshot`, else the database."""
    snapshot = _snapshot.get()
    return snapshot[1] if snapshot is not None and snapshot[0] == url else open_url(url)


@contextmanager
def use_one_snapshot() -> Generator[None]:
    """Make all reads in the block use one snapshot of this session's database, so that tables and figures agree.

    Raises:
        StorageError: If the database cannot be read.
    """
    url = database_url()
    with open_url(url).read_snapshot() as snapshot:
        token = _snapshot.set((url, snapshot))
        try:
            yield
        finally:
            _snapshot.reset(token)


@contextmanager
def use_current_data() -> Generator[None]:
    """Make all reads in the block read the current data, also inside `use_one_snapshot`. Writes need this."""
    token = _snapshot.set(None)
    try:
        yield
    finally:
        _snapshot.reset(token)


@st.cache_resource(show_spinner=False, on_release=lambda db: db.dispose())
def open_url(url: str) -> Database:
    """Open the app's database, or a bundle as read-only, once per server. `clear` closes it.

    Raises:
        StorageError: If the database cannot be opened.
    """
    return open_database(url, read_only=is_cached(url))


def cached(
    cache: Callable[..., Any], *, show_spinner: str | bool = False, **options: Any
) -> Callable[[Callable[Concatenate[str, P], R]], Callable[P, R]]:
    """Make a decorator for `read(url, …)` that caches its values by all arguments.

    The decorated function has no argument `url`: it uses the database of this session.

    Args:
        cache: `st.cache_data` or `st.cache_resource`.
        show_spinner: Text while the value is computed.
        options: Further arguments of `cache`; `max_entries` is MAX_ENTRIES by default.
    """

    def decorate(read: Callable[Concatenate[str, P], R]) -> Callable[P, R]:
        cached_read = cache(show_spinner=show_spinner, **{"max_entries": MAX_ENTRIES, **options})(read)

        @wraps(read)
        def read_database(*args: P.args, **named: P.kwargs) -> R:
            return cached_read(database_url(), *args, **named)

        return read_database

    return decorate


@st.cache_data(ttl=1, max_entries=MAX_ENTRIES, show_spinner=False)
def _run_page(url: str, run_filter: RunFilter, sort: str, limit: int, offset: int) -> RunPage:
    return run_search.run_page(_get_database(url), run_filter, sort=sort, limit=limit, offset=offset)


def run_page(run_filter: RunFilter, *, sort: str = "", limit: int = 50, offset: int = 0, url: str = "") -> RunPage:
    """Read one page of the runs that match; at most one second old.

    Args:
        run_filter: The filter.
        sort: The column to sort by.
        limit: Runs per page.
        offset: Number of runs before the page.
        url: Another database; empty for this session's database.

    Raises:
        ConfigError: If the search or the order is invalid.
    """
    return _run_page(url or database_url(), run_filter, sort, limit, offset)


@st.cache_data(ttl=5, max_entries=MAX_ENTRIES, show_spinner=False)
def names_in(url: str, prefixes: Sequence[str]) -> dict[str, str]:
    """Read the names of runs in a database, by id; at most five seconds old. An id may be a prefix."""
    return runs.find_run_names(_get_database(url), prefixes)


def names_of(prefixes: Sequence[str]) -> dict[str, str]:
    """Read the names of runs, by id; at most five seconds old. An id may be a prefix."""
    return names_in(database_url(), prefixes)


def has_runs() -> bool:
    """Whether the database has a run."""
    return bool(run_names(RunFilter(visibility="all"), 1)[0])


def newest_run() -> str | None:
    """Return the id of the newest run that is not archived, or of the newest run."""
    return next(iter(run_names(RunFilter(), 1)[0] or run_names(RunFilter(visibility="all"), 1)[0]), None)


def matching_ids(run_filter: RunFilter, sort: str = "") -> list[str]:
    """List the ids of all runs that match, not cached."""
    return run_search.matching_ids(database(), run_filter, sort=sort)


def runs_by_id(run_ids: Sequence[str]) -> pd.DataFrame:
    """Read runs in this order, not cached; deleted runs are left out."""
    return run_search.runs_by_id(database(), run_ids)


@cached(st.cache_data, ttl=2)
def run_names(url: str, run_filter: RunFilter, limit: int | None = 100) -> tuple[dict[str, str], int]:
    """Read the names of the newest runs that match, by id, and the number of matches; at most two seconds old.

    Raises:
        ConfigError: If the search is invalid.
    """
    return run_search.run_names(_get_database(url), run_filter, limit=limit)


@cached(st.cache_data, ttl=5)
def run_choices(url: str, visibility: Visibility = "open") -> FilterOptions:
    """List the values by which runs can be filtered; at most five seconds old."""
    return run_search.list_filter_options(_get_database(url), visibility)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """List the rows of a frame as plain dictionaries by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def get_run(run_id: str) -> RunRow:
    """Read a run by its id or a unique prefix, not cached.

    Raises:
        RunNotFoundError: If no run matches.
    """
    return find_run(database(), run_id)


class _GateVerdicts:
    """Verdicts about the gates of ended runs, each evaluated once, by id and env steps.

    The key contains the env steps, so that the gate of a resumed run is evaluated again. The value is None for a run
    that was deleted. `add` replaces the dictionary, so that other sessions can read the old one at the same time.
    """

    def __init__(self) -> None:
        self.by_key: Mapping[tuple[str, int], gates.GateVerdict | None] = {}

    def add(self, verdicts: Mapping[tuple[str, int], gates.GateVerdict | None]) -> None:
        self.by_key = {**self.by_key, **verdicts}


@st.cache_resource(show_spinner=False)
def _ended_gate_verdicts(url: str) -> _GateVerdicts:
    return _GateVerdicts()


@cached(st.cache_data, ttl=5)
def _running_gate_verdicts(url: str, run_ids: tuple[str, ...]) -> dict[str, gates.GateVerdict]:
    return gates.list_gate_verdicts(_get_database(url), run_ids)


def _gate_verdicts(rows: Sequence[tuple[str, str, int]]) -> dict[str, gates.GateVerdict]:
    """Evaluate the gates and incentives of runs, by id; at most five seconds old.

    The gate of an ended run is evaluated once. One call evaluates at most `MAX_GATES_PER_CALL` of them; the next call
    evaluates further ones.

    Args:
        rows: Id, live status and env steps of each run.
    """
    url = database_url()
    evaluated = _ended_gate_verdicts(url)
    ended = [(run_id, env_steps) for run_id, status, env_steps in rows if status in ENDED_STATUSES]
    missing = [key for key in ended if key not in evaluated.by_key][:MAX_GATES_PER_CALL]
    new_verdicts = gates.list_gate_verdicts(_get_database(url), [run_id for run_id, _ in missing])
    evaluated.add({key: new_verdicts.get(key[0]) for key in missing})
    running = _running_gate_verdicts(tuple(run_id for run_id, status, _ in rows if status not in ENDED_STATUSES))
    return running | {key[0]: verdict for key in ended if (verdict := evaluated.by_key.get(key)) is not None}


def gate_states(rows: Sequence[tuple[str, str, int]]) -> dict[str, GateState]:
    """Evaluate the gates of runs that have one, by id; at most five seconds old.

    Args:
        rows: Id, live status and env steps of each run.
    """
    return {run_id: verdict.gate for run_id, verdict in _gate_verdicts(rows).items() if verdict.gate is not None}


def training_s(run: RunRow) -> float | None:
    """Measure how long a run has trained [s], without pauses; None if it was not started. Not cached."""
    with database().read() as connection:
        return measure_training_s(connection, [run]).get(run.id)


def gate_state(run: RunRow) -> GateState | None:
    """Evaluate the gate of one run; None if it has no gate, or if its version did not measure the gate."""
    return gate_states([(run.id, run.live_status, run.env_steps)]).get(run.id)


def idle_incentive(run: RunRow) -> str | None:
    """Return why a run has no incentive, if it has had no success yet; at most five seconds old."""
    verdict = _gate_verdicts([(run.id, run.live_status, run.env_steps)]).get(run.id)
    return verdict.no_incentive_reason if verdict else None


@cached(st.cache_data, ttl=2)
def existing_runs(url: str, run_ids: Sequence[str]) -> frozenset[str]:
    """Select the runs that are in the database; at most two seconds old."""
    return frozenset(runs.run_configs(_get_database(url), run_ids))


def sweep_list() -> list[sweeps.Sweep]:
    """List the newest sweeps with the progress of their runs, not cached."""
    return sweeps.list_sweeps(database())


@cached(st.cache_data, ttl=5)
def sweep_names(url: str, sweep_ids: tuple[str, ...]) -> dict[str, str]:
    """Read the names of sweeps, by id; at most five seconds old."""
    return sweeps.find_sweep_names(_get_database(url), sweep_ids)


def sweep_runs(sweep_id: str) -> list[RunRow]:
    """List the runs of a sweep, not cached."""
    return sweeps.sweep_runs(database(), sweep_id)


@cached(st.cache_data, max_entries=20)
def _find_imported_keys(
    url: str, sweep_id: str, n_planned: int, run_ids: tuple[str, ...], _sweep: Any, _runs: Any
) -> Set[str]:
    return find_imported(_sweep, _runs)


def imported_keys(sweep: sweeps.Sweep, runs: Sequence[RunRow]) -> Set[str]:
    """List the keys of the planned runs that exist as imported runs; computed once for each set of finished runs.

    Raises:
        ConfigError: If the sweep's file gives a different plan in this version.
    """
    finished = tuple(run.id for run in runs if run.status == "finished")
    return _find_imported_keys(sweep.id, len(sweep.plan.get("runs", ())), finished, sweep, runs)


@st.cache_data(ttl=60, max_entries=4, show_spinner=False)
def _env_list(installed: tuple[int, ...]) -> list[EnvRow]:
    invalidate_caches()  # a finder may have cached a folder before a package was installed there
    return list_envs()


def env_list() -> list[EnvRow]:
    """List every environment and map; read again when a package was installed or removed."""
    return _env_list(read_install_times())


@cached(st.cache_data, ttl=5)
def win_rate_sparklines(url: str, run_ids: tuple[str, ...]) -> dict[str, list[float]]:
    """Read the win rates of runs as a few points each, by id; at most five seconds old."""
    return curves.win_rate_sparklines(_get_database(url), run_ids)


@cached(st.cache_data, ttl=5)
def policy_evaluations(url: str, run_id: str) -> pd.DataFrame:
    """Read the evaluations of a run's stored policies; at most five seconds old."""
    return curves.policy_evaluations(_get_database(url), [run_id])


@cached(st.cache_data, ttl=5)
def metric_names(url: str, run_id: str) -> list[str]:
    """List every metric that a run has recorded; at most five seconds old."""
    return curves.metric_names(_get_database(url), run_id)


def trajectory(run_id: str, episode: int) -> Trajectory:
    """Read one training episode with its values of the gate.

    Raises:
        StorageError: If the episode does not exist.
    """
    return episodes.get_trajectory(database(), run_id, episode)


def evaluation_requests(run: RunRow, limit: int = 3) -> list[EvaluationRequest]:
    """Read the newest evaluation requests of a run and their results, not cached; newest first."""
    return list_evaluation_requests(database(), run, limit)


def playback(run_id: str, env_step: int, episode: int) -> Trajectory:
    """Read one greedy evaluation episode.

    Raises:
        StorageError: If the episode is not stored.
    """
    return episodes.get_playback(database(), run_id, env_step, episode)


@cached(st.cache_data, ttl=2)
def playback_page(url: str, run_id: str, text: str, *, limit: int, offset: int = 0) -> EpisodePage:
    """List the stored evaluation episodes that match a search, newest first; at most two seconds old.

    Raises:
        ConfigError: If the search is invalid.
    """
    return find_playbacks(_get_database(url), run_id, text, limit=limit, offset=offset)


@cached(st.cache_data, ttl=2)
def episode_page(
    url: str, run_id: str, text: str, *, order_by: Order, limit: int, offset: int = 0, replayable_first: bool = False
) -> EpisodePage:
    """List one page of the training episodes that match a search; at most two seconds old.

    Raises:
        ConfigError: If the search is invalid.
    """
    return find_episodes(
        _get_database(url), run_id, text, order_by=order_by, replayable_first=replayable_first, limit=limit,
        offset=offset,
    )  # fmt: skip


@cached(st.cache_data, ttl=10)
def replayable_episodes(url: str, run_id: str, among: tuple[int, ...] | None = None) -> list[int]:
    """List the training episodes that can be replayed, newest first; at most ten seconds old."""
    return find_replayable_episodes(_get_database(url), run_id, among)


@cached(st.cache_data, ttl=60)
def count_replayable(url: str, run_id: str) -> int:
    """Count the training episodes that can be replayed; at most a minute old."""
    return count_replayable_episodes(_get_database(url), run_id)


@cached(st.cache_data, ttl=60)
def runs_with_states(url: str) -> list[str]:
    """List the runs with a training episode that can be replayed; at most a minute old."""
    return list_runs_with_states(_get_database(url))


@cached(st.cache_data, ttl=60)
def newest_entry_run(url: str) -> str | None:
    """Return the run of the newest notebook entry that has one run; at most a minute old."""
    return next((entry.run_id for entry in list_entries(_get_database(url)) if entry.run_id), None)


@cached(st.cache_data, ttl=10)
def extremes(url: str, run_id: str) -> Extremes | None:
    """Find the episodes with the highest and the lowest return that can be replayed; at most ten seconds old."""
    return find_extremes(_get_database(url), run_id)


@cached(st.cache_data, ttl=60, show_spinner="Measuring …")
def sizes(url: str) -> Sizes:
    """Measure the disk use of each kind of data; at most a minute old."""
    return measure_sizes(_get_database(url))


@cached(st.cache_data, ttl=10)
def alerts(url: str) -> list[Alert]:
    """List the alerts of the last days, newest first; at most ten seconds old."""
    return list_alerts(_get_database(url))
