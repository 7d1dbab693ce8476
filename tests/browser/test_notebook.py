"""From a figure to the notebook and back, in a real browser: a double press makes one entry, its link one view."""

import time

import pytest

from storage.engine import Database
from storage.notebook import create_entry, delete_entry, list_entries
from tests.browser.server import PATIENCE_MS

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"> ![pixel](https://tracker.example/p.png) $\\beta = 1$"


def open_the_notebook(page, db: Database, url: str) -> None:
    """Follow the link that takes the form's place, where the second press, later on a slow machine, left it there."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not list_entries(db):
        assert time.monotonic() < deadline, "nothing was pinned"
        page.wait_for_timeout(100)
    page.wait_for_timeout(2000)
    link = page.get_by_role("link", name="Open the notebook").first
    if link.is_visible():
        link.click()
    elif "/notebook" not in page.url:
        page.goto(f"{url}/notebook")


def test_a_pinned_figure_stands_in_the_notebook_and_leads_back(page, seeded):
    url, run_id, db = seeded
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}/live?run={run_id}&x=0-150")
    page.locator(".curves canvas").first.wait_for()
    page.get_by_role("button", name="Pin").first.click()
    page.get_by_label("Title").fill("Found by a test")
    page.get_by_label("Note").fill(HOSTILE)
    page.get_by_role("button", name="Pin to notebook").dblclick(delay=80)
    open_the_notebook(page, db, url)
    page.get_by_role("heading", name="Found by a test").wait_for()
    page.locator(".curves canvas").first.wait_for()
    page.locator(".katex").first.wait_for()
    assert page.locator("img[src='x'], img[src*='tracker']").count() == 0
    assert not any("tracker.example" in address for address in asked)
    assert [entry.title for entry in list_entries(db)].count("Found by a test") == 1, "pressed twice, pinned once"
    page.get_by_role("link", name="Open this view").click()
    page.wait_for_url("**/live?*")
    page.locator(".curves canvas").first.wait_for()
    assert f"run={run_id}" in page.url
    assert "x=0-150" in page.url
    assert page.title() != "owned"


def test_a_file_that_cannot_be_made_gives_a_message(page, seeded):
    url, _, db = seeded
    entry_id = create_entry(db, title="Deleted meanwhile", body="Text")
    page.goto(f"{url}/notebook?entry={entry_id}")
    page.get_by_role("button", name="Export").click()
    delete_entry(db, entry_id)
    page.get_by_role("button", name="HTML").click()
    message = page.get_by_test_id("stToast").filter(has_text=f"There is no notebook entry {entry_id}.")
    message.wait_for()
    assert message.count() == 1


def test_a_new_entry_stays_typed_while_another_page_is_open(page, seeded):
    url, _, _ = seeded
    page.goto(f"{url}/notebook")
    page.get_by_role("button", name="New entry").click()
    page.get_by_label("Title").fill("An idea")
    page.get_by_label("Text").fill("not saved")
    page.locator(".st-key-sidebar_links").get_by_role("link", name="SQL").click(delay=80)  # as long as a person presses
    page.get_by_role("heading", name="SQL", level=1).wait_for()
    page.locator(".st-key-sidebar_links").get_by_role("link", name="Notebook").click()
    page.get_by_role("heading", name="Notebook", level=1).wait_for()
    page.get_by_role("button", name="New entry").click()
    assert page.get_by_label("Title").input_value() == "An idea"
    assert page.get_by_label("Text").input_value() == "not saved"
