"""Home's table of all runs: pages, search, filters and order from the URL, and what is done with chosen rows."""

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.bench.queries import fill_table
from app.ui.widgets import run_picker
from storage.engine import open_database
from storage.queries.runs import RunFilter, list_runs, matching_ids, run_page
from storage.runs.changes import create_run
from storage.runs.labels import edit_run
from storage.runs.rows import find_run
from tests.pages.conftest import copy_database
from tests.pages.several import seed_runs
from tests.pages.test_pages import open_page, said, start_app
from tests.storage.records import CONFIG


@pytest.fixture(scope="module")
def many(sqlite_template, tmp_path_factory) -> Path:
    path = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("many") / "many.db"))
    db = open_database(f"sqlite:///{path}")
    fill_table(db, 5000)
    db.dispose()
    return path


@pytest.fixture
def thousands(use_database, many, tmp_path):
    return use_database(copy_database(many, tmp_path / "many.db"))


@pytest.fixture
def several(use_database, tmp_path):
    """emtc-qplex and qmix on 3m and corridor, two seeds each; nothing at work."""
    db = use_database(tmp_path / "several.db")
    return db, seed_runs(db)


def open_home(**query: str) -> AppTest:
    app = start_app()
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def shown(app: AppTest) -> list[str]:
    return app.dataframe[0].value["id"].tolist()


def choose(app: AppTest, *run_ids: str) -> AppTest:
    rows = [shown(app).index(run_id) for run_id in run_ids]
    app.session_state["run_table"] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


def labels(app: AppTest) -> dict[str, bool]:
    """The buttons that act, with whether they can be pressed."""
    return {button.label: not button.disabled for button in app.button if str(button.key).startswith("act-")}


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def test_thousands_of_runs_are_counted_paged_and_found(thousands):
    app = open_home()
    assert not app.exception
    assert "1–50 of 5,000 runs" in said(app)
    assert len(shown(app)) == 50
    assert f"{run_picker.LISTED} of 5,000 runs are listed, the newest" in "\n".join(
        caption.value for caption in app.sidebar.caption
    )
    app.text_input(key="home-q").set_value("second seed=2").run()
    expected = matching_ids(thousands, RunFilter(text="second seed=2"))
    assert f"{len(expected)} runs" in said(app)
    assert shown(app) == expected[:50]
    app.text_input(key="run_search").set_value("r00007").run()
    assert not app.exception
    assert app.sidebar.selectbox(key="run_picker").value == "r00007", "the one run that is found is picked"


@pytest.mark.parametrize("page", ["live", "memory", "replay", "compare"])
def test_the_other_pages_open_beside_thousands_of_runs(thousands, page):
    app = open_page(page, q="second seed=2")
    assert not app.exception
    assert f"{run_picker.LISTED} of 5,000 runs are listed" in "\n".join(each.value for each in app.sidebar.caption)
    evaluated = run_page(thousands, RunFilter(text="second seed=2", evaluated=True)).total
    assert page != "compare" or f"Evaluated runs that match: {evaluated}." in said(app)


def test_the_address_is_the_view(thousands):
    app = open_home(sort="mu_w", maps="corridor", algos="qmix", states="finished", page="2")
    assert not app.exception
    wanted = RunFilter(maps=("corridor",), algos=("qmix",), statuses=("finished",))
    assert shown(app) == matching_ids(thousands, wanted, sort="-mu_w")[50:100]
    assert app.dataframe[0].value["algo"].unique().tolist() == ["QMIX"]


def test_a_page_beyond_the_last_is_the_last(thousands):
    app = open_home(page="4000")
    assert not app.exception
    assert shown(app) == matching_ids(thousands, RunFilter())[-50:]


def test_what_is_searched_starts_at_the_first_page(several):
    app = open_home(q="corridor")
    assert sorted(shown(app)) == ["r0002", "r0003", "r0006", "r0007"]
    app.text_input(key="home-q").set_value("gate.enable=false").run()
    assert [error.value for error in app.error] == [
        'gate\\.enable is not a setting or column\\. Did you mean "gate\\.enabled"?'
    ]
    app.text_input(key="home-q").set_value("nowhere").run()
    assert not app.exception
    assert any("No run matches" in info.value for info in app.info)


@pytest.mark.parametrize(
    "query",
    [
        {"q": "<script>", "sort": "'; DROP TABLE runs", "page": "1e999", "states": "**", "shelf": "attic"},
        {"q": '"' * 300, "page": "-7", "tags": "a,b", "maps": "%", "down": "perhaps"},
    ],
)
def test_strangers_in_the_address_are_harmless(several, query):
    app = open_home(**query)
    assert not app.exception
    assert run_page(several[0]).total == 8


