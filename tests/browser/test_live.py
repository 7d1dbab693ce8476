"""Live in a real browser: win rate and gate in one screen under one window, whatever the window's width."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlalchemy import text, update

from storage.engine import Database
from storage.models import Run
from storage.recording.writer import DatabaseRecorder
from storage.runs.control import Heartbeat
from tests.browser.server import open_page, wait_until
from tests.pages.seed import seed_run

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

WINDOWS = "nodes => nodes.map(n => JSON.stringify(n.state.window))"
BOXES = """nodes => nodes.map(n => n.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"""
PANELS = "nodes => nodes.map(n => n.state.boxes.map(({ box }) => [box.width, box.height]))"
SLOW_CONNECTION = """
    class SlowSocket extends WebSocket {
        addEventListener(type, listener) {
            super.addEventListener(type, type === "message" ? e => setTimeout(() => listener(e), 800) : listener)
        }
        set onmessage(listener) { this.addEventListener("message", listener) }
    }
    window.WebSocket = SlowSocket"""
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


def test_the_header_and_four_charts_of_a_running_run_fit_one_screen(page, seeded):
    url, _, database = seeded
    run_id = seed_run(database, status="running")
    page.set_viewport_size({"width": 1440, "height": 900})
    charts = page.locator(".curves")
    fits = "nodes => nodes.filter((node) => node.getBoundingClientRect().bottom <= 900).length"
    with closing(Heartbeat(database, run_id)):
        page.goto(f"{url}/live?run={run_id}")
        page.get_by_role("button", name="Replay a training episode").wait_for()
        charts.locator("canvas").nth(3).wait_for()
        wait_until(page, lambda: charts.evaluate_all(fits) == 4, "four charts on one screen")
        boxes = charts.evaluate_all(BOXES)
        assert boxes[0][1] == boxes[1][1], "side by side"
        assert boxes[0][2] < boxes[1][0]
        panels = charts.evaluate_all(PANELS)
        assert min(height for sizes in panels for _, height in sizes) >= 140
        assert len({width for sizes in panels for width, _ in sizes}) == 1, "one width under the shared cursor"
        for row, height in (("run_numbers", 61), ("live_actions", 50), ("live_bar", 50)):
            assert page.locator(f".st-key-{row}").bounding_box()["height"] < height, "one row"


def test_one_press_shows_a_chart_on_the_whole_screen(live):
    page = live(1440, 900)
    chart = page.locator(".curves").first
    chart.locator(".enlarge").click()
    wait_until(page, lambda: chart.evaluate("node => node.matches(':fullscreen')"), "the full screen")
    wait_until(page, lambda: chart.evaluate("node => node.state.boxes[0].box.height") > 500, "the larger panel")
    chart.locator(".enlarge").click()
    wait_until(page, lambda: not chart.evaluate("node => node.matches(':fullscreen')"), "the page")


def test_the_slider_smooths_all_charts_in_the_browser_and_the_address_keeps_it(page, live):
    frames: list[bytes | str] = []
    page.once("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(frame)))
    live(1440, 900)
    assert any(b"xLabel" in frame for frame in frames), "the charts are sent in these frames"
    frames.clear()
    slider = page.get_by_label("Smoothing")
    slider.fill("0.6")
    weights = "nodes => nodes.map(n => n.state.smoothing)"
    assert set(page.locator(".curves").evaluate_all(weights)) == {0.6}
    gate = page.locator(".curves[aria-label^='β̄']")
    lines = "node => node.state.boxes[0].panel.lines.map((line) => [line.faint, Boolean(line.measured)])"
    assert gate.evaluate(lines) == 2 * [[True, False], [False, True]]
    page.wait_for_function("() => document.location.search.includes('smoothing=0.6')")
    page.wait_for_timeout(1000)
    assert frames, "the server has answered"
    assert not any(b"xLabel" in frame for frame in frames), "no chart was sent again"
    page.reload()
    page.locator(".curves canvas").nth(3).wait_for()
    wait_until(
        page, lambda: set(page.locator(".curves").evaluate_all(weights)) == {0.6}, "the smoothing of the address"
    )
    assert page.get_by_label("Smoothing").input_value() == "0.6"


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


def test_how_far_the_gate_is_closed_is_drawn_on_a_logarithmic_axis(live):
    page = live(1440, 900)
    page.locator("label", has_text="1 − β̄").click()
    gate = page.locator(".curves[aria-label^='1 − β̄']")
    gate.locator("canvas").wait_for()
    assert page.locator(".curves[aria-label^='β̄']").count() == 0, "one panel with a switch"
    page.wait_for_function("() => document.location.search.includes('closing=true')")
    assert gate.evaluate("node => node.state.data.panels[0].log")
    ticks = gate.evaluate(
        "node => { const { sy, low, high, box } = node.state.boxes[0]; return [sy(high), sy(low), sy(Math.sqrt(low * high)), box.y, box.height] }"  # noqa: E501
    )
    assert ticks[:2] == pytest.approx([ticks[3], ticks[3] + ticks[4]])
    assert ticks[2] == pytest.approx(ticks[3] + ticks[4] / 2), (
        "the middle of the axis is the geometric mean of its ends"
    )


def test_a_press_on_a_small_chart_enlarges_it_with_export_and_pin_and_all_share_one_cursor(live):
    page = live(1440, 900)
    page.get_by_role("radio", name="All metrics").click(force=True)
    loss = page.locator(".curves[aria-label^='train/loss']")
    loss.locator("canvas").wait_for()
    page.wait_for_timeout(1000)
    box = loss.bounding_box()
    at = (box["x"] + 150, box["y"] + 80)
    page.mouse.move(*at)
    cursors = page.locator(".curves").evaluate_all("nodes => nodes.map((node) => node.state.hover)")
    assert len(cursors) > 20
    assert len(set(cursors)) == 1
    assert cursors[0] is not None
    page.mouse.click(*at)
    page.wait_for_function("() => document.location.search.includes('metrics=train%2Floss')")
    enlarged = page.locator(".st-key-live_enlarged")
    enlarged.get_by_role("button", name="Export").wait_for()
    enlarged.get_by_role("button", name="Pin").wait_for()
    page.mouse.wheel(0, 1500)
    wait_until(page, lambda: box_is_visible(enlarged.bounding_box()), "the enlarged chart above the others")
    enlarged.get_by_role("button", name="Close").click()
    enlarged.wait_for(state="detached")
    page.wait_for_function("() => !document.location.search.includes('metrics=train')")


def box_is_visible(box) -> bool:
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 900


def test_two_presses_overlay_a_run_and_its_eye_removes_it(page, seeded):
    url, run_id, database = seeded
    other = seed_run(database, name="To overlay")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/live?run={run_id}")
    page.locator(".curves canvas").nth(3).wait_for()
    page.locator("label", has_text="Runs").click()
    row = page.locator(".run-list .run", has_text="To overlay")
    row.get_by_role("button").click()
    page.wait_for_function(f"() => document.location.search.includes('ref={other}')")
    names = "node => node.state.data.panels[0].lines.map((line) => line.name)"
    win_rate = page.locator(".curves").first
    wait_until(page, lambda: other in win_rate.evaluate(names), "the lines of the other run")
    row.get_by_role("button").click()
    wait_until(page, lambda: other not in win_rate.evaluate(names), "the chart without it")


def test_an_enlarged_metric_without_a_value_has_no_point_yet(page, seeded):
    url, _, database = seeded
    run_id = seed_run(database)
    with database.transaction() as connection:
        connection.execute(
            text("INSERT INTO metrics (run_id, env_step, name, value) VALUES (:run, 1000, 'train/grad_norm', NULL)"),
            {"run": run_id},
        )
    page.goto(f"{url}/live?run={run_id}&metrics=train/grad_norm")
    chart = page.locator(".st-key-live_enlarged .curves")
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
    assert len(boxes) > 4
    assert all(upper[3] < lower[1] for upper, lower in pairwise(boxes))
    assert page.evaluate(WIDER) <= 0


def test_escape_in_the_list_of_runs_keeps_the_run(page, seeded):
    url, run_id, _ = seeded  # the newest run is another one
    page.goto(f"{url}/live?run={run_id}")
    page.locator(".curves canvas").first.wait_for()
    page.locator(".st-key-run_picker_bar button").click()
    search = page.get_by_role("searchbox", name="Search runs")
    search.click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    search.wait_for(state="hidden")
    page.wait_for_timeout(1500)  # a change of the run would have arrived
    assert f"run={run_id}" in page.url
    assert run_id in page.locator(".st-key-run_picker_bar").inner_text()


@pytest.mark.parametrize("width", [1024, 768])
def test_the_facts_of_a_run_are_not_wider_than_their_column(page, seeded, width):
    url, _, database = seeded
    run_id = seed_run(database, name="With a commit")
    with database.transaction() as connection:
        versions = {"emtc_lab": "1.0.0", "commit": "a6c7858265a339b4870c74a23586ac2d78fba9fd", "torch": "2.13.0"}
        connection.execute(update(Run).where(Run.id == run_id).values(versions=versions))
    page.set_viewport_size({"width": width, "height": 768})
    page.goto(f"{url}/run?run={run_id}")
    table = page.locator(".st-key-run_facts table").bounding_box()
    versions = page.get_by_text("Versions", exact=True).bounding_box()
    is_beside = versions["x"] >= table["x"] + table["width"]
    assert is_beside or versions["y"] >= table["y"] + table["height"]
    assert page.evaluate(WIDER) <= 0


@contextmanager
def training(database: Database, run_id: str) -> Iterator[None]:
    """Record a metric several times a second, so that Live redraws its charts at each tick of its timer."""
    recorder, is_over = DatabaseRecorder(database, run_id), Event()

    def record() -> None:
        env_step = 10_000
        while not is_over.wait(0.2):
            env_step += 10
            recorder.record_metrics(env_step, {"train/loss": 0.1})

    thread = Thread(target=record)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        recorder.close()


def test_each_press_of_an_export_downloads_its_file_while_the_run_trains(browser, seeded):
    url, _, database = seeded
    run_id = seed_run(database, status="running")
    page = open_page(browser)
    page.add_init_script(SLOW_CONNECTION)  # so that most presses refer to charts that the server has redrawn since
    with closing(Heartbeat(database, run_id)), training(database, run_id):
        page.goto(f"{url}/live?run={run_id}")
        page.get_by_role("button", name="Export").first.click()
        for label, start in (("CSV, data", b"panel,unit"), ("SVG, vector", b"<?xml"), ("PDF, vector", b"%PDF")):
            with page.expect_download() as download:
                page.get_by_role("button", name=label).click()
            assert Path(download.value.path()).read_bytes().startswith(start)
    page.context.close()


def test_export_and_pin_of_a_chart_appear_with_the_pointer_or_the_focus_and_have_names(live):
    page = live(1440, 900)
    icons = page.locator("[class*=st-key-figure-icons-]").first
    read_opacity = "node => getComputedStyle(node).opacity"
    assert icons.evaluate(read_opacity) == "0"
    page.locator(".curves canvas").first.hover()
    assert icons.evaluate(read_opacity) == "1"
    page.mouse.move(1, 1)
    assert icons.evaluate(read_opacity) == "0"
    icons.get_by_role("button", name="Pin").last.focus()
    assert icons.evaluate(read_opacity) == "1"
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pin to notebook").wait_for()
