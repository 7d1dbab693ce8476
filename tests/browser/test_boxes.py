"""Another page is opened while a box is open: the page is drawn, whatever the box and the page are."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle

import pytest

from app.navigation import HOME, PAGES, find_group, find_name, get_path
from storage.notebook import create_entry
from storage.runs.control import Heartbeat
from tests.app.sweep_cases import seed_sweep
from tests.pages.seed import seed_run

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(1800)]

SWEEP = 'name = "A sweep"\npreset = "demo"\nseeds = 1\n[[variant]]\nname = "cooling"\n'
BOXES = "[data-testid=stPopoverButton]:visible, [data-testid=stExpander] details:not([open]) > summary:visible"
CONTENT = "[data-testid=stPopoverBody]:visible, [data-testid=stExpanderDetails]:visible"
FAULTS = "[data-testid=stException], [data-testid=stPopoverBody]:visible, [role=dialog]:visible"
IDLE = "() => document.querySelector('.stApp').dataset.testScriptState === 'notRunning'"
IS_COVERED = """node => {
    const { x, y, width, height } = node.getBoundingClientRect()
    return !node.contains(document.elementFromPoint(x + width / 2, y + height / 2))
}"""


@pytest.mark.parametrize(
    ("status", "names", "n_per_page", "n_boxes_at_least"),
    [
        pytest.param("running", list(PAGES), 1, 10, id="running, one box of each page"),
        pytest.param("running", list(PAGES), 100, 40, id="running, all boxes", marks=pytest.mark.slow),
        pytest.param("finished", [HOME, "live", "run"], 100, 6, id="finished, all boxes", marks=pytest.mark.slow),
    ],
)
def test_another_page_opens_while_a_box_is_open(page, seeded, status, names, n_per_page, n_boxes_at_least):
    url, _, db = seeded
    run_id = seed_run(db, status=status, name=f"Boxes, {status}")
    create_entry(db, title="An entry", body="Text", token=f"boxes-{status}")
    if status == "running":
        seed_sweep(db, SWEEP)
    page.set_viewport_size({"width": 1440, "height": 1400})
    with ExitStack() as stack:
        if status == "running":
            stack.enter_context(closing(Heartbeat(db, run_id)))
        page.goto(f"{url}/?run={run_id}")
        check_page(page, url, HOME)
        n_boxes = 0
        for current, label, target in walk(page, names, n_per_page):
            try:
                press_links(page, url, current, target)
            except Exception as exc:
                raise AssertionError(f"{target} was not drawn: on {current}, the box {label!r} was open") from exc
            if target == "memory":  # further boxes
                page.goto(f"{url}/memory?run={run_id}&point=3")
                check_page(page, url, target)
            n_boxes += label != ""
    assert n_boxes >= n_boxes_at_least


def walk(page, names: list[str], n_per_page: int) -> Iterator[tuple[str, str, str]]:
    """Open one box after the other until each box of each of these pages was open, but not more than `n_per_page`.

    Yields:
        The current page, the label of the box that is open there, and the page to open next.
    """
    current, unfinished, targets = HOME, set(names), cycle(names)
    opened: dict[str, set[str]] = {name: set() for name in names}
    while True:
        label = open_next_box(page, opened[current])
        if not label:
            unfinished.discard(current)
        if not unfinished:
            return
        target = next(name for name in targets if name != current and (name in unfinished or unfinished == {current}))
        yield current, label, target
        if len(opened[current]) >= n_per_page:
            unfinished.discard(current)
        current = target


def open_next_box(page, opened: set[str]) -> str:
    """Open the first box of the page that is not in `opened`, and wait for its content. Return its label."""
    for button in page.locator(BOXES).all():
        label = " ".join(button.inner_text().split())
        if label not in opened and button.is_enabled():
            opened.add(label)
            n_texts = len(list(filter(None, page.locator(CONTENT).all_inner_texts())))
            button.click()
            page.locator(CONTENT).filter(has_text=re.compile(r"\S")).nth(n_texts).wait_for()
            page.wait_for_function(IDLE)
            return label
    return ""


def press_links(page, url: str, current: str, target: str) -> None:
    """Press the link in the sidebar, unless the page has a tab of the target, and then the tab."""
    group = find_group(target)
    if group is None or find_group(current) is not group:
        sidebar = page.locator(".st-key-sidebar_links")
        press(sidebar.get_by_role("link", name=re.compile(rf"{(group or PAGES[target]).title}$")))
        names = [tab.name for tab in group.pages] if group else [target]
        page.wait_for_url(re.compile(rf"{re.escape(url)}/({'|'.join(map(get_path, names))})(\?|$)"), timeout=20_000)
        current = find_name(page.url.removeprefix(f"{url}/").partition("?")[0]) or ""
        check_page(page, url, current)
    if current != target:
        press(page.locator(".st-key-page_tabs").get_by_role("link", name=re.compile(rf"{PAGES[target].title}$")))
        check_page(page, url, target)


def press(link) -> None:
    """Press a link. If a box covers it, use the keyboard."""
    if link.evaluate(IS_COVERED):
        link.press("Enter")
    else:
        link.click()


def check_page(page, url: str, name: str) -> None:
    page.wait_for_url(re.compile(rf"{re.escape(url)}/{get_path(name)}(\?|$)"), timeout=20_000)
    page.wait_for_function(IDLE, timeout=20_000)
    page.wait_for_timeout(400)  # a late answer to an event of the former page would have arrived
    page.wait_for_function(IDLE, timeout=20_000)
    title = "EMTC Lab" if name == HOME else PAGES[name].title
    page.get_by_role("heading", level=1, name=title, exact=True).wait_for(timeout=20_000)
    assert page.locator(FAULTS).count() == 0
    assert page.get_by_text("Connection error").count() == 0
