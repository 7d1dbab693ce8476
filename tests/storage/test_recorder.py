"""The recorder: order, atomicity, refusal, a full disk, a locked database, and the exact rows."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, event, select, text

from emtc_core.errors import FileMissingError, StorageError
from storage.engine import Database, open_database
from storage.files import StateFile, read_stall_reason
from storage.maintenance.check import check_run
from storage.models import Transition
from storage.queries.curves import metric_points
from storage.queries.episodes import get_trajectory
from storage.recording import writer
from storage.recording.writer import DatabaseRecorder
from storage.retry import retry_transient
from storage.runs.changes import create_run, finish_run
from storage.runs.claims import make_token
from storage.runs.rows import find_run
from tests.storage.records import (
    CONFIG,
    make_episode,
    make_evaluation,
    make_gate_stats,
    make_snapshot,
    record_episodes,
)
from tests.storage.test_control import wait_for


def read_steps(db: Database, run_id: str) -> list[int]:
    with db.read() as connection:
        steps = select(Transition.env_step).where(Transition.run_id == run_id).order_by(Transition.env_step)
        return list(connection.execute(steps).scalars())


def missing(value: Any) -> Any:
    """A number as the database has it: NULL where it is missing."""
    return None if np.isnan(value) else value


@pytest.mark.parametrize("gated", [True, False])
def test_every_transition_is_stored_as_it_was_recorded_when_flush_returns(
    db: Database, run_id: str, gated: bool
) -> None:
    recorder = DatabaseRecorder(db, run_id, linger_s=60)
    record_episodes(recorder, 3, gated=gated)
    recorder.flush()
    expected = []
    for episode in (1, 2, 3):
        record = make_episode(episode, 10 * episode - 9, gated=gated)
        for t in range(10):
            row = (run_id, 10 * episode - 9 + t, episode, t, float(record.reward[t]))
            if gated:
                verdict = (record.h[t], record.h_next[t], record.delta_mem[t], record.beta[t], 1.0)
                slots = (None if slot < 0 else slot for slot in record.slots[t : t + 2].tolist())
                expected.append((*row, *map(missing, verdict), *slots))
            else:
                expected.append((*row, *[None] * 7))
    with db.read() as connection:
        rows = connection.execute(select(Transition.__table__).order_by(Transition.env_step)).all()
    assert [tuple(row) for row in rows] == expected
    assert sum(row.h is None for row in rows) == (3 if gated else 30)
    assert check_run(db, run_id) == []
    recorder.close()


def test_a_trajectory_is_read_as_it_was_recorded(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 2)
    recorder.close()
    record, read = make_episode(2, 11), get_trajectory(db, run_id, 2)
    for name in ("state", "action", "reward", "slots", "h", "h_next", "delta_mem", "beta"):
        np.testing.assert_array_equal(getattr(read, name), getattr(record, name), err_msg=name)
    assert (read.first_env_step, read.won, read.episode_return, read.tau) == (11, False, record.episode_return, 1.0)


def test_all_records_together_satisfy_the_invariants(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id, batch_steps=70)
    record_episodes(recorder, 300, length=9)
    recorder.record_evaluation(make_evaluation(2700))
    recorder.record_gate_stats(make_gate_stats(2700))
    recorder.record_snapshot(make_snapshot(2700, 300, length=9))
    recorder.close()
    assert check_run(db, run_id) == []
    row = find_run(db, run_id)
    assert (row.env_steps, row.win_rate, row.return_mean) == (2700, 0.75, 1.5)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM transitions WHERE env_step = 30", "transitions with env_step"),
        ("DELETE FROM episodes WHERE episode = 2", "episode"),
        ("UPDATE transitions SET beta = 0.5 WHERE env_step = 12", "beta differs by"),
        ("UPDATE transitions SET h = h + 1 WHERE env_step = 12", "delta_mem differs by"),
        ("UPDATE transitions SET tau = 0.7 WHERE env_step = 14", "tau does not follow its schedule"),
        ("UPDATE transitions SET t = 5 WHERE env_step = 12", "does not match its env_step"),
        ("UPDATE transition_summary SET beta_sum = 0", "transition_summary"),
        ("UPDATE episodes SET trajectory = (SELECT trajectory FROM episodes WHERE episode = 3)", "was not written by"),
    ],
)
def test_the_check_finds_each_kind_of_damage(sqlite_db: Database, damage: str, said: str) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1000, versions={})
    recorder = DatabaseRecorder(sqlite_db, run_id)
    record_episodes(recorder, 3)
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    with sqlite_db.transaction() as connection:
        connection.execute(text(damage))
    assert any(said in breach for breach in check_run(sqlite_db, run_id)), check_run(sqlite_db, run_id)


def test_at_every_moment_the_steps_are_without_a_gap(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id, batch_steps=20, linger_s=0.001)
    seen = []
    for episode in range(1, 60):
        recorder.record_episode(make_episode(episode, (episode - 1) * 10 + 1))
        with db.read() as connection:
            row = connection.execute(
                text(
                    "SELECT max(r.env_steps), count(t.env_step), max(t.env_step) "
                    "FROM runs r LEFT JOIN transitions t ON t.run_id = r.id"
                )
            ).one()
        seen.append(row)
        if episode % 20 == 0:
            recorder.flush()
    recorder.close()
    assert all(steps == count == (last or 0) for steps, count, last in seen)
    assert len({row[0] for row in seen}) > 2, "the reader must have seen the run grow"


def test_numbers_recorded_twice_keep_the_last_value(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_metrics(5, {"train/loss": 1.0, "train/grad_norm": float("nan")})
    recorder.record_metrics(5, {"train/loss": 2.0})
    for wins in (1, 2):
        recorder.record_evaluation(make_evaluation(5, wins=wins))
        recorder.record_snapshot(make_snapshot(5, wins))
    recorder.close()
    assert metric_points(db, run_id, ["train/loss", "train/grad_norm"])["value"].tolist() == [2.0]
    with db.read() as connection:
        assert connection.execute(text("SELECT count(*), min(size) FROM snapshots")).one() == (1, 20)


WRONG: dict[str, tuple[Callable[[DatabaseRecorder], None], str]] = {
    "an unknown metric": (lambda recorder: recorder.record_metrics(1, {"train/magic": 1.0}), "train/magic"),
    "a step again": (lambda recorder: recorder.record_episode(make_episode(2, 1)), r"\b11\b"),
    "a gap": (lambda recorder: recorder.record_episode(make_episode(2, 12)), r"\b11\b"),
    "no step": (
        lambda recorder: recorder.record_episode(replace(make_episode(2, 11), reward=np.zeros(0, np.float32))),
        r"\b11\b",
    ),
}


@pytest.mark.parametrize("record", WRONG)
def test_a_wrong_record_is_refused_at_once_and_the_recording_continues(sqlite_db: Database, record: str) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1000, versions={})
    recorder = DatabaseRecorder(sqlite_db, run_id)
    record_episodes(recorder, 1)
    act, word = WRONG[record]
    with pytest.raises(ValueError, match=word):
        act(recorder)
    recorder.close()
    later = DatabaseRecorder(sqlite_db, run_id)
    record_episodes(later, 1, start=2)
    later.close()
    assert read_steps(sqlite_db, run_id) == list(range(1, 21))
    assert check_run(sqlite_db, run_id) == []


def test_a_closed_recorder_takes_nothing_and_may_be_closed_again(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.close()
    recorder.close()
    with pytest.raises(StorageError, match=run_id):
        recorder.record_metrics(1, {"train/loss": 1.0})


def test_a_fault_of_the_writer_reaches_the_trainer(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 1)
    recorder.flush()
    with db.transaction() as connection:
        connection.execute(text("DELETE FROM runs"))
    recorder.record_episode(make_episode(2, 11))
    with pytest.raises(StorageError, match=run_id):
        recorder.flush()
    with pytest.raises(StorageError, match=run_id):
        recorder.record_metrics(1, {"train/loss": 1.0})
    with pytest.raises(StorageError, match=run_id):
        recorder.close()


def test_a_flush_is_all_or_nothing(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id, linger_s=60)
    record_episodes(recorder, 1)
    recorder.flush()
    recorder.record_episode(make_episode(2, 11))
    recorder.record_episode(replace(make_episode(2, 21)))  # the same number again: a fault
    with pytest.raises(StorageError):
        recorder.flush()
    assert check_run(db, run_id) == []
    assert find_run(db, run_id).env_steps == 10


@pytest.fixture
def patient(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database whose lock is given up after a tenth of a second."""
    monkeypatch.setattr("storage.engine.BUSY_TIMEOUT_S", 0.1)
    return open_database(sqlite_url)


