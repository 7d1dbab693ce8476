"""The Compare page in a real browser: panels zoom together, an eye hides a line everywhere, a link restores both."""

from pathlib import Path

import pytest

from storage.engine import open_database
from tests.browser.server import open_page, running_app, wait_until
from tests.pages.several import seed_runs

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

WINDOWS = "nodes => nodes.map(n => JSON.stringify(n.state.window?.map(Math.round)))"
STRONG = "nodes => nodes.map(n => n.state.strong)"
INK = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .reduce((sum, value, i) => i % 4 === 3 ? sum + value : sum, 0)"""
DRAWN = "nodes => nodes.map(n => n.state.data.panels[0].lines.map(l => l.name).filter(l => !n.state.hidden.has(l)))"
LINES = "nodes => nodes.map(n => n.state.data.panels[0].lines.map(l => l.name))"


def test_the_first_figure_fits_on_one_screen(page, seeded):
    url, run_id, _ = seeded
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/compare?runs={run_id}")
    chart = page.locator(".curves").first
    chart.locator("canvas").wait_for()
    wait_until(page, lambda: chart.bounding_box()["height"] > 150, "a drawn chart")
    box = chart.bounding_box()
    assert box["y"] + box["height"] <= 900


@pytest.mark.slow
def test_a_zoom_and_a_hidden_line_hold_for_every_panel_and_stay_in_the_link(browser, tmp_path: Path):
    database = tmp_path / "emtc.db"
    seed_runs(open_database(f"sqlite:///{database}"))
    page = open_page(browser, height=1400)
    with running_app(database) as url:
        page.goto(f"{url}/compare?center=iqm")
        page.locator(".curves canvas").nth(1).wait_for()
        page.wait_for_timeout(1000)
        curves, entry = page.locator(".curves canvas").first, page.locator(".run-list .group", has_text="QMIX")
        plain = curves.evaluate(INK)
        entry.hover()
        page.wait_for_timeout(500)
        assert page.locator(".curves").evaluate_all(STRONG) == ["QMIX (n = 2)"] * 2
        assert curves.evaluate(INK) < plain, "the other lines step back"
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        assert page.locator(".curves").evaluate_all(STRONG) == [None] * 2
        assert curves.evaluate(INK) == plain
        eye = entry.locator(".eye")
        eye.focus()
        page.keyboard.press("Enter")
        assert page.locator(".curves").evaluate_all(DRAWN) == [["EMTC(QPLEX) (n = 2)"]] * 2, "at once"
        page.wait_for_function("() => document.location.search.includes('hide=qmix')")
        box = page.locator(".curves canvas").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 120)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 120, steps=5)
        page.mouse.up()
        page.wait_for_function("() => document.location.search.includes('x=')")
        page.wait_for_timeout(1500)
        windows = page.locator(".curves").evaluate_all(WINDOWS)
        assert len(windows) == 2
        assert windows[0] == windows[1] != "null"
        again = open_page(browser, height=1400)
        again.goto(page.url)
        again.locator(".curves canvas").nth(1).wait_for()
        again.wait_for_timeout(1000)
        assert again.locator(".curves").evaluate_all(WINDOWS) == windows
        assert again.locator(".curves").evaluate_all(LINES) == [["EMTC(QPLEX) (n = 2)"]] * 2
        hidden = again.locator(".run-list .group", has=again.locator(".eye[aria-pressed=false]"))
        assert hidden.locator(".main").inner_text().split() == ["QMIX", "4"]
        hidden.locator(".main").click()
        again.locator(".run-list .run .eye").first.click()
        again.wait_for_function("() => !document.location.search.includes('hide=qmix')")
        wait_until(again, lambda: "QMIX (n = 1)" in str(again.locator(".curves").evaluate_all(LINES)), "one seed")
        with again.expect_download() as download:
            again.get_by_role("button", name="LaTeX").first.click()
        assert rb"\toprule" in Path(download.value.path()).read_bytes()
