"""The Memory page in a real browser: how long a researcher waits for the map, for a colour, for a click's answer.

The real app on a free port and a real browser in front of it, for what only a reader's machine can tell.
"""

import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from app.bench import Figure, make_figure
from app.bench.records import CONFIG, LENGTH, make_records, temporary_database
from app.jobs.doctor import find_chrome
from app.jobs.launch import ROOT
from emtc_core.errors import ConfigError, Fault
from emtc_core.recorder import EpisodeRecord, SnapshotRecord
from storage.engine import Database
from storage.files.places import run_folder
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run

START_S = 60


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(
    database_url: str, log: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Generator[str]:
    """Start the app on a database and yield its address; it ends with the block, its trainers do not.

    Args:
        database_url: What the app shows.
        log: File for what the server prints.
        options: More of Streamlit's command line.
        port: Where it listens; a free one when missing.
        env: More variables of its environment.
    """
    port = port or free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "Home.py")),
                *("--server.port", str(port), "--server.headless", "true", *options),
            ],
            cwd=ROOT,
            env={**os.environ, **(env or {}), "EMTC_DB": database_url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(f"http://localhost:{port}/_stcore/health", server, log)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(timeout=START_S)


@contextmanager
def opened_page(color_scheme: Literal["light", "dark"] = "light") -> Generator[Any]:
    """Open an empty page of a headless Chromium without a GPU, for a reader who prefers light or dark.

    Raises:
        ConfigError: If playwright or a browser is missing.
    """
    path = find_chrome()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as exc:
        raise ConfigError("This benchmark needs playwright", hint="Install it with: pip install playwright") from exc
    if path is None:
        raise ConfigError("This benchmark needs a browser", hint="Install it with: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1440, "height": 900}, color_scheme=color_scheme)
        page.set_default_timeout(120_000)
        yield page
        chromium.close()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that writes this log answers.

    Raises:
        ConfigError: If it ended, or does not answer in time; with its log.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ConfigError(Fault(hint=f"The server did not answer within {START_S} s:\n{log.read_text()}"))


SIZES = (50_000, 1_000_000)
LASSOED = 100_000
CLICKS = 7
PAN_S = 2.0
_NODES = LENGTH + 1
_BUDGETS = {
    "first_picture_seconds": {1_000_000: 3.0},
    "recolour_seconds": {1_000_000: 0.3},
    "click_entry_seconds": {50_000: 0.4, 1_000_000: 0.6},
    "click_player_seconds": {50_000: 0.8},
    "pan_frames_per_second": {1_000_000: 20.0},
    "lasso_seconds": {LASSOED: 0.5},
}
_REFERENCE = "two CPU cores, headless Chromium without a GPU, the app's own server beside it"
_RECOLOUR = """async node => {
    const { state } = node
    const select = node.querySelector(".color")
    const began = performance.now()
    select.value = "beta"
    select.dispatchEvent(new Event("change"))
    while (state.stale || state.quantity.key !== "beta") await new Promise(requestAnimationFrame)
    return (performance.now() - began) / 1000
}"""
_PAN = """async (node, seconds) => {
    const { state } = node
    const over = node.querySelector(".over").getBoundingClientRect()
    const send = (kind, x) => state.over.dispatchEvent(new PointerEvent(kind, {
        pointerId: 1, clientX: over.left + x, clientY: over.top + 100, bubbles: true,
    }))
    state.over.setPointerCapture = () => {}
    const [drawn, began] = [state.drawn, performance.now()]
    send("pointerdown", 100)
    for (let x = 100; performance.now() - began < 1000 * seconds; x += 2) {
        send("pointermove", x)
        await new Promise(requestAnimationFrame)
    }
    send("pointerup", 100)
    return (1000 * (state.drawn - drawn)) / (performance.now() - began)
}"""


def run() -> list[Figure]:
    """Measure maps of 50,000 and 1,000,000 nodes, and a selection among 100,000."""
    found: list[Figure] = []
    with temporary_database() as db:
        runs = {n: fill(db, n) for n in (*SIZES, LASSOED)}
        log = run_folder(db, runs[LASSOED]) / "app.txt"
        with served(db.url, log, env={"EMTC_WARM_UP": "0"}) as address, opened_page() as page:
            page.goto(address)
            page.get_by_role("heading").first.wait_for()
            for n in SIZES:
                found += [_figure(what, n, value) for what, value in _measure(page, address, runs[n]).items()]
            found.append(_figure("lasso_seconds", LASSOED, _lasso(page, address, runs[LASSOED])))
    return found


def fill(db: Database, n: int) -> str:
    """Record a run whose memory holds n nodes, or a few fewer: every episode wrote all of its own."""
    run_id = create_run(db, CONFIG, name=f"{n:,} memories", target_steps=n, versions={})
    recorder = DatabaseRecorder(db, run_id)
    records = [
        replace(record, slots=np.arange(_NODES) + place * _NODES)
        for place, record in enumerate(make_records(n // _NODES))
    ]
    for record in records:
        recorder.record_episode(record)
    recorder.record_snapshot(_make_snapshot(records))
    recorder.close()
    return run_id


def _make_snapshot(records: list[EpisodeRecord]) -> SnapshotRecord:
    n = len(records) * _NODES
    rng = np.random.default_rng(0)
    t = np.tile(np.arange(_NODES, dtype=np.int32), len(records))
    last = t == LENGTH
    centres = rng.normal(size=(30, 4)) * 3
    return SnapshotRecord(
        env_step=len(records) * LENGTH,
        slot=np.arange(n),
        embedding=(centres[rng.integers(0, 30, n)] + rng.normal(size=(n, 4)) * rng.uniform(0.1, 0.8, 4)).astype("f4"),
        h=rng.gamma(2.0, 3.0, n).astype(np.float32),
        xi=rng.random(n) < 0.3,
        n_call=rng.geometric(0.5, n).astype(np.int32),
        n_xi=np.zeros(n, np.int32),
        t=t,
        reward=rng.random(n).astype(np.float32),
        idx_next=np.where(last, -1, np.arange(n) + 1),
        episode=np.repeat([record.episode for record in records], _NODES),
        delta_mem=np.where(last, np.nan, rng.exponential(0.5, n)).astype(np.float32),
        beta=np.where(last, np.nan, rng.random(n)).astype(np.float32),
    )


def _measure(page: Any, address: str, run_id: str) -> dict[str, float]:
    began = time.perf_counter()
    page.goto(f"{address}/memory?run={run_id}")
    atlas = page.locator(".atlas[data-ready]")
    atlas.wait_for()
    atlas.evaluate("async node => { while (!node.state.drawn) await new Promise(requestAnimationFrame) }")
    first = time.perf_counter() - began
    page.get_by_text("No memory is selected.").wait_for()
    page.wait_for_timeout(1500)
    clicks = [_click(page) for _ in range(CLICKS)]
    return {
        "first_picture_seconds": first,
        "click_entry_seconds": statistics.median(entry for entry, _ in clicks),
        "click_player_seconds": statistics.median(player for _, player in clicks),
        "recolour_seconds": atlas.evaluate(_RECOLOUR),
        "pan_frames_per_second": atlas.evaluate(_PAN, PAN_S),
    }


def _click(page: Any) -> tuple[float, float]:
    """Click a point that the tip names; return the seconds until its entry and until its player stand there."""
    box, tip = page.locator(".atlas .over").bounding_box(), page.locator(".atlas .tip")
    chance = random.Random(repr(page.url))
    while True:
        at = [box[corner] + box[side] * chance.uniform(0.2, 0.8) for corner, side in (("x", "width"), ("y", "height"))]
        page.mouse.move(*at)
        if tip.is_visible():
            break
    slot = int(tip.inner_text().split()[1])
    page.wait_for_timeout(300)
    began = time.perf_counter()
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("heading", name=f"Memory {slot}", exact=True).wait_for()
    entry = time.perf_counter() - began
    page.locator("strong", has_text=f"Episode {slot // _NODES + 1}, ").wait_for()
    page.locator(f'.playback[data-frame="{slot % _NODES}"]').wait_for()
    player = time.perf_counter() - began
    page.wait_for_timeout(1000)
    return entry, player


def _lasso(page: Any, address: str, run_id: str) -> float:
    """Draw a box around about a fifth of the points; return the seconds until their numbers stand there."""
    page.goto(f"{address}/memory?run={run_id}")
    page.locator(".atlas[data-ready]").wait_for()
    page.get_by_text("No memory is selected.").wait_for()
    page.wait_for_timeout(1500)
    page.locator(".atlas .lasso").click()
    box = page.locator(".atlas .over").bounding_box()
    corners = [(0.25, 0.3), (0.5, 0.25), (0.7, 0.35), (0.65, 0.6), (0.4, 0.62), (0.25, 0.5), (0.25, 0.3)]
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=6)
    began = time.perf_counter()
    page.mouse.up()
    page.get_by_role("heading", name="nodes selected").wait_for()
    return time.perf_counter() - began


def _figure(what: str, n: int, value: float) -> Figure:
    unit = "frames/s" if what == "pan_frames_per_second" else "s"
    return make_figure(f"atlas.{what}.{n}", value, unit, _BUDGETS.get(what, {}).get(n), _REFERENCE, digits=3)
