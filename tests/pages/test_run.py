"""A run's own page: its whole configuration, what it differs in, and the form that starts it once more."""

import pytest

from app.jobs.launch_request import check
from app.ui.run.settings import find_rows, make_rows
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from storage.runs.rows import find_run
from tests.pages.seed import seed_failed_run, seed_run
from tests.pages.test_launch import address
from tests.pages.test_pages import open_page, said

MAPS = {"skirmish": ["3m"]}


def settings_of(app):
    return app.dataframe[0].value.set_index("Setting")


def test_every_setting_stands_with_its_value_its_presets_and_its_meaning(seeded):
    app = open_page("run", run=seeded[1])
    assert not app.exception
    rows = settings_of(app)
    config = flatten(config_from_stored(find_run(*seeded).config))
    assert set(rows.index) == set(config)
    assert (rows.loc["gate.tau_start", "Value"], rows.loc["gate.tau_start", "Preset's"]) == ("1", "1.2")
    assert rows.index[rows["Mark"] == "≠ preset"].tolist() == ["gate.tau_start", "gate.tau_end"]
    assert rows["Meaning"].str.len().min() > 5


def test_settings_are_searched_and_only_what_differs_can_be_listed(seeded):
    app = open_page("run", run=seeded[1], list="preset")
    assert settings_of(app).index.tolist() == ["gate.tau_start", "gate.tau_end"]
    app.text_input(key="run-find").set_value("TAU end").run()
    assert settings_of(app).index.tolist() == ["gate.tau_end"]
    assert app.query_params["find"] == "TAU end"
    app.text_input(key="run-find").set_value("nowhere at all").run()
    assert "No setting matches" in said(app)


def test_another_run_stands_beside_and_what_differs_is_marked(seeded):
    db, run_id = seeded
    bare = seed_run(db, name="Bare", gate="none")
    app = open_page("run", run=run_id, beside=bare, list="other")
    rows = settings_of(app)
    assert (rows.loc["algo", "Value"], rows.loc["algo", "Other"]) == ("emtc-qplex", "qplex")
    assert rows.loc["gate.enabled", "Other"] == "false"
    assert "gate.tau_start" not in rows.index


def test_what_it_was_and_the_command_that_repeats_it(seeded):
    app = open_page("run", run=seeded[1])
    text = said(app).replace("\\", "")
    for words in ("204 of 2,000 env steps", "win rate 50 %", "EMTC Lab test", "Never."):
        assert words in text
    assert app.code[0].value == (
        "emtc train --env skirmish --map 3m --algo emtc-qplex --steps 2000 --seed 1 --set preset=demo "
        "--set gate.tau_start=1 --set gate.tau_end=1"
    )


def test_a_clone_carries_every_setting_into_launch(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.button(key="clone_run").click().run()
    assert app.title[0].value == "Launch"
    assert not app.button(key="start").disabled
    assert app.text_input(key="set-gate.tau_start").value == "1"
    texts = {name: text for name, text in address(app).items() if name != "run"}
    assert check(texts, MAPS).config == config_from_stored(find_run(db, run_id).config)


def test_name_tags_and_note_are_kept(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.text_input(key=f"run-name-{run_id}").set_value("Better")
    app.multiselect(key=f"run-tags-{run_id}").set_value(["paper"])
    app.text_area(key=f"run-note-{run_id}").set_value("It *works*.")
    app.button(key="run-keep").click().run()
    run = find_run(db, run_id)
    assert (run.name, run.tags, run.notes) == ("Better", ["paper"], "It *works*.")
    assert "It \\*works\\*\\." in said(app)


def test_a_run_of_another_version_shows_what_this_one_does_not_know():
    known = flatten(resolve(preset="demo"))
    rows = make_rows({**known, "gate.colour": "red"}, known).set_index("Setting")
    assert (rows.loc["gate.colour", "Value"], rows.loc["gate.colour", "Meaning"]) == (
        "red",
        "No setting of this version.",
    )
    assert len(find_rows(rows.reset_index(), "colour RED")) == 1


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_run_in_any_state_has_its_page(empty, status):
    run_id = seed_failed_run(empty) if status == "failed" else seed_run(empty, status="running")
    app = open_page("run", run=run_id)
    assert not app.exception
    if status == "failed":
        assert "could not be started" in said(app)
        assert "\\<b\\>run" in str(app.get("page_link")[0].proto.label)


def test_names_on_home_lead_to_the_run(seeded):
    _, run_id = seeded
    cell = open_page("home").dataframe[0].value["name"].iloc[0]
    assert cell == f"run?called=Seeded%20run&run={run_id}"
