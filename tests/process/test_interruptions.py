"""Equal rows however often a run was interrupted: every algorithm, stopped, and thrown back to an older checkpoint."""

import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import update

import tests.frequent_checkpoints  # noqa: F401
from app.analysis.provenance import library_versions
from app.jobs.resume import claim_to_resume
from app.jobs.train_process import train_detached
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import list_algos
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.models import Run
from storage.retry import retry_transient
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.process.test_determinism import TABLES, rows
from tests.process.trainers import FAST, breaches
from tests.require import require_env

SHORT, LONG = (220, 520, 700, 900), (900, 2100, 2800, 3600)
"""Env steps of three stops and of the end: rounds of short and of long episodes, with a checkpoint in each."""
OFTEN = (
    "mappo.rollout_steps=120",
    "record.gate_interval=100",
    "train.n_envs=2",
)
HOW_OFTEN = {"emtc-qplex": (), "mappo": pytest.mark.ci}
ALGOS = [pytest.param(algo, marks=HOW_OFTEN.get(algo, pytest.mark.slow)) for algo in list_algos()]


def make_run(folder: Path, env: str, map: str, algo: str, steps: int, *extra: str) -> tuple[Database, str]:
    db = open_database(f"sqlite:///{folder / f'{algo}.db'}")
    config = resolve(env=env, map=map, algo=algo, steps=steps, overrides=[*FAST, *OFTEN, *extra])
    return db, create_run(db, config.model_dump(mode="json"), target_steps=steps, versions=library_versions())


def stop_at(step: int) -> Callable[[int], None]:
    def on_progress(env_step: int) -> None:
        if env_step >= step:
            signal.raise_signal(signal.SIGTERM)

    return on_progress


def lose_newest_checkpoint(db: Database, run_id: str) -> None:
    """As after `kill -9`: rows are there that no checkpoint knows of."""
    newest = max(run_folder(db, run_id).glob("checkpoint-*.pt"))
    newest.unlink()


@pytest.mark.parametrize("algo", ALGOS)
def test_a_resumed_run_of_each_algorithm_equals_an_uninterrupted_one(tmp_path: Path, algo: str) -> None:
    check_that_interruptions_change_nothing(tmp_path, "skirmish", "3m", algo, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("env", "map", "steps"),
    [
        ("skirmish", "3s_vs_5z", LONG),
        ("pettingzoo", "tests.core.zoo_example:make_with_state", LONG),
        pytest.param("grf", "academy_3_vs_1_with_keeper", LONG, marks=pytest.mark.grf),
    ],
)
def test_a_resumed_run_of_each_environment_equals_an_uninterrupted_one(
    tmp_path: Path, env: str, map: str, steps: tuple[int, ...]
) -> None:
    require_env(env)
    check_that_interruptions_change_nothing(tmp_path, env, map, "emtc-qplex", steps)


def check_that_interruptions_change_nothing(
    folder: Path, env: str, map: str, algo: str, steps: tuple[int, ...]
) -> None:
    *stops, end = steps
    extra = (
        f"checkpoint.interval={end // 6}",
        f"eval.interval={end // 3}",
        *(("cds.beta=0.1",) if algo.endswith("-cds") else ()),
    )
    whole, unbroken = make_run(folder / "a", env, map, algo, end, *extra)
    train_run(whole, unbroken, resume=False)
    db, run_id = make_run(folder / "b", env, map, algo, end, *extra)
    assert train_run(db, run_id, resume=False, on_progress=stop_at(stops[0])).status == "stopped"
    for step in stops[1:]:
        lose_newest_checkpoint(db, run_id)
        token = claim_to_resume(db, run_id)
        assert train_run(db, run_id, resume=True, token=token, on_progress=stop_at(step)).status == "stopped"
    token = claim_to_resume(db, run_id)
    assert train_run(db, run_id, resume=True, token=token).status == "finished"
    assert find_run(db, run_id).env_steps >= end
    assert db.path is not None
    assert breaches(db.path) == []
    for table in TABLES:
        assert rows(db.url, table) == rows(whole.url, table), table
    for each in (whole, db):
        each.dispose()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is asked for")
def test_the_device_that_acts_is_chosen_again_on_another_machine(tmp_path: Path) -> None:
    db, run_id = make_run(tmp_path, "skirmish", "3m", "emtc-qplex", 100, "train.act_device=cuda")
    with db.transaction() as connection:
        connection.execute(update(Run).values(host="elsewhere"))
    assert train_run(db, run_id, resume=False).status == "finished"
    (tmp_path / "here").mkdir()
    db, run_id = make_run(tmp_path / "here", "skirmish", "3m", "emtc-qplex", 100, "train.act_device=cuda")
    with pytest.raises(ConfigError, match="act_device"):
        train_run(db, run_id, resume=False)


def test_each_access_of_a_trainer_to_its_database_may_fail_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock, a full disk or a server that cuts a session at any of them: the trainer asks again."""
    said: list[str] = []
    asked: set[tuple[str, str, int]] = set()

    def refused_once(ask: Callable[..., Any]) -> Callable[..., Any]:
        def first_refused(db: Database, **options: Any) -> Any:
            caller = sys._getframe(1)
            place = (threading.current_thread().name, caller.f_code.co_name, caller.f_lineno)
            if place not in asked:
                asked.add(place)
                lock = sqlite3.OperationalError("database is locked")
                lock.sqlite_errorname = "SQLITE_BUSY"  # as SQLite says of one
                raise StorageError("The database failed.") from lock
            return ask(db, **options)

        return first_refused

    db, run_id = make_run(tmp_path, "skirmish", "3m", "emtc-qplex", 300, "checkpoint.interval=100")
    with monkeypatch.context() as patch:
        for way in ("read", "transaction"):
            patch.setattr(Database, way, refused_once(getattr(Database, way)))
        assert train_run(db, run_id, resume=False, on_progress=stop_at(150)).status == "stopped"
        token = retry_transient(db, lambda: claim_to_resume(db, run_id))
        assert train_detached(db.url, run_id, announce=said.append, token=token, resume=True) == 0, said
        run = retry_transient(db, lambda: find_run(db, run_id))
    assert run.status == "finished", run.error
    assert {"find_run", "start_run", "rewind_run", "finish_run"} <= {name for _, name, _ in asked}
    assert db.path is not None
    assert breaches(db.path) == []
