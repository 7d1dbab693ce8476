"""One browser for all tests here, and a page that must not raise an error."""

from importlib.util import find_spec

import pytest

from app.jobs.doctor import find_chrome
from tests.browser.server import open_page
from tests.require import require


@pytest.fixture(scope="package")
def browser():
    path = find_chrome()
    require("browser", path is not None, "no Chromium or Chrome found")
    require("browser", find_spec("playwright") is not None, "playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    opened = open_page(browser)
    faults: list[str] = []
    opened.on("pageerror", lambda fault: faults.append(str(fault)))
    yield opened
    opened.close()
    assert faults == []
