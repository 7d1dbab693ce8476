"""The database that a session shows, and cached reads of it.

`cached` caches the result of a query of `storage`. A query that is fast enough is called with `database()` instead.
`memory_data` caches results that are computed from snapshots of memories, and `run_data` reads the data of one run.
A bundle is a file with exported runs, which is opened read-only.
"""

import os
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import invalidate_caches
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd
import streamlit as st

from app.jobs.sweeps.control import find_imported
from app.ui import view
from emtc_core.envs.registry import EnvRow, list_envs
from emtc_core.install import read_install_times
from storage.address import DEFAULT_DATABASE, as_address
from storage.bundles.bundle_cache import is_cached
from storage.engine import Database, open_database
from storage.queries.run_search import RunFilter, run_names
from storage.runs.rows import RunRow
from storage.runs.sweeps import Sweep

P = ParamSpec("P")
R = TypeVar("R")
MAX_ENTRIES = 64
"""Maximum number of results in the cache of one query. Without it, Streamlit keeps even results older than `ttl`."""
_snapshot: ContextVar[tuple[str, Database] | None] = ContextVar("snapshot", default=None)
"""URL and database of the snapshot that `use_one_snapshot` reads."""


def app_url() -> str:
    """Return the URL of the app's database."""
    return as_address(os.environ.get("EMTC_DB", DEFAULT_DATABASE))


def database_url() -> str:
    """Return the URL of the database that this session shows: the app's database, or an opened bundle."""
    bundle = view.get_bundle()
    return bundle.url if bundle else app_url()


def database() -> Database:
    """Return the database that this session shows. Inside `use_one_snapshot`, return its snapshot.

    Raises:
        StorageError: If it cannot be opened.
    """
    return _get_database(database_url())


def path_for_commands() -> Path | None:
    """Return the path for the option --db of a command; None for the default database, and for a database server."""
    return None if database_url() == DEFAULT_DATABASE else database().path


@st.cache_resource(show_spinner=False, on_release=lambda db: db.dispose())
def open_url(url: str) -> Database:
    """Open the app's database, or a bundle as read-only, once per server. `clear` closes it.

    Raises:
        StorageError: If the database cannot be opened.
    """
    return open_database(url, read_only=is_cached(url))


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


def _get_database(url: str) -> Database:
    snapshot = _snapshot.get()
    if snapshot is not None and snapshot[0] == url:
        return snapshot[1]
    return open_url(url)


def cached(
    query: Callable[Concatenate[Database, P], R], ttl: float, *, url: str = "", spinner: str | bool = False
) -> Callable[P, R]:
    """Return a function that calls `query(database(), …)` and caches the result by its other arguments.

    All sessions that show the same database share the results. Each call returns a copy of the result.

    Example:
        `names = cached(find_run_names, ttl=5)(run_ids)`

    Args:
        query: A function at the top of a module, not a lambda: there is one cache for each function and `ttl`.
        ttl: Maximum age of a result [s].
        url: URL of another database, for example of a bundle. Default: the database of this session.
        spinner: Text on the page while the query runs.
    """
    read = _make_cache(query, ttl, spinner)

    def read_database(*args: P.args, **named: P.kwargs) -> R:
        return read(url or database_url(), *args, **named)

    return read_database


@cache
def _make_cache(query: Callable[..., Any], ttl: float, spinner: str | bool) -> Callable[..., Any]:
    """Make the cache of a query. Its first argument is the URL of the database."""

    @wraps(query)
    def read(url: str, *args: Any, **named: Any) -> Any:
        return query(_get_database(url), *args, **named)

    # Streamlit identifies a cache by the name and the source of its function, but one cache has only one `ttl`.
    read.__qualname__ = f"{query.__qualname__} {ttl}"
    return st.cache_data(ttl=ttl, max_entries=MAX_ENTRIES, show_spinner=spinner)(read)


def has_runs() -> bool:
    """Return whether the database has a run."""
    names, _ = cached(run_names, ttl=2)(RunFilter(visibility="all"), limit=1)
    return bool(names)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """List the rows of a frame as plain dictionaries by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def find_imported_keys(sweep: Sweep, runs: Sequence[RunRow]) -> Set[str]:
    """Return the keys of a sweep's planned runs that exist already as imported runs. Cached until another run finishes.

    Raises:
        ConfigError: If the sweep's file gives a different plan in this version.
    """
    finished = tuple(run.id for run in runs if run.status == "finished")
    n_planned = len(sweep.plan.get("runs", ()))
    return _find_imported_keys_once(database_url(), sweep.id, n_planned, finished, sweep, runs)


@st.cache_data(max_entries=20, show_spinner=False)
def _find_imported_keys_once(
    url: str, sweep_id: str, n_planned: int, run_ids: tuple[str, ...], _sweep: Sweep, _runs: Sequence[RunRow]
) -> Set[str]:
    """Cache the result of `find_imported` by the arguments whose names do not start with `_`."""
    return find_imported(_sweep, _runs)


def list_environments() -> list[EnvRow]:
    """List every environment and map. Cached until a package is installed or removed, at most 60 s."""
    return _list_environments(read_install_times())


@st.cache_data(ttl=60, max_entries=4, show_spinner=False)
def _list_environments(install_times: tuple[int, ...]) -> list[EnvRow]:
    invalidate_caches()  # Python may have cached the contents of a folder before a package was installed there
    return list_envs()
