"""Checks of whole trainings: a run that changes the device, and a run that is stopped and resumed."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from app.analysis.provenance import library_versions
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl, StopRequested
from emtc_core.envs.registry import make_env
from emtc_core.recorder import EpisodeRecord, ListRecorder
from emtc_core.training.checkpoint import CheckpointStore, load_part
from emtc_core.training.trainer import Trainer
from storage import open_database
from storage.engine import Database
from storage.files import run_folder
from storage.runs.changes import create_run
from tests.gpu.cases import count_differences
from tests.gpu.report import CheckResult, Measurement
from tests.gpu.target import CPU, CheckSizes, Target
from tests.records import temporary_database

SHORT = {
    "train.burn_in": 8,
    "train.batch": 8,
    "eval.episodes": 8,
    "memory.delta": 0.05,
    "embed.min_entries": 64,
    "embed.batch": 64,
    "embed.interval": 300,
    "train.eps_start": 0.2,
}
"""Settings of a short run that updates, refits and evaluates, and whose actions mostly depend on the weights."""
COMPARED = ("transitions", "episodes", "evaluations", "gate_stats")
"""Tables whose rows must be equal."""
NO_CONTEXT = Target(CPU).computing
"""`Target.computing` of the parts that the CPU computes."""


def check_resume(target: Target, sizes: CheckSizes) -> CheckResult:
    """Train on the CPU, resume from the checkpoint on the device, and then resume on the CPU again.

    The restored state must be equal to the checkpoint, and the rows of the three parts must be contiguous.
    """
    steps = sizes.resume_steps
    config = resolve(
        map="3m", steps=3 * steps, overrides={**SHORT, "eval.interval": steps, "checkpoint.interval": steps}
    )
    records: list[EpisodeRecord] = []
    differing = updates = 0
    with tempfile.TemporaryDirectory(prefix="emtc-check-") as folder:
        for part, device in enumerate((CPU, target.device, CPU), start=1):
            computing = target.computing if part == 2 else NO_CONTEXT
            trainer, recorder = _make_trainer(config, Path(folder), device, until=part * steps)
            with computing():
                loaded = trainer.checkpoints.load_latest()
                if loaded is not None:
                    trainer.set_state(loaded.state)
                    differing += count_differences(loaded.state, trainer.get_state())
                summary = trainer.run()
            updates = summary.updates
            records += recorder.episodes
    ends = np.cumsum([record.length for record in records])
    gaps = sum(record.first_env_step != end - record.length + 1 for record, end in zip(records, ends, strict=True))
    return CheckResult(
        "resume",
        (
            Measurement("restored values that differ", differing, 0),
            Measurement("gaps between the parts", int(gaps), 0),
            Measurement("missing steps", max(0, 3 * steps - int(ends[-1])), 0),
        ),
        f"CPU, device, CPU: {len(records):,} episodes, {ends[-1]:,} env steps, {updates:,} updates",
    )


def _make_trainer(config: RunConfig, folder: Path, device: torch.device, *, until: int) -> tuple[Trainer, ListRecorder]:
    recorder = ListRecorder()
    trainer = Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=config.eval.episodes),
        recorder=recorder,
        control=NoControl(),
        checkpoints=CheckpointStore(folder, keep=2),
        device=device,
        on_progress=partial(_stop_at, until),
    )
    return trainer, recorder


def _stop_at(until: int, env_step: int) -> None:
    if env_step >= until:
        raise StopRequested


def check_training(target: Target, sizes: CheckSizes) -> CheckResult:
    """Train a run in a database, stop it half-way and resume it, and compare it with a run without a stop.

    The rows and the learner's state are compared. Both runs use the device, a GPU with `train.deterministic`, so all
    numbers must be equal.
    """
    settings = {
        **SHORT,
        "train.device": target.device.type,
        "train.deterministic": target.is_gpu,
        "eval.interval": max(500, sizes.training_steps // 20),
        "train.threads": 1,
    }
    config = resolve(map="3m", steps=sizes.training_steps, overrides=settings)
    with temporary_database() as database:
        run_id, other_id = _create(database, config), _create(database, config)
        half = time.monotonic() + sizes.training_s / 4
        with target.computing():
            train_run(database, run_id, resume=False, on_progress=_stop_when(sizes.training_steps // 2, half))
        end = time.monotonic() + sizes.training_s / 4
        with target.computing():
            on_progress = _stop_when(sizes.training_steps, end)
            steps = train_run(database, run_id, resume=True, on_progress=on_progress).env_steps
        with target.computing():
            train_run(database, other_id, resume=False, on_progress=partial(_stop_at, steps))
        with open_database(str(database.path)) as opened:
            resumed, whole = opened.run(run_id), opened.run(other_id)
            pairs = {name: (getattr(resumed, name)(), getattr(whole, name)()) for name in COMPARED}
        learners = [
            load_part(CheckpointStore(run_folder(database, run), keep=2).list()[-1], "learner", run_id=run)
            for run in (run_id, other_id)
        ]
    measurements = (
        *(Measurement(f"{name} that differ", _count_differing_rows(*pair), 0) for name, pair in pairs.items()),
        Measurement("values of the learner that differ", count_differences(*learners), 0),
    )
    rows = ", ".join(f"{len(pair[0]):,} {name}" for name, pair in pairs.items())
    return CheckResult("training", measurements, f"3m for {steps:,} env steps, stopped and resumed: {rows}")


def _create(database: Database, config: RunConfig) -> str:
    settings = config.model_dump(mode="json")
    return create_run(database, settings, target_steps=config.train.t_max, versions=library_versions())


def _stop_when(steps: int, deadline: float) -> Callable[[int], None]:
    """Make a callback that stops a training at a number of env steps, or at a time of the monotonic clock [s]."""

    def on_progress(env_step: int) -> None:
        if env_step >= steps or time.monotonic() >= deadline:
            raise StopRequested

    return on_progress


def _count_differing_rows(a: pd.DataFrame, b: pd.DataFrame) -> int:
    """Count the rows that differ in any column, and the rows that only one of the runs has."""
    shared = min(len(a), len(b))
    missing = max(len(a), len(b)) - shared
    if not shared:
        return max(1, missing)
    a, b = (frame.drop(columns="run_id").iloc[:shared].reset_index(drop=True) for frame in (a, b))
    is_equal = (a == b) | (a.isna() & b.isna())
    return missing + int((~is_equal.all(axis=1)).sum())
