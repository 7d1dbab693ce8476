"""What one tick of the Live page asks the database, beside 19 other long runs."""

import sqlite3
from contextlib import closing

from app.bench.records import CONFIG, Figure, fill_transitions, median_ms, temporary_database
from emtc_core.metrics import METRICS
from storage.engine import Database
from storage.queries.curves import evaluations, metric, training_episodes
from storage.queries.gate import gate_stats
from storage.queries.runs import list_resumes
from storage.runs.changes import create_run
from storage.runs.control import command_log
from storage.runs.rows import find_run

RUNS, TRANSITIONS = 20, 1_000_000
_REPEATS = 15
_FOLLOWED = ("train/loss", "train/q_taken", "time/env_steps_per_second")


def figures() -> list[Figure]:
    """Measure `queries.live_tick_ms` and `queries.live_open_ms`."""
    with temporary_database() as db:
        run_id = fill(db)
        size = f"{RUNS} runs of {TRANSITIONS:,} transitions in one database"
        tick = median_ms(lambda: live_tick(db, run_id, after=TRANSITIONS - 1000), _REPEATS)
        first = median_ms(lambda: live_tick(db, run_id, after=0), _REPEATS)
    return [
        _figure("queries.live_tick_ms", tick, 50, f"a tick that brings new points; {size}"),
        _figure("queries.live_open_ms", first, None, f"the first reading of every curve; {size}"),
    ]


def live_tick(db: Database, run_id: str, *, after: int) -> None:
    """Ask what the Live page asks when it ticks and has to redraw its charts."""
    find_run(db, run_id)
    command_log(db, run_id)
    list_resumes(db, run_id)
    evaluations(db, run_id, after=after)
    gate_stats(db, run_id, after=after)
    metric(db, run_id, _FOLLOWED, after=after)
    training_episodes(db, run_id, points=1000)


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
        "INSERT INTO episodes VALUES (?, ?, ?, 50, 1.0, 1, 0.1, zeroblob(1000))",
        ((run_id, place + 1, 50 * place + 1) for place in range(TRANSITIONS // 50)),
    )
    marks = ", ".join("?" * len(connection.execute("SELECT * FROM gate_stats").description))
    width = marks.count("?") - 2
    connection.executemany(
        f"INSERT INTO gate_stats VALUES ({marks})", ((run_id, step, *[1.0] * width) for step in steps[::5])
    )
    connection.executemany(
        "INSERT INTO evaluations VALUES (?, ?, 16, 8, 0.5, 1.0, 0.1, 50.0, 12, 0.4, 16)",
        ((run_id, step) for step in steps[::10]),
    )


def _copy_rows(connection: sqlite3.Connection, table: str, source: str, target: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "run_id"]
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(
        f"INSERT INTO {table} (run_id, {columns}) SELECT ?, {columns} FROM {table} WHERE run_id = ? ORDER BY 2, 3",
        (target, source),
    )


def _figure(name: str, value: float, budget: float | None, reference: str) -> Figure:
    met = None if budget is None else value <= budget
    return {"name": name, "value": value, "unit": "ms", "budget": budget, "met": met, "reference": reference}
