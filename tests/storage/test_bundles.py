"""Bundles: what goes in comes out, and what somebody did to one on its way changes nothing."""

import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
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
from storage.bundles.read import MANIFEST, STUDY, open_bundle
from storage.bundles.write import import_bundle, write_bundle
from storage.engine import Database, open_database
from storage.maintenance.check_run import check_run
from storage.maintenance.thin import Thinning, thin_run
from storage.migrations import upgrade
from storage.models import SCHEMA_VERSION, Base, EpisodeRow, ProjectionRow, Run, SnapshotRow, SweepRow, Transition
from storage.queries.episode_search import find_playbacks
from storage.queries.episodes import get_trajectory
from storage.queries.gate import gate_chart
from storage.queries.memory import get_node, get_snapshot
from storage.runs.changes import create_run
from storage.runs.labels import tag_runs
from storage.runs.rows import find_run
from tests.errors import raises
from tests.hostile import make_bomb
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
        row = {"id": "sweep1", "name": "A study", "status": "running", "jobs": 2, "plan": {"file": {}}, "pid": 1}
        created = connection.execute(select(Run.created_at)).scalars().first()
        connection.execute(insert(SweepRow), row | {"created_at": created, "host": "secret-host"})
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


def test_a_whole_bundle_holds_every_row(source, tmp_path: Path) -> None:
    db, ids = source
    made = write_bundle(db, ids, tmp_path / "s.emtc", WHOLE, made_by=MADE_BY)
    assert made.runs == 3
    with opened(tmp_path / "s.emtc", tmp_path / "cache").read() as connection:
        assert connection.execute(select(func.count()).select_from(Run)).scalar_one() == 3
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    for run_id in ids:
        for table in (*TABLES, "snapshots", "resumes"):
            assert rows(there, table, run_id) == rows(db, table, run_id), table
        assert check_run(there, run_id) == []
        row, was = find_run(there, run_id), find_run(db, run_id)
        assert (row.config, row.env_steps, row.created_at) == (was.config, was.env_steps, was.created_at)


@pytest.mark.parametrize("contents", [THIN, Contents(), WHOLE], ids=["thin", "usual", "whole"])
def test_a_bundle_holds_what_was_asked(source, tmp_path: Path, contents: Contents) -> None:
    db, (run_id, *_) = source
    write_bundle(db, [run_id], tmp_path / "s.emtc", contents, made_by=MADE_BY)
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    for table in ("evaluations", "metrics", "gate_stats", "transition_summary"):
        assert rows(there, table, run_id) == rows(db, table, run_id), table
    outcome = ("trajectory",)
    assert rows(there, "episodes", run_id, outcome) == rows(db, "episodes", run_id, outcome)
    assert bool(rows(there, "snapshots", run_id)) == contents.snapshots
    assert len(find_playbacks(there, run_id).frame) == (1 if contents.playbacks else 0)
    assert bool(rows(there, "transitions", run_id)) == contents.transitions
    with there.read() as connection:
        drawn = connection.execute(select(func.count()).select_from(ProjectionRow)).scalar_one()
        runs = connection.execute(select(Run.id)).scalars().all()
    assert drawn == (1 if contents.snapshots else 0)
    assert runs == [run_id]
    assert len(gate_chart(there, run_id)) > 0
    assert check_run(there, run_id) == []
    if not contents.trajectories:
        with raises(DataRemovedError, reason="removed", subject=1):
            get_trajectory(there, run_id, 1)


def test_chosen_episodes_come_with_their_states(source, tmp_path: Path) -> None:
    db, (run_id, *_) = source
    contents = Contents(kept_episodes={run_id: frozenset({2})})
    write_bundle(db, [run_id], tmp_path / "s.emtc", contents, made_by=MADE_BY)
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    kept, was = get_trajectory(there, run_id, 2), get_trajectory(db, run_id, 2)
    assert (kept.state == was.state).all()
    np.testing.assert_array_equal(kept.delta_mem, was.delta_mem)
    with raises(DataRemovedError, reason="removed", subject=1):
        get_trajectory(there, run_id, 1)
    assert check_run(there, run_id) == []
    snapshot = get_snapshot(there, int(rows(there, "snapshots", run_id)[0]["id"]))
    slot = int(snapshot.slot[snapshot.episode == 2][0])
    assert get_node(there, get_snapshot(there, snapshot.id), slot).trajectory.episode == 2


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
    with raises(DataRemovedError, reason="removed", subject=1):
        get_trajectory(there, thin, 1)
    assert bundle.contents == ("everything of 1 run",)


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
        sweep = connection.execute(select(SweepRow.status, SweepRow.host, SweepRow.pid)).one()
    assert tuple(sweep) == ("stopped", None, None)
    assert there.path is not None
    assert b"secret-host" not in there.path.read_bytes()