def test_chosen_runs_are_tagged_and_the_others_are_not(several):
    db, ids = several
    edit_run(db, ids[0], tags=["old"])
    app = choose(open_home(), ids[0], ids[1])
    assert "2 runs chosen" in said(app)
    app.multiselect(key="tag-add").set_value(["paper"])
    app.multiselect(key="tag-remove").set_value(["old"])
    press(app, "Tag 2 runs")
    assert not app.exception
    assert [find_run(db, run_id).tags for run_id in ids[:3]] == [["paper"], ["paper"], []]


def test_one_chosen_run_is_renamed_and_noted_and_several_get_a_line(several):
    db, ids = several
    app = choose(open_home(), ids[0])
    app.text_input(key=f"name-{ids[0]}").set_value("The good one")
    app.text_area(key=f"note-{ids[0]}").set_value("seed of the *appendix*")
    press(app, "Write for 1 run")
    assert (find_run(db, ids[0]).name, find_run(db, ids[0]).notes) == ("The good one", "seed of the *appendix*")
    app = choose(open_home(), ids[0], ids[1])
    app.text_area(key="note-many").set_value("again")
    press(app, "Write for 2 runs")
    assert find_run(db, ids[0]).notes == "seed of the *appendix*\nagain"
    assert find_run(db, ids[1]).notes == "again"


def test_archived_runs_leave_the_table_and_come_back(several):
    db, ids = several
    app = choose(open_home(), ids[0], ids[1])
    press(app, "Archive 2")
    assert not app.exception
    assert "6 runs" in said(app)
    assert not {ids[0], ids[1]} & set(shown(app))
    assert labels(app) == {}, "nothing is chosen any more"
    app = choose(open_home(shelf="archived"), ids[0])
    press(app, "Restore 1")
    assert run_page(db).total == 7
    app = choose(open_home(), ids[2])
    press(app, "Hide 1")
    assert run_page(db, RunFilter(shelf="drawn")).total == 6
    assert any("%28hidden%29" in name for name in open_home().dataframe[0].value["name"])


def test_deleting_names_and_counts_what_goes_and_asks_again(several):
    db, ids = several
    app = choose(open_home(), ids[0], ids[1])
    press(app, "Delete 2 …")
    assert run_page(db).total == 8
    text = said(app).replace("\\", "")
    assert "For good, this removes **2 runs**: 80,203 transitions in 0 episodes, 10 evaluations" in text
    assert f"(`{ids[0]}`)" in text
    press(app, "Delete 2 runs for good")
    assert not app.exception
    assert sorted(list_runs(db)["id"]) == ids[2:]
    assert "Deleted 2 runs" in said(app)
    assert labels(app) == {}, "nothing is chosen any more"


def test_what_is_asked_for_is_kept_when_another_run_is_chosen_instead(several):
    db, ids = several
    app = press(choose(open_home(), ids[0]), "Delete 1 …")
    choose(app, ids[1])
    assert not any("for good" in button.label for button in app.button)
    assert run_page(db).total == 8


def test_buttons_say_how_many_runs_they_reach_beyond_the_page(thousands):
    app = open_home(q="second")
    total = run_page(thousands, RunFilter(text="second")).total
    assert total > 50
    app = choose(app, shown(app)[0])
    assert "1 run chosen" in said(app)
    next(box for box in app.checkbox if box.label == f"All {total:,} that match, on every page").check().run()
    assert f"{total:,} runs chosen" in said(app)
    press(app, f"Hide {total:,}")
    assert not app.exception
    assert run_page(thousands, RunFilter(shelf="hidden")).total == total


def test_chosen_rows_stay_when_a_new_run_comes(several):
    db, ids = several
    app = choose(open_home(), ids[3])
    before = shown(app)
    create_run(db, CONFIG, target_steps=10, versions={}, name="newer")
    app.run()
    assert shown(app) == before
    press(app, "Archive 1")
    assert find_run(db, ids[3]).archived_at is not None
    assert find_run(db, list_runs(db)["id"].iloc[0]).archived_at is None


def test_a_run_that_is_gone_takes_the_choice_away(several):
    from storage.runs.removal import delete_run

    db, ids = several
    app = choose(open_home(), ids[0], ids[1])
    delete_run(db, ids[0])
    app.run()
    assert not app.exception
    assert labels(app) == {}


def test_what_nobody_may_change_is_disabled(several, use_database, monkeypatch):
    db, ids = several
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    use_database(db.path)
    app = choose(open_home(), ids[0])
    assert not app.exception
    assert labels(app)
    assert not any(labels(app).values())
    assert [form.label for form in app.button if form.label.startswith(("Tag", "Write")) and not form.disabled] == []


def test_a_waiting_run_is_stopped_and_what_ended_is_not(several):
    db, ids = several
    waiting = create_run(db, CONFIG, target_steps=10, versions={}, sweep_id="s1")
    app = open_home()
    assert shown(app)[-1] == waiting
    choose(app, waiting, ids[0])
    press(app, "Stop 1")
    assert not app.exception
    assert find_run(db, waiting).status == "stopped"
    assert find_run(db, ids[0]).status == "finished"
