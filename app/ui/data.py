"""Cached questions to the database, keyed by ids and never by arrays. Cached values are shared: never mutate.

What lives here: reads of runs, episodes and sweeps. What does not: reads of memories (`memory_data`), drawing, what one
session has followed so far (`run_data`), and writes (those are in `app.jobs` and `storage`).
"""

import os
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import invalidate_caches
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd
import streamlit as st

from app.figures.theme import ENDED_STATUSES
from app.jobs.alerts import Alert, list_alerts
from app.jobs.sweeps.control import find_imported
from app.ui import view
from emtc_core.envs.registry import EnvRow, list_envs
from emtc_core.install import read_install_times
from storage.address import DEFAULT_DATABASE
from storage.bundles.bundle_cache import is_cached
from storage.engine import Database, open_database
from storage.maintenance.sizes import Sizes, measure_sizes
from storage.notebook import list_entries
from storage.queries import curves, episodes, runs
from storage.queries import gate as gates
from storage.queries.episodes import (
    EpisodePage,
    Extremes,
    Order,
    Trajectory,
    find_episodes,
    find_extremes,
    find_playbacks,
    find_replayable_episodes,
)
from storage.queries.episodes import list_replayable_runs as list_runs_with_states
from storage.queries.gate import GateState
from storage.queries.runs import FilterOptions, RunFilter, Shelf
from storage.runs import sweeps
from storage.runs.control import EvaluationRequest, list_evaluation_requests
from storage.runs.rows import RunRow, find_run

P = ParamSpec("P")
R = TypeVar("R")
JUDGED_AT_ONCE = 40
_moment: ContextVar[tuple[str, Database] | None] = ContextVar("moment", default=None)


def own_url() -> str:
    """URL of this app's database."""
    return os.environ.get("EMTC_DB", DEFAULT_DATABASE)


def database_url() -> str:
    """URL of the database that this session looks at: the app's own, or that of an opened bundle."""
    viewed = view.bundle()
    return viewed.url if viewed else own_url()


def database() -> Database:
    """Open the database that this session looks at, once per server.

    Raises:
        StorageError: If it cannot be opened.
    """
    return _reader(database_url())


def _reader(url: str) -> Database:
    """The moment that everything reads now, where there is one of this database."""
    known = _moment.get()
    return known[1] if known is not None and known[0] == url else open_url(url)


@contextmanager
def at_one_moment() -> Generator[None]:
    """Let everything below read one state of this session's database, so that tables and figures agree.

    Raises:
        StorageError: If it cannot be read.
    """
    url = database_url()
    with open_url(url).read_snapshot() as known:
        before = _moment.set((url, known))
        try:
            yield
        finally:
            _moment.reset(before)


@contextmanager
def as_it_changes() -> Generator[None]:
    """Let what acts see what it and others write meanwhile, within `at_one_moment` too."""
    before = _moment.set(None)
    try:
        yield
    finally:
        _moment.reset(before)


@st.cache_resource(show_spinner=False, on_release=lambda db: db.dispose())
def open_url(url: str) -> Database:
    """Open the app's own database, or that of a bundle, which is never written; once per server. `clear` closes it.

    Raises:
        StorageError: If it cannot be opened.
    """
    return open_database(url, read_only=is_cached(url))


def cached(
    cache: Callable[..., Any], *, show_spinner: str | bool = False, **kept: Any
) -> Callable[[Callable[Concatenate[str, P], R]], Callable[P, R]]:
    """Decorate `read(url, …)`: kept by the URL and the other arguments, and asked of this session's database."""

    def decorate(read: Callable[Concatenate[str, P], R]) -> Callable[P, R]:
        keep = cache(show_spinner=show_spinner, **kept)(read)

        @wraps(read)
        def ask(*args: P.args, **named: P.kwargs) -> R:
            return keep(database_url(), *args, **named)

        return ask

    return decorate


@st.cache_data(ttl=1, show_spinner=False)
def _run_page(url: str, wanted: RunFilter, sort: str, limit: int, offset: int) -> runs.RunPage:
    return runs.run_page(_reader(url), wanted, sort=sort, limit=limit, offset=offset)


def run_page(wanted: RunFilter, *, sort: str = "", limit: int = 50, offset: int = 0, url: str = "") -> runs.RunPage:
    """Read one page of the runs that match, of another database where a URL is given; at most one second old.

    Raises:
        ConfigError: If the search or the order is none.
    """
    return _run_page(url or database_url(), wanted, sort, limit, offset)


