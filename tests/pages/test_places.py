"""What the pages say of files that do not lie beside the database, and of a place that only a row names."""

from pathlib import Path

import pytest
import streamlit as st
from sqlalchemy import update

from app.ui.live.controls import EVENTS
from app.ui.page_state import OPENED_BOX
from emtc_core.checkpoint_file import name_checkpoint, write_checkpoint
from emtc_core.faiss_probe import FaissProbe
from storage.engine import Database
from storage.files.remote import Remote, RunFiles
from storage.models import Run
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said


def lie_at(db: Database, recorded: str) -> str:
    run_id = seed_run(db, status="failed")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(files=recorded, host="elsewhere"))
    return run_id


@pytest.fixture
def far(empty, tmp_path: Path, monkeypatch) -> RunFiles:
    """A run of another machine with a checkpoint and a log at a URL that this machine names, too."""
    url = f"file://{tmp_path / 'place'}"
    monkeypatch.setenv("EMTC_FILES", url)
    files = Remote(url).files_of(lie_at(empty, url))
    checkpoint, log = tmp_path / name_checkpoint(0), tmp_path / "log.txt"
    write_checkpoint(checkpoint, run_id=files.run_id, env_step=0, parts=[("state", lambda sink: sink.write(b"x"))])
    log.write_text("a word from elsewhere\n")
    for path in (checkpoint, log):
        files.upload(path)
    return files


def test_live_shows_the_checkpoints_and_the_log_of_another_machine(far):
    app = open_page("live", run=far.run_id)
    assert not app.exception
    assert "resume-ended" in [button.key for button in app.button]
    assert "a word from elsewhere" in " ".join(code.value for code in app.code)
    app.session_state[OPENED_BOX] = EVENTS
    assert f"Folder of the checkpoints: {far.url}." in said(app.run()).replace("\\", "")


def test_storage_counts_what_lies_there(far):
    app = open_page("disk")
    assert not app.exception
    assert not app.warning
    assert app.dataframe[0].value.iloc[0]["checkpoints"] > 0


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_place_that_only_a_row_names_is_refused_in_words_and_not_opened(empty, tmp_path, scheme):
    victim = tmp_path / "victim"
    run_id = lie_at(empty, f"{scheme}{victim}")
    folder = victim / run_id
    folder.mkdir(parents=True)
    write_checkpoint(
        folder / name_checkpoint(0), run_id=run_id, env_step=0, parts=[("state", lambda sink: sink.write(b"x"))]
    )
    (folder / "log.txt").write_text("the secret of this machine")
    for page in ("home", "live", "memory", "disk", "health"):
        app = open_page(page, run=run_id)
        assert not app.exception, page
        assert "the secret of this machine" not in said(app) + " ".join(code.value for code in app.code)
        if page in ("live", "disk"):
            words = " ".join(warning.value for warning in app.warning).replace("\\", "")
            assert f"Set EMTC_FILES={scheme}{victim}" in words
        if page == "live":
            assert "resume-ended" not in [button.key for button in app.button]
    assert len(list(folder.iterdir())) == 2


def test_launch_says_where_checkpoints_go_and_refuses_a_place_that_is_none(empty, tmp_path, monkeypatch):
    monkeypatch.setenv("EMTC_FILES", str(tmp_path))
    app = open_page("launch")
    assert f"Checkpoints and logs go to {tmp_path}" in said(app).replace("\\", "")
    monkeypatch.setenv("EMTC_FILES", str(tmp_path / "absent"))
    st.cache_data.clear()
    app = open_page("launch")
    assert not app.exception
    assert "is not a folder on this machine" in " ".join(error.value for error in app.error)
    assert [button.disabled for button in app.button if button.label == "Start"] == [True]


def test_the_check_of_this_machine_names_the_place(empty, tmp_path, monkeypatch):
    monkeypatch.setattr("app.jobs.doctor._find_gpu", lambda: "")
    monkeypatch.setattr("app.jobs.doctor.probe_faiss", lambda: FaissProbe("not installed"))
    monkeypatch.setattr("app.jobs.doctor.list_doctor_rows", list)
    for value, state in ((str(tmp_path), "✔ usable"), ("s3://key:secret@bucket", "✖ missing")):
        monkeypatch.setenv("EMTC_FILES", value)
        st.cache_data.clear()
        app = open_page("health")
        app.button(key="check_machine").click().run()
        row = app.dataframe[0].value.set_index("Part").loc["files"]
        assert row["State"] == state
        assert "secret" not in row["Details"] + row["How to install"]
