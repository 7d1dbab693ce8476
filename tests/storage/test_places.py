"""Where the files of runs lie: what EMTC_FILES may be, what is recorded, and what a stranger's row cannot do."""

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from sqlalchemy import make_url, update

from app.bench.postgres import temporary_postgres_database
from app.jobs.checkpoint_stores import open_checkpoint_store
from app.jobs.resume import examine_checkpoints
from emtc_core.errors import StorageError
from storage.bundles.contents import THIN, copy_runs
from storage.engine import Database, files_root, open_database
from storage.files.places import (
    check_place,
    describe_place,
    explain_missing,
    get_configured_place,
    get_run_place,
    local_folder,
    run_folder,
)
from storage.files.remote import Remote
from storage.files.trainer_files import LEASE, find_other_owner, make_lease, write_lease
from storage.maintenance.backup import back_up_database
from storage.maintenance.sizes import measure_sizes
from storage.maintenance.thin import Thinning, count_thinning, thin_run
from storage.models import Run
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.claims import claim_to_train
from storage.runs.removal import count_contents_of_runs, count_run_contents, remove_run
from storage.runs.rows import find_run
from tests.errors import raises
from tests.storage.records import CONFIG, ME

NAMES = ("checkpoint-000000000040.pt", "checkpoint-000000000120.aside", "log.txt")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMTC_FILES", raising=False)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    place = tmp_path / "shared"
    place.mkdir()
    return place


def end(db: Database, run_id: str, files: str | None) -> str:
    """Begin and end a run whose files lie in a place."""
    start_run(db, run_id, **ME, files=files)
    finish_run(db, run_id, "stopped")
    return run_id


