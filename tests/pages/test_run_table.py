"""Home's table of all runs: pages, search, filters and order from the URL, and actions on selected rows."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from sqlalchemy import insert, update
from streamlit.testing.v1 import AppTest

from app.notebook.view import read_view
from app.ui.page_url import OPENED_BOX
from app.ui.widgets import run_picker
from storage.engine import open_database
from storage.models import CommandRow, Run
from storage.notebook import list_entries
from storage.queries.final_rates import read_final_rates
from storage.queries.run_search import RunFilter, matching_ids, run_page
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, finish_run
from storage.runs.labels import tag_runs
from storage.runs.removal import remove_run
from storage.runs.rows import find_run
from tests.bench.queries import fill_table
from tests.pages.conftest import copy_database, read_address
from tests.pages.several import seed_runs
from tests.pages.test_pages import open_page, said
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
    """emtc-qplex and qmix on 3m and corridor, two seeds each; no run is active."""
    db = use_database(tmp_path / "several.db")
    return db, seed_runs(db)


def list_ids(app: AppTest) -> list[str]:
    return app.dataframe[0].value["id"].tolist()


def select(app: AppTest, *run_ids: str) -> AppTest:
    rows = [list_ids(app).index(run_id) for run_id in run_ids]
    app.session_state["run_table"] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


def list_actions(app: AppTest) -> list[bool]:
    """Return for each action button whether it is enabled; an empty list if no run is selected."""
    return [not button.disabled for button in app.button if str(button.key).startswith("act-")]


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def test_thousands_of_runs_are_counted_paged_and_found(thousands):
    app = open_page("home", page="3")
    assert not app.exception
    assert not app.multiselect, "closed filters are not drawn"
    assert list_ids(app) == matching_ids(thousands, RunFilter())[50:75]
    assert "51–75 of 5,000 runs" in said(app)
    app.text_input(key="home?q").set_value("second seed=2").run()
    expected = matching_ids(thousands, RunFilter(text="second seed=2"))
    assert f"{len(expected)} runs" in said(app)
    assert list_ids(app) == expected[:25]
    assert "page" not in app.query_params, "a search starts at the first page"


def test_the_picker_lists_the_newest_runs_and_selects_the_only_match(thousands):
    app = open_page("home")
    app.session_state[OPENED_BOX] = "run_picker_box-0"
    app.run()
    assert any(f"{run_picker.MAX_LISTED} of 5,000 runs" in caption.value for caption in app.sidebar.caption)
    app.text_input(key="run_search").set_value("r00007").run()
    assert not app.exception
    assert read_address(app)["run"] == "r00007"
    assert "run_picker_list" not in str([part.proto.id for part in app.get("bidi_component")]), "the list is closed"


def test_the_url_contains_filters_order_and_page(thousands):
    query = {"sort": "mu_w", "maps": "corridor", "algos": "qmix", "states": "finished"}
    app = open_page("home", **query, page="2")
    assert not app.exception
    wanted = RunFilter(maps=("corridor",), algos=("qmix",), statuses=("finished",))
    assert list_ids(app) == matching_ids(thousands, wanted, sort="-mu_w")[25:50]
    app.toggle(key="home?down").set_value(False).run()
    assert list_ids(app) == matching_ids(thousands, wanted, sort="mu_w")[:25]
    app = open_page("home", **query, page="4000")
    assert not app.exception
    expected = matching_ids(thousands, wanted, sort="-mu_w")
    assert list_ids(app) == expected[(len(expected) - 1) // 25 * 25 :], "the last page"


def test_a_search_names_a_setting_that_does_not_exist(several):
    app = open_page("home", q="gate.enable=false")
    assert [error.value for error in app.error] == [
        'gate\\.enable is not a setting or column\\. Did you mean "gate\\.enabled"?'
    ]
    app.text_input(key="home?q").set_value("nowhere").run()
    assert not app.exception
    assert not app.error
    assert not app.dataframe


@pytest.mark.parametrize(
    "query",
    [
        {"q": "<script>", "sort": "'; DROP TABLE runs", "page": "1e999", "states": "**", "shelf": "attic"},
        {"q": '"' * 300, "page": "-7", "tags": "a,b", "maps": "%", "down": "perhaps"},
    ],
)
def test_invalid_values_in_the_url_are_ignored(several, query):
    app = open_page("home", **query)
    assert not app.exception
    assert run_page(several[0]).total == 8


def test_only_selected_runs_are_tagged(several):
    db, ids = several
    tag_runs(db, ids[:1], add=["old"])
    app = select(open_page("home"), ids[0], ids[1])
    app.multiselect(key="tag-add").set_value(["paper"])
    app.multiselect(key="tag-remove").set_value(["old"])
    press(app, "Tag 2 runs")
    assert not app.exception
    assert [find_run(db, run_id).tags for run_id in ids[:3]] == [["paper"], ["paper"], []]


def test_one_selected_run_can_be_renamed_and_several_get_a_line_in_their_notes(several):
    db, ids = several
    app = select(open_page("home"), ids[0])
    app.text_input(key=f"name-{ids[0]}").set_value("The good one")
    app.text_area(key=f"note-{ids[0]}").set_value("seed of the *appendix*")
    press(app, "Save for 1 run")
    assert (find_run(db, ids[0]).name, find_run(db, ids[0]).notes) == ("The good one", "seed of the *appendix*")
    select(app, ids[0], ids[1])
    app.text_area(key="note-many").set_value("again")
    press(app, "Save for 2 runs")
    assert find_run(db, ids[0]).notes == "seed of the *appendix*\nagain"
    assert find_run(db, ids[1]).notes == "again"


def test_archived_runs_are_not_listed_and_can_be_restored(several):
    db, ids = several
    app = select(open_page("home"), ids[0], ids[1])
    app.button(key="act-archive").click().run()
    assert not app.exception
    assert sorted(list_ids(app)) == ids[2:]
    assert list_actions(app) == [], "nothing is selected"
    app = select(open_page("home", shelf="archived"), ids[0])
    app.button(key="act-restore").click().run()
    assert run_page(db).total == 7
    app = select(open_page("home"), ids[2])
    app.button(key="act-hide").click().run()
    assert run_page(db, RunFilter(visibility="drawn")).total == 6
    assert any("%28hidden%29" in name for name in app.dataframe[0].value["name"])


def test_deletion_lists_the_data_and_needs_a_second_press_while_the_runs_are_selected(several):
    db, ids = several
    app = select(open_page("home", q="emtc-qplex corridor"), ids[2])
    app.button(key="act-delete").click().run()
    assert any(button.key == "delete-now" for button in app.button)
    select(app, ids[3])
    assert not any(button.key == "delete-now" for button in app.button), "another run is selected"
    select(app, ids[2], ids[3])
    app.button(key="act-delete").click().run()
    text = said(app).replace("\\", "")
    assert "Permanently deletes **2 runs**: 80,203 transitions in 0 episodes, 10 evaluations" in text
    assert f"(`{ids[2]}`)" in text
    assert run_page(db).total == 8
    app.button(key="delete-now").click().run()
    assert not app.exception
    assert sorted(list_runs(db)["id"]) == [*ids[:2], *ids[4:]]
    assert not app.dataframe, "no run matches any more"
    assert "Deleted 2 runs" in said(app)


def test_an_action_can_apply_to_all_matching_runs_also_on_other_pages(thousands):
    app = open_page("home", q="second")
    total = run_page(thousands, RunFilter(text="second")).total
    assert total > 50
    select(app, list_ids(app)[0])
    assert "1 run selected" in said(app)
    app.checkbox[0].check().run()
    assert f"{total:,} runs selected" in said(app)
    press(app, f"Hide {total:,}")
    assert not app.exception
    assert run_page(thousands, RunFilter(visibility="hidden")).total == total


def test_selected_rows_stay_when_a_new_run_appears_and_are_cleared_when_a_listed_run_is_deleted(several):
    db, ids = several
    app = select(open_page("home"), ids[3])
    before = list_ids(app)
    newer = create_run(db, CONFIG, target_steps=10, versions={}, name="newer")
    app.run()
    assert list_ids(app) == before
    app.button(key="act-archive").click().run()
    assert find_run(db, ids[3]).archived_at is not None
    assert find_run(db, newer).archived_at is None
    app = select(open_page("home"), ids[0], ids[1])
    remove_run(db, ids[0])
    app.run()
    assert not app.exception
    assert list_actions(app) == []


def test_a_read_only_server_disables_the_actions(several, use_database, monkeypatch):
    db, ids = several
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    use_database(db.path)
    app = select(open_page("home"), ids[0])
    assert not app.exception
    assert list_actions(app)
    assert not any(list_actions(app))
    assert [form.label for form in app.button if form.label.startswith(("Tag", "Save")) and not form.disabled] == []


def test_a_queued_run_is_stopped_and_a_finished_run_is_not(several):
    db, ids = several
    queued = create_run(db, CONFIG, target_steps=10, versions={}, sweep_id="s1")
    app = open_page("home")
    assert list_ids(app)[0] == queued
    select(app, queued, ids[0])
    app.button(key="act-stop").click().run()
    assert not app.exception
    assert find_run(db, queued).status == "stopped"
    assert find_run(db, ids[0]).status == "finished"


def test_a_saved_view_has_search_order_and_columns_and_is_an_entry_of_the_notebook(several):
    db, _ = several
    app = open_page("home", q="corridor", sort="mu_w", page="1")
    assert "tags" in app.dataframe[0].proto.column_order
    app.session_state[OPENED_BOX] = "run_columns"
    app.run().pills(key="home?columns").set_value(["seed", "mu_w"]).run()
    assert list(app.dataframe[0].proto.column_order) == ["name", "seed", "mu_w"]
    app.session_state[OPENED_BOX] = "saved_views"
    app.run()
    field = next(field for field in app.text_input if str(field.key).startswith("saved_view-"))
    field.set_value("Corridor <b>")
    app.button(key="save_view").click().run()
    assert not app.exception
    (entry,) = list_entries(db)
    view = read_view(entry.view)
    assert view is not None
    assert (entry.title, view.page) == ("Corridor <b>", "home")
    assert view.query == {"q": ["corridor"], "sort": ["mu_w"], "columns": ["seed,mu_w"]}
    (link,) = (link.proto for link in app.get("page_link") if "Corridor" in link.proto.label)
    assert parse_qs(link.query_string) == view.query
    assert open_page("notebook", entry=str(entry.id)).exception == []


def test_runs_are_filtered_by_status_and_an_unfinished_one_shows_its_progress(several):
    db, ids = several
    failed = create_run(db, CONFIG, target_steps=1000, versions={})
    finish_run(db, failed, "failed")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == failed).values(env_steps=250))
    app = open_page("home")
    statuses = app.dataframe[0].value.set_index("id")["status"]
    assert statuses[failed].endswith("25 %")
    assert "%" not in statuses[ids[0]]
    app.pills(key="home?states").set_value(["failed"]).run()
    assert not app.exception
    assert list_ids(app) == [failed]
    assert read_address(app)["states"] == "failed"


def test_a_row_shows_the_final_rate_the_curve_the_age_and_the_training_time_without_pauses(several):
    db, ids = several
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"started_at": start, "ended_at": start + timedelta(seconds=100)}
    pause = {"run_id": ids[0], "command": "pause", "requested_at": start}
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == ids[0]).values(**times))
        for command, second in (("pause", 20), ("resume", 60)):
            at = start + timedelta(seconds=second)
            connection.execute(insert(CommandRow), [pause | {"command": command, "acknowledged_at": at}])
    app = open_page("home", columns="final_rate,curve,age,duration")
    assert not app.exception
    assert not app.pills, "all runs have one status"
    table = app.dataframe[0]
    row = table.value.set_index("id").loc[ids[0]]
    assert row["duration"] == "1 min 00 s"
    assert row["final_rate"] == 100 * read_final_rates(db, ids)[ids[0]].rate
    assert "greedy" in json.loads(table.proto.columns)["final_rate"]["type_config"]["format"]
    assert list(row["curve"]) == pytest.approx([0, 0.225, 0.45, 0.675, 0.9])
    assert row["age"] == row["created_at"]