@st.cache_data(ttl=5, show_spinner=False)
def names_in(url: str, prefixes: Sequence[str]) -> dict[str, str]:
    """Names of runs of one database, as `names_of` reads them."""
    return runs.find_run_names(_reader(url), prefixes)


def names_of(prefixes: Sequence[str]) -> dict[str, str]:
    """Names of the runs whose ids start so, by id; at most five seconds old."""
    return names_in(database_url(), prefixes)


def has_runs() -> bool:
    """Whether there is any run."""
    return bool(run_names(RunFilter(shelf="all"), 1)[0])


def newest_run() -> str | None:
    """The id of the newest run that is not archived, or the newest of all."""
    return next(iter(run_names(RunFilter(), 1)[0] or run_names(RunFilter(shelf="all"), 1)[0]), None)


def matching_ids(wanted: RunFilter, sort: str = "") -> list[str]:
    """List all runs that match now, on whatever page they are."""
    return runs.matching_ids(database(), wanted, sort=sort)


def runs_by_id(run_ids: Sequence[str]) -> pd.DataFrame:
    """Read these runs as they are now, in this order; those that are gone are left out."""
    return runs.runs_by_id(database(), run_ids)


@cached(st.cache_data, ttl=2)
def run_names(url: str, wanted: RunFilter, limit: int | None = 100) -> tuple[dict[str, str], int]:
    """Names of the newest runs that match, by id, and the count of all that do; at most two seconds old.

    Raises:
        ConfigError: If the search is none.
    """
    return runs.run_names(_reader(url), wanted, limit=limit)


