"""Pages on a database from somebody else: each draws what it can and says the rest in a sentence."""

import pytest

from tests.hostile import ACTS, tamper
from tests.pages.test_pages import open_page, said

PAGES = (
    "home",
    "run",
    "live",
    "memory",
    "replay",
    "findings",
    "compare",
    "sweeps",
    "notebook",
    "sql",
    "disk",
    "health",
)
USUAL = (
    ("an id that climbs", "home"),
    ("a bomb in an episode", "replay"),
    ("a bomb in a snapshot", "memory"),
    ("a module in the columns", "replay"),
    ("a configuration of other kinds", "compare"),
    ("steps that are words", "live"),
    ("a configuration of other kinds", "run"),
    ("numbers beyond all", "live"),
    ("a name that is a page", "home"),
    ("a trigger", "home"),
    ("numbers beyond all", "disk"),
    ("a blob that is text", "disk"),
    ("words for numbers", "health"),
    ("a status of its own", "health"),
)


@pytest.fixture
def hostile(seeded):
    db, run_id = seeded

    def open_it(act: str, page: str):
        db.dispose()
        tamper(db.path, *ACTS[act])
        return open_page(page, run=run_id)

    return open_it


@pytest.mark.parametrize(("act", "page"), USUAL)
def test_a_page_of_a_hostile_database_fails_in_words(hostile, act, page):
    app = hostile(act, page)
    assert not app.exception


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("act", ACTS)
def test_every_page_of_every_hostile_database_fails_in_words(hostile, act, page):
    app = hostile(act, page)
    assert not app.exception


def test_a_replay_of_an_import_path_has_no_picture_and_draws_the_rest(hostile):
    app = hostile("a module in the columns", "replay")
    assert not app.exception
    assert not app.error
    assert "No picture for this environment" in said(app)
