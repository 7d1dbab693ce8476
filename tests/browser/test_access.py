"""A browser without the token does not open the app. The printed address opens it, and then the plain one does."""

from collections.abc import Iterator

import pytest

from tests.browser.server import open_page, running_app

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

TOKEN = "token-of-this-test-and-of-no-server"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_app(tmp_path_factory.mktemp("access") / "x.db", env={"EMTC_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture
def tab(browser):
    """A tab of a browser without cookies."""
    opened = open_page(browser)
    yield opened
    opened.context.close()


def test_the_printed_address_opens_the_app_and_then_the_plain_one_does(page, address) -> None:
    page.goto(f"{address}/guide")
    page.get_by_text("EMTC Lab opens with the address that its terminal printed").wait_for()
    assert page.get_by_text("Find a run").count() == 0
    page.goto(f"{address}/guide?token={TOKEN}")
    page.get_by_role("heading", name="Guide").first.wait_for()
    assert TOKEN not in page.url
    (cookie,) = [each for each in page.context.cookies() if each["value"] == TOKEN]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    page.goto(f"{address}/guide")
    page.get_by_role("heading", name="Guide").first.wait_for()
