"""Searches by Optuna with real trainers: pruned, killed in the middle, gone on with, trained by workers."""

import importlib.util
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.process.trainers import EMTC, PATIENCE_S, breaches, emtc, environment, read, wait_until
from tests.require import require

pytestmark = pytest.mark.ci

SEARCH = """
name = "Tiny search"
algo = "qmix"
preset = "demo"
steps = {steps}
seeds = 1

[set]
train.burn_in = 8
train.batch = 8
eval.episodes = 4
eval.interval = 100
checkpoint.interval = 100

[optuna]
trials = {trials}
pruner = "asha"
metric = "return"
warmup = 100
{more}

[optuna.space]
train.lr = {{ low = 1e-5, high = 0.1, log = true }}
"""


@pytest.fixture(autouse=True)
def _needs_optuna() -> None:
    require("optuna", importlib.util.find_spec("optuna") is not None, "optuna is not installed")


def write_search(folder: Path, *, trials: int = 4, steps: int = 400, more: str = "") -> tuple[str, str, Path]:
    (folder / "s.toml").write_text(SEARCH.format(trials=trials, steps=steps, more=more))
    return str(folder / "s.toml"), f"sqlite:///{folder / 'x.db'}", folder / "x.db"


def start(file: str, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*EMTC, "sweep", file, "--db", url, "--jobs", "2", "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip


def trials_of(path: Path) -> list[Any]:
    import optuna

    storage = f"sqlite:///{path.with_suffix('.optuna.db')}"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


def assert_whole(path: Path, n: int) -> None:
    """Each trial ended once, with one run that agrees with it."""
    trials = trials_of(path)
    assert [trial.number for trial in trials] == list(range(n))
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    rows = read(path, "SELECT id, status, tags, config, launch_token FROM runs ORDER BY created_at")
    assert len(rows) == n
    known = {row[4].rpartition("-")[2]: row for row in rows}
    for trial in trials:
        run_id, status, tags, config, _ = known[str(trial.number)]
        assert trial.user_attrs["run"] == run_id
        assert json.loads(config)["train"]["lr"] == trial.params["train.lr"]
        assert (status, "pruned" in json.loads(tags)) == (
            ("stopped", True) if trial.state.name == "PRUNED" else ("finished", json.loads(tags) == ["pruned"])
        )


def test_a_search_that_is_stopped_killed_and_extended_has_each_trial_once(tmp_path: Path) -> None:
    file, url, path = write_search(tmp_path, trials=2, steps=2500)
    for end in ("stop", "kill"):
        process = start(file, url)
        wait_until(lambda: is_every_trial_training_or_ended(path), what="the training of both trials")
        if end == "stop":
            assert emtc("sweep", file, "--stop", "--db", url).returncode == 0
            assert process.wait(timeout=PATIENCE_S) in (0, 1)
            assert {row[0] for row in read(path, "SELECT status FROM runs")} <= {"stopped", "finished"}
        else:
            process.send_signal(signal.SIGKILL)
            process.wait()
    done = emtc("sweep", file, "--db", url, "--jobs", "2", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["status"] == "finished"
    assert {run["status"] for run in said["runs"]} <= {"finished", "pruned"}
    assert_whole(path, 2)
    assert breaches(path) == []
    more, _, _ = write_search(tmp_path, trials=3, steps=2500)
    assert emtc("sweep", more, "--db", url, "--jobs", "1").returncode == 0, "more trials in the file extend the search"
    assert_whole(path, 3)


def is_every_trial_training_or_ended(path: Path) -> bool:
    """After a kill of its worker, a run that was only claimed would wait for START_LIMIT_S."""
    statuses = [row[0] for row in read(path, "SELECT status FROM runs")]
    return len(statuses) == 2 and "running" in statuses and "queued" not in statuses


def test_a_second_process_of_a_search_is_refused_and_workers_train_what_the_first_asks_for(tmp_path: Path) -> None:
    file, url, path = write_search(tmp_path, trials=2, steps=200)
    first = start(file, url, "--queue")
    wait_until(lambda: len(read(path, "SELECT id FROM runs")) == 2, what="two queued trials")
    second = emtc("sweep", file, "--db", url, "--jobs", "2")
    assert second.returncode == 2
    assert "already runs the search" in second.stderr
    assert first.poll() is None
    assert {row[0] for row in read(path, "SELECT status FROM runs")} == {"queued"}
    assert emtc("worker", "--once", "--jobs", "2", "--db", url).returncode == 0
    assert first.wait(timeout=PATIENCE_S) == 0
    assert_whole(path, 2)
    assert read(path, "SELECT owner_token, heartbeat_at FROM sweeps") == [(None, None)]


def test_a_stopped_run_is_a_failed_trial_when_the_search_ends(tmp_path: Path) -> None:
    file, url, path = write_search(tmp_path, trials=2, steps=900)
    Path(file).write_text(Path(file).read_text().replace('pruner = "asha"', 'pruner = "none"'))  # it may be as quick
    process = start(file, url)
    wait_until(lambda: bool(read(path, "SELECT id FROM runs WHERE env_steps > 100")), what="one trains")
    ((stopped,),) = read(path, "SELECT id FROM runs WHERE env_steps > 100 ORDER BY created_at LIMIT 1")
    assert emtc("stop", stopped, "--db", url).returncode == 0
    assert process.wait(timeout=PATIENCE_S) in (0, 1)
    ended = {trial.user_attrs["run"]: trial.state.name for trial in trials_of(path)}
    assert len(ended) == 2
    assert ended.pop(stopped) == "FAIL"
    assert set(ended.values()) == {"COMPLETE"}
    assert emtc("sweep", file, "--retry", "--db", url).returncode in (0, 1)
    assert read(path, "SELECT status FROM runs WHERE id = ?", stopped) == [("stopped",)], "Optuna has chosen on"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("seeds = 1", "seeds = 3"), "must have one value"),
        (('metric = "return"', 'metric = "reurn"'), 'Did you mean "return"?'),
        (("high = 0.1", "high = 10"), "lr"),
        (("train.lr", "train.lrr"), 'Did you mean "train.lr"?'),
        (('pruner = "asha"', 'pruner = "axe"'), "optuna.pruner"),
        (("warmup = 100", "storage = 'sqlite:////tmp/theirs.db'"), "is not a key"),
        (("low = 1e-5, ", ""), "[optuna]"),
    ],
)
def test_a_faulty_search_is_refused_and_creates_nothing(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    file, url, _ = write_search(tmp_path)
    Path(file).write_text(Path(file).read_text().replace(*change))
    done = emtc("sweep", file, "--db", url)
    assert done.returncode == 2
    assert why in done.stderr
    assert sorted(place.name for place in tmp_path.iterdir()) == ["s.toml"]