@cached(st.cache_data, ttl=5)
def run_choices(url: str, shelf: Shelf = "open") -> FilterOptions:
    """List what runs can be filtered by; at most five seconds old."""
    return runs.list_filter_options(_reader(url), shelf)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """List the rows of a frame as plain dictionaries by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def get_run(run_id: str) -> RunRow:
    """Read a run as it is now, by its id or an unambiguous prefix.

    Raises:
        RunNotFoundError: If there is none.
    """
    return find_run(database(), run_id)


@st.cache_resource(show_spinner=False)
def _judged(url: str) -> dict[tuple[str, int], GateState | None]:
    """Verdicts on ended runs, by id and env steps: a resumed run is judged anew."""
    return {}


@cached(st.cache_data, ttl=5)
def _verdicts(url: str, run_ids: tuple[str, ...]) -> dict[str, gates.GateVerdict]:
    return gates.list_gate_verdicts(_reader(url), run_ids)


def gate_states(rows: Sequence[tuple[str, str, int]]) -> dict[str, GateState]:
    """Judge the gates of runs given as id, live status and env steps; at most five seconds old.

    An ended run is judged once. Of many unjudged ones only the first are judged, so that a table appears at once;
    the next call goes on.
    """
    url = database_url()
    known = _judged(url)
    ended = [(run_id, env_steps) for run_id, status, env_steps in rows if status in ENDED_STATUSES]
    new = [key for key in ended if key not in known][:JUDGED_AT_ONCE]
    found = gates.gate_states(_reader(url), [run_id for run_id, _ in new])
    known.update({key: found.get(key[0]) for key in new})
    alive = _verdicts(tuple(run_id for run_id, status, _ in rows if status not in ENDED_STATUSES))
    acting = {run_id: each.gate for run_id, each in alive.items() if each.gate is not None}
    return acting | {key[0]: state for key in ended if (state := known.get(key)) is not None}


def gate_state(run: RunRow) -> GateState | None:
    """Judge the gate of one run; None for a run without one, or of a version that did not measure it."""
    return gate_states([(run.id, run.live_status, run.env_steps)]).get(run.id)


def idle_incentive(run_id: str) -> str | None:
    """Why a run has no incentive, where nothing was a success yet; at most five seconds old."""
    found = _verdicts((run_id,)).get(run_id)
    return found.idle if found else None


@cached(st.cache_data, ttl=2)
def known_runs(url: str, run_ids: Sequence[str]) -> frozenset[str]:
    """Which of these runs are still in the database; at most two seconds old."""
    return frozenset(runs.run_configs(_reader(url), run_ids))


def sweep_list() -> list[sweeps.Sweep]:
    """List the newest sweeps with the progress of their runs, as they are now."""
    return sweeps.list_sweeps(database())


def sweep_runs(sweep_id: str) -> list[RunRow]:
    """List the runs of a sweep as they are now."""
    return sweeps.sweep_runs(database(), sweep_id)


@cached(st.cache_data, max_entries=20)
def _imported(url: str, sweep_id: str, n_planned: int, run_ids: tuple[str, ...], _sweep: Any, _runs: Any) -> Set[str]:
    return find_imported(_sweep, _runs)


def imported_keys(sweep: sweeps.Sweep, runs: Sequence[RunRow]) -> Set[str]:
    """Find the planned runs of a sweep that imported runs have done, by key; computed once for each set of runs.

    Raises:
        ConfigError: If this version would make another plan of the sweep's file.
    """
    finished = tuple(run.id for run in runs if run.status == "finished")
    return _imported(sweep.id, len(sweep.plan.get("runs", ())), finished, sweep, runs)


@st.cache_data(ttl=60, max_entries=4, show_spinner=False)
def _env_list(installed: tuple[int, ...]) -> list[EnvRow]:
    invalidate_caches()  # a finder may have listed a folder before something was installed there
    return list_envs()


def env_list() -> list[EnvRow]:
    """List every environment and map; anew as soon as something was installed or removed here."""
    return _env_list(read_install_times())


@cached(st.cache_data, ttl=2)
def evaluations(url: str, run_id: str) -> pd.DataFrame:
    """Read all evaluations of a run; at most two seconds old."""
    return curves.evaluations(_reader(url), run_id)


@cached(st.cache_data, ttl=5)
def policy_evaluations(url: str, run_id: str) -> pd.DataFrame:
    """Read what stored policies of a run did; at most five seconds old."""
    return curves.policy_evaluations(_reader(url), [run_id])


@cached(st.cache_data, ttl=5)
def metric_names(url: str, run_id: str) -> list[str]:
    """List every number that a run has logged; at most five seconds old."""
    return curves.metric_names(_reader(url), run_id)


def trajectory(run_id: str, episode: int) -> Trajectory:
    """Read one training episode with the gate's verdicts.

    Raises:
        StorageError: If there is none.
    """
    return episodes.get_trajectory(database(), run_id, episode)


def questions(run: RunRow, limit: int = 3) -> list[EvaluationRequest]:
    """Read what was asked of a run last and what it answered, as it is now; newest first."""
    return list_evaluation_requests(database(), run, limit)


def playback(run_id: str, env_step: int, episode: int) -> Trajectory:
    """Read one greedy evaluation episode.

    Raises:
        StorageError: If it was not kept.
    """
    return episodes.get_playback(database(), run_id, env_step, episode)


@cached(st.cache_data, ttl=2)
def playback_page(url: str, run_id: str, text: str, *, limit: int, offset: int = 0) -> EpisodePage:
    """List the evaluation episodes that were kept and match a search, newest first; at most two seconds old.

    Raises:
        ConfigError: If the search is none.
    """
    return find_playbacks(_reader(url), run_id, text, limit=limit, offset=offset)


@cached(st.cache_data, ttl=2)
def episode_page(url: str, run_id: str, text: str, *, order_by: Order, limit: int, offset: int = 0) -> EpisodePage:
    """List training episodes that match a search, a page at a time; at most two seconds old.

    Raises:
        ConfigError: If the search is none.
    """
    return find_episodes(_reader(url), run_id, text, order_by=order_by, limit=limit, offset=offset)


@cached(st.cache_data, ttl=10)
def kept_episodes(url: str, run_id: str, among: tuple[int, ...] | None = None) -> list[int]:
    """List training episodes that can be replayed, newest first; at most ten seconds old."""
    return find_replayable_episodes(_reader(url), run_id, among)


@cached(st.cache_data, ttl=60)
def runs_with_states(url: str) -> list[str]:
    """List the runs that have a training episode that can be replayed; at most a minute old."""
    return list_runs_with_states(_reader(url))


@cached(st.cache_data, ttl=60)
def told_run(url: str) -> str | None:
    """The run that the notebook's newest entry about one run tells of; at most a minute old."""
    return next((entry.run_id for entry in list_entries(_reader(url)) if entry.run_id), None)


@cached(st.cache_data, ttl=10)
def extremes(url: str, run_id: str) -> Extremes | None:
    """Find the best and the worst episode that can be replayed; at most ten seconds old."""
    return find_extremes(_reader(url), run_id)


@cached(st.cache_data, ttl=60, show_spinner="Measuring …")
def sizes(url: str) -> Sizes:
    """Measure what takes how much room; at most a minute old."""
    return measure_sizes(_reader(url))


@cached(st.cache_data, ttl=10)
def alerts(url: str) -> list[Alert]:
    """What happened to runs in the last days, newest first; at most ten seconds old."""
    return list_alerts(_reader(url))
