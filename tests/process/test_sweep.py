"""Real sweeps of tiny runs: to their end, with two commands at once, killed in the middle, stopped."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.process.trainers import EMTC, breaches, emtc, emtc_process, environment, read, wait_until

TINY = """
name = "Tiny"
steps = {steps}
seeds = {seeds}

[set]
train.burn_in = 8
train.batch = 8
eval.episodes = 4
eval.interval = 1000
checkpoint.interval = 100
embed.min_entries = 64
embed.batch = 64
record.gate_interval = 200

[grid]
memory.delta = [0.02, 0.002]
"""


_STORY = "select id, status, pid, created_at, started_at, heartbeat_at, ended_at, error from runs"


def write_sweep(folder: Path, *, steps: int = 300, seeds: int = 1) -> tuple[str, str, Path]:
    file = folder / "tiny.toml"
    file.write_text(TINY.format(steps=steps, seeds=seeds))
    path = folder / "x.db"
    return str(file), f"sqlite:///{path}", path


def start_sweep(file: str, url: str, jobs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*EMTC, "sweep", file, "--db", url, "--jobs", str(jobs), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip


def statuses(path: Path) -> list[str]:
    return [row[0] for row in read(path, "select status from runs order by created_at")]


def logs(path: Path) -> str:
    return "".join(log.read_text() for log in sorted(path.with_suffix(".files").glob("*/log.txt")))


def test_a_dry_run_shows_the_plan_and_creates_nothing(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path, seeds=2)
    done = emtc("sweep", file, "--db", url, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [(run["seed"], run["what"]) for run in plan["runs"]] == [
        (1, "delta = 0.02"), (1, "delta = 0.002"), (2, "delta = 0.02"), (2, "delta = 0.002"),
    ]  # fmt: skip
    assert plan["expected_seconds"] > 0
    some = json.loads(emtc("sweep", file, "--db", url, "--dry-run", "--seeds", "2", "--json").stdout)
    assert [run["seed"] for run in some["runs"]] == [2, 2]
    assert not path.exists()


def test_a_faulty_file_is_refused_in_sentences_and_creates_nothing(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path)
    Path(file).write_text(Path(file).read_text().replace("memory.delta", "memory.dleta"))
    done = emtc("sweep", file, "--db", url)
    assert done.returncode == 2
    assert 'Did you mean "memory.delta"?' in done.stderr
    assert not path.exists()
    assert emtc("sweep", "--engine", "slurm", file, "--db", url).returncode == 2


@pytest.mark.ci
def test_the_ray_engine_says_how_to_get_ray_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "ray.py").write_text('raise ModuleNotFoundError("No module named ray")')  # found before an installed one
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")]))
    file, url, path = write_sweep(tmp_path)
    done = emtc_process("sweep", file, "--db", url, "--engine", "ray")
    assert (done.returncode, path.exists()) == (2, False)
    assert done.stderr.startswith("The Ray engine needs ray. Install it with: pip install")


@pytest.mark.ci
def test_a_sweep_ends_with_every_run_and_again_does_nothing(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path)
    done = emtc("sweep", file, "--db", url, "--jobs", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(run["status"], run["seed"]) for run in result["runs"]] == [("finished", 1)] * 2
    assert result["status"] == "finished"
    assert breaches(path) == []
    again = json.loads(emtc("sweep", file, "--db", url, "--json").stdout)
    assert again == result
    listed = json.loads(emtc("sweep", "--list", "--db", url, "--json").stdout)
    assert [(row["id"], row["finished"], row["done"]) for row in listed] == [(result["sweep_id"], 2, 1.0)]


@pytest.mark.slow
def test_two_sweeps_at_once_start_each_run_once(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path, seeds=2)
    with start_sweep(file, url, 2) as first, start_sweep(file, url, 2) as second:
        ended = (first.wait(timeout=240), second.wait(timeout=240))
    told = f"{read(path, _STORY)}\n{logs(path)}"
    assert ended == (0, 0), f"a sweep failed: {told}"
    assert statuses(path) == ["finished"] * 4, f"a run did not finish: {told}"
    assert read(path, "select count(*) from resumes") == [(0,)], f"a run was taken from its trainer: {told}"
    assert "already" not in logs(path), f"a trainer was started for a run that another had: {told}"
    assert breaches(path) == []


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    """The sweep and one trainer die by SIGKILL; the same command finishes all runs, the lost one by a resume."""
    file, url, path = write_sweep(tmp_path, steps=1500)
    with start_sweep(file, url, 1) as process:
        wait_until(lambda: read(path, "select 1 from runs where env_steps > 400") != [], what="step 400")
        pid = read(path, "select pid from runs where status = 'running'")[0][0]
        os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGKILL)
        process.wait()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert statuses(path) == ["running", "queued"]
    done = emtc("sweep", file, "--db", url, "--jobs", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert statuses(path) == ["finished"] * 2
    assert read(path, "select count(*), min(env_step) >= 100 from resumes") == [(1, 1)]
    assert breaches(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_trainers_of_an_ended_sweep_give_their_runs_back_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    file, url, path = write_sweep(tmp_path, steps=1500)
    with start_sweep(file, url, 1) as process:
        wait_until(lambda: read(path, "select 1 from runs where env_steps > 400") != [], what="step 400")
        process.send_signal(number)
        assert process.wait() == (-signal.SIGKILL if number == signal.SIGKILL else 1)
    wait_until(lambda: statuses(path) == ["queued"] * 2, what="the run's return to the queue")
    assert emtc("sweep", file, "--db", url, "--jobs", "1").returncode == 0
    assert statuses(path) == ["finished"] * 2
    ((n, is_where_it_stopped),) = read(path, "select count(*), min(env_step = reached_env_step) from resumes")
    assert (n, is_where_it_stopped) == (1, 1)
    assert breaches(path) == []


@pytest.mark.slow
def test_a_detached_sweep_stops_when_asked_and_the_same_command_goes_on(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path, steps=40_000)
    done = emtc("sweep", file, "--db", url, "--jobs", "1", "--detach")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: read(path, "select 1 from runs where env_steps > 100") != [], what="step 100")
    assert emtc("sweep", file, "--db", url, "--stop").returncode == 0
    wait_until(lambda: statuses(path) == ["stopped"] * 2, what="the stop")
    wait_until(lambda: read(path, "select heartbeat_at from sweeps") == [(None,)], what="the end of the process")
    assert emtc("sweep", file, "--db", url, "--jobs", "1", "--detach").returncode == 0
    wait_until(lambda: "running" in statuses(path), what="going on")
    assert emtc("sweep", file, "--db", url, "--stop").returncode == 0
    wait_until(lambda: statuses(path) == ["stopped"] * 2, what="the second stop")
    assert [fault for fault in breaches(path) if "0 rows" not in fault] == []  # one run never began
