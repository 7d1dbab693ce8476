"""Bad input gets one sentence and exit code 2 before anything is created."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from emtc_core.config.resolve import resolve
from storage.engine import open_database
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, finish_run
from tests.process.trainers import emtc, emtc_process


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--map", "4m"], "4m"),
        (["--env", "starcraft"], "starcraft"),
        (["--steps", "-5"], "train.t_max"),
        (["--steps", "many"], "--steps"),
        (["--seed", "-1"], "seed"),
        (["--algo", "emtc-dqn"], "emtc-dqn"),
        (["--set", "gate.tau_endd=1"], 'Did you mean "gate.tau_end"?'),
        (["--set", "gate.tau_end=1.5"], "gate.tau_end must be <= gate.tau_start = 1.2 (got 1.5)."),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_unusable_arguments_create_nothing(tmp_path: Path, arguments: list[str], fragment: str) -> None:
    done = emtc("train", "--db", f"sqlite:///{tmp_path / 'x.db'}", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert fragment in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is asked for")
@pytest.mark.parametrize("key", ["train.device", "memory.index_device"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_created(tmp_path: Path, key: str) -> None:
    done = emtc("train", "--set", f"{key}=cuda", "--db", f"sqlite:///{tmp_path / 'x.db'}")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert done.stderr.startswith(f"{key} must be auto or cpu")
    assert list(tmp_path.iterdir()) == []


def write_text(path: Path) -> None:
    path.write_text("my notes, not a database; please do not overwrite " * 50)


def write_other_version(path: Path) -> None:
    open_database(f"sqlite:///{path}").dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update schema_version set version = 9999")


@pytest.mark.parametrize(
    ("write", "name", "fragment"),
    [
        (write_text, "x.db", "not a database"),
        (write_text, "x.db/y.db", "x.db"),
        (write_other_version, "x.db", "schema 9999; this version reads"),
    ],
    ids=["not a database", "in a file", "another version"],
)
def test_a_database_that_cannot_be_used_is_refused_and_kept(
    tmp_path: Path, write: Callable[[Path], None], name: str, fragment: str
) -> None:
    write(tmp_path / "x.db")
    before = (tmp_path / "x.db").read_bytes()
    done = emtc_process("train", "--db", f"sqlite:///{tmp_path / name}")
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert fragment in done.stderr
    assert (tmp_path / "x.db").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.db"]


@pytest.mark.parametrize(
    ("changes", "fragment", "detach"),
    [
        ({"algo": "emtc-chess"}, "emtc-chess", []),
        ({"env": {"name": "skirmish", "map": "moon"}}, "moon", ["--detach"]),
        ({"env": {"name": "pettingzoo", "map": "her_game:make"}}, "No module named 'her_game'", []),
    ],
)
def test_a_run_that_cannot_start_again_here_leaves_no_failed_child(
    tmp_path: Path, changes: dict, fragment: str, detach: list[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    config = {**resolve(steps=100).model_dump(mode="json"), **changes}
    db = open_database(url)
    run_id = create_run(db, config, target_steps=100, versions={})
    finish_run(db, run_id, "stopped")
    done = emtc("resume", run_id, "--start-again", *detach, "--db", url)
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert run_id in done.stderr
    assert fragment in done.stderr
    assert list_runs(db)["id"].tolist() == [run_id]