def fill(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True)
    for name in (*NAMES, *more):
        (folder / name).write_bytes(b"x" * 1000)
    return folder


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", None),
        ("/shared/emtc/", "/shared/emtc"),
        ("/shared/../emtc", "/emtc"),
        ("~/emtc", os.path.expanduser("~/emtc")),  # noqa: PTH111 - what a shell would do
        ("s3://bucket/emtc/", "s3://bucket/emtc"),
        ("S3://Bucket", "s3://Bucket"),
        ("sftp://me@host:22/data", "sftp://me@host:22/data"),
        ("file:///mnt/slow", "file:///mnt/slow"),
    ],
)
def test_a_place_has_one_form(monkeypatch: pytest.MonkeyPatch, text: str, read: str | None) -> None:
    monkeypatch.setenv("EMTC_FILES", text)
    assert get_configured_place() == read


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("emtc", "not_absolute"),
        ("./emtc", "not_absolute"),
        ("~nobody-has-this-name/x", "unknown_user"),
        ("sftp://me:secret@host/data", "password"),
        ("s3://secret@bucket/data", "password"),
        ("s3://bucket/x?key=secret", "not_a_url"),
        ("simplecache::s3://bucket/x", "not_absolute"),
        ("s3://", "not_a_url"),
        ("s3://[bucket", "not_a_place"),
        ("/shared/\x1b[31m", "not_a_place"),
        ("/" + "x" * 2000, "not_a_place"),
    ],
)
def test_what_is_no_place_is_refused_without_its_secret(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("EMTC_FILES", text)
    with raises(StorageError, reason=reason, subject="EMTC_FILES") as caught:
        check_place()
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("?key=secret", "")


def test_a_folder_that_is_not_there_is_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may be the place where a network disk is not mounted just now."""
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "absent"))
    with raises(StorageError, reason="not_found", subject=os.environ["EMTC_FILES"]):
        check_place()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "file"))
    with raises(StorageError, reason="not_found", subject=os.environ["EMTC_FILES"]):
        check_place()


def test_a_run_that_has_not_begun_goes_where_this_machine_says(
    db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_folder(db, run_id) == files_root(db) / run_id
    monkeypatch.setenv("EMTC_FILES", str(shared))
    assert run_folder(db, run_id) == shared / run_id
    end(db, run_id, get_configured_place())
    assert find_run(db, run_id).files == str(shared)
    assert local_folder(db, run_id) == files_root(db) / run_id


def test_a_place_is_recorded_once(db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end(db, run_id, None)
    monkeypatch.setenv("EMTC_FILES", str(shared))
    claim_to_train(db, run_id, "owner")
    start_run(db, run_id, **ME, files=get_configured_place(), token="owner")
    assert find_run(db, run_id).files is None
    assert run_folder(db, run_id) == files_root(db) / run_id, "an earlier run stays where it is"


def test_a_link_that_the_user_sets_is_followed(
    db: Database, run_id: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(shared)
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "link"))
    assert get_run_place(db, run_id).recorded == str(tmp_path / "link")
    assert run_folder(db, run_id) == shared / run_id


def test_files_in_a_folder_are_counted_and_go_with_the_run_and_nothing_else(
    db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMTC_FILES", str(shared))
    end(db, run_id, str(shared))
    folder = fill(shared / run_id, "notes.txt", "checkpoint-plan.txt")
    other = fill(shared / "another1")
    found = count_run_contents(db, run_id)
    assert (found.files, found.size_bytes, found.folder) == (3, 3000, str(folder))
    assert (count_contents_of_runs(db, [run_id]).files, count_contents_of_runs(db, [run_id]).size_bytes) == (3, 3000)
    (size,) = measure_sizes(db).runs
    assert size.checkpoints >= 2000
    remove_run(db, run_id)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-plan.txt", "notes.txt"]
    assert len(list(other.iterdir())) == 3


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_files_at_a_url_are_counted_thinned_and_go_with_the_run(
    db: Database, run_id: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    url = f"file://{shared}" if kind == "file" else f"memory://{tmp_path.name}"
    monkeypatch.setenv("EMTC_FILES", url)
    check_place()
    files = Remote(url).files_of(end(db, run_id, url))
    for path in fill(tmp_path / "made").iterdir():
        files.upload(path)
    Remote(url).files_of("another1").upload(tmp_path / "made" / "log.txt")
    assert (count_run_contents(db, run_id).files, count_run_contents(db, run_id).size_bytes) == (3, 3000)
    assert count_contents_of_runs(db, [run_id]).size_bytes == 3000
    (size,) = measure_sizes(db).runs
    assert (size.checkpoints, size.other_files) == (2000, 1000)
    what = Thinning(checkpoints=True)
    assert count_thinning(db, run_id, what).checkpoints == 2
    thin_run(db, run_id, what)
    assert [found.name for found in files.list_files()] == ["log.txt"]
    remove_run(db, run_id)
    assert {run: len(found) for run, found in Remote(url).list_runs().items()} == {"another1": 1}


@pytest.mark.parametrize("hostile", ["folder", "url", "password", "climbs", "nothing", "bytes"])
def test_a_place_that_only_a_row_names_is_neither_read_nor_deleted(
    db: Database, run_id: str, shared: Path, hostile: str
) -> None:
    named = {
        "folder": str(shared),
        "url": f"file://{shared}",
        "password": "s3://me:secret@evil/x",
        "climbs": f"{shared}/../shared",
        "nothing": "",
        "bytes": "\x1b]0;x\x07",
    }[hostile]
    folder = fill(shared / end(db, run_id, named))
    for act in (
        lambda: run_folder(db, run_id),
        lambda: count_run_contents(db, run_id),
        lambda: count_thinning(db, run_id, Thinning(checkpoints=True)),
        lambda: thin_run(db, run_id, Thinning(checkpoints=True)),
        lambda: remove_run(db, run_id),
    ):
        with raises(StorageError, reason="other_place", subject=named) as caught:
            act()
        assert "secret" not in str(caught.value)
        assert str(caught.value).isprintable()
    assert find_run(db, run_id).files == named, "the row stays, too"
    assert "nothing there is read" in str(count_contents_of_runs(db, [run_id]))
    sizes = measure_sizes(db)
    assert (sizes.runs[0].checkpoints, sizes.runs[0].other_files) == (0, 0)
    assert "nothing there is read" in sizes.unmeasured
    assert len(list(folder.iterdir())) == 3
    remove_run(db, run_id, leave_files=True)
    assert len(list(folder.iterdir())) == 3


def test_the_sentence_names_the_setting_that_would_do(
    db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(db, run_id, "s3://bucket/emtc")
    with raises(StorageError, reason="other_place", subject="s3://bucket/emtc") as told:
        run_folder(db, run_id)
    assert "EMTC_FILES=s3://bucket/emtc" in str(told.value)
    monkeypatch.setenv("EMTC_FILES", str(shared))
    with raises(StorageError, reason="other_place", subject="s3://bucket/emtc") as told:
        run_folder(db, run_id)
    assert "EMTC_FILES=s3://bucket/emtc" in str(told.value)
    assert str(shared) in str(told.value)


def test_only_a_server_without_a_place_is_spoken_of(
    db: Database, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = describe_place(db)
    assert ("other machines cannot resume the run" in told) == (db.path is None)
    monkeypatch.setenv("EMTC_FILES", str(shared))
    assert str(shared) in describe_place(db)


def test_a_run_keeps_no_place_of_another_machine_in_a_copy(tmp_path: Path) -> None:
    source, target = (open_database(f"sqlite:///{tmp_path / name}.db") for name in ("a", "b"))
    run_id = end(source, create_run(source, CONFIG, target_steps=10, versions={}), "/home/somebody")
    with source.read() as read, target.transaction() as write:
        copy_runs(read, write, [run_id], THIN)
    assert find_run(target, run_id).files is None
    for db in (source, target):
        db.dispose()


def test_a_name_that_is_none_of_ours_is_not_touched(tmp_path: Path) -> None:
    files = Remote(f"file://{tmp_path}").files_of("abc12345")
    (tmp_path / "victim").write_text("x")
    for name in ("../victim", "victim", "checkpoint-1/../../victim", "notes.txt"):
        for act in (lambda name=name: files.remove(name), lambda name=name: files.read_tail(name, 10)):
            with raises(StorageError, reason="not_a_file_of_a_run", subject=name):
                act()
    assert (tmp_path / "victim").read_text() == "x"


def test_a_place_that_does_not_answer_keeps_the_run(
    db: Database, run_id: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"nothing://{shared.name}"
    monkeypatch.setenv("EMTC_FILES", url)
    end(db, run_id, url)
    with raises(StorageError, reason="unusable", subject=url):
        remove_run(db, run_id)
    assert find_run(db, run_id).id == run_id
    assert "Protocol not known" in measure_sizes(db).unmeasured
    with db.transaction() as connection:
        connection.execute(update(Run).values(files=None))
    remove_run(db, run_id)


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_a_copy_of_a_database_leaves_the_files_of_the_original(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    files = str(shared) if kind == "folder" else f"file://{shared}"
    monkeypatch.setenv("EMTC_FILES", files)
    db = open_database(f"sqlite:///{tmp_path / 'original.db'}")
    run_id = end(db, create_run(db, CONFIG, target_steps=10, versions={}), files)
    folder = fill(shared / run_id)
    (folder / LEASE).write_bytes(make_lease(db))
    place = back_up_database(db, tmp_path / "copy.db")
    copy = open_database(f"sqlite:///{place}")
    for act in (
        lambda: remove_run(copy, run_id),
        lambda: thin_run(copy, run_id, Thinning(checkpoints=True)),
        lambda: count_run_contents(copy, run_id),
    ):
        with raises(StorageError, reason="copied_database", subject=run_id):
            act()
    remove_run(copy, run_id, leave_files=True)
    assert len(list(folder.iterdir())) == 4
    assert count_run_contents(db, run_id).files == 4
    for each in (db, copy):
        each.dispose()
    moved = (tmp_path / "original.db").rename(tmp_path / "moved.db")
    db = open_database(f"sqlite:///{moved}")
    remove_run(db, run_id)
    assert not folder.exists()
    db.dispose()


@pytest.mark.postgres
def test_a_copy_of_a_server_database_leaves_the_files_of_the_original(
    postgres_server: str, ready_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All databases of a server use one folder, and the copy has the same runs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    db = open_database(ready_postgres_url)
    run_id = end(db, create_run(db, CONFIG, target_steps=10, versions={}), None)
    folder = fill(run_folder(db, run_id))
    with open_checkpoint_store(db, run_id, 2):  # as the trainer did
        pass
    db.dispose()
    with temporary_postgres_database(postgres_server, make_url(ready_postgres_url).database or "") as url:
        copy = open_database(url)
        for act in (
            lambda: remove_run(copy, run_id),
            lambda: thin_run(copy, run_id, Thinning(checkpoints=True)),
            lambda: count_run_contents(copy, run_id),
            lambda: open_checkpoint_store(copy, run_id, 2).__enter__(),
        ):
            with raises(StorageError, reason="copied_database", subject=run_id) as told:
                act()
            assert f"'{make_url(ready_postgres_url).database}'" in str(told.value)
        status = examine_checkpoints(copy, find_run(copy, run_id))
        assert "This database is a copy of it" in (status.refusal or "")
        assert count_run_contents(copy, run_id, leave_files=True).files == 0
        remove_run(copy, run_id, leave_files=True)
        assert measure_sizes(copy).left_behind == 0, "the folder of the original's run is not offered for deletion"
        copy.dispose()
    assert len(list(folder.iterdir())) == 4
    db = open_database(ready_postgres_url)
    remove_run(db, run_id)
    assert not folder.exists()
    db.dispose()


def test_a_copy_with_another_ending_has_the_folder_of_the_original(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    run_id = end(db, create_run(db, CONFIG, target_steps=10, versions={}), None)
    folder = fill(run_folder(db, run_id))
    write_lease(folder, make_lease(db))
    copy = open_database(f"sqlite:///{back_up_database(db, db.path.with_suffix('.sqlite'))}")
    assert run_folder(copy, run_id) == folder
    with raises(StorageError, reason="copied_database", subject=run_id):
        remove_run(copy, run_id)
    assert len(list(folder.iterdir())) == 4
    db.dispose()
    db.path.unlink()  # now it was renamed
    remove_run(copy, run_id)
    assert not folder.exists()
    copy.dispose()


@pytest.mark.parametrize("mark", [b"", b"[1]", b"{", b'{"database": 7}', b'{"database": null}', b"[" * 5000])
def test_a_mark_that_says_nothing_forbids_nothing(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: bytes
) -> None:
    monkeypatch.setenv("EMTC_FILES", str(shared))
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id = end(db, create_run(db, CONFIG, target_steps=10, versions={}), str(shared))
    (fill(shared / run_id) / LEASE).write_bytes(mark)
    remove_run(db, run_id)
    assert list(shared.iterdir()) == []
    db.dispose()


@pytest.mark.parametrize("named", ["/x\0y", "/" + "x" * 5000, "/" + "x/" * 2500, "x", ""])
def test_a_mark_may_name_anything(tmp_path: Path, named: str) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    lease = json.dumps({"database": named, "host": socket.gethostname()}).encode()
    for is_local in (True, False):
        assert str(find_other_owner(db, lease, is_local=is_local)).isprintable()
    db.dispose()


def test_after_a_failure_it_is_connected_anew(tmp_path: Path) -> None:
    """A library keeps a connection that its server has closed, and every later question would fail."""
    remote = Remote(f"file://{tmp_path}")
    first = remote.filesystem
    assert Remote(f"file://{tmp_path}").filesystem is first, "one connection serves all"
    with raises(StorageError, reason="unusable", subject=remote.url):
        remote.call(lambda: first.cat_file(str(tmp_path / "absent")))
    assert remote.filesystem is not first
    assert remote.filesystem is Remote(f"file://{tmp_path}").filesystem


def test_nobody_waits_for_a_place_longer_than_told(tmp_path: Path) -> None:
    answer = threading.Event()
    with raises(StorageError, reason="timeout", subject=f"file://{tmp_path}"):
        Remote(f"file://{tmp_path}").call(answer.wait, timeout_s=0.05)
    answer.set()


def test_a_database_behind_a_link_keeps_its_files_where_it_lies(ready_sqlite_url: str, tmp_path: Path) -> None:
    path = Path(ready_sqlite_url.removeprefix("sqlite:///"))
    link = tmp_path / "elsewhere" / "short.db"
    link.parent.mkdir()
    link.symlink_to(path)
    db = open_database(f"sqlite:///{link}")
    run_id = end(db, create_run(db, CONFIG, target_steps=100, versions={}), None)
    assert run_folder(db, run_id) == path.with_suffix(".files") / run_id
    assert local_folder(db, run_id) == run_folder(open_database(ready_sqlite_url), run_id)


def test_files_left_under_an_earlier_name_are_found_and_the_command_that_brings_them(ready_sqlite_url: str) -> None:
    before = open_database(ready_sqlite_url)
    run_id = end(before, create_run(before, CONFIG, target_steps=100, versions={}), None)
    fill(run_folder(before, run_id))
    before.dispose()
    renamed = before.path.rename(before.path.with_name("a new name.db"))
    db = open_database(f"sqlite:///{renamed}")
    why = explain_missing(db, run_id)
    assert f"{before.path.with_suffix('.files') / run_id} contains files of this run" in why
    subprocess.run(why.partition("(")[2].partition(")")[0], shell=True, check=True)  # as a user would
    for place in (run_folder(db, run_id), before.path.with_suffix(".files") / run_id):
        assert sorted(file.name for file in place.iterdir()) == sorted(NAMES), "the original may still need them"


def test_a_database_that_was_moved_says_what_must_come_along(ready_sqlite_url: str, tmp_path: Path) -> None:
    path = Path(ready_sqlite_url.removeprefix("sqlite:///"))
    (tmp_path / "far").mkdir()
    db = open_database(f"sqlite:///{path.rename(tmp_path / 'far' / path.name)}")
    assert f"move {path.stem}.files as well" in explain_missing(db, "abc")
