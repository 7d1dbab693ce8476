"""A researcher's first five minutes, in a real browser, with the real app and a real trainer."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from app.analysis.projections.alignment import compute_aligned_pca
from app.analysis.projections.snapshots import make_projection_params
from app.analysis.selection import NODE_QUANTITIES, NodeSelection
from emtc_core.recorder import EvaluationRecord
from storage.engine import open_database
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.projections import find_projection
from storage.queries.runs import list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.control import Heartbeat, send_and_wait
from storage.runs.rows import find_run
from tests.browser.server import open_page, running_app, wait_until
from tests.pages.seed import seed_run

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

NAMES = [quantity.name.split()[0] for quantity in NODE_QUANTITIES.values()]


def click_a_point(page, on: str = ".atlas") -> int:
    """Click the middle-most point of the map as a person does: move until the tip names one."""
    page.locator(f"{on}[data-ready]").wait_for()
    box = page.locator(f"{on} .over").bounding_box()
    tip = page.locator(f"{on} .tip")
    for away in range(0, 260, 6):
        page.mouse.move(box["x"] + box["width"] / 2 + away, box["y"] + box["height"] / 2 + away / 3)
        if tip.is_visible():
            wait_until(page, lambda: len(tip.inner_text().splitlines()) > len(NAMES), "every quantity in the tip")
            assert [line.split()[0] for line in tip.inner_text().splitlines()] == ["memory", *NAMES]
            named = int(tip.inner_text().split()[1])
            page.mouse.down()
            page.mouse.up()
            return named
    raise AssertionError("no point was under the pointer")


def frame_of(page) -> int:
    return int(page.locator(".playback").get_attribute("data-frame"))


def end_trainer(db) -> None:
    run = find_run(db, list_runs(db)["id"].iloc[0])
    if run.pid and run.live_status in ("queued", "running", "paused"):
        os.kill(run.pid, signal.SIGKILL)


def test_from_the_demo_button_to_the_replay_of_a_clicked_memory(page, tmp_path: Path):
    database = tmp_path / "emtc.db"
    with running_app(database, env={"EMTC_WARM_UP": "1"}) as url:
        page.goto(url)
        button = page.get_by_role("button", name="Start the demo run")
        button.wait_for()
        _wait_for_warm_up(tmp_path)
        button.click()
        page.wait_for_url("**/live?run=*")
        page.locator(".curves canvas").first.wait_for()
        db = open_database(f"sqlite:///{database}")
        try:
            while not len(list_snapshots(db, list_runs(db)["id"].iloc[0])):
                time.sleep(0.3)
            send_and_wait(db, list_runs(db)["id"].iloc[0], "pause")  # it would train beside this test and the next
            page.get_by_role("link", name="Memory").first.click()
            slot = click_a_point(page)
            page.get_by_role("heading", name=f"Memory {slot}").wait_for()
            page.locator(".playback .field").wait_for()
            before = frame_of(page)
            page.locator(".playback .play").click()
            wait_until(page, lambda: frame_of(page) > before, "the next frame")
            _see_a_death_and_resume(page, db)
        finally:
            end_trainer(db)


def _see_a_death_and_resume(page, db) -> None:
    page.get_by_role("link", name="Live").first.click()
    page.locator(".curves canvas").first.wait_for()
    run = find_run(db, list_runs(db)["id"].iloc[0])
    assert run.live_status == "paused", "the demo run ended before it could be killed"
    os.kill(run.pid, signal.SIGKILL)
    page.locator(".st-key-resume-ended button:visible").click()
    page.get_by_role("button", name="Pause", exact=False).first.wait_for()


def _wait_for_warm_up(folder: Path) -> None:
    """Give the background compilation a head start, as a reader of the Home page does."""
    import psutil

    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        alive = [p for p in psutil.process_iter(["cmdline"]) if "app.warmup" in (p.info["cmdline"] or [])]
        if not alive:
            return
        time.sleep(0.5)


def test_click_shows_the_entry_that_the_database_holds(page, seeded):
    url, run_id, db = seeded
    page.goto(f"{url}/memory?run={run_id}")
    slot = click_a_point(page)
    page.locator(".playback .field").wait_for()
    assert f"point={slot}" in page.url
    detail = get_node(db, get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1])), slot)
    wait_until(page, lambda: frame_of(page) == detail.t, "the frame of the clicked memory")
    atlas = page.locator(".atlas")
    wait_until(page, lambda: atlas.evaluate("node => node.state.mark.paths.length") > 0, "the way of its episode")
    where = atlas.evaluate(
        "node => { const s = node.state, i = s.columns.slot.indexOf(s.mark.selected);"
        " return [s.mark.selectedPoint, [s.x[i], s.y[i]], s.mark.paths[0].points.at(-1)] }"
    )
    assert where[0] == pytest.approx(where[1], abs=1e-5), "the ring stands on the clicked point"
    assert where[2] is not None


def wait_for_colour(page, name: str) -> None:
    """Selectors of the document do not reach into the component."""
    atlas = page.locator(".atlas")
    wait_until(page, lambda: atlas.evaluate("node => node.state.quantity.name") == name, f"the colour {name}")


def test_colour_changes_while_selection_and_view_stay(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/memory?run={run_id}")
    slot = click_a_point(page)
    page.get_by_role("heading", name=f"Memory {slot}").wait_for()
    atlas = page.locator(".atlas")
    atlas.evaluate("node => { node.marked = node.state }")
    atlas.locator(".in").click()
    atlas.locator(".in").click()
    seen = atlas.evaluate("node => ({ ...node.state.view })")
    atlas.locator(".color").select_option("beta")
    wait_for_colour(page, "β")
    wait_until(page, lambda: "color=beta" in page.url and "camera=" in page.url, "the address")
    assert atlas.evaluate("node => node.marked === node.state")
    assert atlas.evaluate("node => ({ ...node.state.view })") == seen
    assert atlas.evaluate("node => node.state.mark.selected") == slot
    _open_again(page, slot, seen)


def _open_again(page, slot: int, seen: dict[str, float]) -> None:
    """A link shows another browser the same picture: memory, colour and camera."""
    address = page.url
    fresh = open_page(page.context.browser)
    fresh.goto(address)
    fresh.locator(".atlas[data-ready]").wait_for()
    fresh.get_by_role("heading", name=f"Memory {slot}").wait_for()
    wait_for_colour(fresh, "β")
    view = fresh.locator(".atlas").evaluate("node => node.state.view")
    assert [view[key] for key in ("x", "y", "span")] == pytest.approx(
        [seen[key] for key in ("x", "y", "span")], rel=1e-5
    )
    fresh.context.close()


def select_box(page, corners: tuple[float, float, float, float]) -> None:
    """Drag a box over the map; corners are parts of its width and height."""
    page.locator(".atlas .box").click()
    frame = page.locator(".atlas .over").bounding_box()
    x0, y0, x1, y1 = corners
    page.mouse.move(frame["x"] + x0 * frame["width"], frame["y"] + y0 * frame["height"])
    page.mouse.down()
    page.mouse.move(frame["x"] + x1 * frame["width"], frame["y"] + y1 * frame["height"], steps=8)
    page.mouse.up()


def test_a_selection_is_counted_as_the_database_counts_and_its_address_recalls_it(page, seeded):
    url, run_id, db = seeded
    page.goto(f"{url}/memory?run={run_id}&ranges=t:5:40")
    page.locator(".atlas[data-ready]").wait_for()
    page.get_by_role("heading", name="nodes selected").wait_for()
    select_box(page, (0.2, 0.2, 0.7, 0.7))
    wait_until(page, lambda: "lasso=" in page.url, "the lasso in the address")
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    query = parse_qs(urlsplit(page.url).query)
    chosen = NodeSelection.parse(query["lasso"][0], query["ranges"][0]).mask(
        snapshot, compute_aligned_pca(db, snapshot).coordinates
    )
    assert 0 < chosen.sum() < ((snapshot.t >= 5) & (snapshot.t <= 40)).sum()
    told = page.get_by_role("heading", name=f"{chosen.sum()} of {snapshot.size} nodes selected")
    told.wait_for()
    counted = "node => Number(node.dataset.chosen)"
    assert page.locator(".atlas").evaluate(counted) == chosen.sum()
    page.reload()
    page.locator(".atlas[data-ready]").wait_for()
    told.wait_for()
    assert page.locator(".atlas").evaluate(counted) == chosen.sum()
    page.locator(".atlas .clear").click()
    page.get_by_text("Select a region with").first.wait_for()
    assert "lasso=" not in page.url


def test_two_maps_of_a_run_share_pointer_selection_and_colour(page, seeded):
    url, run_id, db = seeded
    last = int(list_snapshots(db, run_id)["id"].iloc[-1])
    page.goto(f"{url}/memory?run={run_id}&two=true&b_snap={last}")
    left, right = (page.locator(".atlas[data-ready]").nth(place) for place in (0, 1))
    right.wait_for()
    counted = "node => Number(node.dataset.chosen)"
    left.locator(".find").fill("episode 3")
    page.keyboard.press("Enter")
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    wait_until(page, lambda: right.evaluate(counted) == (snapshot.episode == 3).sum(), "the choice on both maps")
    right.locator(".color").select_option("beta")
    wait_until(page, lambda: left.evaluate("node => node.state.quantity.key") == "beta", "the colour on both maps")
    left.evaluate("node => node.state.over.scrollIntoView()")
    spot = left.evaluate(
        "node => { const s = node.state, i = s.grid.order[0];"
        " const box = s.over.getBoundingClientRect();"
        " return [box.left + s.scales.sx(s.x[i]), box.top + s.scales.sy(s.y[i])] }"
    )
    page.mouse.move(*spot)
    slots = (
        "node => { const s = node.state; return [s.hover, s.otherMapHover].map(i => i < 0 ? null : s.columns.slot[i]) }"
    )
    wait_until(page, lambda: left.evaluate(slots)[0] is not None, "a point under the pointer")
    assert right.evaluate(slots)[1] == left.evaluate(slots)[0]


def test_a_map_can_be_searched_filtered_and_selected_by_keys_alone(page, seeded):
    url, run_id, db = seeded
    page.goto(f"{url}/memory?run={run_id}")
    atlas = page.locator(".atlas[data-ready]")
    atlas.wait_for()
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    counted = "node => Number(node.dataset.chosen)"
    page.locator(".atlas .find").fill("episode 3")
    page.keyboard.press("Enter")
    wait_until(page, lambda: atlas.evaluate(counted) == (snapshot.episode == 3).sum(), "the filter on episode 3")
    page.locator(".atlas .find").fill("7")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Memory 7", exact=True).wait_for()
    atlas.focus()
    page.keyboard.press("Escape")
    wait_until(page, lambda: atlas.evaluate(counted) == snapshot.size, "the end of the choice")
    page.keyboard.press("s")
    wait_until(page, lambda: 0 < atlas.evaluate(counted) < snapshot.size, "the selection of what is in view")
    page.locator(".atlas .filter").focus()
    page.keyboard.press("Enter")
    first = page.get_by_role("slider", name="H, from")
    first.focus()
    before = atlas.evaluate(counted)
    for _ in range(3):
        page.keyboard.press("PageUp")
    wait_until(page, lambda: atlas.evaluate(counted) < before, "the range of H")
    wait_until(page, lambda: "ranges=h" in page.url, "the range in the address")
    plane = compute_aligned_pca(db, snapshot).coordinates

    def in_the_address() -> int:
        query = parse_qs(urlsplit(page.url).query)
        return NodeSelection.parse(query["lasso"][0], query["ranges"][0]).mask(snapshot, plane).sum()

    wait_until(page, lambda: atlas.evaluate(counted) == in_the_address(), "the last press in the address")


def test_replay_reacts_to_buttons_keys_and_the_time_line(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/replay?run={run_id}")
    page.locator(".playback .field").wait_for()
    page.wait_for_timeout(500)
    page.locator(".playback .forward").click()
    assert frame_of(page) == 1
    page.locator(".playback").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert frame_of(page) == 3
    page.keyboard.press("Home")
    assert frame_of(page) == 0
    box = page.locator(".playback .lines").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + 60)
    assert frame_of(page) > 5
    page.keyboard.press("End")
    last = frame_of(page)
    page.keyboard.press("Home")
    page.locator(".playback .speed").select_option("32")
    page.locator(".playback .play").click()
    wait_until(page, lambda: 2 < frame_of(page) <= last, "the third frame")


def test_dragging_zooms_all_charts_and_the_link_keeps_the_window(page, browser, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/live?run={run_id}")
    first = page.locator(".curves canvas").first
    first.wait_for()
    page.wait_for_timeout(1000)
    box = first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 100, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.location.search.includes('x=')")

    def windows(of) -> list[str | None]:
        return of.locator(".curves").evaluate_all(
            "nodes => nodes.map(n => JSON.stringify(n.state.window?.map(Math.round)))"
        )

    wait_until(page, lambda: len(set(windows(page))) == 1 and windows(page)[0] is not None, "one window for all")
    again = open_page(browser)
    again.goto(page.url)
    again.locator(".curves canvas").first.wait_for()
    wait_until(again, lambda: windows(again) == windows(page), "the window of the link")
    again.close()


def test_idle_tick_redraws_nothing_and_new_rows_keep_the_view(page, seeded):
    url, _, db = seeded
    run_id = seed_run(db, status="running")
    with closing(Heartbeat(db, run_id)):
        page.goto(f"{url}/live?run={run_id}")
        page.locator(".curves canvas").first.wait_for()
        page.wait_for_timeout(3000)
        chart = page.locator(".curves[aria-label^='win rate']")
        count = (
            "node => { const d = node.state.draw; node.drawn = 0; node.state.draw = () => { node.drawn += 1; d() } }"
        )
        chart.evaluate(count)
        page.mouse.move(5, 5)
        page.wait_for_timeout(3500)
        assert chart.evaluate("node => node.drawn") == 0
        name = chart.evaluate("node => node.state.data.panels[0].lines[0].name")
        chart.evaluate("(node, name) => { node.state.hidden.add(name); node.state.window = [100, 300] }", name)
        recorder = DatabaseRecorder(db, run_id)
        last = find_run(db, run_id).env_steps
        won = np.array([True, True])
        recorder.record_evaluation(EvaluationRecord(last + 1, np.ones(2, np.float32), np.array([5, 5]), won))
        recorder.close()
        wait_until(page, lambda: chart.evaluate("node => node.drawn") >= 1, "drawing the new row")
        assert chart.evaluate("node => [...node.state.hidden, ...node.state.window]") == [name, 100, 300]


def test_background_projection_shows_progress_and_then_its_map(page, seeded):
    url, run_id, db = seeded
    page.goto(f"{url}/memory?run={run_id}&method=umap")
    page.get_by_role("button", name="Compute UMAP").click()
    page.get_by_text("landmarks, in the background").first.wait_for()
    page.locator('.atlas[aria-label*="UMAP"]').wait_for()
    snapshot_id = int(list_snapshots(db, run_id)["id"].iloc[-1])
    snapshot = get_snapshot(db, snapshot_id)
    stored = find_projection(db, snapshot_id, "umap", make_projection_params("umap", n=snapshot.size, seed=0))
    expected = float(stored.coordinates[:, 0].astype(np.float64).sum())
    drawn = "n => n.state.x.reduce((sum, x) => sum + x, 0)"

    def stored_map_is_drawn() -> bool:  # the columns are loaded from other URLs
        return page.locator(".atlas").evaluate(drawn) == pytest.approx(expected, rel=1e-3, abs=1e-2)

    wait_until(page, stored_map_is_drawn, "the stored layout on the map")
    assert stored_map_is_drawn(), "and stays"
