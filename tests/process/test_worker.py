"""Real workers on one database: killed, told to leave, stopped by a person; every run is trained once, to its end."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text

from storage.engine import Database, open_database
from storage.files import run_folder
from storage.runs.rows import find_run
from tests.postgres import SERVER_VARIABLE, is_server_available, open_server, temporary_postgres_database
from tests.process.test_sweep import TINY
from tests.process.trainers import EMTC, emtc, environment, wait_until
from tests.require import require

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
Ask = Callable[..., list[tuple[Any, ...]]]


def queue(url: str, folder: Path, *, steps: int, seeds: int) -> Database:
    file = folder / "tiny.toml"
    file.write_text(TINY.format(steps=steps, seeds=seeds))
    done = emtc("sweep", str(file), "--db", url, "--queue")
    assert done.returncode == 0, done.stderr
    assert f"{2 * seeds} queued now" in done.stderr
    return open_database(url)


def start_worker(url: str, log: Path, *options: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*EMTC, "worker", *options], stdout=output, stderr=output, env={**environment(), "EMTC_DB": url}
        )


def asking(db: Database) -> Ask:
    def ask(sql: str) -> list[tuple[Any, ...]]:
        with db.read() as connection:
            return [tuple(row) for row in connection.execute(text(sql)).all()]

    return ask


def trained_by(worker: subprocess.Popen[bytes], db: Database) -> tuple[int, str] | None:
    """The trainer of a worker and its run, once that has a checkpoint and more rows."""
    try:
        commands = {child.pid: child.cmdline() for child in psutil.Process(worker.pid).children()}
    except psutil.NoSuchProcess:
        return None
    for pid, words in commands.items():
        run_id = words[words.index("train-worker") + 1] if "train-worker" in words else ""
        if run_id and list(run_folder(db, run_id).rglob("checkpoint-*.pt")):
            return pid, run_id
    return None


def wait_for_checkpoint(
    workers: list[subprocess.Popen[bytes]], db: Database
) -> tuple[subprocess.Popen[bytes], int, str]:
    """The first worker whose trainer has a checkpoint, that trainer, and its run."""
    found: list[tuple[subprocess.Popen[bytes], int, str]] = []

    def look() -> bool:
        found.extend((worker, *pair) for worker in workers if (pair := trained_by(worker, db)))
        return bool(found)

    wait_until(look, what="a checkpoint")
    return found[0]


def gaps(ask: Ask) -> list[tuple[Any, ...]]:
    """Runs whose transitions are not exactly 1 … env_steps."""
    return ask("""select r.id from runs r left join transitions t on t.run_id = r.id group by r.id, r.env_steps
                  having count(t.env_step) != r.env_steps or min(t.env_step) != 1 or max(t.env_step) != r.env_steps""")


def check_that_runs_survive(url: str, folder: Path, *, steps: int) -> None:
    """One of two workers dies with its trainer, the other is told to leave, a third finishes what they left."""
    db = queue(url, folder, steps=steps, seeds=2)
    ask = asking(db)
    workers = {start_worker(url, folder / f"{i}.log"): folder / f"{i}.log" for i in (1, 2)}
    first, pid, killed = wait_for_checkpoint(list(workers), db)
    for each in (first.pid, pid):
        os.kill(each, signal.SIGKILL)
    second, _, left = wait_for_checkpoint([worker for worker in workers if worker is not first], db)
    second.send_signal(signal.SIGUSR1)
    assert (first.wait(), second.wait(timeout=120)) == (-signal.SIGKILL, 0)
    log = workers[second].read_text()
    assert "1 queued" in log, log
    ((queued, stood_at),) = ask("select id, env_steps from runs where status = 'queued' and env_steps > 0")
    assert queued == left
    third = subprocess.run(
        [*EMTC, "worker", "--once", "--jobs", "2", "--json"],
        capture_output=True, text=True, check=False, env={**environment(), "EMTC_DB": url},
    )  # fmt: skip
    assert third.returncode == 0, third.stderr
    assert {left["status"] for left in json.loads(third.stdout)} == {"finished"}
    assert ask("select status, env_steps >= target_steps, error from runs") == [("finished", True, None)] * 4
    resumes = ask("select run_id, env_step, episodes, reached_env_step from resumes")
    assert sorted(run for run, *_ in resumes) == sorted((killed, left)), "each interrupted run goes on once"
    assert all(step >= 100 for _, step, *_ in resumes), "from its checkpoint"
    assert any(run == left and step == reached == stood_at for run, step, _, reached in resumes)
    assert gaps(ask) == []
    db.dispose()


@pytest.mark.slow
def test_runs_survive_a_killed_worker_and_one_that_has_to_leave(tmp_path: Path) -> None:
    check_that_runs_survive(f"sqlite:///{tmp_path / 'x.db'}", tmp_path, steps=2500)


@pytest.mark.slow
@pytest.mark.postgres
def test_runs_survive_on_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("postgres", is_server_available(), f"no PostgreSQL server is installed and {SERVER_VARIABLE} is unset")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # a server's run folders
    with open_server(fsync=False) as place, temporary_postgres_database(place) as url:
        check_that_runs_survive(url, tmp_path, steps=2500)


def test_a_trainer_ends_with_its_killed_worker_and_queues_its_run_again(tmp_path: Path) -> None:
    """Nobody counts a trainer whose worker is gone: a second worker here would train beside it, more than told to."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    db = queue(url, tmp_path, steps=40_000, seeds=1)
    worker = start_worker(url, tmp_path / "log", "--jobs", "1")
    _, pid, run_id = wait_for_checkpoint([worker], db)
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(pid), what="the trainer's end")
    assert asking(db)("select id, status from runs where env_steps >= 100") == [(run_id, "queued")]
    assert gaps(asking(db)) == []
    db.dispose()


