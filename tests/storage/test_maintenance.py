"""Care for a database: sizes that are close, thinning that keeps curves, a vacuum, a copy while others write."""

import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, func, select, update

from emtc_core.errors import RunStateError, StorageError
from storage.engine import PAGE_BYTES, Database, open_database
from storage.files import run_folder
from storage.maintenance.backup import back_up_database, list_active_runs, vacuum
from storage.maintenance.check import check_database, check_run
from storage.maintenance.sizes import measure_sizes
from storage.maintenance.thin import RemovedData, Thinning, count_thinning, thin_run
from storage.models import EpisodeRow, Run, SnapshotRow, Transition, TransitionSummary
from storage.queries.curves import evaluations
from storage.queries.episodes import get_trajectory
from storage.queries.memory import list_snapshots
from storage.recording.writer import DatabaseRecorder
from storage.runs import removal
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.removal import find_resume_error
from tests.storage.records import CONFIG, ME, make_evaluation, make_snapshot, record_episodes, record_everything

ALL = Thinning(trajectories=True, transitions=True, checkpoints=True, snapshots_every=2)


@pytest.fixture
def ended(db: Database, run_id: str) -> str:
    """A finished run of 120 steps with three snapshots and two checkpoints."""
    start_run(db, run_id, **ME)
    recorder = DatabaseRecorder(db, run_id)
    for last in (4, 8, 12):
        record_episodes(recorder, 4, start=last - 3)
        recorder.record_snapshot(make_snapshot(last * 10, last))
    recorder.record_evaluation(make_evaluation(120))
    recorder.close()
    finish_run(db, run_id, "finished")
    folder = run_folder(db, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("checkpoint-000000000040.pt", "checkpoint-000000000120.pt", "log.txt"):
        (folder / name).write_bytes(b"x" * 1000)
    return run_id


def count(db: Database, table: type) -> int:
    with db.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_sizes_name_each_run_and_kind(db: Database, ended: str) -> None:
    create_run(db, CONFIG, target_steps=10, versions={}, name="empty")
    (run_folder(db, ended).parent / "gone1234").mkdir()
    (run_folder(db, ended).parent / "gone1234" / "checkpoint-1.pt").write_bytes(b"x" * 77)
    sizes = measure_sizes(db)
    biggest, empty = sizes.runs
    assert (biggest.run_id, biggest.env_steps, biggest.status) == (ended, 120, "finished")
    assert (biggest.checkpoints, biggest.other_files, sizes.left_behind) == (
        2000,
        1000,
        77 if db.path else 0,  # the folder of a server has the runs of all databases on servers
    )
    assert min(biggest.transitions, biggest.trajectories, biggest.curves, biggest.playbacks, biggest.snapshots) > 0
    assert biggest.total == sum(
        (biggest.transitions, biggest.trajectories, biggest.curves, biggest.playbacks, biggest.snapshots, 3000)
    )
    assert empty.total == 0
    assert sizes.database > 0
    assert (sizes.reusable is None) == (sizes.disk_free is None) == (db.path is None), "a server reports neither"


def test_the_parts_come_close_to_the_whole(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    assert db.path is not None
    before = db.path.stat().st_size
    recorder = DatabaseRecorder(db, create_run(db, CONFIG, target_steps=10**6, versions={}))
    record_episodes(recorder, 400, length=50, state_dim=30)
    recorder.record_snapshot(make_snapshot(400 * 50, 400, length=50))
    recorder.close()
    sizes = measure_sizes(db)
    assert 0.75 < sizes.runs[0].total / (sizes.database - before - _log_bytes(db.path)) < 1.25
    db.dispose()


def _log_bytes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return path.with_name(f"{path.name}-wal").stat().st_size


def read_sums(db: Database) -> list[Row[Any]]:
    with db.read() as connection:
        return list(connection.execute(select(TransitionSummary.__table__)).all())


def test_a_thinning_removes_what_it_counted_and_keeps_curves_and_invariants(db: Database, ended: str) -> None:
    sums, curve, whole = read_sums(db), evaluations(db, ended), measure_sizes(db).runs[0].total
    counted = count_thinning(db, ended, ALL)
    assert (counted.trajectories, counted.transitions, counted.snapshots, counted.checkpoints) == (12, 120, 1, 2)
    assert count(db, Transition) == 120
    assert thin_run(db, ended, ALL) == counted
    assert measure_sizes(db).runs[0].total < whole
    assert (count(db, Transition), count(db, SnapshotRow), count(db, EpisodeRow)) == (0, 2, 12)
    assert [place.name for place in run_folder(db, ended).iterdir()] == ["log.txt"]
    assert read_sums(db) == sums
    assert sums[0].n == 120
    assert evaluations(db, ended).equals(curve)
    assert check_database(db) == []
    assert thin_run(db, ended, Thinning(trajectories=True, transitions=True, checkpoints=True)) == RemovedData()
    assert list_snapshots(db, ended)["env_step"].tolist() == [40, 120], "the last one and every second before it"
    thin_run(db, ended, Thinning(snapshots_every=1000))
    assert list_snapshots(db, ended)["env_step"].tolist() == [120]


def test_a_run_without_its_transitions_is_replayed_without_the_gate_and_not_resumed(db: Database, ended: str) -> None:
    whole = get_trajectory(db, ended, 3)
    assert find_resume_error(db, ended, 40) is None
    thin_run(db, ended, Thinning(transitions=True))
    thinned = get_trajectory(db, ended, 3)
    assert (thinned.delta_mem, thinned.beta, thinned.tau) == (None, None, None)
    assert (thinned.state == whole.state).all()
    assert "thinned away" in (find_resume_error(db, ended, 40) or "")


def test_a_run_at_work_is_left_alone(db: Database, ended: str) -> None:
    with db.transaction() as connection:
        connection.execute(update(Run).values(status="running", heartbeat_at=func.now()))
    for act in (count_thinning, thin_run):
        with pytest.raises(RunStateError, match=ended):
            act(db, ended, ALL)
    assert count(db, Transition) == 120
    assert list_active_runs(db) == [ended]
    with pytest.raises(RunStateError, match=ended):
        vacuum(db)


def test_a_thinning_that_was_cut_short_goes_on(db: Database, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.maintenance.thin._BATCH_STEPS", 50)
    with db.transaction() as connection:  # as after the first of three transactions
        connection.exec_driver_sql("delete from transitions where env_step <= 50")
    assert read_sums(db)[0].n == 120
    assert check_run(db, ended) != []
    thin_run(db, ended, Thinning(transitions=True))
    assert check_run(db, ended) == []


def test_a_vacuum_gives_the_room_back(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    run_id = create_run(db, CONFIG, target_steps=10**5, versions={})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 200, length=50, state_dim=30)
    recorder.close()
    removal.remove_run(db, run_id)
    assert measure_sizes(db).reusable > 0
    done = vacuum(db)
    assert done.after < done.before
    assert measure_sizes(db).reusable == 0
    db.dispose()


@pytest.mark.postgres
def test_a_server_is_vacuumed_and_not_copied(ready_postgres_url: str) -> None:
    db = open_database(ready_postgres_url)
    assert vacuum(db).after > 0
    with pytest.raises(StorageError, match="SQLite"):
        back_up_database(db)
    db.dispose()


def test_a_backup_replaces_nothing(ready_sqlite_url: str, tmp_path: Path) -> None:
    db = open_database(ready_sqlite_url)
    kept = tmp_path / "kept.db"
    kept.write_text("mine")
    with pytest.raises(StorageError, match=str(kept)):
        back_up_database(db, kept)
    with pytest.raises(StorageError, match=str(kept / "x.db")):
        back_up_database(db, kept / "x.db")
    assert kept.read_text() == "mine"
    db.dispose()


def test_a_backup_is_private_and_consistent_although_others_write_without_a_pause(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        place = back_up_database(db)
    finally:
        stop.set()
        writer.join()
    with closing(sqlite3.connect(place)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    backup = open_database(f"sqlite:///{place}")
    assert check_database(backup) == []
    backup.dispose()
    db.dispose()


def test_a_check_names_every_run_with_wrong_or_unreadable_rows(db: Database, ended: str) -> None:
    unreadable, wrong = (create_run(db, CONFIG, target_steps=100, versions={}) for _ in range(2))
    record_everything(db, unreadable)
    assert check_database(db) == []
    with db.transaction() as connection:
        connection.execute(update(EpisodeRow).where(EpisodeRow.run_id == unreadable).values(trajectory=b"no array"))
        beta = update(Transition).where(Transition.run_id == ended, Transition.env_step == 5)
        connection.execute(beta.values(beta=0.123))
        connection.execute(update(Run).where(Run.id == wrong).values(env_steps=7))
    errors = check_database(db)
    assert {error.partition(":")[0] for error in errors} == {ended, unreadable, wrong}
    assert any(ended in error and "beta" in error for error in errors)
    assert any(wrong in error and "env_steps" in error for error in errors)


def test_a_check_of_a_file_finds_damaged_pages(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))
    assert db.path is not None
    db.dispose()
    with closing(sqlite3.connect(db.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'episodes'").fetchone()
    with db.path.open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)
    damaged = open_database(ready_sqlite_url, read_only=True)
    errors = check_database(damaged)
    assert errors
    assert all("file is damaged" in error for error in errors)
    damaged.dispose()
