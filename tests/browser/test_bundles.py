"""A file from a co-author in a real browser: dropped on Home, looked at, beside one's own runs, and back again."""

from pathlib import Path

import pytest

from storage.bundles.contents import WHOLE
from storage.bundles.write import write_bundle
from storage.engine import open_database
from tests.browser.server import running_app
from tests.pages.seed import seed_run
from tests.pages.several import seed_runs

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

BANNER = "Read-only: study.emtc."


def test_a_dropped_file_is_looked_at_and_compared_and_left_again(page, tmp_path: Path):
    theirs = open_database(f"sqlite:///{tmp_path / 'theirs.db'}")
    run_id = seed_run(theirs)
    write_bundle(theirs, [run_id, *seed_runs(theirs)], tmp_path / "study.emtc", WHOLE, made_by="emtc-lab test")
    seed_runs(open_database(f"sqlite:///{tmp_path / 'own.db'}"))
    settings = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with running_app(tmp_path / "own.db", env=settings) as url:
        page.goto(url)
        page.get_by_role("button", name="Bundles").click()
        page.locator("input[type=file]").set_input_files(tmp_path / "study.emtc")
        page.get_by_text("9 runs: EMTC(QPLEX), QMIX on 3m, corridor").wait_for()
        page.get_by_text("Compare with mine").click()
        page.get_by_text("Runs of study.emtc: 9.").wait_for()
        page.locator(".run-list .group", has_text="from study.emtc").first.wait_for()
        page.goto(url)
        page.get_by_role("button", name="Bundles").click()
        page.locator("button").filter(has_text="visibilityOpen").click()  # the name of the icon is part of the text
        page.get_by_text(BANNER).wait_for()
        page.goto(f"{page.url.partition('?')[0]}memory?{page.url.partition('?')[2]}&run={run_id}")
        page.locator(".atlas[data-ready]").wait_for()
        assert page.get_by_text(BANNER).is_visible(), "the link alone leads to the bundle"
        page.get_by_role("link", name="Compare", exact=True).click()
        page.get_by_text("Evaluated runs that match: 9").wait_for()
        page.get_by_role("button", name="Back to my own runs").click()
        page.get_by_text("Evaluated runs that match: 8").wait_for()
        page.get_by_text(BANNER).wait_for(state="detached")
        assert "from=" not in page.url
