"""Pages on databases that earlier versions of the program trained into."""

import shutil
from pathlib import Path

import pytest

from storage.queries.runs import list_runs
from tests.pages.test_pages import open_page, said

ASSETS = Path(__file__).parents[1] / "assets"
PAGES = ("home", "live", "memory", "replay", "findings", "compare", "sweeps", "notebook")


@pytest.fixture(params=sorted(ASSETS.glob("trained_*.db")), ids=lambda path: path.stem)
def old(request, tmp_path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "old.db"))


def test_every_page_shows_the_run_once_the_app_has_upgraded_it(old, use_database):
    db = use_database(old)
    assert db.backup is not None
    run_id = list_runs(db)["id"].iloc[0]
    for page in PAGES:
        app = open_page(page, run=run_id)
        assert not app.exception, page
        assert not app.error, page
        assert "Unexpected error" not in said(app)


def test_a_page_that_may_only_read_names_the_command_that_upgrades(old, monkeypatch, tmp_path):
    monkeypatch.setenv("EMTC_DB", f"sqlite:///{old}")
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    before = old.read_bytes()
    app = open_page("home")
    assert not app.exception
    assert "emtc db upgrade" in said(app)
    assert old.read_bytes() == before