def test_a_full_disk_pauses_the_trainer_and_loses_nothing(patient: Database) -> None:
    run_id = create_run(patient, CONFIG, target_steps=1, versions={})
    room = {"pages": 120}

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={room['pages']}").close()

    event.listen(patient.writer, "checkout", limit)
    recorder = DatabaseRecorder(patient, run_id, batch_steps=100, queue_bytes=200_000)
    trainer = threading.Thread(target=record_episodes, args=(recorder, 600), kwargs={"state_dim": 100})
    trainer.start()
    wait_for(lambda: recorder.blocked)
    assert "full" in (recorder.blocked or "")
    assert "full" in (read_stall_reason(patient, run_id, max_age_s=60) or "")
    time.sleep(0.3)
    assert trainer.is_alive(), "the trainer must wait"
    assert check_run(patient, run_id) == []
    assert 0 < find_run(patient, run_id).env_steps < 6000
    room["pages"] = 1_000_000
    trainer.join(timeout=30)
    recorder.close()
    assert recorder.blocked is None
    assert read_stall_reason(patient, run_id, max_age_s=60) is None
    assert find_run(patient, run_id).env_steps == 6000
    assert check_run(patient, run_id) == []


def test_a_recorder_waits_until_its_file_is_back(sqlite_url: str) -> None:
    db = open_database(sqlite_url)
    run_id = create_run(db, CONFIG, target_steps=1, versions={})
    recorder = DatabaseRecorder(db, run_id, linger_s=0.0)
    record_episodes(recorder, 1)
    recorder.flush()
    assert db.path is not None
    away = db.path.rename(db.path.with_suffix(".away"))
    record_episodes(recorder, 1, start=2)
    wait_for(lambda: recorder.blocked)
    assert read_stall_reason(db, run_id, max_age_s=60) == recorder.blocked
    with pytest.raises(FileMissingError, match=db.path.name):
        find_run(db, run_id)
    away.rename(db.path)
    recorder.close()
    assert read_stall_reason(db, run_id, max_age_s=60) is None
    assert read_steps(db, run_id) == list(range(1, 21))
    db.dispose()


