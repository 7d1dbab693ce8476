"""The benchmarks of what one sees still find what they press, on a page that goes on changing; no time is judged."""

import pytest

from app.bench import atlas, live
from app.bench.records import temporary_database
from storage.files.places import run_folder

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

QUANTITIES = {
    "first_picture_seconds", "click_entry_seconds", "click_player_seconds", "recolour_seconds", "pan_frames_per_second",
}  # fmt: skip


@pytest.mark.ci
def test_a_map_is_drawn_clicked_recoloured_moved_and_selected_in(browser, monkeypatch):
    monkeypatch.setattr(atlas, "CLICKS", 1)
    with temporary_database() as db:
        run_id = atlas.fill(db, 5000)
        log = run_folder(db, run_id) / "app.txt"
        with atlas.served(db.url, log, env={"EMTC_WARM_UP": "0"}) as address:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(address)
            page.get_by_role("heading").first.wait_for()
            found = atlas._measure(page, address, run_id) | {"lasso": atlas._lasso(page, address, run_id)}
            page.close()
    assert found.keys() == QUANTITIES | {"lasso"}
    assert min(found.values()) > 0


def test_a_tick_of_live_is_asked_of_runs_that_were_filled_in(monkeypatch):
    monkeypatch.setattr(live, "RUNS", 3)
    monkeypatch.setattr(live, "TRANSITIONS", 5000)
    figures = live._tick_figures()
    assert [figure["name"] for figure in figures] == ["live.tick_ms", "live.open_ms"]
    assert all(figure["value"] > 0 for figure in figures)
