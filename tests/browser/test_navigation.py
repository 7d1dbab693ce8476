"""The navigation in a browser: links and tabs, the back button, the keyboard, and paths without a page."""

import re

import pytest

from app.navigation import PAGES, find_group, get_path
from tests.browser.server import wait_until

pytestmark = [pytest.mark.ci, pytest.mark.browser]

VIEWS = {
    "memory": {"color": "xi"},
    "health": {"unread": "true"},
    "disk": {},
    "method": {"part": "Presets"},
}
"""Page of a group → parameters of a view. The path of `disk` is not its name."""
IDLE = "() => document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'"
IS_HIGHLIGHTED = "node => getComputedStyle(node).backgroundColor !== 'rgba(0, 0, 0, 0)'"
READ_FOCUS = """() => {
    const part = document.activeElement
    if (part === document.body) return null // after the last stop of the page
    const { outlineStyle, outlineWidth } = getComputedStyle(part)
    const isInSidebar = part.closest("[data-testid=stSidebar]") !== null
    return { text: part.innerText.trim(), isInSidebar, hasOutline: outlineStyle === "solid" && outlineWidth === "2px" }
}"""


def read_highlighted(page) -> list[str]:
    """List the labels of the highlighted links in the sidebar."""
    links = page.locator(".st-key-sidebar_links a").all()
    return [link.inner_text().split()[-1] for link in links if link.evaluate(IS_HIGHLIGHTED)]


def wait_for_page(page, url: str, name: str) -> None:
    """Wait until the page is drawn and the browser shows its path."""
    page.wait_for_url(re.compile(rf"{re.escape(url)}/{get_path(name)}(\?|$)"))
    page.wait_for_function(IDLE)
    title = "EMTC Lab" if name == "home" else PAGES[name].title
    page.get_by_role("heading", level=1, name=title, exact=True).wait_for()


@pytest.mark.parametrize("name", VIEWS)
def test_a_link_to_a_page_without_a_link_in_the_sidebar_shows_its_view(page, seeded, name):
    url, run_id, _ = seeded
    query = {"run": run_id, **VIEWS[name]}
    page.goto(f"{url}/{get_path(name)}?{'&'.join(f'{key}={value}' for key, value in query.items())}")
    wait_for_page(page, url, name)
    assert all(f"{key}={value}" in page.url for key, value in query.items())
    assert page.get_by_text("was not found").count() == 0
    wait_until(page, lambda: read_highlighted(page) == [find_group(name).title], "the highlighted link in the sidebar")


def test_one_press_of_back_opens_the_former_page(page, seeded):
    url, *_ = seeded
    sidebar, tabs = page.locator(".st-key-sidebar_links"), page.locator(".st-key-page_tabs")
    page.goto(url)
    wait_for_page(page, url, "home")
    sidebar.get_by_role("link", name="Run").click()
    wait_for_page(page, url, "live")
    tabs.get_by_role("link", name="Memory").click()
    wait_for_page(page, url, "memory")
    tabs.get_by_role("link", name="Replay").click()
    wait_for_page(page, url, "replay")
    for name in ("memory", "live", "home"):
        page.go_back()
        wait_for_page(page, url, name)
    sidebar.get_by_role("link", name="Learn").click()
    wait_for_page(page, url, "guide")
    page.get_by_role("button", name="Take the tour").click()
    wait_for_page(page, url, "live")
    page.go_back()
    wait_for_page(page, url, "guide")


def test_a_link_to_the_same_page_changes_the_url(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/live?run={run_id}&x=0-150")
    wait_for_page(page, url, "live")
    page.locator(".st-key-sidebar_links").get_by_role("link", name="Run").click()
    wait_until(page, lambda: page.url.endswith(f"/live?run={run_id}"), "the URL without the window")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_keyboard_reaches_the_picker_before_the_links_and_its_focus_is_visible(page, seeded, scheme):
    url, run_id, _ = seeded
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{url}/health?run={run_id}")
    wait_for_page(page, url, "health")
    page.locator(".st-key-run_picker_bar button").wait_for()
    stops = []
    page.keyboard.press("Tab")
    while len(stops) < 20 and (stop := page.evaluate(READ_FOCUS)) is not None:
        stops.append(stop)
        page.keyboard.press("Tab")
    assert len(stops) > 12, "the stops of the sidebar and the first ones of the page"
    assert all(stop["hasOutline"] for stop in stops), [stop["text"] for stop in stops if not stop["hasOutline"]]
    in_sidebar = [stop["text"].split()[-1] for stop in stops if stop["isInSidebar"]]
    assert in_sidebar[1] == "Home", "the first stop in the sidebar is the picker of the run"


def test_a_box_that_is_opened_with_the_keyboard_gets_the_focus_and_returns_it(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/health?run={run_id}")
    wait_for_page(page, url, "health")
    button = page.locator(".st-key-run_picker_bar button")
    button.focus()
    page.keyboard.press("Enter")
    is_focused = "node => node === document.activeElement"
    field = page.get_by_test_id("stPopoverBody").get_by_role("searchbox")
    wait_until(page, lambda: field.evaluate(is_focused), "the focus in the search field")
    page.keyboard.press("Escape")
    wait_until(page, lambda: button.evaluate(is_focused), "the focus on the button")


def test_a_path_without_a_page_is_named_on_home(page, seeded):
    url, *_ = seeded
    page.goto(f"{url}/nosuchpage")
    page.get_by_role("alert").filter(has_text="/nosuchpage").wait_for()
    wait_for_page(page, url, "home")
    assert page.get_by_role("dialog").count() == 0
