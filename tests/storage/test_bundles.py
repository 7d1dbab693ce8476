"""Bundles: what goes in comes out, and what somebody did to one on its way changes nothing."""

import hashlib
import json
import os
import random
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, insert, select, text, update

from emtc_core.errors import DataRemovedError, StorageError
from storage.blobs import pack
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN, WHOLE, Contents
from storage.bundles.import_bundle import import_bundle
from storage.bundles.manifest import MANIFEST, STUDY, VERSION
from storage.bundles.read import open_bundle
from storage.bundles.write import write_bundle
from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.models import Base, ProjectionRow, Run, SnapshotRow, SweepRow
from storage.queries.episodes import get_trajectory
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.storage.records import CONFIG, record_everything

MADE_BY = "emtc-lab test"
INDEXES = "FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
TABLES = ("evaluations", "metrics", "gate_stats", "transition_summary", "eval_episodes", "episodes", "transitions")


def fill(db: Database, *, status: str = "finished", sweep_id: str | None = None) -> str:
    run_id = create_run(db, CONFIG, target_steps=30, versions={"emtc-lab": "0.1.0"}, sweep_id=sweep_id)
    record_everything(db, run_id)
    with db.transaction() as connection:
        values = {
            "pid": os.getpid(),
            "status": status,
            "host": "secret-host",
            "launch_token": run_id,
            "owner_token": "t",
        }
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
        snapshot = connection.execute(
            select(SnapshotRow.id, SnapshotRow.size).where(SnapshotRow.run_id == run_id)
        ).one()
        coordinates = pack({"coordinates": np.zeros((snapshot.size, 2), np.float32)})
        made = connection.execute(select(SnapshotRow.created_at)).scalars().first()
        drawn = {"snapshot_id": snapshot.id, "method": "pca", "params": {"n": 1}, "seconds": 0.1, "created_at": made}
        connection.execute(insert(ProjectionRow), drawn | {"coordinates": coordinates})
    return run_id


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, list[str]]:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('source') / 'x.db'}")
    ids = [fill(db, sweep_id="sweep1"), fill(db, sweep_id="sweep1"), fill(db)]
    with db.transaction() as connection:
        row = {"id": "sweep1", "name": "A study", "status": "running", "jobs": 2, "plan": {"file": {}}}
        created = connection.execute(select(Run.created_at)).scalars().first()
        connection.execute(
            insert(SweepRow), row | {"created_at": created, "heartbeat_at": created, "owner_token": "secret"}
        )
    return db, ids


