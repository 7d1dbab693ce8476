"""Fifteen tasks of a researcher's day in one go, each in at most four presses, in the real app with a real trainer."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from emtc_core.errors import RunStateError
from storage.engine import Database, open_database
from storage.notebook import list_entries
from storage.queries.memory import list_snapshots
from storage.queries.runs import list_runs
from storage.runs.control import send_and_wait
from storage.runs.rows import RunRow, find_run
from tests.app.sweep_cases import seed_sweep
from tests.browser.server import open_page, running_app, wait_until

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(1800)]

MOST_PRESSES = 4
ALIVE = ("queued", "running", "paused")
SWEEP = """
name = "Temperatures"
study = "tau-study"
preset = "demo"
steps = 40000
seeds = 3
[[variant]]
name = "fixed"
set = { gate.tau_start = 0.6, gate.tau_end = 0.6 }
[[variant]]
name = "cooling"
"""
QUERY = "select algo, count(*) as runs from runs group by algo"


@dataclass
class Walk:
    """A page that counts what is pressed and typed for each task, and keeps what the browser complains of."""

    page: Any
    look: Callable[[str], None] = lambda name: None
    presses: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda fault: self.faults.append(str(fault)))
        self.page.on("console", self.hear)

    def hear(self, said: Any) -> None:
        """Keep an error; that Streamlit's client asks below the page's path first, and gets a 404, is its own way."""
        if said.type == "error" and "/_stcore/" not in said.location.get("url", ""):
            self.faults.append(f"{said.text} {said.location.get('url', '')}")

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        self.presses[name] = 0
        yield
        self.look(name)
        assert self.presses[name] <= MOST_PRESSES, name
        assert self.faults == [], name

    def count(self) -> None:
        self.presses[next(reversed(self.presses))] += 1

    def press(self, what: Any, **options: Any) -> None:
        self.count()
        what.click(**options)

    def button(self, name: str, **options: Any) -> None:
        self.press(self.page.get_by_role("button", name=name, exact=True).first, **options)

    def link(self, name: str) -> None:
        self.press(self.page.get_by_role("link", name=name).first)

    def write(self, label: str, text: str, *, sent_by: str = "Enter") -> None:
        self.count()
        page = self.page.locator("[data-testid=stMain]")
        box = page.get_by_role("textbox", name=label).or_(page.get_by_role("searchbox", name=label)).first
        box.fill(text)
        box.press(sent_by)

    def row(self, n: int) -> None:
        """Press the mark of a row of the page's first table, from 0; the head and each row are 36 pixels high."""
        table = self.page.locator("[data-testid=stDataFrame]").first
        table.scroll_into_view_if_needed()
        box = table.bounding_box()
        self.count()
        self.page.mouse.click(box["x"] + 16, box["y"] + 36 * n + 54)


def test_fifteen_tasks_take_four_presses_at_most(browser, tmp_path: Path) -> None:
    database = tmp_path / "emtc.db"
    db = open_database(f"sqlite:///{database}")
    seed_sweep(db, SWEEP)
    page = open_page(browser, 1440, 900)
    with running_app(database) as url:
        try:
            walk(Walk(page), db, url)
        finally:
            for run in running(db):
                os.kill(run.pid, signal.SIGKILL)
    page.context.close()


def running(db: Database) -> list[RunRow]:
    rows = [find_run(db, run_id) for run_id in list_runs(db)["id"]]
    return [row for row in rows if row.pid and row.pid != os.getpid() and row.live_status in ALIVE]


def pause(db: Database, run_id: str) -> None:
    """Let the trainer rest: no task from here on is about its rows, and it would train beside all of them."""
    with suppress(RunStateError):  # it has ended
        send_and_wait(db, run_id, "pause")


def walk(at: Walk, db: Database, url: str) -> None:
    """Do all of it; the page is left where the last task ends."""
    at.page.goto(f"{url}/sweeps")
    best = find_the_best_run_and_its_settings(at)
    run_id = clone_start_and_watch(at, db, best)
    look_into_its_memory(at, db, run_id)
    pause(db, run_id)
    compare_and_export(at)
    search_share_and_clean_up(at, db)


def find_the_best_run_and_its_settings(at: Walk) -> str:
    with at.task("find the best run of a sweep"):
        at.page.get_by_text("Best run, final win rate").wait_for()
    with at.task("see its settings"):
        at.link("Temperatures · cooling · seed 3")
        at.page.get_by_role("heading", name="Settings").wait_for()
        at.page.get_by_role("button", name="Clone in Launch").wait_for()
    return at.page.url.partition("run=")[2][:8]


def clone_start_and_watch(at: Walk, db: Database, source: str) -> str:
    page = at.page
    with at.task("clone it with another τ"):
        at.button("Clone in Launch")
        at.press(page.locator("summary", has_text="Temporal-consistency gate"))
        at.write("tau end", "0.3")
        page.wait_for_function("() => document.location.search.includes('gate.tau_end=0.3')")
    with at.task("start"):
        start = page.get_by_role("button", name="Start", exact=True)
        start.and_(page.locator(":enabled")).wait_for()
        at.press(start)
        page.wait_for_url("**/live?run=*")
    (run,) = [find_run(db, run_id) for run_id in list_runs(db)["id"] if run_id in page.url]
    assert run.config["gate"]["tau_end"] == 0.3
    assert find_run(db, source).config["gate"]["tau_end"] != 0.3
    with at.task("watch the gate"):
        page.get_by_role("heading", name="β̄").wait_for()
        page.locator(".curves canvas").nth(1).wait_for()
    with at.task("evaluate now"):
        at.button("Evaluate now")
        page.get_by_text(re.compile(r"win rate \d+/\d+")).first.wait_for()
        wait_until(page, lambda: answered(db, run.id), "the answer")
    wait_until(page, lambda: len(list_snapshots(db, run.id)) > 0, "the first snapshot of the memory")
    return run.id