def test_a_bundle_describes_itself(sound: Path, source) -> None:
    with zipfile.ZipFile(sound) as archive:
        assert archive.namelist() == [MANIFEST, STUDY]
        facts = json.loads(archive.read(MANIFEST))
        study = archive.read(STUDY)
    assert facts["members"][STUDY] == {"size": len(study), "sha256": hashlib.sha256(study).hexdigest()}
    assert facts["runs"][0]["id"] == source[1][0]
    assert "emtc open" in facts["about"]
    assert (facts["schema"], facts["contents"]["snapshots"]) == (SCHEMA_VERSION, False)


def test_what_was_opened_has_its_indexes_and_cannot_be_written(sound: Path, tmp_path: Path) -> None:
    there = opened(sound, tmp_path / "cache")
    fresh = upgrade.describe_indexes(SCHEMA_VERSION)
    with there.read() as connection:
        made = connection.execute(
            text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL")
        ).all()
    assert {row.name: row.sql for row in made} == fresh
    with raises(StorageError, reason="opened_read_only"), there.transaction():
        pass
    assert there.path is not None
    assert there.path.stat().st_mode & 0o777 == 0o400
    assert [place.name for place in (tmp_path / "cache").iterdir()] == [there.path.name], "nothing is left beside it"


def test_a_bundle_is_opened_again_and_again(sound: Path, tmp_path: Path) -> None:
    first = opened(sound, tmp_path / "cache")
    assert first.path == opened(sound, tmp_path / "cache").path


def test_an_older_bundle_is_brought_to_this_schema(tmp_path: Path) -> None:
    old = Path(__file__).parent.parent / "assets" / "trained_0010.db"
    study = tmp_path / STUDY
    shutil.copy(old, study)
    with closing(sqlite3.connect(study)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type='index' AND sql NOT NULL"
        ).fetchall():
            connection.execute(f"DROP INDEX {name}")
    make_bundle(tmp_path / "old.emtc", study.read_bytes())
    there = opened(tmp_path / "old.emtc", tmp_path / "cache")
    with there.read() as connection:
        assert upgrade.is_current(connection, there.safe_url)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def make_bundle(place: Path, study: bytes, **changes: Any) -> None:
    """Write a bundle by hand: with other facts, other members or another size."""
    member = {"size": len(study), "sha256": hashlib.sha256(study).hexdigest()} | changes.pop("member", {})
    facts = {"format": "emtc-bundle", "version": 1, "runs": [], "members": {STUDY: member}} | changes.pop("facts", {})
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        if "manifest" not in changes:
            archive.writestr(MANIFEST, json.dumps(facts))
        elif changes["manifest"] is not None:
            archive.writestr(MANIFEST, changes["manifest"])
        archive.writestr(changes.get("name", STUDY), study)
        for name in changes.get("more", ()):
            archive.writestr(name, b"evil")


def study_of(place: Path) -> bytes:
    with zipfile.ZipFile(place) as archive:
        return archive.read(STUDY)


def tampered(study: bytes, folder: Path, *statements: str | tuple[str, tuple]) -> bytes:
    place = folder / "tampered.db"
    place.write_bytes(study)
    with closing(sqlite3.connect(place)) as connection:
        for statement in statements:
            sql, values = (statement, ()) if isinstance(statement, str) else statement
            connection.execute(sql, values)
        connection.commit()
    return place.read_bytes()


