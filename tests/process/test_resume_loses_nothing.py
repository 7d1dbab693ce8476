"""Resume never removes rows in silence: damaged, foreign and missing checkpoints, as a user meets them."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.process.trainers import FAST, breaches, emtc, read, recorded_steps, start, wait_until, wait_until_lost

pytestmark = pytest.mark.ci

STEPS = 1600
LATE = (*(text for text in FAST if not text.startswith("checkpoint")), "checkpoint.interval=100000")


def killed_run(folder: Path, *, at: int, checkpoints: int = 0, sets: tuple[str, ...] = FAST) -> tuple[str, Path, str]:
    path = folder / "x.db"
    url = f"sqlite:///{path}"
    with start(url, steps=STEPS, sets=sets) as process:
        wait_until(lambda: recorded_steps(path) > at, what=f"step {at}")
        wait_until(
            lambda: len(list((folder / "x.files").glob("*/checkpoint-*.pt"))) >= checkpoints,
            what=f"{checkpoints} checkpoints",
        )  # fmt: skip
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_id = read(path, "select id from runs")[0][0]
    wait_until_lost(url, run_id)
    return url, path, run_id


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """A run killed when it had two checkpoints."""
    return killed_run(tmp_path_factory.mktemp("killed"), at=500, checkpoints=2)


def copy_of(killed: tuple[str, Path, str], folder: Path) -> tuple[str, Path, str, list[Path]]:
    _, path, run_id = killed
    for each in path.parent.iterdir():
        (shutil.copytree if each.is_dir() else shutil.copy)(each, folder / each.name)
    files = sorted((folder / "x.files" / run_id).glob("checkpoint-*.pt"))
    return f"sqlite:///{folder / 'x.db'}", folder / "x.db", run_id, files


@pytest.mark.slow
def test_without_a_checkpoint_a_run_keeps_its_rows_and_a_new_one_names_it(tmp_path: Path) -> None:
    url, path, run_id = killed_run(tmp_path, at=200, sets=LATE)
    for file in (tmp_path / "x.files" / run_id).glob("checkpoint-*"):
        file.unlink()  # as on a second machine, or with a slow poll above
    steps = recorded_steps(path)
    refused = emtc("resume", run_id, "--db", url)
    assert refused.returncode == 2
    assert "no usable checkpoint" in refused.stderr
    assert f"emtc resume {run_id} --start-again" in refused.stderr
    assert read(path, "select count(*) from transitions") == [(steps,)]
    done = emtc("resume", run_id, "--start-again", "--db", url, "--json")
    assert done.returncode == 0, done.stderr
    child = json.loads(done.stdout.splitlines()[-1])
    assert child["status"] == "finished"
    assert read(path, "select parent_id from runs where id = ?", child["run_id"]) == [(run_id,)]
    assert read(path, "select count(*) from transitions where run_id = ?", run_id) == [(steps,)]
    assert breaches(path) == []


def test_a_damaged_newest_checkpoint_is_skipped_for_the_older_one_with_its_reason(killed, tmp_path: Path) -> None:
    url, path, run_id, files = copy_of(killed, tmp_path)
    assert len(files) == 2
    data = bytearray(files[-1].read_bytes())
    data[len(data) // 2] ^= 8
    files[-1].write_bytes(data)
    reached, older = recorded_steps(path), int(files[0].stem.split("-")[1])
    shown = json.loads(emtc("show", run_id, "--db", url, "--json").stdout)
    assert "checksum" in shown["checkpoints"][0]["fault"]
    assert shown["checkpoints"][1]["fault"] is None
    done = emtc("resume", run_id, "--db", url, "--json")
    assert done.returncode == 0, done.stderr
    assert "Skipped" in done.stderr
    assert read(path, "select env_step, reached_env_step, checkpoint from resumes") == [(older, reached, files[0].name)]
    shown = json.loads(emtc("show", run_id, "--db", url, "--json").stdout)
    assert shown["superseded_steps"] == reached - older
    assert "checksum" in shown["resumes"][0]["passed_over"]
    assert breaches(path) == []


def test_nothing_is_removed_when_the_trainer_cannot_restore(killed, tmp_path: Path) -> None:
    url, path, run_id, files = copy_of(killed, tmp_path)
    steps = recorded_steps(path)
    for file in files:
        file.write_bytes(file.read_bytes()[:-5])
    assert emtc("resume", run_id, "--db", url).returncode == 2
    worker = emtc("train-worker", run_id, "--resume", "--db", url)  # as a scheduler would, past all questions
    assert worker.returncode == 1
    assert "can be used" in worker.stderr
    assert recorded_steps(path) == steps
    assert read(path, "select count(*) from resumes") == [(0,)]
    assert read(path, "select status from runs") == [("failed",)]


def test_another_runs_checkpoints_are_refused(killed, tmp_path: Path) -> None:
    url, path, run_id, files = copy_of(killed, tmp_path)
    other = "zzzz9999" if run_id != "zzzz9999" else "zzzz8888"
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        for table in ("transitions", "episodes", "metrics", "evaluations", "gate_stats", "snapshots", "eval_episodes"):
            connection.execute(f"update {table} set run_id = ?", (other,))
        connection.execute("update transition_summary set run_id = ?", (other,))
        connection.execute("update runs set id = ?", (other,))
    connection.close()
    files[0].parent.rename(files[0].parent.with_name(other))
    steps = recorded_steps(path)
    refused = emtc("resume", other, "--db", url)
    assert refused.returncode == 2
    assert f"belongs to run {run_id}" in refused.stderr
    assert recorded_steps(path) == steps
