"""How soon does one see something? The app's first page, a run's first point on Live, and what a tick of Live asks.

Page and point are timed in a real browser in front of the real app, as a reader meets them; then it is measured how
much of a processor the app takes from the training that is watched. A tick is timed beside 19 other long runs on
SQLite, and on a PostgreSQL server whose answers take 30 ms to come.
"""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil

from app.bench import Figure, make_figure, records
from app.bench.atlas import opened_page, served
from app.bench.records import CONFIG, fill_transitions, median_ms, temporary_database
from app.figures.named.live import read_returns
from app.jobs.launch import kill_run
from emtc_core.metrics import METRICS
from storage.engine import Database, open_database
from storage.queries.curves import evaluations, metric_points
from storage.queries.gate import gate_stats, list_gate_verdicts
from storage.queries.runs import list_resumes, list_runs
from storage.runs.changes import create_run
from storage.runs.control import command_log
from storage.runs.rows import find_run

RUNS, TRANSITIONS = 20, 1_000_000
_OPENINGS, _REPEATS = 5, 15
_READING_MS = 3000  # what a reader of Home takes before the button is pressed
_WATCHED_S = 12
_AWAY_S = 0.03
_FOLLOWED = ("train/loss", "train/q_taken", "time/env_steps_per_second")


def run() -> list[Figure]:
    """Measure `live.first_page_seconds`, `first_point_seconds`, `watching_percent`, `tick_ms` and `open_ms`."""
    return [*_seen_figures(), *_tick_figures(), *(_far_figures() if records.is_reachable() else ())]


def _seen_figures() -> list[Figure]:
    """Start the app and press its demo's button, again and again, each time with a database of its own."""
    seen = [_see() for _ in range(_OPENINGS)]
    pages, points, busy = zip(*seen, strict=True)
    return [
        _figure("first_page_seconds", "s", 3.0, pages, "from the app's start to Home in a browser"),
        _figure("first_point_seconds", "s", 5.0, points, "from the demo's button to a curve on Live"),
        _figure("watching_percent", "%", None, busy, f"of a processor for the app, {_WATCHED_S} s of Live on the demo"),
    ]


def _see() -> tuple[float, float, float]:
    """Seconds to the app's first page, seconds from the press to a run's first point, and what watching it costs."""
    with temporary_database() as db, opened_page() as page:
        page.goto("about:blank")
        started = time.perf_counter()
        with served(db.url, Path(tempfile.gettempdir()) / "emtc-bench-live.txt", env={"EMTC_WARM_UP": "0"}) as address:
            page.goto(address)
            button = page.get_by_role("button", name="Start the demo run")
            button.wait_for()
            opened = time.perf_counter() - started
            page.wait_for_timeout(_READING_MS)
            pressed = time.perf_counter()
            button.click()
            page.locator(".curves canvas").first.wait_for()
            point = time.perf_counter() - pressed
            (app,) = (each for each in psutil.Process().children() if "streamlit" in each.cmdline())
            page.wait_for_timeout(_READING_MS)
            before = app.cpu_times()
            page.wait_for_timeout(1000 * _WATCHED_S)
            after = app.cpu_times()
            kill_run(db, str(list_runs(db)["id"].iloc[0]))
    busy = after.user + after.system - before.user - before.system
    return opened, point, 100 * busy / _WATCHED_S


def _tick_figures() -> list[Figure]:
    with temporary_database() as db:
        run_id = fill(db)
        size = f"{RUNS} runs of {TRANSITIONS:,} transitions in one database"
        ticks = [median_ms(lambda: live_tick(db, run_id, after=TRANSITIONS - 1000), _REPEATS) for _ in range(_OPENINGS)]
        first = [median_ms(lambda: live_tick(db, run_id, after=0), _REPEATS) for _ in range(_OPENINGS)]
    return [
        _figure("tick_ms", "ms", 50, ticks, f"a tick that brings new points; {size}"),
        _figure("open_ms", "ms", None, first, f"the first reading of every curve; {size}"),
    ]


