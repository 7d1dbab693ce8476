"""Launch in a real browser: a wrong value is framed and starts nothing, and the address is the form."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from storage.queries.runs import list_runs
from tests.browser.server import open_page, wait_until

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]
RED = "rgb(214, 57, 43)"
FRAME = "node => getComputedStyle(node.closest('[data-testid=stTextInputRootElement]')).borderTopColor"


def query(page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def type_into(page, label: str, text: str):
    box = page.get_by_role("textbox", name=label, exact=True)
    box.fill(text)
    box.press("Enter")
    return box


def wait_for_value(page, role: str, name: str, value: str) -> None:
    """A field takes the value of its session a moment after it is drawn, and is empty until then."""
    field = page.get_by_role(role, name=name)
    wait_until(page, lambda: field.input_value() == value, f"{name} = {value}")


def test_a_wrong_length_is_framed_in_red_and_start_is_off_until_it_is_mended(page, seeded):
    url, _, db = seeded
    before = len(list_runs(db))
    page.goto(f"{url}/launch")
    start = page.get_by_role("button", name="Start", exact=True)
    start.and_(page.locator(":enabled")).wait_for()
    box = type_into(page, "Training length [env steps]", "-5")
    start.and_(page.locator(":disabled")).wait_for()
    wait_until(
        page, lambda: "(got -5)" in page.locator(".st-key-wrong-steps").inner_text(), "the reason under the field"
    )
    wait_until(page, lambda: box.evaluate(FRAME) == RED, "the frame, which turns red by and by")
    assert start.is_visible(), "the button stays in view"
    assert start.bounding_box()["y"] < page.viewport_size["height"]
    type_into(page, "Training length [env steps]", "12345")
    start.and_(page.locator(":enabled")).wait_for()
    wait_until(page, lambda: box.evaluate(FRAME) != RED, "the end of the red frame")
    assert len(list_runs(db)) == before


def test_the_form_survives_another_page_and_a_link_carries_all_of_it(page, seeded):
    url, _, _ = seeded
    page.goto(f"{url}/launch?algo=emtc-qmix&map=2s3z")
    wait_for_value(page, "combobox", "Map", "2s3z")
    type_into(page, "Seeds", "1-4")
    type_into(page, "Training length [env steps]", "12345")
    whole = {"algo": "emtc-qmix", "map": "2s3z", "seeds": "1-4", "steps": "12345"}
    wait_until(page, lambda: query(page) == whole, "the whole form in the address")
    link = page.url
    page.get_by_role("link", name=re.compile("Home$")).click()
    page.get_by_role("heading", name="EMTC Lab").wait_for()
    page.get_by_role("link", name=re.compile("Launch$")).first.click()
    page.get_by_role("button", name="Start a sweep of 4 runs").wait_for()
    wait_until(page, lambda: query(page) == whole, "the form after another page")
    other = open_page(page.context.browser)
    other.goto(link)
    other.get_by_role("button", name="Start a sweep of 4 runs").wait_for()
    wait_for_value(other, "textbox", "Training length [env steps]", "12345")
    wait_for_value(other, "combobox", "Map", "2s3z")
    other.context.close()
