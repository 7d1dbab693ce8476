"""Which claimed runs a worker leaves to another machine, and in which words."""

import socket
from pathlib import Path

import psutil
import pytest
from sqlalchemy import update

from app.sweeps.starting import Fitness
from emtc_core.config.resolve import resolve
from storage.claims import Claim, Worker, claim_any
from storage.engine import Database, open_database
from storage.lifecycle import State
from storage.models import Run
from storage.runs import find_run
from storage.sweeps import PlannedRun, save_sweep


@pytest.fixture
def me() -> Worker:
    process = psutil.Process()
    return Worker(process.pid, process.create_time(), socket.gethostname())


def claim_run_of(db: Database, me: Worker, **env: str) -> Claim:
    config = resolve(map="3m").model_dump(mode="json")
    config["env"] |= env
    runs = [PlannedRun("k", "a run", config, 1000)]
    save_sweep(db, "aaaa0000", name="s", plan={"runs": []}, runs=runs, versions={}, jobs=1)
    claim = claim_any(db, me)
    assert claim is not None
    return claim


def test_the_checkpoint_of_another_machine_is_left_to_it(tmp_path: Path, me: Worker) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    queued = claim_run_of(db, me)
    assert Fitness(db).refuse(queued) is None
    with db.transaction() as connection:
        started = find_run(db, queued.run_id).created_at
        connection.execute(update(Run).values(env_steps=100, started_at=started, host="far-away", pid=None))
    claim = claim_any(db, me)
    assert claim is not None
    sentence = Fitness(db).refuse(claim)
    assert sentence is not None
    assert f"Run {claim.run_id} is left to another machine: it was trained on far-away" in sentence
    row = find_run(db, claim.run_id)
    assert (row.state, row.host, row.env_steps) == (State.CREATED, "far-away", 100)
    db.dispose()


def test_an_environment_that_is_not_here_is_left_to_a_machine_that_has_it(tmp_path: Path, me: Worker) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    claim = claim_run_of(db, me, map="no_such_map")
    sentence = Fitness(db).refuse(claim)
    assert sentence is not None
    assert "no_such_map" in sentence
    row = find_run(db, claim.run_id)
    assert (row.state, row.host) == (State.CREATED, None)
    db.dispose()
