"""Live in a real browser: gate and outcomes in one screen under one window, whatever the window's width."""

from itertools import pairwise

import pytest
from sqlalchemy import text

from tests.browser.server import wait_until
from tests.pages.seed import seed_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WINDOWS = "nodes => nodes.map(n => JSON.stringify(n.state.window))"
BOXES = """nodes => nodes.map(n => n.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"""
WIDER = (
    "() => { const main = document.querySelector('[data-testid=stMain]'); return main.scrollWidth - main.clientWidth }"
)


@pytest.fixture
def live(page, seeded):
    url, run_id, _ = seeded

    def show(width: int, height: int):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{url}/live?run={run_id}")
        page.locator(".curves canvas").nth(3).wait_for()
        page.wait_for_timeout(1500)
        return page

    return show


def test_gate_and_outcomes_fit_one_screen_and_move_together(live):
    page = live(1440, 900)
    gate, outcomes = page.locator(".curves").evaluate_all(BOXES)[:2]
    assert gate[1] == outcomes[1], "side by side"
    assert gate[2] < outcomes[0]
    assert max(gate[3], outcomes[3]) <= 900
    x, y = gate[0] + 150, gate[1] + 100
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y, steps=4)
    page.mouse.up()
    windows = page.locator(".curves").evaluate_all(WINDOWS)
    assert len(windows) == 4
    assert windows == [windows[0]] * 4
    assert windows[0] != "null"
    page.wait_for_function("() => document.location.search.includes('x=')")


def test_a_clicked_chart_lets_the_page_scroll_and_zooms_with_ctrl(live):
    page = live(1440, 900)
    box = page.locator(".curves canvas").first.bounding_box()
    page.mouse.click(box["x"] + 200, box["y"] + 150)
    page.mouse.wheel(0, 300)
    page.wait_for_function("() => document.querySelector('[data-testid=stMain]').scrollTop > 100")
    assert page.locator(".curves").first.evaluate("node => node.state.window") is None
    box = page.locator(".curves canvas").first.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + box["height"] - 80)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    low, high = page.locator(".curves").first.evaluate("node => node.state.window")
    assert low < high


def test_how_far_the_gate_is_closed_is_drawn_on_a_logarithmic_axis_and_stands_in_the_address(live):
    page = live(1440, 900)
    page.get_by_text("1 − β̄, log axis").click()
    page.wait_for_function("() => document.location.search.includes('closing=true')")
    gate = page.locator(".curves").first
    wait_until(page, lambda: gate.evaluate("node => node.state.data.panels[1].log"), "the logarithmic axis")
    ticks = gate.evaluate(
        "node => { const { sy, low, high, box } = node.state.boxes[1]; return [sy(high), sy(low), sy(Math.sqrt(low * high)), box.y, box.height] }"  # noqa: E501
    )
    assert ticks[:2] == pytest.approx([ticks[3], ticks[3] + ticks[4]])
    assert ticks[2] == pytest.approx(ticks[3] + ticks[4] / 2), (
        "the middle of the axis is the geometric mean of its ends"
    )


def test_a_metric_whose_first_row_is_younger_than_what_was_read_has_no_point_yet(page, seeded):
    url, _, database = seeded
    run_id = seed_run(database)
    with database.transaction() as connection:
        connection.execute(
            text("INSERT INTO metrics (run_id, env_step, name, value) VALUES (:run, 1000000, 'train/grad_norm', 1)"),
            {"run": run_id},
        )
    page.goto(f"{url}/live?run={run_id}&metrics=train/grad_norm")
    chart = page.locator(".curves").nth(3)
    chart.locator("canvas").wait_for()
    wait_until(page, lambda: chart.get_attribute("aria-label") == "No point yet.", "the chart of no point")
    box = chart.locator("canvas").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-label") == "No point yet."


@pytest.mark.parametrize("width", [pytest.param(1024, marks=pytest.mark.slow), 390])
def test_a_narrow_window_stacks_the_charts_and_is_never_too_narrow(live, width):
    page = live(width, 900)
    boxes = page.locator(".curves").evaluate_all(BOXES)
    assert all(upper[3] < lower[1] for upper, lower in pairwise(boxes))
    assert page.evaluate(WIDER) <= 0


def test_escape_in_the_box_of_the_run_keeps_the_run(page, seeded):
    url, run_id, _ = seeded  # the newest run is another one
    page.goto(f"{url}/live?run={run_id}")
    page.locator(".curves canvas").first.wait_for()
    box = page.locator("[data-testid=stSidebar] [data-testid=stSelectbox]", has_text="Run")
    box.locator("input").click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_timeout(1500)  # a change of the run would have arrived
    assert f"run={run_id}" in page.url
    assert run_id in box.inner_text() + (box.locator("input").input_value() or "")
    assert box.locator("[aria-label*='lear'], [title*='lear']").count() == 0, "a button that clears the box"
