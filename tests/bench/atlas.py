"""The Memory page in a real browser: time until the map, a new color, and the details of a clicked node are visible."""

import random
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

from emtc_core.recorder import EpisodeRecord, SnapshotRecord
from storage.engine import Database
from storage.files import run_folder
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.app_server import open_page, serve_app
from tests.records import CONFIG, LENGTH, make_records, temporary_database
from tests.report import BenchResult, make_result

SIZES = (50_000, 1_000_000)
LASSO_SIZE = 100_000
CLICKS = 7
PAN_S = 2.0
_NODES_PER_EPISODE = LENGTH + 1
_BUDGETS = {
    "first_picture_seconds": {1_000_000: 3.0},
    "recolour_seconds": {1_000_000: 0.3},
    "click_entry_seconds": {50_000: 0.4, 1_000_000: 0.6},
    "click_player_seconds": {50_000: 0.8},
    "pan_frames_per_second": {1_000_000: 20.0},
    "lasso_seconds": {LASSO_SIZE: 0.5},
}
_REFERENCE_MACHINE = "two CPU cores, headless Chromium without a GPU, app and browser on one machine"
_RECOLOR_SCRIPT = """async node => {
    const { state } = node
    const select = node.querySelector(".color")
    const started = performance.now()
    select.value = "beta"
    select.dispatchEvent(new Event("change"))
    while (state.stale || state.quantity.key !== "beta") await new Promise(requestAnimationFrame)
    return (performance.now() - started) / 1000
}"""
_PAN_SCRIPT = """async (node, seconds) => {
    const { state } = node
    const over = node.querySelector(".over").getBoundingClientRect()
    const send = (kind, x) => state.over.dispatchEvent(new PointerEvent(kind, {
        pointerId: 1, clientX: over.left + x, clientY: over.top + 100, bubbles: true,
    }))
    state.over.setPointerCapture = () => {}
    const [drawn, started] = [state.drawn, performance.now()]
    send("pointerdown", 100)
    for (let x = 100; performance.now() - started < 1000 * seconds; x += 2) {
        send("pointermove", x)
        await new Promise(requestAnimationFrame)
    }
    send("pointerup", 100)
    return (1000 * (state.drawn - drawn)) / (performance.now() - started)
}"""


def run() -> list[BenchResult]:
    """Measure maps of 50,000 and 1,000,000 nodes, and a lasso on a map of 100,000 nodes."""
    results: list[BenchResult] = []
    with temporary_database() as db:
        runs = {n: fill(db, n) for n in (*SIZES, LASSO_SIZE)}
        log = run_folder(db, runs[LASSO_SIZE]) / "app.txt"
        with serve_app(db.url, log) as address, open_page() as page:
            page.goto(address)
            page.get_by_role("heading").first.wait_for()
            for n in SIZES:
                values = _measure(page, address, runs[n])
                results += [_make_result(quantity, n, value) for quantity, value in values.items()]
            seconds = _measure_lasso(page, address, runs[LASSO_SIZE])
            results.append(_make_result("lasso_seconds", LASSO_SIZE, seconds))
    return results


