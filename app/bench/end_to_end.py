"""Whole training: env steps per second with everything on, recorded to a database on disk."""

import tempfile
import time
from pathlib import Path
from typing import Any

from app.runs.training import train_run
from app.runs.versions import library_versions
from emtc_core.config.resolve import resolve
from emtc_core.envs.registry import check_available
from emtc_core.errors import EnvUnavailableError
from storage.engine import open_database
from storage.runs import create_run

CASES = (
    ("skirmish", "3m", 10_000, None, "none published"),
    ("grf", "academy_3_vs_1_with_keeper", 8_000, 250.0, "EMU's public code 36-50 steps/s on two cores"),
)


def run() -> list[dict[str, Any]]:
    """Train EMTC(QPLEX) briefly on each environment that is usable here."""
    figures = []
    for env, map, steps, budget, reference in CASES:
        config = resolve(env=env, map=map, steps=steps)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        speed = _steps_per_second(config)
        figures.append(
            {
                "name": f"end_to_end.steps_per_second.{env}.{map}",
                "value": round(speed, 1),
                "unit": "steps/s",
                "budget": budget,
                "met": None if budget is None else speed >= budget,
                "reference": reference,
            }
        )
    return figures


def _steps_per_second(config: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{Path(folder) / 'bench.db'}")
        run_id = create_run(
            database,
            config.model_dump(mode="json"),
            target_steps=config.train.t_max,
            versions=library_versions(),
        )
        started = time.monotonic()
        summary = train_run(database, run_id, resume=False)
        elapsed = time.monotonic() - started
        database.dispose()
    return summary.env_steps / elapsed
