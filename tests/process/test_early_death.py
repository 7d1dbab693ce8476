"""A trainer that ends in the first seconds of its run, while libraries load: no run stuck, none shown as alive."""

import json
import random
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import update

from emtc_core.config.resolve import resolve
from emtc_core.control import StopRequested
from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.models import Run
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from storage.runs.status import START_LIMIT_S, allows
from tests.process.trainers import emtc, environment, train_command, wait_until

pytestmark = pytest.mark.ci

SPAN_S = 3.0


def wait_for_row(db: Database) -> str:
    wait_until(lambda: len(list_runs(db)) == 1, what="the first row")
    return str(list_runs(db)["id"].iloc[0])


def end_in_foreground(db: Database, moment_s: float, number: int) -> str:
    """Start `emtc train`, and send it a signal so long after its row appeared."""
    command = train_command(db.url, steps=50_000)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as process:
        try:
            run_id = wait_for_row(db)
            time.sleep(moment_s)
            process.send_signal(number)
            process.wait(120)
        finally:
            process.kill()
    return run_id


def end_detached(db: Database, moment_s: float, number: int) -> str:
    """Start a trainer in the background, and send the process that owns the run a signal."""
    run_id = json.loads(emtc(*train_command(db.url, steps=50_000)[3:], "--detach").stdout)["run_id"]
    time.sleep(moment_s)
    (process,) = find_trainers(run_id)
    process.send_signal(number)
    wait_until(lambda: not find_trainers(run_id), what="the end of the trainer")
    return run_id


def find_trainers(run_id: str) -> list[psutil.Process]:
    """Find the detached trainer of a run in the list of processes."""
    processes = psutil.process_iter(["cmdline", "status"])
    return [each for each in processes if {"train-worker", run_id} <= set(each.info["cmdline"] or ())]


def assert_ended(db: Database, run_id: str, number: int) -> None:
    if find_run(db, run_id).status == "queued":  # as if it had not started within the time limit
        assert find_run(db, run_id).live_status == "starting"
        with db.transaction() as connection:
            past = datetime.now(UTC) - timedelta(seconds=START_LIMIT_S + 1)
            connection.execute(update(Run).where(Run.id == run_id).values(claimed_at=past))
    expected = {"lost"} if number == signal.SIGKILL else {"stopped", "lost"}
    wait_until(lambda: find_run(db, run_id).live_status in expected, what=f"the end by {signal.Signals(number).name}")
    row = find_run(db, run_id)
    assert allows(row.live_status, "resume")
    assert allows(row.live_status, "delete")
    assert check_run(db, run_id) == []


def end_many(folder: Path, times: int) -> None:
    rng = random.Random()
    for i in range(times):
        moment_s, number = rng.uniform(0, SPAN_S), (signal.SIGKILL, signal.SIGTERM)[i % 2]
        db = open_database(f"sqlite:///{folder / f'{i}.db'}")
        how = (end_in_foreground, end_detached)[i // 2 % 2]
        run_id = how(db, moment_s, number)
        try:
            assert_ended(db, run_id, number)
        except AssertionError as exc:
            raise AssertionError(
                f"{how.__name__}, {signal.Signals(number).name} after {moment_s:.3f} s: {exc}"
            ) from exc
        finally:
            db.dispose()


def test_a_few_early_deaths(tmp_path: Path) -> None:
    end_many(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_early_deaths(tmp_path: Path) -> None:
    end_many(tmp_path, 50)


def test_a_signal_before_the_first_poll_ends_at_once_and_later_ones_are_commands() -> None:
    from app.jobs.signals import handle_stop_signals
    from emtc_core.control import NoControl

    with handle_stop_signals(), pytest.raises(StopRequested):
        signal.raise_signal(signal.SIGTERM)
    with handle_stop_signals() as signals:
        control = signals.as_control(NoControl())
        assert control.poll() is None
        signal.raise_signal(signal.SIGINT)
        assert control.poll() == "stop"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_signal_of_a_worker_is_not_counted_and_a_second_sigterm_ends_the_process() -> None:
    """A cluster may send SIGTERM to a worker and to its trainers, and the worker passes it on."""
    from app.jobs.signals import handle_stop_signals
    from emtc_core.control import NoControl

    with handle_stop_signals() as signals:
        control = signals.as_control(NoControl())
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1):
            signal.raise_signal(number)
        assert control.poll() == "stop"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_run_is_stopped_although_its_driver_raises_an_error_on_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.jobs import training
    from app.jobs.signals import handle_stop_signals

    def begin(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:  # as psycopg's pool does, whose connection is busy with what was broken off
            raise StorageError("can't change 'autocommit' now")

    monkeypatch.setattr(training, "_mark_started", begin)
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    config = resolve(preset="demo", steps=100)
    run_id = create_run(db, config.model_dump(mode="json"), target_steps=100, versions={})
    with handle_stop_signals() as signals, pytest.raises(StopRequested):
        training.train_run(db, run_id, resume=False, signals=signals)
    assert (find_run(db, run_id).live_status, find_run(db, run_id).error) == ("stopped", None)
    db.dispose()