def fill(db: Database, n: int) -> str:
    """Record a run whose last snapshot has `n` nodes, rounded down to whole episodes. Return its id."""
    run_id = create_run(db, CONFIG, name=f"{n:,} memories", target_steps=n, versions={})
    recorder = DatabaseRecorder(db, run_id)
    records = [
        replace(record, slots=np.arange(_NODES_PER_EPISODE) + i * _NODES_PER_EPISODE)
        for i, record in enumerate(make_records(n // _NODES_PER_EPISODE))
    ]
    for record in records:
        recorder.record_episode(record)
    recorder.record_snapshot(_make_snapshot(records))
    recorder.close()
    return run_id


def _make_snapshot(records: list[EpisodeRecord]) -> SnapshotRecord:
    """Make a snapshot of 30 clusters. Every state of the episodes has a node."""
    n = len(records) * _NODES_PER_EPISODE
    rng = np.random.default_rng(0)
    t = np.tile(np.arange(_NODES_PER_EPISODE, dtype=np.int32), len(records))
    is_last = t == LENGTH
    centers = rng.normal(size=(30, 4)) * 3
    return SnapshotRecord(
        env_step=len(records) * LENGTH,
        slot=np.arange(n),
        embedding=(centers[rng.integers(0, 30, n)] + rng.normal(size=(n, 4)) * rng.uniform(0.1, 0.8, 4)).astype("f4"),
        h=rng.gamma(2.0, 3.0, n).astype(np.float32),
        xi=rng.random(n) < 0.3,
        n_call=rng.geometric(0.5, n).astype(np.int32),
        n_xi=np.zeros(n, np.int32),
        t=t,
        reward=rng.random(n).astype(np.float32),
        idx_next=np.where(is_last, -1, np.arange(n) + 1),
        episode=np.repeat([record.episode for record in records], _NODES_PER_EPISODE),
        delta_mem=np.where(is_last, np.nan, rng.exponential(0.5, n)).astype(np.float32),
        beta=np.where(is_last, np.nan, rng.random(n)).astype(np.float32),
    )


def _measure(page: Any, address: str, run_id: str) -> dict[str, float]:
    started = time.perf_counter()
    page.goto(f"{address}/memory?run={run_id}")
    atlas = page.locator(".atlas[data-ready]")
    atlas.wait_for()
    atlas.evaluate("async node => { while (!node.state.drawn) await new Promise(requestAnimationFrame) }")
    first = time.perf_counter() - started
    page.get_by_role("heading", name="States that the memory confuses").wait_for()
    page.wait_for_timeout(1500)
    clicks = [_measure_click(page) for _ in range(CLICKS)]
    return {
        "first_picture_seconds": first,
        "click_entry_seconds": statistics.median(details for details, _ in clicks),
        "click_player_seconds": statistics.median(player for _, player in clicks),
        "recolour_seconds": atlas.evaluate(_RECOLOR_SCRIPT),
        "pan_frames_per_second": atlas.evaluate(_PAN_SCRIPT, PAN_S),
    }


def _measure_click(page: Any) -> tuple[float, float]:
    """Click a random point. Return the time [s] until its details and until its player are visible."""
    box, tooltip = page.locator(".atlas .over").bounding_box(), page.locator(".atlas .tip")
    rng = random.Random(repr(page.url))
    while True:
        page.mouse.move(
            box["x"] + box["width"] * rng.uniform(0.2, 0.8), box["y"] + box["height"] * rng.uniform(0.2, 0.8)
        )
        if tooltip.is_visible():
            break
    slot = int(tooltip.inner_text().split()[1])
    page.wait_for_timeout(300)
    started = time.perf_counter()
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("heading", name=f"Memory {slot}", exact=True).wait_for()
    details = time.perf_counter() - started
    page.locator("strong", has_text=f"Episode {slot // _NODES_PER_EPISODE + 1}, ").wait_for()
    page.locator(f'.playback[data-frame="{slot % _NODES_PER_EPISODE}"]').wait_for()
    player = time.perf_counter() - started
    page.wait_for_timeout(1000)
    return details, player


def _measure_lasso(page: Any, address: str, run_id: str) -> float:
    """Draw a lasso around about a fifth of the points. Return the time [s] until its statistics are visible."""
    page.goto(f"{address}/memory?run={run_id}")
    page.locator(".atlas[data-ready]").wait_for()
    page.get_by_role("heading", name="States that the memory confuses").wait_for()
    page.wait_for_timeout(1500)
    page.locator(".atlas .lasso").click()
    box = page.locator(".atlas .over").bounding_box()
    corners = [(0.25, 0.3), (0.5, 0.25), (0.7, 0.35), (0.65, 0.6), (0.4, 0.62), (0.25, 0.5), (0.25, 0.3)]
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=6)
    started = time.perf_counter()
    page.mouse.up()
    page.get_by_role("heading", name="nodes selected").wait_for()
    return time.perf_counter() - started


def _make_result(quantity: str, n: int, value: float) -> BenchResult:
    unit = "frames/s" if quantity == "pan_frames_per_second" else "s"
    return make_result(
        f"atlas.{quantity}.{n}", value, unit, _BUDGETS.get(quantity, {}).get(n), _REFERENCE_MACHINE, digits=3
    )
