"""The slowest queries of the pages: a run of 10M transitions, a memory of 1M nodes, and a table of 5,000 runs."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import insert

from app.figures.registry import list_live_metrics
from emtc_core.config.resolve import resolve
from emtc_core.recorder import SnapshotRecord
from storage.engine import Database
from storage.models import Evaluation, Run
from storage.queries.curves import evaluations, metric_points
from storage.queries.gate import gate_stats
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.run_search import RunFilter, list_filter_options, run_page
from storage.queries.runs import list_resumes, list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.bench import what_if
from tests.bench.timing import median_ms
from tests.postgres import is_server_available
from tests.records import (
    CONFIG,
    LENGTH,
    fill_transitions,
    insert_curves,
    make_records,
    temporary_database,
    temporary_server_database,
)
from tests.report import BenchResult, make_result

TRANSITIONS = 10_000_000
NODES = 1_000_000
RUNS = 5000
TABLE_BUDGET_MS = 300.0
_EPISODES = 200
_REPEATS, _TABLE_REPEATS = 7, 5
_ALGOS = ("emtc-qplex", "emtc-cds", "emu-qplex", "qplex", "qmix", "vdn")
_MAPS = ("3m", "8m", "2s3z", "3s5z", "corridor", "MMM2")
_TAGS: tuple[list[str], ...] = ([], [], ["paper"], ["ablation", "paper"])


def run() -> list[BenchResult]:
    """Measure `queries.live_read_ms`, `queries.point_detail_ms`, `queries.run_page_ms`, …."""
    with temporary_database() as db:
        long_run = create_run(db, CONFIG, target_steps=TRANSITIONS, versions={})
        fill_transitions(db, long_run, TRANSITIONS)
        _fill_curves(db, long_run)
        snapshot_run = create_run(db, CONFIG, target_steps=1, versions={})
        snapshot_id = fill_snapshot(db, snapshot_run, NODES)
        snapshot = get_snapshot(db, snapshot_id)
        slots = iter(np.linspace(0, NODES - 1, 2 * _REPEATS).astype(int).tolist())
        live_ms = median_ms(lambda: _read_live(db, long_run), _REPEATS)
        point_ms = median_ms(lambda: get_node(db, snapshot, next(slots)), _REPEATS)
        fill_runs(db, RUNS)
        list_ms = median_ms(lambda: list_runs(db), _REPEATS)
        all_ms = median_ms(lambda: list_runs(db, limit=RUNS), _REPEATS)
    return [
        make_result(
            "queries.live_read_ms",
            live_ms,
            "ms",
            150,
            f"everything that Live reads; a run of {TRANSITIONS:,} transitions",
        ),
        make_result("queries.point_detail_ms", point_ms, "ms", 100, f"entry, trajectory, delta_mem; {NODES:,} nodes"),
        make_result("queries.run_list_ms", list_ms, "ms", 300, f"the newest 200 of {RUNS:,} runs"),
        make_result("queries.run_list_all_ms", all_ms, "ms", 300, f"all {RUNS:,} runs"),
        *measure_run_table(),
        *what_if.run(),
    ]


def _fill_curves(db: Database, run_id: str) -> None:
    if db.path is None:
        raise ValueError("this benchmark needs a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        insert_curves(connection, run_id, TRANSITIONS)


def _read_live(db: Database, run_id: str) -> None:
    """Read what `LiveCurves.refresh` of the page Live reads when the page is opened."""
    list_resumes(db, run_id)
    evaluations(db, run_id)
    gate_stats(db, run_id)
    metric_points(db, run_id, list_live_metrics())


def measure_run_table() -> list[BenchResult]:
    """Measure `queries.run_page_ms` and similar on SQLite, and on PostgreSQL if a server is available."""
    with temporary_database() as db:
        results = _measure_run_table_of(db, "")
    if is_server_available():
        with temporary_server_database(fsync=False) as db:
            results += _measure_run_table_of(db, "_postgres")
    return results


def _measure_run_table_of(db: Database, suffix: str) -> list[BenchResult]:
    fill_table(db, RUNS)
    settings = RunFilter(text="corridor gate.enabled=false train.lr=0.0005")
    filtered = RunFilter(statuses=("finished",), tags=("paper",), presets=("paper",))
    queries: dict[str, tuple[str, Callable[[], object]]] = {
        "page": ("active runs first, then the newest", lambda: run_page(db)),
        "page_by_mu_w": ("sorted by mu_w", lambda: run_page(db, sort="-mu_w")),
        "page_by_gate": ("sorted by the incentive that the gate removed", lambda: run_page(db, sort="-gate")),
        "page_of_words": ("a word in name, id, note and tags", lambda: run_page(db, RunFilter(text="second"))),
        "page_of_settings": ("a word and two settings", lambda: run_page(db, settings, sort="-win_rate")),
        "page_filtered": ("by status, tag and preset", lambda: run_page(db, filtered)),
        "page_last": ("the last page", lambda: run_page(db, offset=RUNS - 50)),
        "choices": ("all filter options with counts", lambda: list_filter_options(db)),
    }
    results = []
    for name, (description, query) in queries.items():
        case = f"{RUNS:,} runs: {description}"
        reference = f"50 of {case}" if name.startswith("page") else case
        milliseconds = median_ms(query, _TABLE_REPEATS)
        results.append(make_result(f"queries.run_{name}_ms{suffix}", milliseconds, "ms", TABLE_BUDGET_MS, reference))
    return results


def fill_table(db: Database, count: int) -> None:
    """Write `count` runs with full configurations and all statuses. Most of them are finished."""
    rng = np.random.default_rng(0)
    configs = {(algo, map): resolve(algo=algo, map=map).model_dump(mode="json") for algo in _ALGOS for map in _MAPS}
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for first in range(0, count, 500):
        rows = [_make_run_row(i, configs, rng, start) for i in range(first, min(first + 500, count))]
        with db.transaction() as connection:
            connection.execute(insert(Run), rows)
            connection.execute(
                insert(Evaluation), [evaluation for row in rows for evaluation in _make_evaluations(row)]
            )


def _make_run_row(
    i: int, configs: dict[tuple[str, str], dict[str, Any]], rng: np.random.Generator, start: datetime
) -> dict[str, Any]:
    algo, map = _ALGOS[i % len(_ALGOS)], _MAPS[int(rng.integers(len(_MAPS)))]
    status = ("running", "queued", "failed", "stopped")[i // 40 % 4] if i % 40 == 0 else "finished"
    created_at = start + timedelta(minutes=i)
    is_ended = status not in ("queued", "running")
    win_rate = float(rng.random()) if status != "queued" else None
    gate = configs[algo, map]["gate"] | {"enabled": bool(i % 3)}
    return {
        "id": f"r{i:05d}",
        "name": f"{algo} {map} seed {i % 8}",
        "env": "skirmish",
        "map": map,
        "algo": algo,
        "seed": i % 8,
        "status": status,
        "env_steps": 0 if status == "queued" else 100_000,
        "target_steps": 100_000,
        "created_at": created_at,
        "started_at": None if status == "queued" else created_at,
        "ended_at": created_at + timedelta(minutes=40) if is_ended else None,
        "heartbeat_at": None if status == "queued" else created_at + timedelta(minutes=40),
        "host": "another machine",
        "win_rate": win_rate,
        "return_mean": win_rate and 20 * win_rate,  # None without a win rate
        "mu_w": win_rate and 0.7 * win_rate,
        "gate_removed": float(rng.random() < 0.5) * 0.2 if algo.startswith("emtc") else None,
        "tags": _TAGS[i % len(_TAGS)],
        "notes": "second try" if i % 50 == 0 else "",
        "versions": {"emtc_lab": "0.1.0"},
        "config": configs[algo, map] | {"seed": i % 8, "gate": gate},
    }


def _make_evaluations(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Make two evaluations of a run that give the win rate and mu_w in its row."""
    rates = [] if row["win_rate"] is None else [(50_000, 0.4 * row["win_rate"]), (100_000, row["win_rate"])]
    constants = {"episodes": 32, "return_std": 1.0, "length_mean": 30.0}
    return [
        {"run_id": row["id"], "env_step": step, "wins": round(32 * rate), "win_rate": rate, "return_mean": 20 * rate}
        | constants
        for step, rate in rates
    ]


