"""The tour over a run: every stop speaks of real data, leads to the next, and can be left and taken again."""

from dataclasses import fields, replace

import numpy as np
import pytest

from app.analysis.collapse import scale_like_memory
from app.analysis.neighborhoods import OUTLIER_NEIGHBORS, find_outliers
from app.ui.widgets.tour import NO_SUITABLE_RUN, STEPS
from emtc_core.config.resolve import resolve
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.changes import create_run
from tests.pages.seed import seed_failed_run, seed_run
from tests.pages.test_pages import open_page, said
from tests.pages.test_replay_beside import player


def newest_snapshot(db, run_id):
    return get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))


def find_outliers_of_newest_snapshot(db, run_id):
    snapshot = newest_snapshot(db, run_id)
    return find_outliers(snapshot, scale_like_memory(snapshot.embedding))


def test_the_outliers_are_those_that_a_loop_finds(seeded):
    snapshot = newest_snapshot(*seeded)
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
    snapshot = newest_snapshot(*seeded)
    equal = replace(snapshot, h=np.full_like(snapshot.h, 0.1))
    assert find_outliers(equal, snapshot.embedding) == []
    names = [field.name for field in fields(snapshot) if np.shape(getattr(snapshot, field.name)) != ()]
    few = replace(snapshot, **{name: getattr(snapshot, name)[:OUTLIER_NEIGHBORS] for name in names})
    assert find_outliers(few, few.embedding) == []


@pytest.mark.parametrize("at", range(1, len(STEPS) + 1))
def test_every_stop_stands_on_its_page_and_leads_on(seeded, at):
    app = open_page(STEPS[at - 1].page, run=seeded[1], tour=str(at))
    assert not app.exception
    assert f"{at} of {len(STEPS)}" in said(app)
    keys = [button.key for button in app.button if button.key and button.key.startswith("tour_")]
    assert ("tour_next" in keys) == (at < len(STEPS))
    assert ("tour_back" in keys) == (at > 1)


def test_the_point_that_stands_out_is_named_with_its_numbers(seeded):
    odd = find_outliers_of_newest_snapshot(*seeded)[0]
    app = open_page("memory", run=seeded[1], tour="2")
    app.button(key="tour_next").click().run()
    assert not app.exception
    assert f"Memory {odd.slot} is the largest outlier" in said(app)
    assert "camera" in app.query_params


def test_the_last_stop_opens_the_two_episodes_that_its_text_announces(seeded):
    app = open_page("memory", run=seeded[1], tour="5")
    app.button(key="tour_next").click().run()
    assert not app.exception
    assert "The episodes with the highest and the lowest return" in said(app)
    assert len(player(app)["sides"]) == 2


def test_a_tour_can_be_left_and_taken_again(seeded):
    app = open_page("memory", run=seeded[1], tour="3")
    app.button(key="tour_leave").click().run()
    assert "of 6" not in said(app)
    assert "tour" not in app.query_params
    app = open_page("guide").button(key="take_tour").click().run()
    assert not app.exception
    assert "1 of 6" in said(app)


@pytest.mark.parametrize("at", ["0", "7", "x", "-1"])
def test_a_stop_that_there_is_not_shows_nothing(seeded, at):
    app = open_page("memory", run=seeded[1], tour=at)
    assert not app.exception
    assert f"of {len(STEPS)} ·" not in said(app)


def test_a_run_without_a_memory_yet_is_told_to_wait(failed):
    app = open_page("memory", run=failed[1], tour="3")
    assert not app.exception
    assert "wait on Live for the first one" in said(app)


def test_the_tour_takes_a_run_with_a_gate_and_a_memory_though_others_are_newer(seeded):
    db, run_id = seeded
    seed_run(db, name="Newer, without a gate", gate="none")
    seed_failed_run(db)
    app = open_page("guide")
    app.button(key="take_tour").click().run()
    assert app.title[0].value == "Live"
    assert app.query_params["run"] in (run_id, [run_id])
    assert "how open the gate" in said(app)


def test_where_no_run_can_show_it_the_tour_says_so(use_database, tmp_path):
    seed_run(use_database(tmp_path / "bare.db"), gate="none")
    app = open_page("guide")
    app.button(key="take_tour").click().run()
    assert NO_SUITABLE_RUN in [info.value for info in app.info]


def test_a_stop_on_a_run_without_a_gate_does_not_speak_of_one(seeded):
    bare = seed_run(seeded[0], gate="none")
    assert "This run has no gate" in said(open_page("live", run=bare, tour="1"))


def test_the_first_stop_tells_of_the_gate_before_it_is_measured(empty):
    settings = resolve(preset="demo").model_dump(mode="json")
    run_id = create_run(empty, settings, target_steps=40_000, versions={})
    text = said(open_page("live", run=run_id, tour="1"))
    assert "how open the gate" in text
    assert "This run has no gate" not in text