def test_a_recorder_whose_file_stays_away_ends_with_the_reason(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MISSING_FILE_PATIENCE_S", 0.0)
    db = open_database(sqlite_url)
    run_id = create_run(db, CONFIG, target_steps=1, versions={})
    recorder = DatabaseRecorder(db, run_id)
    assert db.path is not None
    db.path.unlink()
    record_episodes(recorder, 1)
    with pytest.raises(StorageError, match=run_id):
        recorder.close()
    db.dispose()


def test_a_recorder_waits_for_a_lock_and_writes_the_reason_before_it_reports_that_it_waits(
    patient: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = create_run(patient, CONFIG, target_steps=1, versions={})
    assert patient.path is not None
    recorder, write, seen = DatabaseRecorder(patient, run_id), StateFile.write, list[str | None]()

    def watched(self: StateFile, text: str) -> None:
        seen.append(recorder.blocked)
        write(self, text)

    monkeypatch.setattr(StateFile, "write", watched)
    with closing(sqlite3.connect(patient.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        record_episodes(recorder, 2)
        wait_for(lambda: recorder.blocked)
        assert "locked" in (read_stall_reason(patient, run_id, max_age_s=60) or "")
    recorder.close()
    assert seen[0] is None
    assert read_steps(patient, run_id) == list(range(1, 21))


def test_a_commit_whose_answer_was_lost_is_not_written_twice(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = create_run(db, CONFIG, target_steps=1, versions={})
    recorder = DatabaseRecorder(db, run_id)
    transaction, left = Database.transaction, [1]

    @contextmanager
    def cut_after_the_commit(self: Database, **options: bool) -> Iterator[Connection]:
        with transaction(self, **options) as connection:
            yield connection
        if left and left.pop():
            lost = self.reader.dialect.loaded_dbapi.OperationalError("the database is locked, or the server is gone")
            raise StorageError("The database failed.") from lost

    monkeypatch.setattr(Database, "transaction", cut_after_the_commit)
    record_episodes(recorder, 2)
    recorder.close()
    assert left == []
    assert read_steps(db, run_id) == list(range(1, 21))
    assert check_run(db, run_id) == []


def test_a_run_waits_for_a_lock_to_go_back_and_to_end(patient: Database) -> None:
    run_id = create_run(patient, CONFIG, target_steps=1, versions={}, token=(token := make_token()))
    recorder = DatabaseRecorder(patient, run_id, token=token)
    record_episodes(recorder, 2)
    recorder.flush()

    def wait_for_lock(act: Callable[[], None]) -> None:
        assert patient.path is not None
        with closing(sqlite3.connect(patient.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = threading.Thread(target=act)
            waiting.start()
            time.sleep(0.2)
            assert waiting.is_alive()
            other.execute("ROLLBACK")
            waiting.join(30)

    wait_for_lock(lambda: recorder.supersede(10, checkpoint="checkpoint-000000000010.pt"))
    record_episodes(recorder, 2, start=2)
    recorder.flush()
    wait_for_lock(lambda: retry_transient(patient, lambda: finish_run(patient, run_id, "stopped", token=token)))
    recorder.abandon()
    assert (find_run(patient, run_id).env_steps, find_run(patient, run_id).status) == (30, "stopped")
    assert check_run(patient, run_id) == []


def test_two_recorders_and_a_reader_never_meet_a_lock(db: Database) -> None:
    ids = [create_run(db, CONFIG, target_steps=1, versions={}) for _ in range(2)]
    recorders = [DatabaseRecorder(db, run_id, batch_steps=50, linger_s=0.001) for run_id in ids]
    threads = [threading.Thread(target=record_episodes, args=(recorder, 300)) for recorder in recorders]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for run_id in ids:
            steps = read_steps(db, run_id)
            assert steps == list(range(1, len(steps) + 1))
    for thread, recorder in zip(threads, recorders, strict=True):
        thread.join()
        recorder.close()
        assert recorder.blocked is None
    for run_id in ids:
        assert check_run(db, run_id) == []
        assert find_run(db, run_id).env_steps == 3000
