"""EMTC_READ_ONLY=1: every page shows, and no button of any page starts, stops, writes or deletes."""

import pytest

from app.navigation import HOME, PAGES
from storage.queries.runs import list_runs
from tests.pages.seed import seed_failed_run
from tests.pages.test_pages import open_page, said

ACTING = {
    "guide": ("start_demo",),
    "launch": ("start",),
    "run": ("run-keep",),
    "sweeps": ("sweep_start",),
    "disk": ("backup", "vacuum"),
}


@pytest.fixture
def shown(seeded, use_database, monkeypatch):
    db, run_id = seeded
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    return use_database(db.path), run_id


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_read_only_server_offers_no_button_that_writes(shown, name):
    db, run_id = shown
    before = list_runs(db).to_dict("records")
    app = open_page(name, run=run_id)
    assert not app.exception
    assert not app.error
    acting = [button for button in app.button if button.key in ACTING.get(name, ())]
    assert len(acting) == len(ACTING.get(name, ()))
    assert all(button.disabled for button in acting)
    assert not {button.label for button in app.button if not button.disabled} & {
        "Stop", "Pause", "Resume", "Edit", "Delete for good", "Pin to notebook"
    }  # fmt: skip
    assert list_runs(db).to_dict("records") == before
    assert "read-only" in said(app) or name != HOME


@pytest.mark.parametrize("name", ACTING)
def test_the_same_buttons_are_enabled_without_the_variable(seeded, name):
    app = open_page(name, run=seeded[1])
    assert {button.key for button in app.button if not button.disabled} >= {*ACTING[name]}


def test_alerts_cannot_be_marked_as_read(use_database, tmp_path, monkeypatch):
    seed_failed_run(use_database(tmp_path / "failed.db"))
    assert not open_page("health").button(key="read_all").disabled
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    assert open_page("health").button(key="read_all").disabled
