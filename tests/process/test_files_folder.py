"""EMTC_FILES on several machines: a run that one machine trained, and lost, goes on on another one.

Machines share a PostgreSQL server; each has a home of its own, as XDG_DATA_HOME has it.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.runs.rows import find_run
from tests.postgres import temporary_postgres_database
from tests.process.trainers import emtc, environment, train_command, wait_until

STEPS = 1500


@pytest.fixture
def db(postgres_server: str) -> Iterator[Database]:
    with temporary_postgres_database(postgres_server) as url:
        database = open_database(url)
        yield database
        database.dispose()


class Machine:
    """Commands with a home of their own."""

    def __init__(self, home: Path, db: Database, files: str = "") -> None:
        self.home = home
        self.own = {"XDG_DATA_HOME": str(home), "EMTC_DB": db.url, "EMTC_FILES": files}

    def emtc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.own.items():
                patch.setenv(name, value)
            return emtc(*arguments)

    def train(self, db: Database) -> subprocess.Popen[bytes]:
        command, env = train_command(db.url, steps=STEPS), {**environment(), **self.own}
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)


def asked(db: Database, sql: str) -> list[tuple]:
    with db.read() as connection:
        return [tuple(row) for row in connection.execute(text(sql)).all()]


def kill_after_a_checkpoint(machine: Machine, db: Database, place: Path) -> tuple[str, str]:
    """The run, and what its machine was told."""
    process = machine.train(db)
    wait_until(
        lambda: bool(list(place.rglob("checkpoint-*.pt"))) and asked(db, "select env_steps from runs")[0][0] > 500,
        what="a checkpoint",
    )
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    ((run_id,),) = asked(db, "select id from runs")
    wait_until(lambda: find_run(db, run_id).live_status == "lost", what="the lost status")
    return run_id, said.decode()


@pytest.mark.postgres
@pytest.mark.ci
def test_a_killed_run_is_resumed_on_another_machine(db: Database, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir()
    first, second = (Machine(tmp_path / name, db, str(place)) for name in ("first", "second"))
    run_id, said = kill_after_a_checkpoint(first, db, place)
    assert f"go to {place}" in said
    elsewhere = Machine(tmp_path / "third", db)
    refused = elsewhere.emtc("resume", run_id)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "EMTC_FILES may have been set to another folder" in refused.stderr
    assert asked(db, "select count(*) from resumes") == [(0,)]
    done = second.emtc("resume", run_id, "--json")
    assert done.returncode == 0, done.stderr
    ((env_step, reached),) = asked(db, "select env_step, reached_env_step from resumes")
    assert 0 < env_step <= reached, "it went on from a checkpoint of the other machine"
    assert asked(db, "select status, error from runs") == [("finished", None)]
    assert check_run(db, run_id) == []
    kept = sorted(path.name for path in (place / run_id).glob("checkpoint-*.pt"))
    assert len(kept) == 2, "as many as checkpoint.keep says"
    assert f"{int(kept[-1][11:-3])}" == f"{asked(db, 'select env_steps from runs')[0][0]}", "the last one arrived"
    gone = second.emtc("delete", run_id, "--yes")
    assert gone.returncode == 0, gone.stderr
    assert list(place.rglob("*")) == []


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ("shared", "must be an absolute path"),
        pytest.param("/nowhere/at/all", "is not a folder on this machine", marks=pytest.mark.slow),
        ("s3://key:secret@bucket/x", "must be a folder, not a URL"),
    ],
)
def test_an_unusable_setting_is_refused_before_anything_is_made(
    db: Database, tmp_path: Path, files: str, sentence: str
) -> None:
    machine = Machine(tmp_path / "home", db, files)
    for command in (["train", "--steps", "100"], ["train", "--steps", "100", "--detach"], ["worker", "--once"]):
        done = machine.emtc(*command)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert sentence in done.stderr
        assert "secret" not in done.stderr
    assert asked(db, "select count(*) from runs") == [(0,)]
    assert not os.path.lexists(tmp_path / "home")


def test_a_training_writes_one_folder_that_only_its_user_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("EMTC_FILES", str(place))
    done = emtc("train", "--map", "3m", "--steps", "120", "--db", str(tmp_path / "x.db"), "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = place.iterdir()
    assert folder.name == json.loads(done.stdout.splitlines()[-1])["run_id"]
    assert list(folder.glob("checkpoint-*.pt"))
    assert [path.name for path in (place, *place.rglob("*"), tmp_path / "x.db") if path.stat().st_mode & 0o077] == []
    assert not (tmp_path / "x.files").exists()
