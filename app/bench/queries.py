"""How fast do the pages' heaviest questions come back? A run of 10M transitions, 5,000 runs, a full memory."""

import sqlite3
from contextlib import closing

import numpy as np

from app.bench import live, run_table, what_if
from app.bench.records import CONFIG, LENGTH, Figure, fill_transitions, make_records, median_ms, temporary_database
from emtc_core.recorder import SnapshotRecord
from storage.engine import Database
from storage.models import Run
from storage.queries.gate import gate_chart
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.runs import list_runs
from storage.recording.recorder import DatabaseRecorder
from storage.runs.changes import create_run

TRANSITIONS = 10_000_000
NODES = 1_000_000
RUNS = 5000
_REPEATS = 7
_EPISODES = 200


def run() -> list[Figure]:
    """Measure `queries.gate_chart_ms`, `queries.point_detail_ms`, `queries.run_page_ms`, `queries.live_tick_ms`, …."""
    with temporary_database() as db:
        long_run = create_run(db, CONFIG, target_steps=TRANSITIONS, versions={})
        fill_transitions(db, long_run, TRANSITIONS)
        snapshot_run = create_run(db, CONFIG, target_steps=1, versions={})
        snapshot_id = fill_snapshot(db, snapshot_run, NODES)
        snapshot = get_snapshot(db, snapshot_id)
        slots = iter(np.linspace(0, NODES - 1, 2 * _REPEATS).astype(int).tolist())
        chart_ms = median_ms(lambda: gate_chart(db, long_run), _REPEATS)
        point_ms = median_ms(lambda: get_node(db, snapshot, next(slots)), _REPEATS)
        fill_runs(db, RUNS)
        list_ms = median_ms(lambda: list_runs(db), _REPEATS)
        all_ms = median_ms(lambda: list_runs(db, limit=RUNS), _REPEATS)
    return [
        _figure("queries.gate_chart_ms", chart_ms, 150, f"at most 2,000 points of {TRANSITIONS:,} transitions"),
        _figure("queries.point_detail_ms", point_ms, 100, f"entry, trajectory, delta_mem; {NODES:,} nodes"),
        _figure("queries.run_list_ms", list_ms, 300, f"the newest 200 of {RUNS:,} runs"),
        _figure("queries.run_list_all_ms", all_ms, 300, f"all {RUNS:,} runs"),
        *run_table.figures(),
        *live.figures(),
        *what_if.figures(),
    ]


def fill_snapshot(db: Database, run_id: str, nodes: int) -> int:
    """Record episodes and a snapshot whose nodes they wrote; return its id."""
    rng = np.random.default_rng(0)
    recorder = DatabaseRecorder(db, run_id)
    for record in make_records(_EPISODES):
        recorder.record_episode(record)
    ramp = rng.random(nodes, np.float32)
    counts = rng.integers(0, 100, nodes, np.int32)
    recorder.record_snapshot(
        SnapshotRecord(
            env_step=_EPISODES * LENGTH,
            slot=np.arange(nodes),
            embedding=rng.random((nodes, 4), np.float32),
            h=ramp,
            xi=ramp > 0.5,
            n_call=counts + 1,
            n_xi=counts,
            t=rng.integers(0, LENGTH, nodes, np.int32),
            reward=ramp,
            idx_next=rng.integers(-1, nodes, nodes),
            episode=rng.integers(1, _EPISODES + 1, nodes),
            delta_mem=ramp,
            beta=ramp,
        )
    )
    recorder.close()
    return int(list_snapshots(db, run_id)["id"].iloc[0])


def fill_runs(db: Database, count: int) -> None:
    """Copy a run's row many times."""
    if db.path is None:
        raise ValueError("the benchmark fills a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        names = [column.name for column in Run.__table__.columns if column.name not in ("id", "launch_token")]
        columns = ", ".join(f'"{name}"' for name in names)
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            f"INSERT INTO runs (id, {columns}) SELECT printf('b%07d', i), {columns} "
            f"FROM n, (SELECT * FROM runs LIMIT 1)",
            (count,),
        )


def _figure(name: str, value: float, budget: float, reference: str) -> Figure:
    return {
        "name": name,
        "value": value,
        "unit": "ms",
        "budget": budget,
        "met": value <= budget,
        "reference": reference,
    }
