"""A real trainer on `smac`, whose game workers are killed while it trains; the packages are doubles."""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from emtc_core.envs.smac.game_link import WORKER
from tests.core.smac_machine import Machine, wait_until_gone
from tests.process.trainers import EMTC, FAST, breaches, emtc, environment, read, recorded_steps, wait_until

SETS = (*FAST, "train.n_envs=2", "eval.episodes=2", "train.device=cpu")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    Machine(tmp_path, monkeypatch).install_all("3m")
    return f"sqlite:///{tmp_path / 'runs.db'}"


def start(url: str, *, steps: int) -> subprocess.Popen[str]:
    command = [*EMTC, "train", "--env", "smac", "--map", "3m", "--steps", str(steps), "--db", url]
    options = [part for text in SETS for part in ("--set", text)]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )


def workers_of(trainer: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(trainer.pid).children(recursive=True)
    return [child for child in children if str(WORKER) in child.cmdline()]


@pytest.mark.slow
def test_a_run_outlives_its_workers_and_leaves_none(url: str, tmp_path: Path) -> None:
    trainer, database = start(url, steps=1200), tmp_path / "runs.db"
    wait_until(lambda: recorded_steps(database) > 100, what="step 100")
    workers = workers_of(trainer)
    assert len(workers) >= 2
    for worker in workers:
        worker.kill()
    said, _ = trainer.communicate(timeout=200)
    assert trainer.returncode == 0, said
    assert "The game worker ended by SIGKILL." in said
    assert read(database, "select status from runs") == [("finished",)]
    assert recorded_steps(database) >= 1200
    assert breaches(database) == []
    assert all(wait_until_gone(worker.pid) for worker in workers)


@pytest.mark.slow
def test_a_stopped_run_leaves_no_worker_and_goes_on(url: str, tmp_path: Path) -> None:
    trainer, database = start(url, steps=700), tmp_path / "runs.db"
    wait_until(lambda: recorded_steps(database) > 100, what="step 100")
    workers = workers_of(trainer)
    trainer.send_signal(signal.SIGTERM)
    trainer.communicate(timeout=100)
    assert all(wait_until_gone(worker.pid) for worker in workers)
    ((run_id, status, steps),) = read(database, "select id, status, env_steps from runs")
    assert status in ("stopped", "paused")
    resumed = emtc("resume", run_id, "--db", url)
    assert resumed.returncode == 0, resumed.stderr
    wait_until(lambda: read(database, "select status from runs") == [("finished",)], what="the end")
    assert recorded_steps(database) >= max(700, steps)
    assert breaches(database) == []
