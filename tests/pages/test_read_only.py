"""EMTC_READ_ONLY=1: every page shows, and no button of any page starts, stops, writes or deletes."""

import pytest
from pandas.testing import assert_frame_equal

from app.navigation import HOME, PAGES
from storage.engine import Database
from storage.queries.runs import list_runs
from tests.pages.seed import seed_failed_run
from tests.pages.test_pages import open_page, said

ACTING = {
    "guide": ("start_demo",),
    "launch": ("start",),
    "run": ("run-keep",),
    "sweeps": ("sweep_start",),
    "disk": ("backup", "vacuum"),
    "health": ("read_all",),
}


@pytest.fixture
def writable(seeded) -> tuple[Database, str]:
    seed_failed_run(seeded[0])  # an alert
    return seeded


@pytest.fixture
def read_only(writable, use_database, monkeypatch) -> tuple[Database, str]:
    db, run_id = writable
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    return use_database(db.path), run_id


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_read_only_server_offers_no_button_that_writes(read_only, name):
    db, run_id = read_only
    before = list_runs(db)
    app = open_page(name, run=run_id)
    assert not app.exception
    assert not app.error
    acting = [button for button in app.button if button.key in ACTING.get(name, ())]
    assert len(acting) == len(ACTING.get(name, ()))
    assert all(button.disabled for button in acting)
    assert not {button.label for button in app.button if not button.disabled} & {
        "Stop", "Pause", "Resume", "Edit", "Delete for good", "Pin to notebook"
    }  # fmt: skip
    assert_frame_equal(list_runs(db), before)
    assert "read-only" in said(app) or name != HOME


@pytest.mark.parametrize("name", ACTING)
def test_the_same_buttons_are_enabled_without_the_variable(writable, name):
    app = open_page(name, run=writable[1])
    assert {button.key for button in app.button if not button.disabled} >= {*ACTING[name]}
