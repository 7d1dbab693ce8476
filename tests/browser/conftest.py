"""One browser for all tests here, one app with a seeded run, and a page that must not raise an error.

They live as long as the session: workers that take tests from each other come back to this folder.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from app.jobs.doctor import find_chrome
from storage.engine import Database, open_database
from tests.browser.server import SIZE, open_page, running_app
from tests.pages.seed import seed_failed_run, seed_run
from tests.require import require


@pytest.fixture(scope="session")
def browser():
    path = find_chrome()
    require("browser", path is not None, "no Chromium or Chrome found")
    require("browser", find_spec("playwright") is not None, "playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tab(browser):
    """A tab in which one page follows the other: the app's scripts are loaded and compiled once, not once a test."""
    opened = open_page(browser)
    yield opened
    opened.context.close()


@pytest.fixture
def page(tab):
    """The tab as if it were new: empty, light, of one size, with the pointer in its corner."""
    tab.set_viewport_size(SIZE)
    tab.emulate_media(color_scheme="light")
    tab.mouse.move(0, 0)
    faults: list[str] = []

    def hear(fault) -> None:
        faults.append(str(fault))

    tab.on("pageerror", hear)
    yield tab
    tab.remove_listener("pageerror", hear)
    tab.goto("about:blank")
    assert faults == []


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Database]]:
    """The address of an app, a finished run beside which another failed, and their database.

    Tests may add runs of their own, and nothing to this one that another test would count.
    """
    path = tmp_path_factory.mktemp("seeded") / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    run_id = seed_run(db)
    seed_failed_run(db)
    with running_app(path) as url:
        yield url, run_id, db
    db.dispose()
