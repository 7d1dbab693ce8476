"""Whole training: env steps per second with everything on, recorded to a database on disk."""

import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.analysis.versions import library_versions
from app.bench.filled import save_filled_state, steps_per_second
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import check_available
from emtc_core.errors import EnvUnavailableError
from storage.engine import Database, open_database
from storage.runs.changes import create_run

CASES = (
    ("skirmish", "3m", 10_000, None, "none published"),
    ("grf", "academy_3_vs_1_with_keeper", 8_000, 250.0, "EMU's public code 36-50 steps/s on two cores"),
)
FILLED_MAP, FILLED_NODES, FILLED_STEPS = "3s_vs_5z", 200_000, 8_000
Figure = dict[str, Any]


def run() -> list[Figure]:
    """Train EMTC(QPLEX) briefly on each environment that is usable here, once from a filled memory."""
    figures = []
    for env, map, steps, budget, reference in CASES:
        config = resolve(env=env, map=map, steps=steps)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        figures.append(_figure(f"{env}.{map}", _whole_run(config), budget, reference))
    return [*figures, run_filled()]


def run_filled(nodes: int = FILLED_NODES, steps: int = FILLED_STEPS) -> Figure:
    """Train from a memory of so many nodes, refitting the embedder every 1,000 steps as a long run does."""
    config = resolve(env="skirmish", map=FILLED_MAP)
    with _fresh_run(config) as (database, run_id):
        save_filled_state(database, run_id, config, nodes=nodes)
        speed = steps_per_second(database, run_id, steps=steps)
    return _figure(f"skirmish.{FILLED_MAP}", speed, None, f"from a memory of {nodes:,} nodes")


def _whole_run(config: RunConfig) -> float:
    with _fresh_run(config) as (database, run_id):
        started = time.monotonic()
        summary = train_run(database, run_id, resume=False)
        return summary.env_steps / (time.monotonic() - started)


@contextmanager
def _fresh_run(config: RunConfig) -> Generator[tuple[Database, str]]:
    """Create a run in a database that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            yield (
                database,
                create_run(
                    database,
                    config.model_dump(mode="json"),
                    target_steps=config.train.t_max,
                    versions=library_versions(),
                ),
            )
        finally:
            database.dispose()


def _figure(case: str, speed: float, budget: float | None, reference: str) -> Figure:
    return {
        "name": f"end_to_end.steps_per_second.{case}",
        "value": round(speed, 1),
        "unit": "steps/s",
        "budget": budget,
        "met": None if budget is None else speed >= budget,
        "reference": reference,
    }
