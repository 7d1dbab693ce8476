"""A run's own page: its whole configuration, what it differs in, and the form that starts it once more."""

from dataclasses import replace

import numpy as np
import pytest
import streamlit as st
from sqlalchemy import insert, update

from app.analysis.intervals import compute_score_interval
from app.jobs.launch_request import check_request
from app.ui.run.settings import make_rows, search_rows
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from storage.files import run_folder
from storage.models import MetricRow, Run
from storage.runs.changes import add_policy_evaluation
from storage.runs.labels import edit_run
from storage.runs.rows import find_run
from tests.pages.seed import seed_failed_run, seed_run
from tests.pages.test_launch import address
from tests.pages.test_pages import open_page, said
from tests.storage.records import make_evaluation

MAPS = {"skirmish": ["3m"]}


def settings_of(app):
    return app.dataframe[0].value.set_index("Setting")


def test_every_setting_stands_with_its_value_its_presets_and_its_meaning(seeded):
    app = open_page("run", run=seeded[1])
    assert not app.exception
    rows = settings_of(app)
    config = flatten(config_from_stored(find_run(*seeded).config))
    assert set(rows.index) < set(config)
    left_out = {key.rpartition(".")[0] for key in set(config) - set(rows.index)}
    assert left_out > {"env.grf", "env.pettingzoo", "cds", "mappo"}, "sections that this run does not read"
    assert not left_out & {"", "env", "env.skirmish", "train", "memory", "gate", "incentive", "embed", "qplex"}
    assert (rows.loc["gate.tau_start", "Value"], rows.loc["gate.tau_start", "Preset's"]) == ("1", "1.2")
    assert rows.index[rows["Mark"] == "≠ preset"].tolist() == ["gate.tau_start", "gate.tau_end"]
    assert rows["Meaning"].str.len().min() > 5


def test_settings_are_searched_and_only_what_differs_can_be_listed(seeded):
    app = open_page("run", run=seeded[1], list="preset")
    assert settings_of(app).index.tolist() == ["gate.tau_start", "gate.tau_end"]
    app.text_input(key="run?find").set_value("TAU end").run()
    assert settings_of(app).index.tolist() == ["gate.tau_end"]
    assert app.query_params["find"] == "TAU end"
    app.text_input(key="run?find").set_value("nowhere at all").run()
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
    for words in ("204 of 2,000 env steps", "Last greedy win rate | 50 %", "EMTC Lab test"):
        assert words in text
    assert "Resumed" not in text
    assert app.code[0].value.splitlines() == [
        "emtc train --env skirmish --map 3m --algo emtc-qplex \\",
        "  --steps 2000 --seed 1 --set preset=demo \\",
        "  --set gate.tau_start=1 --set gate.tau_end=1",
    ]


def test_evaluated_policies_stand_in_a_table_with_their_interval(seeded):
    db, run_id = seeded
    assert "Policy evaluations" not in said(open_page("run", run=run_id))
    for wins, settings in ((3, {}), (1, {"env.skirmish.spawn_jitter": 0.5})):
        record = replace(make_evaluation(200, wins=wins), distinct=3)
        add_policy_evaluation(db, run_id, record, seed=9, settings=settings)
    st.cache_data.clear()
    app = open_page("run", run=run_id)
    assert "Policy evaluations" in [each.value for each in app.subheader]
    table = app.dataframe[0].value
    assert table["Win rate"].tolist() == ["25.0 %", "75.0 %"]
    assert table["Environment settings"].tolist() == ["env.skirmish.spawn_jitter = 0.5", "as in training"]
    assert table["Episodes"].tolist() == ["4 (3 distinct)", "4 (3 distinct)"]
    low, high = compute_score_interval(np.array(0.75), 3)
    assert table["95 % interval"][1] == f"{100 * low:.1f} % to {100 * high:.1f} %"


