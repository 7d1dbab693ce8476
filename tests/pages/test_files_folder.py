"""The pages where EMTC_FILES is set: checkpoints and logs of other machines, and a setting that cannot be used."""

from pathlib import Path

import pytest
import streamlit as st
from sqlalchemy import update

from app.ui.live.controls import EVENTS
from app.ui.page_url import OPENED_BOX
from emtc_core.checkpoint_file import name_checkpoint, write_checkpoint
from storage.files import run_folder
from storage.models import Run
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said


@pytest.fixture
def folder(empty, tmp_path: Path, monkeypatch) -> Path:
    """The folder of a run of another machine, with a checkpoint and a log."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "shared"))
    run_id = seed_run(empty, status="failed")
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(host="elsewhere"))
    folder = run_folder(empty, run_id)
    folder.mkdir(exist_ok=True)
    checkpoint = folder / name_checkpoint(0)
    write_checkpoint(checkpoint, run_id=run_id, env_step=0, parts=[("state", lambda sink: sink.write(b"x"))])
    (folder / "log.txt").write_text("a word from elsewhere\n")
    return folder


def test_live_and_storage_show_the_checkpoints_and_the_log_of_another_machine(folder):
    app = open_page("live", run=folder.name)
    assert not app.exception
    assert "resume-ended" in [button.key for button in app.button]
    assert "a word from elsewhere" in " ".join(code.value for code in app.code)
    app.session_state[OPENED_BOX] = EVENTS
    assert f"Folder of the checkpoints: {folder}." in said(app.run()).replace("\\", "")
    app = open_page("disk")
    assert not app.exception
    assert not app.warning
    assert app.dataframe[0].value.iloc[0]["checkpoints"] > 0


def test_a_folder_that_is_not_mounted_is_named_and_no_page_fails(folder, monkeypatch):
    monkeypatch.setenv("EMTC_FILES", "/not/mounted")
    for page in ("home", "live", "memory", "disk", "health"):
        app = open_page(page, run=folder.name)
        assert not app.exception, page
        if page in ("live", "disk"):
            assert "/not/mounted" in " ".join(warning.value for warning in app.warning).replace("\\", ""), page
        if page == "live":
            assert "resume-ended" not in [button.key for button in app.button]


def test_launch_names_the_folder_of_the_checkpoints_and_refuses_a_missing_one(empty, tmp_path, monkeypatch):
    monkeypatch.setenv("EMTC_FILES", str(tmp_path))
    app = open_page("launch")
    assert f"Checkpoints and logs go to {tmp_path}" in said(app).replace("\\", "")
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "absent"))
    st.cache_data.clear()
    app = open_page("launch")
    assert not app.exception
    assert "is not a folder on this machine" in " ".join(error.value for error in app.error)
    assert [button.disabled for button in app.button if button.label == "Start"] == [True]


@pytest.mark.parametrize("is_usable", [True, False])
def test_the_check_of_this_machine_names_the_folder(empty, tmp_path, monkeypatch, is_usable):
    monkeypatch.setattr("app.jobs.doctor._check_gpu", dict)
    monkeypatch.setattr("app.jobs.doctor.list_doctor_rows", list)
    monkeypatch.setenv("EMTC_FILES", str(tmp_path) if is_usable else "s3://key:secret@bucket")
    app = open_page("health")
    app.button(key="check_machine").click().run()
    row = app.dataframe[0].value.set_index("Part").loc["files"]
    assert row["State"] == ("✔ usable" if is_usable else "✖ missing")
    assert "secret" not in row["Details"] + row["How to install"]
