"""The tour over a run: its outliers, its six steps over three pages, and runs that cannot show a step."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from app.analysis.collapse import scale_like_memory
from app.analysis.neighborhoods import OUTLIER_NEIGHBORS, find_outliers
from app.navigation import PAGES
from app.ui.widgets.tour import NO_SUITABLE_RUN, STEPS
from emtc_core.config.resolve import resolve
from storage.engine import Database
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.changes import create_run
from tests.pages.conftest import read_address
from tests.pages.seed import seed_failed_run, seed_run
from tests.pages.test_pages import open_page, said
from tests.pages.test_replay_beside import player


def get_newest_snapshot(db: Database, run_id: str):
    return get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))


def test_the_outliers_are_those_that_a_loop_finds(seeded):
    snapshot = get_newest_snapshot(*seeded)
    embedding = scale_like_memory(snapshot.embedding)
    differences = []
    for row in range(snapshot.size):
        away = ((embedding - embedding[row]) ** 2).sum(axis=1)
        away[row] = np.inf
        differences.append(snapshot.h[row] - snapshot.h[np.argsort(away)[:OUTLIER_NEIGHBORS]].mean())
    rows = np.argsort(-np.abs(differences), kind="stable")[:5]
    outliers = find_outliers(snapshot, embedding)
    assert [each.row for each in outliers] == rows.tolist()
    assert [each.slot for each in outliers] == snapshot.slot[rows].tolist()
    assert [each.episode for each in outliers] == snapshot.episode[rows].tolist()
    assert [each.h - each.neighbors_h for each in outliers] == pytest.approx(np.array(differences)[rows], abs=1e-5)


def test_a_memory_with_too_few_nodes_or_equal_returns_has_no_outliers(seeded):
    snapshot = get_newest_snapshot(*seeded)
    equal = replace(snapshot, h=np.full_like(snapshot.h, 0.1))
    assert find_outliers(equal, snapshot.embedding) == []
    names = [field.name for field in fields(snapshot) if np.shape(getattr(snapshot, field.name)) != ()]
    few = replace(snapshot, **{name: getattr(snapshot, name)[:OUTLIER_NEIGHBORS] for name in names})
    assert find_outliers(few, few.embedding) == []


def test_the_tour_leads_through_all_steps_of_the_newest_run_with_a_gate_and_a_memory(seeded):
    db, run_id = seeded
    seed_run(db, name="Newer, without a gate", gate="none")
    seed_failed_run(db)
    snapshot = get_newest_snapshot(db, run_id)
    outlier = find_outliers(snapshot, scale_like_memory(snapshot.embedding))[0]
    app = open_page("guide").button(key="take_tour").click().run()
    addresses = []
    for number, step in enumerate(STEPS, 1):
        assert not app.exception, number
        assert app.title[0].value == PAGES[step.page].title, number
        assert f"{number} of {len(STEPS)}" in said(app)
        addresses.append(read_address(app))
        app.switch_page(f"../pages/{step.page}.py")  # AppTest does not notice that the button has switched the page
        keys = {button.key for button in app.button}
        assert ("tour_back" in keys) == (number > 1), number
        assert ("tour_next" in keys) == (number < len(STEPS)), number
        if "mark" in addresses[-1]:
            assert f"Memory {outlier.slot} is the largest outlier" in said(app)
        if number < len(STEPS):
            app.button(key="tour_next").click().run()
    assert {address["run"] for address in addresses} == {run_id}
    assert addresses[2].keys() > {"camera", "mark"}
    assert [address["point"] for address in addresses[3:5]] == [str(outlier.slot)] * 2
    assert len(player(app)["sides"]) == 2, "the last step shows two episodes"
    app.button(key="tour_leave").click().run()
    assert not app.exception
    assert "tour" not in app.query_params
    assert "tour_leave" not in [button.key for button in app.button]


@pytest.mark.parametrize("step", ["0", "7"])
def test_a_step_that_does_not_exist_shows_nothing(seeded, step):
    app = open_page("memory", run=seeded[1], tour=step)
    assert not app.exception
    assert not app.error
    assert "tour_leave" not in [button.key for button in app.button]


def create_queued_run(db: Database) -> str:
    return create_run(db, resolve(preset="demo").model_dump(mode="json"), target_steps=40_000, versions={})


@pytest.mark.parametrize(
    ("make_run", "step", "words"),
    [
        (seed_failed_run, "2", "wait on Live for the first one"),
        (seed_failed_run, "3", "No outlier"),
        (lambda db: seed_run(db, gate="none"), "1", "This run has no gate"),
        (create_queued_run, "1", "how open the gate"),
    ],
    ids=["without a memory", "without an outlier", "without a gate", "before the gate is measured"],
)
def test_a_step_says_what_its_run_does_not_have(empty, make_run: Callable[[Database], str], step, words):
    app = open_page(STEPS[int(step) - 1].page, run=make_run(empty), tour=step)
    assert not app.exception
    assert words in said(app)


def test_where_no_run_can_show_it_the_tour_says_so(use_database, tmp_path):
    seed_run(use_database(tmp_path / "bare.db"), gate="none")
    app = open_page("guide").button(key="take_tour").click().run()
    assert not app.exception
    assert NO_SUITABLE_RUN in [info.value for info in app.info]
