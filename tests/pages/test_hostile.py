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


@pytest.fixture
def hostile(seeded):
    db, run_id = seeded

    def open_it(act: str, page: str):
        db.dispose()
        tamper(db.path, *ACTS[act])
        return open_page(page, run=run_id)

    return open_it


@pytest.mark.parametrize(
    ("act", "page", "is_readable", "words"),
    [
        ("a bomb in an episode", "replay", False, "6,442,450,944 bytes"),
        ("a bomb in a snapshot", "memory", False, "6,442,450,944 bytes"),
        ("a blob that is text", "memory", False, "emtc db check"),
        ("words for numbers", "live", False, "cannot be read"),
        ("steps that are words", "home", False, "env_steps"),
        ("a configuration that is a list", "run", False, "cannot be read"),
        ("a configuration of other kinds", "compare", True, "Compare"),
        ("numbers beyond all", "live", True, "Win rate"),
        ("words for numbers", "health", True, "Health"),
        ("an id that climbs", "home", True, "EMTC Lab"),
        ("a module in the columns", "replay", True, "No picture for this environment"),
    ],
)
def test_a_page_reports_data_that_it_cannot_read_and_draws_the_rest(hostile, act, page, is_readable, words):
    app = hostile(act, page)
    assert not app.exception
    assert (len(app.error) == 0) == is_readable
    assert words in said(app).replace("\\", "")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("act", ACTS)
def test_every_page_of_every_hostile_database_fails_in_words(hostile, act, page):
    app = hostile(act, page)
    assert not app.exception