def answered(db: Database, run_id: str) -> bool:
    with db.read() as connection:
        told = connection.exec_driver_sql(f"select count(*) from asked_evaluations where run_id = '{run_id}'")
        return told.scalar_one() > 0


def look_into_its_memory(at: Walk, db: Database, run_id: str) -> None:
    page = at.page
    with at.task("click the state that differs most from its neighbors"):
        at.link("Memory")
        page.locator(".atlas[data-ready]").wait_for()
        page.get_by_role("heading", name="States that the memory confuses").wait_for()
        at.row(0)
        page.get_by_role("heading", name=re.compile(r"^Memory \d+")).wait_for()
        page.locator(".playback .field").wait_for()
        page.wait_for_timeout(1000)
    address = page.url
    with at.task("replay it beside the best episode"):
        at.press(page.locator("[data-testid=stMain]").get_by_role("link", name="Replay").last)  # the first is the tab
        page.locator(".playback .field").wait_for()
        at.button("Compare")
        at.press(page.get_by_role("menuitem", name="With the best episode"))
        page.locator(".playback.pair .field").nth(1).wait_for()
    with at.task("pin both"):
        at.button("Pin")
        at.button("Pin to notebook")
        wait_until(page, lambda: len(list_entries(db)) == 1, "the entry of the pair")
    page.goto(address)
    lasso_and_keep(at, db)


def lasso_and_keep(at: Walk, db: Database) -> None:
    page, before = at.page, len(list_entries(db))
    page.locator(".atlas[data-ready]").wait_for()
    with at.task("lasso a cluster and save it"):
        at.press(page.locator(".atlas .lasso"))
        at.count()
        drag_around(page)
        page.get_by_role("heading", name="nodes selected").wait_for()
        at.press(page.locator(".st-key-selection-pin button").first)  # the second is for narrow screens
        at.button("Pin to notebook")
        wait_until(page, lambda: len(list_entries(db)) == before + 1, "the entry of the selection")


def drag_around(page: Any) -> None:
    frame = page.locator(".atlas .over").bounding_box()
    corners = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
    for step, (x, y) in enumerate((*corners, corners[0])):
        page.mouse.move(frame["x"] + x * frame["width"], frame["y"] + y * frame["height"], steps=6)
        if not step:
            page.mouse.down()
    page.mouse.up()


def compare_and_export(at: Walk) -> None:
    page = at.page
    with at.task("compare three seeds"):
        at.link("Compare")
        page.get_by_role("heading", name="Compare", exact=True).wait_for()
        page.locator(".curves canvas").first.wait_for()
        at.write("Find", "cooling gate.tau_end!=0.3")  # without the clone
        page.get_by_text("Evaluated runs that match: 3").wait_for()
        wait_until(
            page,
            lambda: (
                [text.split()[:2] for text in page.locator(".run-list .group").all_inner_texts()]
                == [["EMTC(QPLEX)", "3"]]
            ),
            "one line of three",
        )
        page.get_by_role("tab", name="Win rates").wait_for()
    with at.task("export PDF and LaTeX"):
        for opens, saves, begins in (("Export", "PDF, vector", b"%PDF"), ("", "LaTeX", b"%")):
            if opens:
                at.button(opens)
            at.count()
            with page.expect_download() as download:
                page.get_by_role("button", name=saves).first.click()
            assert Path(download.value.path()).read_bytes().startswith(begins)
            page.keyboard.press("Escape")


def search_share_and_clean_up(at: Walk, db: Database) -> None:
    page = at.page
    with at.task("search in SQL"):
        at.link("SQL")
        at.write("Query", QUERY, sent_by="Control+Enter")
        page.get_by_role("heading", name="Result").wait_for()
        page.get_by_text("1 row").first.wait_for()
    font = page.get_by_role("textbox", name="Query").evaluate("node => getComputedStyle(node).fontFamily")
    assert "monospace" in font
    with at.task("share a link"):
        other = open_page(page.context.browser)
        other.goto(page.url)
        other.get_by_role("textbox", name="Query").wait_for()
        wait_until(other, lambda: other.get_by_role("textbox", name="Query").input_value() == QUERY, "the link")
        other.context.close()
    before = len(list_runs(db))
    with at.task("clean up"):
        at.link("Home")
        page.locator("[data-testid=stDataFrame]").first.wait_for()
        page.wait_for_timeout(1500)
        at.row(1)
        page.get_by_text("1 run selected").wait_for()
        at.button("Delete 1 …")
        at.button("Delete 1 run permanently")
        wait_until(page, lambda: len(list_runs(db)) == before - 1, "the run's end")
