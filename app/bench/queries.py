"""How fast do the pages' heaviest questions come back? A run of 10M transitions, 5,000 runs, a full memory.

How fast does the table of runs answer, 5,000 of them, on whatever database holds them?
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import insert

from app.bench import Figure, make_figure, what_if
from app.bench.records import (
    CONFIG,
    LENGTH,
    fill_transitions,
    is_reachable,
    made_database,
    make_records,
    median_ms,
    opened,
    server,
    temporary_database,
)
from emtc_core.config.resolve import resolve
from emtc_core.recorder import SnapshotRecord
from storage.engine import Database
from storage.models import Evaluation, Run
from storage.queries.gate import gate_chart
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.runs import RunFilter, list_filter_options, list_runs, run_page
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run

TABLE_RUNS = 5000
BUDGET_MS = 300.0
_TABLE_REPEATS = 5
_ALGOS = ("emtc-qplex", "emtc-cds", "emu-qplex", "qplex", "qmix", "vdn")
_MAPS = ("3m", "8m", "2s3z", "3s5z", "corridor", "MMM2")
_TAGS: tuple[list[str], ...] = ([], [], ["paper"], ["ablation", "paper"])


def figures() -> list[Figure]:
    """Measure `queries.run_page_ms` and the like on SQLite, and on PostgreSQL where a server is installed."""
    with temporary_database() as db:
        found = _measure(db, "")
    if is_reachable():
        with server(fsync=False) as admin, made_database(admin) as url, opened(url) as db:
            found += _measure(db, "_postgres")
    return found


def _measure(db: Database, suffix: str) -> list[Figure]:
    fill_table(db, TABLE_RUNS)
    return [_table_figure(f"queries.run_{name}_ms{suffix}", what, ask) for name, (what, ask) in _questions(db).items()]


def _questions(db: Database) -> dict[str, tuple[str, Callable[[], object]]]:
    setting = RunFilter(text="corridor gate.enabled=false train.lr=0.0005")
    filtered = RunFilter(statuses=("finished",), tags=("paper",), presets=("paper",))
    return {
        "page": ("those at work first, then the newest", lambda: run_page(db)),
        "page_by_mu_w": ("sorted by mu_w", lambda: run_page(db, sort="-mu_w")),
        "page_by_gate": ("sorted by what the gate removed", lambda: run_page(db, sort="-gate")),
        "page_of_words": ("a word in name, id, note and tags", lambda: run_page(db, RunFilter(text="second"))),
        "page_of_settings": ("a word and two settings", lambda: run_page(db, setting, sort="-win_rate")),
        "page_filtered": ("by status, tag and preset", lambda: run_page(db, filtered)),
        "page_last": ("the last page", lambda: run_page(db, offset=TABLE_RUNS - 50)),
        "choices": ("what there is to filter by, with counts", lambda: list_filter_options(db)),
    }


def fill_table(db: Database, count: int) -> None:
    """Write runs of full configurations in all states, most of them finished."""
    rng = np.random.default_rng(0)
    configs = {(algo, map): resolve(algo=algo, map=map).model_dump(mode="json") for algo in _ALGOS for map in _MAPS}
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for first in range(0, count, 500):
        rows = [_row(place, configs, rng, start) for place in range(first, min(first + 500, count))]
        with db.transaction() as connection:
            connection.execute(insert(Run), rows)
            connection.execute(insert(Evaluation), [each for row in rows for each in _curve(row)])


def _row(
    place: int, configs: dict[tuple[str, str], dict[str, Any]], rng: np.random.Generator, start: datetime
) -> dict[str, Any]:
    algo, map = _ALGOS[place % len(_ALGOS)], _MAPS[int(rng.integers(len(_MAPS)))]
    status = ("running", "queued", "failed", "stopped")[place // 40 % 4] if place % 40 == 0 else "finished"
    made = start + timedelta(minutes=place)
    is_ended = status not in ("queued", "running")
    rate = float(rng.random()) if status != "queued" else None
    gate = configs[algo, map]["gate"] | {"enabled": bool(place % 3)}
    return {
        "id": f"r{place:05d}",
        "name": f"{algo} {map} seed {place % 8}",
        "env": "skirmish",
        "map": map,
        "algo": algo,
        "seed": place % 8,
        "status": status,
        "env_steps": 0 if status == "queued" else 100_000,
        "target_steps": 100_000,
        "created_at": made,
        "started_at": None if status == "queued" else made,
        "ended_at": made + timedelta(minutes=40) if is_ended else None,
        "heartbeat_at": None if status == "queued" else made + timedelta(minutes=40),
        "host": "another machine",
        "win_rate": rate,
        "return_mean": rate and 20 * rate,
        "mu_w": rate and 0.7 * rate,
        "gate_removed": float(rng.random() < 0.5) * 0.2 if algo.startswith("emtc") else None,
        "tags": _TAGS[place % len(_TAGS)],
        "notes": "second try" if place % 50 == 0 else "",
        "versions": {"emtc_lab": "0.1.0"},
        "config": configs[algo, map] | {"seed": place % 8, "gate": gate},
    }


def _curve(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Evaluate a run twice, so that its win rate and mu_w are those of its row."""
    rates = [] if row["win_rate"] is None else [(50_000, 0.4 * row["win_rate"]), (100_000, row["win_rate"])]
    rest = {"episodes": 32, "return_std": 1.0, "length_mean": 30.0}
    return [
        {"run_id": row["id"], "env_step": step, "wins": round(32 * rate), "win_rate": rate, "return_mean": 20 * rate}
        | rest
        for step, rate in rates
    ]


def _table_figure(name: str, what: str, ask: Callable[[], object]) -> Figure:
    runs = f"{TABLE_RUNS:,} runs: {what}"
    return make_figure(
        name, median_ms(ask, _TABLE_REPEATS), "ms", BUDGET_MS, f"50 of {runs}" if "page" in name else runs
    )


TRANSITIONS = 10_000_000
NODES = 1_000_000
RUNS = 5000
_REPEATS = 7
_EPISODES = 200


def run() -> list[Figure]:
    """Measure `queries.gate_chart_ms`, `queries.point_detail_ms`, `queries.run_page_ms`, …."""
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
        make_figure(
            "queries.gate_chart_ms", chart_ms, "ms", 150, f"at most 2,000 points of {TRANSITIONS:,} transitions"
        ),
        make_figure("queries.point_detail_ms", point_ms, "ms", 100, f"entry, trajectory, delta_mem; {NODES:,} nodes"),
        make_figure("queries.run_list_ms", list_ms, "ms", 300, f"the newest 200 of {RUNS:,} runs"),
        make_figure("queries.run_list_all_ms", all_ms, "ms", 300, f"all {RUNS:,} runs"),
        *figures(),
        *what_if.run(),
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
