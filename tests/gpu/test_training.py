"""Trainings: one that changes the device, and one that is stopped and resumed."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.control import NoControl, StopRequested
from emtc_core.envs.registry import make_env
from emtc_core.recorder import ListRecorder
from emtc_core.training.checkpoint import CheckpointStore, load_part
from emtc_core.training.trainer import Trainer
from storage import open_database
from storage.files import run_folder
from storage.runs.changes import create_run
from tests.gpu.cases import CPU, Sizes, assert_same_state
from tests.records import temporary_database

pytestmark = pytest.mark.gpu

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
TABLES = ("transitions", "episodes", "evaluations", "gate_stats")


def stop_at(until: int, env_step: int) -> None:
    if env_step >= until:
        raise StopRequested


def test_a_run_resumes_from_the_cpu_on_the_gpu_and_back_without_a_changed_value_or_a_gap(
    device: torch.device, sizes: Sizes, tmp_path: Path
) -> None:
    steps = sizes.training_steps // 3
    overrides = {**SHORT, "eval.interval": steps, "checkpoint.interval": steps}
    config = resolve(map="3m", steps=3 * steps, overrides=overrides)
    episodes = []
    for part, place in enumerate((CPU, device, CPU), start=1):
        recorder = ListRecorder()
        trainer = Trainer(
            config,
            env=make_env(config.env, n_envs=config.train.n_envs),
            eval_env=make_env(config.env, n_envs=config.eval.episodes),
            recorder=recorder,
            control=NoControl(),
            checkpoints=CheckpointStore(tmp_path, keep=2, min_interval_s=0.0),
            device=place,
            on_progress=partial(stop_at, part * steps),
        )
        loaded = trainer.checkpoints.load_latest()
        if loaded is not None:
            trainer.set_state(loaded.state)
            assert_same_state(loaded.state, trainer.get_state())
        trainer.run()
        episodes += recorder.episodes
    ends = np.cumsum([episode.length for episode in episodes])
    assert [episode.first_env_step for episode in episodes] == [1, *(ends[:-1] + 1)]
    assert ends[-1] >= 3 * steps


def test_a_stopped_and_resumed_training_has_the_rows_and_weights_of_an_uninterrupted_one(
    device: torch.device, sizes: Sizes
) -> None:
    steps = sizes.training_steps
    settings = {
        **SHORT,
        "train.device": device.type,
        "train.deterministic": True,
        "eval.interval": max(500, steps // 20),
        "train.threads": 1,
    }
    config = resolve(map="3m", steps=steps, overrides=settings)
    with temporary_database() as database:
        stopped, whole = (
            create_run(database, config.model_dump(mode="json"), target_steps=steps, versions={}) for _ in range(2)
        )
        train_run(database, stopped, resume=False, on_progress=partial(stop_at, steps // 2))
        train_run(database, stopped, resume=True)
        train_run(database, whole, resume=False)
        with open_database(str(database.path)) as opened:
            for name in TABLES:
                rows, expected = (
                    getattr(opened.run(run_id), name)().drop(columns="run_id").reset_index(drop=True)
                    for run_id in (stopped, whole)
                )
                assert len(rows) > 0, name
                assert rows.equals(expected), name
        learners = [
            load_part(CheckpointStore(run_folder(database, run_id), keep=2).list()[-1], "learner", run_id=run_id)
            for run_id in (stopped, whole)
        ]
    assert_same_state(*learners)
