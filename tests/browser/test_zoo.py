"""A game of PettingZoo from the form to the replay, in a real browser, with the real app and a real trainer."""

import time
from pathlib import Path

import pytest

from emtc_core.envs.zoo.examples import EXAMPLES
from storage.engine import open_database
from storage.queries.curves import metric_points
from storage.queries.runs import list_runs
from storage.runs.rows import find_run
from tests.browser.server import running_app
from tests.require import require_game

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

STEPS = {"mpe2:simple_spread": 400, "butterfly:knights_archers_zombies": 600, "butterfly:cooperative_pong": 400}


def wait_for_the_end(db) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        run_id = next(iter(list_runs(db)["id"]), None)
        if run_id and (run := find_run(db, run_id)).live_status in ("finished", "failed", "lost", "stopped"):
            assert (run.live_status, run.error) == ("finished", None)
            return run_id
        time.sleep(0.5)
    raise AssertionError("the run did not end")


@pytest.mark.parametrize(
    "game",
    [
        pytest.param("mpe2:simple_spread", marks=pytest.mark.ci),
        pytest.param("butterfly:knights_archers_zombies", marks=pytest.mark.slow),
        pytest.param("butterfly:cooperative_pong", marks=pytest.mark.slow),
    ],
)
def test_from_the_form_to_the_replay(page, tmp_path: Path, game: str):
    require_game(game)
    path = tmp_path / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    with running_app(path) as url:
        page.goto(f"{url}/launch?env=pettingzoo")
        page.get_by_role("combobox", name="Game").click()
        page.get_by_role("option", name=game, exact=True).click()
        page.get_by_text("What counts as a success?").wait_for()
        steps = page.get_by_role("textbox", name="Training length")
        steps.fill(str(STEPS[game]))
        steps.press("Enter")
        start = page.get_by_role("button", name="Start", exact=True)
        start.and_(page.locator(":enabled")).click()
        page.get_by_text("success (return ≥").or_(page.get_by_text("Outcomes")).first.wait_for()
        run_id = wait_for_the_end(db)
        assert page.get_by_text("Success", exact=True).is_visible()
        assert len(metric_points(db, run_id, ["eval/success_rate"]))
        page.goto(f"{url}/replay?run={run_id}")
        field = page.locator(".playback canvas.field")
        field.wait_for()
        page.locator(".playback[data-frame='0']").wait_for()
        assert field.evaluate(COUNT_COLORS) > 2  # it is not empty
        page.get_by_role("slider").first.focus()
        for _ in range(9):
            page.keyboard.press("ArrowRight")
        page.locator(".playback[data-frame='9']").wait_for()
        assert field.evaluate(COUNT_COLORS) > 2
        assert page.get_by_test_id("stAlert").count() == 0
        if EXAMPLES[game].picture:
            assert page.get_by_text("The picture is the state itself").is_visible()
    db.dispose()


COUNT_COLORS = """field => {
    const { data } = field.getContext("2d").getImageData(0, 0, field.width, field.height)
    const seen = new Set()
    for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2])
    return seen.size
}"""