@pytest.mark.slow
def test_a_second_signal_ends_a_worker_and_its_trainer_at_once(tmp_path: Path) -> None:
    """A trainer that cannot obey is not waited for; its run is lost, and free for the next worker."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    db = queue(url, tmp_path, steps=40_000, seeds=1)
    worker = start_worker(url, tmp_path / "log")
    _, pid, run_id = wait_for_checkpoint([worker], db)
    os.kill(pid, signal.SIGSTOP)
    worker.terminate()
    wait_until(lambda: "Stopping" in (tmp_path / "log").read_text(), what="the first signal")
    assert worker.poll() is None
    worker.terminate()
    assert worker.wait(timeout=60) == 1
    wait_until(lambda: not psutil.pid_exists(pid), what="the trainer's end")
    wait_until(lambda: find_run(db, run_id).live_status == "lost", what="the lost status")
    db.dispose()


def job_scripts() -> dict[str, list[str]]:
    """The commands of the guide's job scripts, as the schedulers would start them."""
    guide = (ROOT / "app" / "guide" / "sweeps.md").read_text()
    sbatch = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", guide, re.DOTALL)
    job = re.search(r"kind: Job.*?command: (\[.*?\])", guide, re.DOTALL)
    assert sbatch
    assert job
    return {"sbatch": ["bash", "-c", sbatch[1]], "kubernetes": json.loads(job[1])}


@pytest.mark.parametrize("name", ["sbatch", "kubernetes"])
def test_the_job_scripts_of_the_guide_run(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    open_database(url).dispose()
    program = tmp_path / "emtc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m app.cli.main "$@"\n')
    program.chmod(0o755)
    variables = {**environment(), "EMTC_DB": url, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    variables["EMTC_FILES"] = str(tmp_path)
    done = subprocess.run(job_scripts()[name], capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stderr.strip().splitlines()[1:]) == (0, ["No run waited for this worker."])
    assert f"Checkpoints and logs go to {tmp_path}." in done.stderr


def test_an_idle_worker_prints_that_it_waits_and_ends_on_a_signal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    open_database(url).dispose()
    worker = start_worker(url, tmp_path / "log")
    wait_until(lambda: "No run waits" in (tmp_path / "log").read_text(), what="its sentence")
    assert worker.poll() is None
    worker.send_signal(signal.SIGUSR1)
    assert worker.wait(timeout=60) == 0
