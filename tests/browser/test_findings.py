"""The example study in a real browser: from Home to its charts and claims, on a wide and on a narrow screen."""

from pathlib import Path

import pytest

from storage.engine import open_database
from tests.browser.server import running_app

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

INK = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .some((value, i) => i % 4 === 3 && value > 0)"""
BEYOND = """() => {
    const edge = document.querySelector("[data-testid=stMainBlockContainer]").getBoundingClientRect().right
    const parts = document.querySelectorAll(".st-key-findings_claims td, .st-key-findings_charts canvas")
    return [...parts].filter(part => part.getBoundingClientRect().right > edge).map(part => part.textContent)
}"""


def test_the_example_study_opens_on_charts_and_claims_that_fit_the_screen(page, tmp_path: Path):
    open_database(f"sqlite:///{tmp_path / 'own.db'}").dispose()
    with running_app(tmp_path / "own.db", env={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as url:
        page.goto(url)
        page.get_by_role("button", name="Open the example study").click()
        page.get_by_role("heading", name="Claims").wait_for()
        page.wait_for_url("**/findings?from=*")
        canvases = page.locator(".st-key-findings_charts canvas")
        assert canvases.count() == 2
        assert [canvas.evaluate(INK) for canvas in canvases.all()] == [True, True]
        row = page.locator(".st-key-findings_claims tr", has_text="1. EMTC learns better than EMU").first
        assert row.get_by_text("too few seeds").count() == 2, "one badge for each task"
        for width, scheme in ((1440, "light"), (1024, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1000)
            assert page.evaluate(BEYOND) == [], f"cut off at {width} pixels"
        page.get_by_role("link", name="Compare all 8 variants").click()
        page.locator(".run-list .group", has_text="QMIX").wait_for()