def many_members(study: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number in range(2000):
            archive.writestr(f"member-{number}-with-a-name-that-takes-room", b"")
    return content.getvalue()


def huge_zip64_list(study: bytes) -> bytes:
    """A tail that claims, in the extended record, to list gigabytes of members."""
    end_64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 30, 1 << 30, 1 << 34, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    return end_64 + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


Harm = Callable[[bytes, Path], bytes | dict[str, Any]]
HARMS: dict[str, tuple[Harm, str, Any]] = {  # what is done to a bundle, and the reason and subject of the refusal
    "a text": (lambda db, at: b"Dear colleague, " * 100, "not_a_bundle", ...),
    "nothing": (lambda db, at: b"", "not_a_bundle", ...),
    "a database": (lambda db, at: db, "not_a_bundle", ...),
    "a pickle": (lambda db, at: b"cos\nsystem\n(S'touch owned'\ntR.", "not_a_bundle", ...),
    "two thousand members": (lambda db, at: many_members(db), "too_many_members", ...),
    "a claimed list": (lambda db, at: huge_zip64_list(db), "too_many_members", ...),
    "slip": (lambda db, at: {"name": "../../../../tmp/owned.db"}, "other_members", "../../../../tmp/owned.db"),
    "absolute": (lambda db, at: {"more": ["/etc/cron.d/owned"]}, "other_members", "/etc/cron.d/owned"),
    "twice": (lambda db, at: {"more": [MANIFEST]}, "other_members", ""),
    "no manifest": (lambda db, at: {"manifest": None}, "other_members", ""),
    "no JSON": (lambda db, at: {"manifest": b"{" * 100_000}, "not_a_manifest", ...),
    "a huge manifest": (lambda db, at: {"manifest": b" " * (17 << 20)}, "manifest_too_large", ...),
    "another format": (lambda db, at: {"facts": {"format": "tar"}}, "not_a_manifest", ...),
    "a newer version": (
        lambda db, at: {"facts": {"version": 2}},
        "newer_version",
        2,
    ),
    "a version that never existed": (
        lambda db, at: {"facts": {"version": 0}},
        "unknown_version",
        0,
    ),
    "no size": (lambda db, at: {"member": {"size": None}}, "no_size", ...),
    "a path as member": (
        lambda db, at: {"facts": {"members": {"../x": {}}}},
        "no_size",
        ...,
    ),
    "no runs": (lambda db, at: {"facts": {"runs": None}}, "no_runs", ...),
    "contents that are a number": (lambda db, at: {"facts": {"contents": 7}}, "bad_manifest", ...),
    "a claimed petabyte": (
        lambda db, at: {"member": {"size": 10**15}},
        "too_large",
        10**15,
    ),
    "a bomb": (lambda db, at: {"study": bytes(40 << 20), "member": {"size": 1000}}, "larger_than_manifest", ...),
    "altered": (lambda db, at: {"member": {"sha256": "0" * 64}}, "altered", ...),
    "cut": (lambda db, at: {"member": {"size": len(db) + 1}}, "altered", ...),
    "no database": (
        lambda db, at: {"study": b"cos\nsystem\n(S'touch owned'\ntR." * 100},
        "failed",
        ...,
    ),
    "a cut database": (lambda db, at: {"study": db[: len(db) // 2]}, "failed", ...),
    "somebody else's": (lambda db, at: {"study": other_database(at)}, "not_a_database", ...),
    "no tables": (lambda db, at: {"study": empty_database(at)}, "no_runs", ...),
    "a trigger": (
        lambda db, at: {"study": tampered(db, at, "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM runs; END")},
        "unsound",
        "schema",
    ),
    "a view": (
        lambda db, at: {"study": tampered(db, at, "DROP TABLE metrics", "CREATE VIEW metrics AS SELECT 1 AS run_id")},
        "unsound",
        "schema",
    ),
    "a newer schema": (
        lambda db, at: {"study": tampered(db, at, "UPDATE alembic_version SET version_num = '9999'")},
        "newer_version",
        ...,
    ),
    "a path as run": (
        lambda db, at: {"study": tampered(db, at, "UPDATE runs SET id = '../../x'")},
        "unsound",
        "runs '../../x'",
    ),
    "no run": (lambda db, at: {"study": tampered(db, at, "DELETE FROM runs")}, "no_runs", ...),
    "a bomb in a row": (
        lambda db, at: {
            "study": tampered(db, at, ("UPDATE episodes SET trajectory = ?", (make_bomb(),))),
        },
        "unsound",
        ...,
    ),
}


def other_database(folder: Path) -> bytes:
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE passwords (name)")
        connection.commit()
    return (folder / "other.db").read_bytes()


def empty_database(folder: Path) -> bytes:
    with closing(sqlite3.connect(folder / "empty.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("DROP TABLE t")
        connection.commit()
    return (folder / "empty.db").read_bytes()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_bundle_is_one_sentence_and_changes_nothing(
    sound: Path, tmp_path: Path, harm: str, monkeypatch
) -> None:
    do, reason, subject = HARMS[harm]
    study = study_of(sound)
    done = do(study, tmp_path)
    place = tmp_path / "study.emtc"
    if isinstance(done, bytes):
        place.write_bytes(done)
    else:
        make_bundle(place, done.pop("study", study), **done)
    own = open_database(f"sqlite:///{tmp_path / 'own.db'}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = {each for each in tmp_path.rglob("*") if "cache" not in each.parts}
    for act in (lambda: open_bundle(place, cache=tmp_path / "cache"), lambda: import_into(own, place, tmp_path)):
        with raises(StorageError, reason=reason, subject=subject) as told:
            act()
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 500
    assert list((tmp_path / "cache").iterdir()) == []
    assert {each for each in tmp_path.rglob("*") if "cache" not in each.parts} == before
    with own.read() as connection:
        assert connection.execute(select(func.count()).select_from(Run)).scalar_one() == 0


def import_into(own: Database, place: Path, tmp_path: Path) -> list[str]:
    return list(import_bundle(own, place, cache=tmp_path / "cache").new)


def test_no_cut_and_no_flipped_bit_passes_unnoticed(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    study = hashlib.sha256(study_of(sound)).hexdigest()
    rng = random.Random(5)
    edges = [*range(40), *range(len(whole) - 200, len(whole))]
    flips = rng.sample(edges, 25) + [rng.randrange(len(whole)) for _ in range(10)]
    harmed = [whole[: rng.randrange(len(whole))] for _ in range(5)]
    harmed += [bytes([*whole[:at], whole[at] ^ (1 << rng.randrange(8)), *whole[at + 1 :]]) for at in flips]
    place, cache, passed = tmp_path / "study.emtc", tmp_path / "cache", 0
    for content in harmed:
        place.write_bytes(content)
        with suppress(StorageError):
            _, manifest = open_bundle(place, cache=cache)
            passed += 1  # what a zip does not look at: its dates and versions
            assert manifest.sha256 == study
    assert passed < len(harmed) / 2
    assert not [each for each in cache.iterdir() if each.name.startswith(".")]


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


def test_an_import_adds_the_runs_that_are_missing_and_names_the_others(source, tmp_path: Path) -> None:
    db, ids = source
    write_bundle(db, ids[:2], tmp_path / "s.emtc", THIN, made_by=MADE_BY)
    own = open_database(f"sqlite:///{tmp_path / 'own.db'}")
    import_bundle(own, tmp_path / "s.emtc", cache=tmp_path / "cache")
    write_bundle(db, ids, tmp_path / "more.emtc", THIN, made_by=MADE_BY)
    tag_runs(own, ids[:1], add=["mine"])
    imported = import_bundle(own, tmp_path / "more.emtc", cache=tmp_path / "cache")
    assert (imported.new, sorted(imported.existing)) == ((ids[2],), sorted(ids[:2]))
    assert "mine" in find_run(own, ids[0]).tags
    again = import_bundle(own, tmp_path / "more.emtc", cache=tmp_path / "cache")
    assert (again.new, sorted(again.existing)) == ((), sorted(ids))


def test_a_text_in_a_column_of_numbers_is_not_imported(sound: Path, tmp_path: Path) -> None:
    study = tampered(study_of(sound), tmp_path, "UPDATE evaluations SET win_rate = '<script>'")
    make_bundle(tmp_path / "s.emtc", study)
    own = open_database(f"sqlite:///{tmp_path / 'own.db'}")
    with raises(StorageError, reason="unsound") as told:
        import_bundle(own, tmp_path / "s.emtc", cache=tmp_path / "cache")
    assert "evaluations.win_rate" in str(told.value)
    with own.read() as connection:
        assert connection.execute(select(func.count()).select_from(Run)).scalar_one() == 0


def test_read_only_forbids_making_and_importing(source, sound: Path, tmp_path: Path, monkeypatch) -> None:
    own = open_database(f"sqlite:///{tmp_path / 'own.db'}")
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    with raises(StorageError, reason="read_only", subject="make a bundle"):
        write_bundle(source[0], source[1], tmp_path / "s.emtc", THIN, made_by=MADE_BY)
    with raises(StorageError, reason="read_only", subject="import a bundle"):
        import_bundle(own, sound)
    assert opened(sound, tmp_path / "cache").writer is None


def test_a_thinned_run_can_be_bundled(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id = fill(db)
    with db.transaction() as connection:
        connection.execute(update(Run).values(pid=None, owner_token=None))
    thin_run(db, run_id, Thinning(trajectories=True, transitions=True))
    write_bundle(db, [run_id], tmp_path / "s.emtc", WHOLE, made_by=MADE_BY)
    there = opened(tmp_path / "s.emtc", tmp_path / "cache")
    with there.read() as connection:
        assert connection.execute(select(func.count()).select_from(EpisodeRow)).scalar_one() == 3
        assert connection.execute(select(func.count()).select_from(Transition)).scalar_one() == 0


def test_an_unwritable_place_leaves_nothing(source, tmp_path: Path) -> None:
    with raises(StorageError, reason="not_writable", subject=Path("/dev/null/s.emtc")):
        write_bundle(source[0], source[1], Path("/dev/null/s.emtc"), THIN, made_by=MADE_BY)
    with raises(StorageError, reason="no_runs"):
        write_bundle(source[0], [], tmp_path / "s.emtc", THIN, made_by=MADE_BY)
    assert list(tmp_path.iterdir()) == []