def fill_snapshot(db: Database, run_id: str, nodes: int) -> int:
    """Record episodes and a snapshot with `nodes` nodes of these episodes. Return the id of the snapshot."""
    rng = np.random.default_rng(0)
    recorder = DatabaseRecorder(db, run_id)
    for record in make_records(_EPISODES):
        recorder.record_episode(record)
    values = rng.random(nodes, np.float32)
    counts = rng.integers(0, 100, nodes, np.int32)
    recorder.record_snapshot(
        SnapshotRecord(
            env_step=_EPISODES * LENGTH,
            slot=np.arange(nodes),
            embedding=rng.random((nodes, 4), np.float32),
            h=values,
            xi=values > 0.5,
            n_call=counts + 1,
            n_xi=counts,
            t=rng.integers(0, LENGTH, nodes, np.int32),
            reward=values,
            idx_next=rng.integers(-1, nodes, nodes),
            episode=rng.integers(1, _EPISODES + 1, nodes),
            delta_mem=values,
            beta=values,
        )
    )
    recorder.close()
    return int(list_snapshots(db, run_id)["id"].iloc[0])


def fill_runs(db: Database, count: int) -> None:
    """Copy the row of one run `count` times."""
    if db.path is None:
        raise ValueError("this benchmark needs a SQLite file")
    with closing(sqlite3.connect(db.path)) as connection, connection:
        names = [column.name for column in Run.__table__.columns if column.name not in ("id", "launch_token")]
        columns = ", ".join(f'"{name}"' for name in names)
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            f"INSERT INTO runs (id, {columns}) SELECT printf('b%07d', i), {columns} "
            f"FROM n, (SELECT * FROM runs LIMIT 1)",
            (count,),
        )
