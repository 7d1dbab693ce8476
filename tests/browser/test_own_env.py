"""An environment of the user from the form to the replay, in a real browser, with the real app and a real trainer."""

import time
from pathlib import Path

import pytest

from storage.engine import open_database
from storage.queries.curves import metric_points
from storage.queries.runs import list_runs
from storage.runs.rows import find_run
from tests.browser.server import running_app

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

MAP = "tests.core.zoo_example:make_speechless"


def wait_for_the_end(db) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        run_id = next(iter(list_runs(db)["id"]), None)
        if run_id and (run := find_run(db, run_id)).live_status in ("finished", "failed", "lost", "stopped"):
            assert (run.live_status, run.error) == ("finished", None)
            return run_id
        time.sleep(0.5)
    raise AssertionError("the run did not end")


def test_from_the_form_to_the_replay(page, tmp_path: Path):
    path = tmp_path / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    with running_app(path) as url:
        page.goto(f"{url}/launch?env=pettingzoo")
        for name, text in (("Map", MAP), ("Training length", "400")):
            field = page.get_by_role("textbox", name=name, exact=name == "Map")
            field.fill(text)
            field.press("Enter")
        page.get_by_text("an episode return of at least").click()
        threshold = page.get_by_role("textbox", name="Success threshold")
        threshold.fill("2")
        threshold.press("Enter")
        start = page.get_by_role("button", name="Start", exact=True)
        start.and_(page.locator(":enabled")).click()
        page.get_by_text("success (return ≥").or_(page.get_by_text("Outcomes")).first.wait_for()
        run_id = wait_for_the_end(db)
        assert len(metric_points(db, run_id, ["eval/success_rate"]))
        page.goto(f"{url}/replay?run={run_id}")
        field = page.locator(".playback canvas.field")
        field.wait_for()
        page.locator(".playback[data-frame='0']").wait_for()
        assert field.evaluate(COUNT_COLORS) > 2, "the state values are drawn"
        assert page.get_by_text("No picture for this environment").first.is_visible()
    db.dispose()


COUNT_COLORS = """field => {
    const { data } = field.getContext("2d").getImageData(0, 0, field.width, field.height)
    const seen = new Set()
    for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2])
    return seen.size
}"""