def _far_figures() -> list[Figure]:
    """The same tick of a run that has just begun, over a network."""
    with (
        records.server(fsync=False) as near,
        records.made_database(near) as url,
        records.far_away(url, delay_s=_AWAY_S) as far,
    ):
        db = open_database(far)
        run_id = create_run(db, CONFIG, target_steps=TRANSITIONS, versions={})
        live_tick(db, run_id, after=0)
        ticks = [median_ms(lambda: live_tick(db, run_id, after=0), 1) for _ in range(_OPENINGS)]
        db.dispose()
    told = f"PostgreSQL, {1e3 * _AWAY_S:.0f} ms from a question to its answer"
    return [_figure("tick_ms.postgresql", "ms", 500, ticks, told)]


def _figure(name: str, unit: str, budget: float | None, found: Sequence[float], what: str) -> Figure:
    low, high = min(found), max(found)
    told = f"{what}; {len(found)} times, {low:.3g} to {high:.3g}"
    return make_figure(f"live.{name}", statistics.median(found), unit, budget, told, digits=2)


def live_tick(db: Database, run_id: str, *, after: int) -> None:
    """Ask what the Live page asks when it ticks and has to redraw its charts."""
    with db.read_snapshot() as now:
        run = find_run(now, run_id)
        list_resumes(now, run_id)
        evaluations(now, run_id, after=after)
        gate_stats(now, run_id, after=after)
        metric_points(now, run_id, _FOLLOWED, after=after)
        list_gate_verdicts(now, [run_id])
        command_log(now, run_id)
    with db.read_snapshot() as now:
        read_returns(now, run)


def fill(db: Database) -> str:
    """Make the runs, all alike; return the id of one in the middle."""
    runs = [create_run(db, CONFIG, target_steps=TRANSITIONS, versions={}) for _ in range(RUNS)]
    fill_transitions(db, runs[0], TRANSITIONS)
    if db.path is None:
        raise ValueError("the benchmark fills a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        _insert_curves(connection, runs[0])
        for run_id in runs[1:]:
            for table in ("transitions", "episodes", "metrics", "gate_stats", "evaluations"):
                _copy_rows(connection, table, runs[0], run_id)
        connection.execute("UPDATE runs SET env_steps = ?", (TRANSITIONS,))
    return runs[RUNS // 2]


def _insert_curves(connection: sqlite3.Connection, run_id: str) -> None:
    """Write every number each 1,000 env steps, and an episode each 50; what a real run of this length holds."""
    steps = range(1000, TRANSITIONS + 1, 1000)
    numbers = ((run_id, step, name, step / 7) for step in steps for name in METRICS)
    connection.executemany("INSERT INTO metrics (run_id, env_step, name, value) VALUES (?, ?, ?, ?)", numbers)
    connection.executemany(
        "INSERT INTO episodes "
        "(run_id, episode, first_env_step, length, episode_return, won, epsilon, closed, trajectory) "
        "VALUES (?, ?, ?, 50, 1.0, 1, 0.1, 2, zeroblob(1000))",
        ((run_id, place + 1, 50 * place + 1) for place in range(TRANSITIONS // 50)),
    )
    marks = ", ".join("?" * len(connection.execute("SELECT * FROM gate_stats").description))
    width = marks.count("?") - 2
    connection.executemany(
        f"INSERT INTO gate_stats VALUES ({marks})", ((run_id, step, *[1.0] * width) for step in steps[::5])
    )
    connection.executemany(
        "INSERT INTO evaluations (run_id, env_step, episodes, wins, win_rate, return_mean, return_std, length_mean) "
        "VALUES (?, ?, 16, 8, 0.5, 1.0, 0.1, 50.0)",
        ((run_id, step) for step in steps[::10]),
    )


def _copy_rows(connection: sqlite3.Connection, table: str, source: str, target: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "run_id"]
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(
        f"INSERT INTO {table} (run_id, {columns}) SELECT ?, {columns} FROM {table} WHERE run_id = ? ORDER BY 2, 3",
        (target, source),
    )
