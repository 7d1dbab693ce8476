"""`emtc mirror`: what TensorBoard, W&B and MLflow read back is what the database holds, once, also after a kill."""

import importlib.util
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jobs.mirror.wandb_sink import WANDB_STEP, read_wandb_rows
from storage.engine import Database, open_database
from storage.queries.curves import evaluations, metric_points
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, finish_run, start_run
from tests.process.trainers import EMTC, emtc, emtc_process, environment, wait_until
from tests.require import require
from tests.storage.records import CONFIG, ME, make_evaluation, make_gate_stats, record_episodes

pytestmark = pytest.mark.ci

Curves = dict[str, list[tuple[int, float]]]


def read_tensorboard(out: Path) -> Curves:
    (folder,) = out.iterdir()
    return read_events(folder)


def read_events(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_mlflow(out: Path) -> Curves:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("emtc").experiment_id])
    assert run.data.params["algo"] == "emtc-qplex"
    return {
        name: sorted((each.step, each.value) for each in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }


def read_wandb(out: Path) -> Curves:
    found: Curves = {}
    for file in sorted(out.glob("wandb/offline-run-*/run-*.wandb")):
        for row in read_wandb_rows(file):
            for name in row.keys() - {WANDB_STEP}:
                found.setdefault(name, []).append((int(json.loads(row[WANDB_STEP])), float(json.loads(row[name]))))
    return found


READERS: dict[str, Callable[[Path], Curves]] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


@pytest.fixture(params=["tensorboard", "mlflow", "wandb"])
def target(request: pytest.FixtureRequest) -> str:
    require(request.param, importlib.util.find_spec(request.param) is not None, f"{request.param} is not installed")
    return request.param


def start_recording(db: Database) -> tuple[str, DatabaseRecorder]:
    run_id = create_run(db, CONFIG, target_steps=1000, versions={})
    start_run(db, run_id, **ME)
    return run_id, DatabaseRecorder(db, run_id)


def record(recorder: DatabaseRecorder, *steps: int) -> None:
    for step in steps:
        recorder.record_evaluation(make_evaluation(step, wins=step // 100 % 4))
        recorder.record_metrics(step, {"train/loss": step / 7, "gate/tau": 1.0})
        recorder.record_gate_stats(make_gate_stats(step))
    recorder.flush()


def assert_equal(found: Curves, db: Database, run_id: str) -> None:
    frame = evaluations(db, run_id)
    wanted = {"eval/win_rate": frame["win_rate"], "eval/return_mean": frame["return_mean"]}
    for name, values in wanted.items():
        assert [step for step, _ in found[name]] == frame["env_step"].tolist()
        assert [value for _, value in found[name]] == pytest.approx(values.tolist())
    loss = metric_points(db, run_id, ["train/loss"])
    assert [step for step, _ in found["train/loss"]] == loss["env_step"].tolist()
    assert [value for _, value in found["train/loss"]] == pytest.approx(loss["value"].tolist())
    assert {"gate/tau", "gate_stats/beta_mean"} <= found.keys()


def test_a_killed_mirror_continues_without_duplicates(target: str, tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id, recorder = start_recording(db)
    record(recorder, 100, 200)
    out = tmp_path / "out"
    words = ["mirror", run_id, "--to", target, "--out", str(out), "--db", db.url]
    process = subprocess.Popen([*EMTC, *words, "--every", "0.2"], stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    wait_until(lambda: "Mirrored" in process.stderr.readline(), what="the first rows are mirrored")
    record(recorder, 300)
    wait_until(lambda: "Mirrored" in process.stderr.readline(), what="a living run is followed")
    process.send_signal(signal.SIGKILL)
    process.wait()
    record(recorder, 400, 500)
    recorder.close()
    finish_run(db, run_id, "finished")
    for command, is_first in ((emtc_process, True), (emtc, False)):  # TensorBoard sorts files by second and process
        done = command(*words, "--once", "--json")
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["values"] > 0) == is_first, "again, nothing is left to write"
    assert_equal(READERS[target](out), db, run_id)


def test_superseded_rows_are_in_a_separate_run_of_the_mirror(tmp_path: Path) -> None:
    """TensorBoard shows two runs: what was until the kill, and the run as it is; no curve has a step twice."""
    require("tensorboard", importlib.util.find_spec("tensorboard") is not None, "tensorboard is not installed")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id, recorder = start_recording(db)
    record_episodes(recorder, 30)
    record(recorder, 100, 200, 300)
    recorder.close()
    out = tmp_path / "out"
    words = ["mirror", run_id, "--to", "tensorboard", "--out", str(out), "--db", db.url]
    process = subprocess.Popen([*EMTC, *words, "--every", "0.2"], stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    wait_until(lambda: "Mirrored" in process.stderr.readline(), what="the first rows are mirrored")
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = DatabaseRecorder(db, run_id)
    resumed.supersede(200, checkpoint="checkpoint-000000000200.pt")
    record_episodes(resumed, 20, start=21)
    record(resumed, 300, 400)
    resumed.close()
    finish_run(db, run_id, "finished")
    for _ in range(2):
        assert emtc(*words, "--once").returncode == 0
    shown = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(out)).Reload()
    steps = {name: [each.step for each in shown.Scalars(name, "train/loss")] for name in sorted(shown.Runs())}
    assert list(steps.values()) == [[100, 200, 300], [100, 200, 300, 400]]
    assert [name.endswith("-r2") for name in steps] == [False, True]
    (again,) = [path for path in out.iterdir() if path.name.endswith("-r2")]
    assert_equal(read_events(again), db, run_id)


def test_what_a_mirror_wrote_can_be_imported(tmp_path: Path) -> None:
    require("tensorboard", importlib.util.find_spec("tensorboard") is not None, "tensorboard is not installed")
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id, recorder = start_recording(db)
    record(recorder, 100, 200)
    recorder.close()
    finish_run(db, run_id, "finished")
    assert (
        emtc("mirror", "--to", "tensorboard", "--out", str(tmp_path / "tb"), "--once", "--db", db.url).returncode == 0
    )
    words = ("--format", "tensorboard", "--algo", "emtc-qplex", "--map", "3m", "--env", "skirmish", "--json")
    done = emtc("import", str(tmp_path / "tb"), *words, "--db", f"sqlite:///{tmp_path / 'y.db'}")
    assert done.returncode == 0, done.stderr
    other = open_database(f"sqlite:///{tmp_path / 'y.db'}")
    (imported,) = json.loads(done.stdout)["runs"]
    assert evaluations(other, imported)["win_rate"].tolist() == evaluations(db, run_id)["win_rate"].tolist()


def test_an_unknown_target_is_refused_and_creates_nothing(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    done = emtc("mirror", "--to", "excel", "--out", str(tmp_path / "out"), "--once", "--db", db.url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out").exists()
