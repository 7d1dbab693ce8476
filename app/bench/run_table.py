"""How fast does the table of runs answer, 5,000 of them, on whatever database holds them?"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import numpy as np
from sqlalchemy import insert

from app.bench.postgres import is_reachable, made_database, server
from app.bench.records import Figure, temporary_database
from emtc_core.config.resolve import resolve
from storage.engine import Database, open_database
from storage.models import Evaluation, Run
from storage.queries.run_table import RunFilter, list_choices, run_page

RUNS = 5000
BUDGET_MS = 300.0
_REPEATS = 5
_ALGOS = ("emtc-qplex", "emtc-cds", "emu-qplex", "qplex", "qmix", "vdn")
_MAPS = ("3m", "8m", "2s3z", "3s5z", "corridor", "MMM2")
_TAGS: tuple[list[str], ...] = ([], [], ["paper"], ["ablation", "paper"])


def figures() -> list[Figure]:
    """Measure `queries.run_page_ms` and the like on SQLite, and on PostgreSQL where a server is installed."""
    with temporary_database() as db:
        found = _measure(db, "")
    if is_reachable():
        with server(fsync=False) as admin, made_database(admin) as url:
            db = open_database(url)
            found += _measure(db, "_postgres")
            db.dispose()
    return found


def _measure(db: Database, suffix: str) -> list[Figure]:
    fill_table(db, RUNS)
    return [_figure(f"queries.run_{name}_ms{suffix}", what, ask) for name, (what, ask) in _questions(db).items()]


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
        "page_last": ("the last page", lambda: run_page(db, offset=RUNS - 50)),
        "choices": ("what there is to filter by, with counts", lambda: list_choices(db)),
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


def _figure(name: str, what: str, ask: Callable[[], object]) -> Figure:
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        ask()
        times.append(1000 * (time.perf_counter() - started))
    value = median(times)
    return {
        "name": name,
        "value": value,
        "unit": "ms",
        "budget": BUDGET_MS,
        "met": value <= BUDGET_MS,
        "reference": f"50 of {RUNS:,} runs: {what}" if "page" in name else f"{RUNS:,} runs: {what}",
    }
