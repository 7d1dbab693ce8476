"""`emtc db check | stats | thin | vacuum | backup`: counted first, done when told, one sentence where it cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from app.cli.main import run
from storage.engine import open_database
from storage.queries.episodes import list_episodes
from storage.runs.changes import create_run, finish_run, start_run
from tests.storage.records import CONFIG, ME, record_everything


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("care") / "x.db"
    db = open_database(f"sqlite:///{path}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={}, name="one\x1b[31m")
    start_run(db, run_id, **ME)
    record_everything(db, run_id)
    finish_run(db, run_id, "finished")
    start_run(db, create_run(db, CONFIG, target_steps=100, versions={}, name="busy"), **ME)
    db.dispose()
    return path, run_id


@pytest.fixture
def place(original: tuple[Path, str], tmp_path: Path) -> tuple[str, str]:
    return f"sqlite:///{shutil.copy(original[0], tmp_path)}", original[1]


def test_stats_name_runs_and_kinds(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "stats", place[0]]) == 0
    told = capsys.readouterr()
    assert (place[1] in told.out, "\x1b" in told.out, "A vacuum would free" in told.err) == (True, False, True)
    assert run(["db", "stats", "--db", place[0], "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {each["run_id"]: each["total"] > 0 for each in facts["runs"]}[place[1]]


def test_a_check_lists_what_is_wrong(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    url, run_id = place
    assert run(["db", "check", url]) == 0
    assert "no findings" in capsys.readouterr().out
    db = open_database(url)
    with db.transaction() as connection:
        connection.exec_driver_sql("delete from transitions where env_step = 3")
    db.dispose()
    assert run(["db", "check", url]) == 1
    assert run_id in capsys.readouterr().out
    assert run(["db", "check", "--db", url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["database"], report["ok"], run_id in report["findings"][0]) == (url, False, True)


def test_thinning_counts_first_and_removes_only_with_yes(
    place: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, run_id = place
    assert run(["db", "thin", run_id, "--trajectories", "--db", url]) == 0
    assert "3 trajectories" in (told := capsys.readouterr().err)
    assert "add: --yes" in told
    assert run(["db", "thin", run_id, "--trajectories", "--db", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][run_id]["trajectories"] == 3
    assert run(["db", "thin", run_id, "--trajectories", "--yes", "--db", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] is True
    assert run(["db", "thin", run_id, "--trajectories", "--yes", "--db", url]) == 0
    assert "nothing" in capsys.readouterr().err
    assert len(list_episodes(open_database(url), run_id)) == 3


def test_all_leaves_active_runs_unchanged(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    url, run_id = place
    assert run(["db", "thin", "--all", "--transitions", "--yes", "--db", url]) == 0
    told = capsys.readouterr().err
    assert "Skipped, because they are active" in told
    assert f"Run {run_id}: 30 transitions" in told


def test_a_backup_and_a_vacuum_print_what_they_did(
    place: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new" / "folder" / "copy.db")
    assert run(["db", "backup", place[0], "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backup"] == out
    db = open_database(f"sqlite:///{out}")
    with db.transaction() as connection:
        connection.exec_driver_sql("update runs set status = 'finished'")
    db.dispose()
    assert run(["db", "vacuum", out]) == 0
    assert "MB before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["thin", "--all"], "Give the data to remove"),
        (["thin", "--trajectories"], "Give run ids"),
        (["thin", "nobody", "--trajectories"], "not found"),
        (["thin", "--all", "--snapshots", "0"], "--snapshots"),
        (["vacuum"], "must wait until no run is active"),
        (["backup", "--out", "{path}/new/x.db"], "cannot be written"),
        (["backup", "--out", "{path}"], "does not replace files"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    place: tuple[str, str], arguments: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place[0].removeprefix("sqlite:///")
    code = run(["db", *(each.format(path=path) for each in arguments), "--db", place[0]])
    told = capsys.readouterr()
    assert (code, told.out, len(told.err.strip().splitlines())) == (2, "", 1)
    assert fragment in told.err


def test_a_read_only_process_changes_nothing(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    for arguments in (["thin", place[1], "--trajectories", "--yes"], ["vacuum"], ["backup"]):
        assert run(["db", *arguments, "--db", place[0]]) == 2
        assert "EMTC_READ_ONLY=1" in capsys.readouterr().err
    assert run(["db", "stats", "--db", place[0]]) == 0