@pytest.fixture(scope="module")
def sound(source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small bundle, to be copied and harmed."""
    place = tmp_path_factory.mktemp("bundle") / "study.emtc"
    write_bundle(source[0], source[1][:1], place, THIN, made_by=MADE_BY)
    return place


def rows(db: Database, table: str, run_id: str, leave: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    columns = Base.metadata.tables[table]
    with db.read() as connection:
        found = connection.execute(select(columns).where(columns.c.run_id == run_id).order_by(*columns.primary_key))
        return [{name: value for name, value in row.items() if name not in leave} for row in found.mappings()]


def opened(place: Path, cache: Path) -> Database:
    study, _ = open_bundle(place, cache=cache)
    return open_database(f"sqlite:///{study}", read_only=True)


@pytest.mark.parametrize("contents", [THIN, Contents(), WHOLE], ids=["thin", "usual", "whole"])
def test_a_bundle_holds_what_was_asked(source, tmp_path: Path, contents: Contents) -> None:
    db, ids = source
    ids = ids[1:]
    assert write_bundle(db, ids, tmp_path / "s.emtc", contents, made_by=MADE_BY).runs == 2
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    left_out = () if contents.trajectories else ("trajectory",)
    for run_id in ids:
        for table in ("evaluations", "metrics", "gate_stats", "transition_summary", "resumes"):
            assert rows(there, table, run_id) == rows(db, table, run_id), table
        assert rows(there, "episodes", run_id, left_out) == rows(db, "episodes", run_id, left_out)
        for table, is_kept in (
            ("snapshots", contents.snapshots),
            ("eval_episodes", contents.playbacks),
            ("transitions", contents.transitions),
        ):
            assert rows(there, table, run_id) == (rows(db, table, run_id) if is_kept else []), table
        assert check_run(there, run_id) == []
        row, was = find_run(there, run_id), find_run(db, run_id)
        assert (row.config, row.env_steps, row.created_at) == (was.config, was.env_steps, was.created_at)
        if not contents.trajectories:
            with pytest.raises(DataRemovedError, match=r"\b1\b"):
                get_trajectory(there, run_id, 1)
    with there.read() as connection:
        drawn = connection.execute(select(func.count()).select_from(ProjectionRow)).scalar_one()
        assert sorted(connection.execute(select(Run.id)).scalars()) == sorted(ids)
    assert drawn == (2 if contents.snapshots else 0)


def test_a_thin_bundle_has_everything_of_chosen_runs_and_says_so(source, tmp_path: Path) -> None:
    db, (thin, whole, *_) = source
    contents = replace(THIN, whole_runs=frozenset({whole}))
    write_bundle(db, [thin, whole], tmp_path / "s.emtc", contents, made_by=MADE_BY)
    bundle = cache_bundle(tmp_path / "s.emtc", cache=tmp_path / "cache")
    there = open_database(bundle.url, read_only=True)
    for name in ("transitions", "snapshots", "eval_episodes"):
        assert rows(there, name, whole) == rows(db, name, whole) != []
        assert rows(there, name, thin) == []
    assert (get_trajectory(there, whole, 1).state == get_trajectory(db, whole, 1).state).all()
    with pytest.raises(DataRemovedError, match=r"\b1\b"):
        get_trajectory(there, thin, 1)
    assert bundle.contents.describe() == ["curves and outcomes", "everything of 1 run"]


def test_what_belongs_to_a_machine_stays_behind(source, tmp_path: Path) -> None:
    db, (run_id, *_) = source
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(status="running", archived_at=func.now()))
    try:
        write_bundle(db, [run_id], tmp_path / "s.emtc", THIN, made_by=MADE_BY)
    finally:
        with db.transaction() as connection:
            connection.execute(update(Run).where(Run.id == run_id).values(status="finished", archived_at=None))
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    row = find_run(there, run_id)
    assert (row.status, row.live_status) == ("stopped", "stopped")
    assert row.ended_at is not None
    assert (row.host, row.pid, row.owner_token, row.launch_token, row.archived_at) == (None,) * 5
    with there.read() as connection:
        sweep = connection.execute(select(SweepRow.status, SweepRow.owner_token, SweepRow.heartbeat_at)).one()
    assert tuple(sweep) == ("stopped", None, None)
    assert there.path is not None
    assert b"secret-host" not in there.path.read_bytes()


def test_what_was_opened_has_its_indexes_and_cannot_be_written(sound: Path, tmp_path: Path) -> None:
    there = opened(sound, tmp_path / "cache")
    fresh = open_database(f"sqlite:///{tmp_path / 'new.db'}")
    statement = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL ORDER BY name")
    with there.read() as made, fresh.read() as expected:
        assert made.execute(statement).all() == expected.execute(statement).all()
    with pytest.raises(StorageError, match="read-only"), there.transaction():
        pass
    assert there.path is not None
    assert there.path.stat().st_mode & 0o777 == 0o400
    assert [place.name for place in (tmp_path / "cache").iterdir()] == [there.path.name], "nothing is left beside it"


def make_bundle(place: Path, study: bytes, /, **manifest: Any) -> None:
    """Write a bundle of any database, with a manifest that fits it except for the given keys."""
    values = {
        "format": "emtc-bundle", "version": VERSION, "made_at": "", "made_by": "", "contents": {}, "runs": [],
        "study": {"size": len(study), "sha256": hashlib.sha256(study).hexdigest()},
    }  # fmt: skip
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps(values | manifest))
        archive.writestr(STUDY, study)


def study_of(place: Path) -> bytes:
    with zipfile.ZipFile(place) as archive:
        return archive.read(STUDY)


def test_no_cut_and_no_flipped_bit_passes_unnoticed(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    study = hashlib.sha256(study_of(sound)).hexdigest()
    rng = random.Random(5)
    edges = [*range(40), *range(len(whole) - 200, len(whole))]
    flips = rng.sample(edges, 25) + [rng.randrange(len(whole)) for _ in range(10)]
    harmed = [whole[: rng.randrange(len(whole))] for _ in range(5)]
    harmed += [bytes([*whole[:at], whole[at] ^ (1 << rng.randrange(8)), *whole[at + 1 :]]) for at in flips]
    place, passed = tmp_path / "study.emtc", 0
    for number, content in enumerate(harmed):
        place.write_bytes(content)
        with suppress(StorageError):
            _, manifest = open_bundle(place, cache=tmp_path / str(number))
            passed += 1  # what a zip does not look at: its dates and versions
            assert manifest.study.sha256 == study
    assert passed < len(harmed) / 2


def test_an_import_brings_runs_that_are_whole(db: Database, source, tmp_path: Path) -> None:
    _, ids = source
    own = fill(db)  # its snapshot has number 1, as one in the bundle has
    write_bundle(source[0], ids, tmp_path / "s.emtc", WHOLE, made_by=MADE_BY)
    assert sorted(import_bundle(db, tmp_path / "s.emtc", cache=tmp_path / "cache").new) == sorted(ids)
    for run_id in ids:
        for table in TABLES:
            assert rows(db, table, run_id) == rows(source[0], table, run_id), table
        (mine,), (was,) = (rows(each, "snapshots", run_id) for each in (db, source[0]))
        assert {k: v for k, v in mine.items() if k != "id"} == {k: v for k, v in was.items() if k != "id"}
        assert check_run(db, run_id) == []
    with db.read() as connection:
        owners = connection.execute(
            select(SnapshotRow.run_id).join(ProjectionRow, ProjectionRow.snapshot_id == SnapshotRow.id)
        )
        assert sorted(owners.scalars()) == sorted([own, *ids]), "each projection has found its snapshot"
        assert connection.execute(select(SweepRow.name)).scalars().all() == ["A study"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unwritable_place_leaves_nothing(source, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="/dev/null"):
        write_bundle(source[0], source[1], Path("/dev/null/s.emtc"), THIN, made_by=MADE_BY)
    with pytest.raises(StorageError, match="at least one run"):
        write_bundle(source[0], [], tmp_path / "s.emtc", THIN, made_by=MADE_BY)
    assert list(tmp_path.iterdir()) == []
