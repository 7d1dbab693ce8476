"""The SQL page in a real browser: an endless query is stopped by the Cancel button."""

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c"


def submit(page, query: str) -> None:
    page.get_by_role("textbox", name="Query").fill(query)
    page.get_by_role("button", name="Run", exact=True).click()


def test_an_endless_query_is_stopped_and_the_page_shows_it_without_another_click(page, seeded):
    page.goto(f"{seeded[0]}/sql")
    submit(page, ENDLESS)
    page.get_by_text("The query is running.").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("The query was cancelled.").wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0
    submit(page, "select 1 as one")
    page.get_by_text("1 row.").wait_for()
