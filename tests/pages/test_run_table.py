"""Home's table of all runs: pages, search, filters and order from the URL, and actions on selected rows."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from sqlalchemy import insert, update
from streamlit.testing.v1 import AppTest

from app.analysis.format import MISSING
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
from storage.runs.rows import find_run
from tests.bench.queries import fill_table
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
    """emtc-qplex and qmix on 3m and corridor, two seeds each; no run is active."""
    db = use_database(tmp_path / "several.db")
    return db, seed_runs(db)


def open_home(**query: str) -> AppTest:
    app = start_app()
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def listed(app: AppTest) -> list[str]:
    return app.dataframe[0].value["id"].tolist()


def select(app: AppTest, *run_ids: str) -> AppTest:
    rows = [listed(app).index(run_id) for run_id in run_ids]
    app.session_state["run_table"] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


def labels(app: AppTest) -> dict[str, bool]:
    """Return the labels of the action buttons, and whether each is enabled."""
    return {button.label: not button.disabled for button in app.button if str(button.key).startswith("act-")}


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def test_thousands_of_runs_are_counted_paged_and_found(thousands):
    app = open_home()
    assert not app.exception
    assert "1–25 of 5,000 runs" in said(app)
    assert len(listed(app)) == 25
    app.text_input(key="home?q").set_value("second seed=2").run()
    expected = matching_ids(thousands, RunFilter(text="second seed=2"))
    assert f"{len(expected)} runs" in said(app)
    assert listed(app) == expected[:25]
    app.session_state[OPENED_BOX] = "run_picker_box-0"
    app.run()
    assert f"{run_picker.MAX_LISTED} of 5,000 runs are listed, the newest" in "\n".join(
        caption.value for caption in app.sidebar.caption
    )
    app.text_input(key="run_search").set_value("r00007").run()
    assert not app.exception
    assert app.query_params["run"] == "r00007", "the only matching run is selected"
    assert "run_picker_list" not in str([part.proto.id for part in app.get("bidi_component")]), "the list is closed"


def test_closed_filters_are_not_drawn_unless_one_is_set(seeded):
    app = open_home()
    assert not app.multiselect
    app.session_state[OPENED_BOX] = "run_filters"
    assert [box.label for box in app.run().multiselect] == ["Environment", "Map", "Algorithm", "Preset", "Tag"]
    db, _ = seeded
    app = open_home(maps=str(run_page(db).frame["map"].iloc[0]))
    assert len(app.run().multiselect) == 5, "the filters of the address stay"


@pytest.mark.parametrize("page", ["live", "memory", "replay", "compare"])
def test_the_other_pages_open_beside_thousands_of_runs(thousands, page):
    app = open_page(page, q="second seed=2")
    assert not app.exception
    evaluated = run_page(thousands, RunFilter(text="second seed=2", evaluated=True)).total
    assert page != "compare" or f"Evaluated runs that match: {evaluated}." in said(app)


def test_the_url_contains_the_view(thousands):
    app = open_home(sort="mu_w", maps="corridor", algos="qmix", states="finished", page="2")
    assert not app.exception
    wanted = RunFilter(maps=("corridor",), algos=("qmix",), statuses=("finished",))
    assert listed(app) == matching_ids(thousands, wanted, sort="-mu_w")[25:50]
    assert app.dataframe[0].value["algo"].unique().tolist() == ["QMIX"]


def test_a_page_number_beyond_the_last_opens_the_last_page(thousands):
    app = open_home(page="4000")
    assert not app.exception
    assert listed(app) == matching_ids(thousands, RunFilter())[-25:]


def test_a_search_starts_at_the_first_page(several):
    app = open_home(q="corridor")
    assert sorted(listed(app)) == ["r0002", "r0003", "r0006", "r0007"]
    app.text_input(key="home?q").set_value("gate.enable=false").run()
    assert [error.value for error in app.error] == [
        'gate\\.enable is not a setting or column\\. Did you mean "gate\\.enabled"?'
    ]
    app.text_input(key="home?q").set_value("nowhere").run()
    assert not app.exception
    assert any("No run matches" in info.value for info in app.info)


@pytest.mark.parametrize(
    "query",
    [
        {"q": "<script>", "sort": "'; DROP TABLE runs", "page": "1e999", "states": "**", "shelf": "attic"},
        {"q": '"' * 300, "page": "-7", "tags": "a,b", "maps": "%", "down": "perhaps"},
    ],
)
def test_invalid_values_in_the_url_are_ignored(several, query):
    app = open_home(**query)
    assert not app.exception
    assert run_page(several[0]).total == 8


def test_only_selected_runs_are_tagged(several):
    db, ids = several
    tag_runs(db, ids[:1], add=["old"])
    app = select(open_home(), ids[0], ids[1])
    assert "2 runs selected" in said(app)
    app.multiselect(key="tag-add").set_value(["paper"])
    app.multiselect(key="tag-remove").set_value(["old"])
    press(app, "Tag 2 runs")
    assert not app.exception
    assert [find_run(db, run_id).tags for run_id in ids[:3]] == [["paper"], ["paper"], []]


def test_one_selected_run_can_be_renamed_and_several_get_a_line_in_their_notes(several):
    db, ids = several
    app = select(open_home(), ids[0])
    app.text_input(key=f"name-{ids[0]}").set_value("The good one")
    app.text_area(key=f"note-{ids[0]}").set_value("seed of the *appendix*")
    press(app, "Save for 1 run")
    assert (find_run(db, ids[0]).name, find_run(db, ids[0]).notes) == ("The good one", "seed of the *appendix*")
    app = select(open_home(), ids[0], ids[1])
    app.text_area(key="note-many").set_value("again")
    press(app, "Save for 2 runs")
    assert find_run(db, ids[0]).notes == "seed of the *appendix*\nagain"
    assert find_run(db, ids[1]).notes == "again"


def test_archived_runs_are_not_listed_and_can_be_restored(several):
    db, ids = several
    app = select(open_home(), ids[0], ids[1])
    press(app, "Archive 2")
    assert not app.exception
    assert "6 runs" in said(app)
    assert not {ids[0], ids[1]} & set(listed(app))
    assert labels(app) == {}, "nothing is selected"
    app = select(open_home(shelf="archived"), ids[0])
    press(app, "Restore 1")
    assert run_page(db).total == 7
    app = select(open_home(), ids[2])
    press(app, "Hide 1")
    assert run_page(db, RunFilter(visibility="drawn")).total == 6
    assert any("%28hidden%29" in name for name in open_home().dataframe[0].value["name"])


def test_deletion_lists_the_data_and_needs_a_second_press(several):
    db, ids = several
    app = select(open_home(), ids[0], ids[1])
    press(app, "Delete 2 …")
    assert run_page(db).total == 8
    text = said(app).replace("\\", "")
    assert "Permanently deletes **2 runs**: 80,203 transitions in 0 episodes, 10 evaluations" in text
    assert f"(`{ids[0]}`)" in text
    press(app, "Delete 2 runs permanently")
    assert not app.exception
    assert sorted(list_runs(db)["id"]) == ids[2:]
    assert "Deleted 2 runs" in said(app)
    assert labels(app) == {}, "nothing is selected"


def test_the_result_of_an_action_is_shown_if_no_run_matches_any_more(several):
    db, ids = several
    tag_runs(db, ids[:1], add=["old"])
    app = select(open_home(q="tag=old"), ids[0])
    press(app, "Delete 1 …")
    press(app, "Delete 1 run permanently")
    assert not app.dataframe
    assert "Deleted 1 run" in said(app)


def test_a_requested_deletion_is_dropped_when_another_run_is_selected(several):
    db, ids = several
    app = press(select(open_home(), ids[0]), "Delete 1 …")
    select(app, ids[1])
    assert not any("permanently" in button.label for button in app.button)
    assert run_page(db).total == 8


def test_button_labels_count_the_runs_on_other_pages(thousands):
    app = open_home(q="second")
    total = run_page(thousands, RunFilter(text="second")).total
    assert total > 50
    app = select(app, listed(app)[0])
    assert "1 run selected" in said(app)
    next(box for box in app.checkbox if box.label == f"Select all {total:,} matching runs").check().run()
    assert f"{total:,} runs selected" in said(app)
    press(app, f"Hide {total:,}")
    assert not app.exception
    assert run_page(thousands, RunFilter(visibility="hidden")).total == total


def test_selected_rows_stay_when_a_new_run_appears(several):
    db, ids = several
    app = select(open_home(), ids[3])
    before = listed(app)
    create_run(db, CONFIG, target_steps=10, versions={}, name="newer")
    app.run()
    assert listed(app) == before
    press(app, "Archive 1")
    assert find_run(db, ids[3]).archived_at is not None
    assert find_run(db, list_runs(db)["id"].iloc[0]).archived_at is None


def test_the_deletion_of_a_listed_run_clears_the_selection(several):
    from storage.runs.removal import remove_run

    db, ids = several
    app = select(open_home(), ids[0], ids[1])
    remove_run(db, ids[0])
    app.run()
    assert not app.exception
    assert labels(app) == {}


def test_a_read_only_server_disables_the_actions(several, use_database, monkeypatch):
    db, ids = several
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    use_database(db.path)
    app = select(open_home(), ids[0])
    assert not app.exception
    assert labels(app)
    assert not any(labels(app).values())
    assert [form.label for form in app.button if form.label.startswith(("Tag", "Save")) and not form.disabled] == []


def test_a_queued_run_is_stopped_and_a_finished_run_is_not(several):
    db, ids = several
    queued = create_run(db, CONFIG, target_steps=10, versions={}, sweep_id="s1")
    app = open_home()
    assert listed(app)[0] == queued
    select(app, queued, ids[0])
    press(app, "Stop 1")
    assert not app.exception
    assert find_run(db, queued).status == "stopped"
    assert find_run(db, ids[0]).status == "finished"


@pytest.mark.parametrize("page", ["home", "disk"])
def test_the_column_of_names_is_wide_enough_for_the_seed_at_their_end(seeded, page):
    table = open_page(page).dataframe[0]
    width = json.loads(table.proto.columns)["name"]["width"]
    assert {"medium": 200, "large": 400}.get(width, width) >= 5.6 * len("First study A: 3s_vs_5z · No-TCGM · seed 3")


def test_the_shown_columns_are_in_the_url(several):
    app = open_home()
    assert list(app.dataframe[0].proto.column_order)[:2] == ["status", "name"]
    assert "tags" in app.dataframe[0].proto.column_order
    app.session_state[OPENED_BOX] = "run_columns"
    app.run().pills(key="home?columns").set_value(["mu_w", "duration"]).run()
    assert not app.exception
    assert list(app.dataframe[0].proto.column_order) == ["name", "duration", "mu_w"]
    assert app.query_params["columns"] in ("mu_w,duration", ["mu_w,duration"])


def test_a_saved_view_has_search_order_and_columns_and_is_an_entry_of_the_notebook(several):
    db, _ = several
    app = open_home(q="corridor", sort="mu_w", columns="seed,tags", page="1")
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
    assert view.query == {"q": ["corridor"], "sort": ["mu_w"], "columns": ["seed,tags"]}
    (link,) = (link.proto for link in app.get("page_link") if "Corridor" in link.proto.label)
    assert parse_qs(link.query_string) == view.query
    assert open_page("notebook", entry=str(entry.id)).exception == []


def test_statuses_are_buttons_with_counts_and_filter_the_table(several):
    db, _ = several
    failed = create_run(db, CONFIG, target_steps=1000, versions={})
    finish_run(db, failed, "failed")
    app = open_home()
    app.pills(key="home?states").set_value(["failed"]).run()
    assert not app.exception
    assert listed(app) == [failed]
    assert app.query_params["states"] in ("failed", ["failed"])


def test_the_status_of_an_unfinished_run_has_its_progress(several):
    db, ids = several
    failed = create_run(db, CONFIG, target_steps=1000, versions={})
    finish_run(db, failed, "failed")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == failed).values(env_steps=250))
    rows = open_home().dataframe[0].value.set_index("id")
    assert rows.loc[failed, "status"].endswith("25 %")
    assert "%" not in rows.loc[ids[0], "status"]


def test_home_shows_the_final_rate_and_the_training_time_without_pauses(several):
    db, ids = several
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"started_at": start, "ended_at": start + timedelta(seconds=100)}
    pause = {"run_id": ids[0], "command": "pause", "requested_at": start}
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == ids[0]).values(**times))
        for command, second in (("pause", 20), ("resume", 60)):
            at = start + timedelta(seconds=second)
            connection.execute(insert(CommandRow), [pause | {"command": command, "acknowledged_at": at}])
    table = open_home(columns="final_rate,duration").dataframe[0]
    row = table.value.set_index("id").loc[ids[0]]
    assert row["duration"] == "1 min 00 s"
    assert row["final_rate"] == 100 * read_final_rates(db, ids)[ids[0]].rate
    assert "greedy" in json.loads(table.proto.columns)["final_rate"]["type_config"]["format"]


def test_home_offers_a_new_run_first_and_shows_the_curve_and_age_of_each_run(seeded):
    app = open_home()
    assert not app.exception
    assert not app.pills, "all runs have one status"
    kinds = {button.key: button.proto.type for button in app.button}
    assert kinds["new_run"] == "primary"
    assert not kinds.keys() & {"start_demo", "open_example", "take_tour"}, "they are on Guide once there are runs"
    assert app.dataframe[0].proto.placeholder == MISSING
    row = app.dataframe[0].value.iloc[0]
    assert len(row["curve"]) >= 1
    assert row["age"] == row["created_at"]
    app.button(key="new_run").click().run()
    assert app.title[0].value == "Launch"
