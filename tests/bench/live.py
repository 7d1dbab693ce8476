"""The app's first page, the first point of a run on the Live page, and the queries of one refresh of Live.

Page and point are timed in a real browser with the real app. Then the processor time of the app is measured while Live
shows a running training. A refresh is timed with 19 other long runs on SQLite, and on a PostgreSQL server with a
network latency of 30 ms.
"""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil

from app.figures.named.live import read_returns
from app.jobs.launch import kill_run
from storage.engine import Database
from storage.queries.curves import evaluations, metric_points
from storage.queries.gate import gate_stats
from storage.queries.gate_state import list_gate_verdicts
from storage.queries.runs import list_resumes, list_runs
from storage.runs.changes import create_run
from storage.runs.control import command_log
from storage.runs.rows import find_run
from tests.app_server import open_page, serve_app
from tests.bench.timing import median_ms
from tests.postgres import add_latency, is_server_available, open_server, temporary_postgres_database
from tests.records import (
    CONFIG,
    fill_transitions,
    insert_curves,
    opened_database,
    temporary_database,
)
from tests.report import BenchResult, make_result

RUNS, TRANSITIONS = 20, 1_000_000
_MEASUREMENTS, _REPEATS = 5, 15
_PAUSE_MS = 3000  # before a click, as by a user who reads the page
_WATCH_S = 12
_LATENCY_S = 0.03
_METRICS = ("train/loss", "train/q_taken", "time/env_steps_per_second")


def run() -> list[BenchResult]:
    """Measure `live.first_page_seconds`, `first_point_seconds`, `watching_percent`, `tick_ms` and `open_ms`."""
    results = [*_measure_app(), *_measure_refreshes()]
    return [*results, _measure_refresh_with_latency()] if is_server_available() else results


def _measure_app() -> list[BenchResult]:
    """Start the app and its demo run several times, each time with a new database."""
    pages, points, processor = zip(*(_measure_app_once() for _ in range(_MEASUREMENTS)), strict=True)
    return [
        _make_result("first_page_seconds", "s", 3.0, pages, "from the app's start to Home in a browser"),
        _make_result("first_point_seconds", "s", 5.0, points, "from the demo's button to a curve on Live"),
        _make_result(
            "watching_percent", "%", None, processor, f"of a processor for the app, {_WATCH_S} s of Live on the demo"
        ),
    ]


def _measure_app_once() -> tuple[float, float, float]:
    """Return the time to the first page [s], from the click to the first point [s], and the app's processor use [%]."""
    with temporary_database() as db, open_page() as page:
        page.goto("about:blank")
        started = time.perf_counter()
        log = Path(tempfile.gettempdir()) / "emtc-bench-live.txt"
        with serve_app(db.url, log) as address:
            page.goto(address)
            button = page.get_by_role("button", name="Start the demo run")
            button.wait_for()
            first_page = time.perf_counter() - started
            page.wait_for_timeout(_PAUSE_MS)
            clicked = time.perf_counter()
            button.click()
            page.locator(".curves canvas").first.wait_for()
            first_point = time.perf_counter() - clicked
            (app,) = (child for child in psutil.Process().children() if "streamlit" in child.cmdline())
            page.wait_for_timeout(_PAUSE_MS)
            before = app.cpu_times()
            page.wait_for_timeout(1000 * _WATCH_S)
            after = app.cpu_times()
            kill_run(db, str(list_runs(db)["id"].iloc[0]))
    seconds = after.user + after.system - before.user - before.system
    return first_page, first_point, 100 * seconds / _WATCH_S


def _measure_refreshes() -> list[BenchResult]:
    with temporary_database() as db:
        run_id = fill(db)
        size = f"{RUNS} runs of {TRANSITIONS:,} transitions in one database"
        recent = TRANSITIONS - 1000
        refreshes = [median_ms(lambda: query_live(db, run_id, after=recent), _REPEATS) for _ in range(_MEASUREMENTS)]
        openings = [median_ms(lambda: query_live(db, run_id, after=0), _REPEATS) for _ in range(_MEASUREMENTS)]
    return [
        _make_result("tick_ms", "ms", 50, refreshes, f"a refresh with new points; {size}"),
        _make_result("open_ms", "ms", None, openings, f"the first read of every curve; {size}"),
    ]


def _measure_refresh_with_latency() -> BenchResult:
    """Measure a refresh of a run that has just started, over a network."""
    with (
        open_server(fsync=False) as server_url,
        temporary_postgres_database(server_url) as near_url,
        add_latency(near_url, delay_s=_LATENCY_S) as url,
        opened_database(url) as db,
    ):
        run_id = create_run(db, CONFIG, target_steps=TRANSITIONS, versions={})
        query_live(db, run_id, after=0)
        times = [median_ms(lambda: query_live(db, run_id, after=0), 1) for _ in range(_MEASUREMENTS)]
    load = f"PostgreSQL, {1e3 * _LATENCY_S:.0f} ms from a query to its answer"
    return _make_result("tick_ms.postgresql", "ms", 500, times, load)


def _make_result(name: str, unit: str, budget: float | None, values: Sequence[float], load: str) -> BenchResult:
    reference = f"{load}; {len(values)} times, {min(values):.3g} to {max(values):.3g}"
    return make_result(f"live.{name}", statistics.median(values), unit, budget, reference, digits=2)


def query_live(db: Database, run_id: str, *, after: int) -> None:
    """Run the queries of one refresh of the Live page that redraws all charts.

    Args:
        db: An open database.
        run_id: The run.
        after: Only points after this env step are read.
    """
    with db.read_snapshot() as connection:
        run = find_run(connection, run_id)
        list_resumes(connection, run_id)
        evaluations(connection, run_id, after=after)
        gate_stats(connection, run_id, after=after)
        metric_points(connection, run_id, _METRICS, after=after)
        list_gate_verdicts(connection, [run_id])
        command_log(connection, run_id)
    with db.read_snapshot() as connection:
        read_returns(connection, run)


def fill(db: Database) -> str:
    """Write RUNS equal runs with TRANSITIONS transitions each. Return the id of the run in the middle."""
    runs = [create_run(db, CONFIG, target_steps=TRANSITIONS, versions={}) for _ in range(RUNS)]
    fill_transitions(db, runs[0], TRANSITIONS)
    if db.path is None:
        raise ValueError("this benchmark needs a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        insert_curves(connection, runs[0], TRANSITIONS)
        _insert_episodes(connection, runs[0])
        for run_id in runs[1:]:
            for table in ("transitions", "episodes", "metrics", "gate_stats", "evaluations"):
                _copy_rows(connection, table, runs[0], run_id)
        connection.execute("UPDATE runs SET env_steps = ?", (TRANSITIONS,))
    return runs[RUNS // 2]


def _insert_episodes(connection: sqlite3.Connection, run_id: str) -> None:
    """Write an episode every 50 env steps."""
    connection.executemany(
        "INSERT INTO episodes "
        "(run_id, episode, first_env_step, length, episode_return, won, epsilon, closed, trajectory) "
        "VALUES (?, ?, ?, 50, 1.0, 1, 0.1, 2, zeroblob(1000))",
        ((run_id, i + 1, 50 * i + 1) for i in range(TRANSITIONS // 50)),
    )


def _copy_rows(connection: sqlite3.Connection, table: str, source: str, target: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "run_id"]
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(
        f"INSERT INTO {table} (run_id, {columns}) SELECT ?, {columns} FROM {table} WHERE run_id = ? ORDER BY 2, 3",
        (target, source),
    )
