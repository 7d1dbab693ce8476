"""A path is the path that it is: a % or a ? in a folder's name leads to no other database."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from streamlit.testing.v1 import AppTest

from app.cli import serve
from app.cli.main import run
from app.jobs.launch import ROOT
from storage.engine import open_database
from storage.runs.changes import create_run, finish_run, start_run
from tests.process.trainers import FAST, environment, train_command
from tests.storage.records import CONFIG, ME, record_everything

SIGNS = ("%2F", "?mode=memory", "#&+;:@= '\"\\[x]{y}~$HOME*`\né日%")
URL = "sqlite:///runs/emtc.db"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("recorded")
    db = open_database(f"sqlite:///{folder}/emtc.db")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    start_run(db, run_id, **ME)
    record_everything(db, run_id)
    finish_run(db, run_id, "finished")
    db.dispose()
    return folder, run_id


def tree(folder: Path) -> dict[str, bytes]:
    """What stands in a folder, byte by byte."""
    return {str(place): place.read_bytes() for place in sorted(folder.rglob("*")) if place.is_file()}


@pytest.mark.parametrize("sign", SIGNS)
def test_every_command_uses_the_database_of_its_own_folder(recorded, tmp_path, monkeypatch, capsys, sign):
    name = f"a{sign}b"
    twins = {unquote(name), name.partition("?")[0], "a"} - {name}
    for place in (name, *twins):
        shutil.copytree(recorded[0], tmp_path / place / "runs")
    before, folders = {twin: tree(tmp_path / twin) for twin in twins}, sorted(tmp_path.iterdir())
    here = tmp_path / name
    monkeypatch.chdir(here)

    def told(*command: str) -> str:
        assert run([*command]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert json.loads(told("sql", "select id from runs", "--json", "--db", URL)) == [{"id": recorded[1]}]
    told("db", "backup", "runs/emtc.db", "--out", "copy.db")
    told("bundle", recorded[1], "--out", "b.emtc", "--db", f"sqlite:///{here}/runs/emtc.db")
    told("db", "check", "copy.db")
    told("delete", recorded[1], "--yes", "--db", URL)
    assert json.loads(told("runs", "--json", "--db", URL)) == []
    told("open", "b.emtc", "--import", "--db", URL)
    assert [row["id"] for row in json.loads(told("runs", "--json", "--db", f"sqlite:///{here}/runs/emtc.db"))] == [
        recorded[1]
    ]
    assert {twin: tree(tmp_path / twin) for twin in twins} == before, "another folder's database was touched"
    assert sorted(tmp_path.iterdir()) == folders, "something was made beside"


@pytest.mark.ci
def test_a_run_trains_in_a_folder_of_odd_name_and_the_app_shows_it(tmp_path, monkeypatch):
    here = tmp_path / "100%20 of? #1 [é]&'s \\ +"
    here.mkdir()
    command = train_command(URL, steps=60, sets=(*FAST, "eval.episodes=1"))
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout.splitlines()[-1])["run_id"]
    assert [place.name for place in tmp_path.iterdir()] == [here.name]
    assert list((here / "runs" / "emtc.files" / run_id).glob("checkpoint-*"))
    started = {}
    monkeypatch.chdir(here)
    monkeypatch.setattr(serve.os, "execve", lambda program, command, env: started.update(env))
    monkeypatch.setattr(serve.os, "chdir", lambda place: None)
    assert run(["app", "--db", URL]) == 0
    monkeypatch.setenv("EMTC_DB", started["EMTC_DB"])
    monkeypatch.setenv("EMTC_WARM_UP", "0")
    app = AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=60).run()
    assert not app.exception
    assert run_id in str([table.value.to_dict() for table in app.dataframe])
    assert os.environ["EMTC_DB"] == f"sqlite:///{here}/runs/emtc.db"


@pytest.mark.parametrize("written", ["sqlite:///{here}/x%20y.db", "sqlite:///{here}/x y.db?mode=ro"])
def test_an_address_in_the_form_of_another_program_is_refused_with_a_correction(tmp_path, capsys, written):
    (tmp_path / "x y.db").touch()
    assert run(["runs", "--db", written.format(here=tmp_path)]) == 2
    assert f"Did you mean {tmp_path}/x y.db?" in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["x y.db"]


@pytest.mark.parametrize("command", [["runs"], ["train"], ["db", "vacuum"]])
@pytest.mark.parametrize("kind", ["folder", "link to a folder", "broken link"])
def test_a_folder_or_a_broken_link_is_not_a_database_and_nothing_is_created(tmp_path, capsys, command, kind):
    path, target = tmp_path / "x.db", tmp_path / "target"
    target.mkdir()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target if kind == "link to a folder" else tmp_path / "gone.db")
    assert run([*command, "--db", f"sqlite:///{path}"]) == 2
    message = capsys.readouterr().err
    reason = f"a link to {tmp_path}/gone.db, which does not exist" if kind == "broken link" else "it is a folder"
    assert reason in message
    assert len(message.strip().splitlines()) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["target", "x.db"]
    assert list(target.iterdir()) == []
