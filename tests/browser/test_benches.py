"""The benchmarks that use a browser find the elements that they click. No time is checked."""

import pytest

from storage.files import run_folder
from tests.app_server import serve_app
from tests.bench import atlas, live
from tests.records import temporary_database

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

QUANTITIES = {
    "first_picture_seconds", "click_entry_seconds", "click_player_seconds", "recolour_seconds", "pan_frames_per_second",
}  # fmt: skip


@pytest.mark.slow
def test_a_map_is_drawn_clicked_recoloured_moved_and_selected_in(browser, monkeypatch):
    monkeypatch.setattr(atlas, "CLICKS", 1)
    with temporary_database() as db:
        run_id = atlas.fill(db, 5000)
        log = run_folder(db, run_id) / "app.txt"
        with serve_app(db.url, log) as address:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(address)
            page.get_by_role("heading").first.wait_for()
            values = atlas._measure(page, address, run_id) | {"lasso": atlas._measure_lasso(page, address, run_id)}
            page.close()
    assert values.keys() == QUANTITIES | {"lasso"}
    assert min(values.values()) > 0


def test_the_benchmark_of_live_measures_a_refresh_of_synthetic_runs(monkeypatch):
    monkeypatch.setattr(live, "RUNS", 3)
    monkeypatch.setattr(live, "TRANSITIONS", 5000)
    results = live._measure_refreshes()
    assert [result["name"] for result in results] == ["live.tick_ms", "live.open_ms"]
    assert all(result["value"] > 0 for result in results)