def test_the_code_the_machine_and_what_was_not_committed_stand_on_the_page(seeded):
    db, run_id = seeded
    versions = {
        "emtc_lab": "0.1.0", "commit": "c0ffee", "dirty": True, "diff": "0123abcd", "source": "5051ce",
        "torch": "2.13.0",
        "modules": {"her_game": "beef"}, "patched": ["emtc_core.x.VdnMixer.forward by her_game"],
        "hardware": {"cpu": "Fast <b>CPU</b>", "cores": "2 cores", "memory": "8 GiB"},
    }  # fmt: skip
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(versions=versions))
    folder = run_folder(db, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code-0123abcd.diff").write_text("-tau = 1\n+tau = 2\n")
    app = open_page("run", run=run_id)
    assert not app.exception
    text = said(app).replace("\\", "")
    for words in (
        "c0ffee, with uncommitted changes (0123abcd)", "5051ce", "her_game (beef)", "torch 2.13.0",
        "emtc_core.x.VdnMixer.forward by her_game", "Fast <b>CPU</b>, 2 cores, 8 GiB",
    ):  # fmt: skip
        assert words in text
    assert "+tau = 2" in app.code[1].value


def test_a_clone_carries_every_setting_into_launch(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.button(key="clone_run").click().run()
    assert app.title[0].value == "Launch"
    assert not app.button(key="start").disabled
    assert app.text_input(key="set-gate.tau_start").value == "1"
    texts = {name: text for name, text in address(app).items() if name != "run"}
    run = find_run(db, run_id)
    assert check_request(texts, MAPS).config == config_from_stored(run.config)
    assert texts["name"] == f"Clone of {run.name}", "a clone names its origin"


def test_a_clone_of_a_run_with_an_automatic_name_gets_a_name_of_its_own_values(seeded):
    db, run_id = seeded
    edit_run(db, run_id, name="emtc-qplex 3m seed 1", notes="")
    app = open_page("run", run=run_id)
    app.button(key="clone_run").click().run()
    texts = address(app)
    assert "name" not in texts
    app = open_page("launch", **{**texts, "seeds": "2"})
    assert app.text_input(key="launch_name").placeholder == "emtc-qplex 3m seed 2"


def test_a_duplicate_has_the_smallest_seed_that_is_not_used(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.button(key="duplicate_run").click().run()
    assert not app.button(key="start").disabled
    texts = {name: text for name, text in address(app).items() if name != "run"}
    run = find_run(db, run_id)
    assert check_request(texts, MAPS).config == config_from_stored({**run.config, "seed": 2})
    assert texts["name"] == f"{run.name}, seed 2"


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


def test_a_note_that_is_not_saved_stays_until_the_stored_note_changes(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.text_area(key=f"run-note-{run_id}").set_value("not saved").run()
    app.switch_page("../pages/guide.py").run()
    app.switch_page("../pages/run.py").run()
    assert app.text_area(key=f"run-note-{run_id}").value == "not saved"
    edit_run(db, run_id, name="Seeded run", notes="of another user")
    assert app.run().text_area(key=f"run-note-{run_id}").value == "of another user"


def test_a_run_of_another_version_shows_what_this_one_does_not_know():
    known = flatten(resolve(preset="demo"))
    rows = make_rows({**known, "gate.colour": "red"}, known).set_index("Setting")
    assert (rows.loc["gate.colour", "Value"], rows.loc["gate.colour", "Meaning"]) == (
        "red",
        "No setting of this version.",
    )
    assert len(search_rows(rows.reset_index(), "colour RED")) == 1


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_run_in_any_state_has_its_page(empty, status):
    run_id = seed_failed_run(empty) if status == "failed" else seed_run(empty, status="running")
    app = open_page("run", run=run_id)
    assert not app.exception
    if status == "failed":
        assert "could not be started" in said(app)
        assert any("\\<b\\>run" in str(part.value) for part in app.markdown)


def test_names_on_home_lead_to_the_run(seeded):
    _, run_id = seeded
    cell = open_page("home").dataframe[0].value["name"].iloc[0]
    assert cell == f"run?called=Seeded%20run&run={run_id}"


def test_what_the_trainer_took_of_its_machine_is_drawn_over_time(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    assert "No data:" in said(app)
    with db.transaction() as connection:
        rows = [
            {"run_id": run_id, "env_step": step, "name": name, "value": value * step}
            for step in (100, 200)
            for name, value in (("machine/cpu_percent", 0.5), ("machine/memory_bytes", 1e6))
        ]
        connection.execute(insert(MetricRow), rows)
    app = open_page("run", run=run_id)
    assert not app.exception
    assert "CPU percent\\: CPU time of the trainer" in said(app)
    assert "GPU" not in said(app).partition("Machine over time")[0].partition("CPU percent")[2]
    assert "No data:" not in said(app)
