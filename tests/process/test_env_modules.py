"""Who imports the module of an environment: the training that a person starts, and a worker with --env-module."""

import subprocess
from pathlib import Path

import pytest

from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.process.trainers import EMTC, FAST, emtc, environment

pytestmark = pytest.mark.ci

MODULE = """
from pathlib import Path
from tests.core.zoo_example import Corridor

Path(__file__).with_name("imported").touch()


def make():
    return Corridor()
"""
SWEEP = """
name = "her game"
env = "pettingzoo"
map = ["her_game:make"]
algo = ["qmix"]
steps = 60
seeds = 1
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMTC_DB", f"sqlite:///{tmp_path / 'x.db'}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "her_game.py").write_text(MODULE)
    settings = "\n".join(f'"{key}" = {value}' for key, value in (text.split("=") for text in FAST))
    (tmp_path / "sweep.toml").write_text(f"{SWEEP}\n[set]\n{settings}\n")
    return tmp_path


def read_statuses(folder: Path) -> list[str]:
    db = open_database(f"sqlite:///{folder / 'x.db'}")
    statuses = list_runs(db)["status"].tolist()
    db.dispose()
    return statuses


def was_imported(folder: Path) -> bool:
    return (folder / "imported").exists()


def test_a_worker_leaves_a_run_in_the_queue_until_it_may_import_its_module(folder: Path) -> None:
    queued = emtc("sweep", "sweep.toml", "--queue")
    assert queued.returncode == 0, queued.stderr
    without = emtc("worker", "--once")
    (sentence,) = [line for line in without.stderr.splitlines() if "her_game" in line]
    assert "is left in the queue" in sentence
    assert sentence.endswith("--env-module her_game.")
    assert (read_statuses(folder), was_imported(folder)) == (["queued"], False)
    done = emtc("worker", "--once", "--env-module", "another", "--env-module", "her_game")
    assert (done.returncode, read_statuses(folder)) == (0, ["finished"]), done.stderr
    assert was_imported(folder)


def test_a_sweep_file_that_a_person_starts_imports_its_module(folder: Path) -> None:
    checked = emtc("sweep", "sweep.toml", "--dry-run")
    assert (checked.returncode, was_imported(folder)) == (0, False), checked.stderr
    done = emtc("sweep", "sweep.toml", "--jobs", "1")
    assert (done.returncode, read_statuses(folder)) == (0, ["finished"]), done.stderr
    (folder / "imported").unlink()
    run_id = list_runs(open_database(f"sqlite:///{folder / 'x.db'}"))["id"][0]
    for command in (["show", run_id], ["bundle", run_id, "--out", "x.emtc"], ["envs"]):
        done = emtc(*command)
        assert (done.returncode, was_imported(folder)) == (0, False), done.stderr
    command = [*EMTC, "evaluate", run_id, "--episodes", "2"]
    evaluated = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert (evaluated.returncode, was_imported(folder)) == (0, True), evaluated.stderr
