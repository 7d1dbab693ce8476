"""A run's own page: its whole configuration, what it differs in, and the form that starts it once more."""

from dataclasses import replace

import numpy as np
import pytest
import streamlit as st
from sqlalchemy import insert, update

from app.analysis.intervals import compute_score_interval
from app.jobs.launch_request import check_request
from emtc_core.config.resolve import config_from_stored, flatten
from storage.files import run_folder
from storage.models import MetricRow, Run
from storage.runs.changes import add_policy_evaluation
from storage.runs.labels import edit_run
from storage.runs.rows import find_run
from tests.pages.seed import seed_run
from tests.pages.test_launch import address
from tests.pages.test_pages import open_page, said
from tests.storage.records import make_evaluation

MAPS = {"skirmish": ["3m"]}


def settings_of(app):
    return app.dataframe[0].value.set_index("Setting")


def test_every_setting_has_its_value_its_preset_and_its_meaning_and_can_be_searched(seeded):
    db, run_id = seeded
    config = flatten(config_from_stored(find_run(db, run_id).config))
    with db.transaction() as connection:
        connection.exec_driver_sql("UPDATE runs SET config = json_set(config, '$.gate.colour', 'red')")
    app = open_page("run", run=run_id)
    assert not app.exception
    rows = settings_of(app)
    assert set(rows.index) < {*config, "gate.colour"}
    left_out = {key.rpartition(".")[0] for key in set(config) - set(rows.index)}
    assert left_out > {"env.grf", "env.pettingzoo", "cds", "mappo"}, "sections that this run does not read"
    assert not left_out & {"", "env", "env.skirmish", "train", "memory", "gate", "incentive", "embed", "qplex"}
    assert (rows.loc["gate.tau_start", "Value"], rows.loc["gate.tau_start", "Preset's"]) == ("1", "1.2")
    assert rows["Meaning"].str.len().min() > 5
    app = open_page("run", run=run_id, list="preset")
    changed = ["gate.tau_start", "gate.tau_end", "gate.colour"]
    assert settings_of(app).index.tolist() == changed == rows.index[rows["Mark"] == "≠ preset"].tolist()
    app.text_input(key="run?find").set_value("TAU end").run()
    assert settings_of(app).index.tolist() == ["gate.tau_end"]
    assert app.query_params["find"] == "TAU end"
    app.text_input(key="run?find").set_value("colour RED").run()
    assert settings_of(app)["Meaning"].tolist() == ["No setting of this version."]
    app.text_input(key="run?find").set_value("nowhere at all").run()
    assert "No setting matches" in said(app)


def test_the_settings_that_differ_from_another_run_are_listed(seeded):
    db, run_id = seeded
    bare = seed_run(db, name="Bare", gate="none")
    app = open_page("run", run=run_id, beside=bare, list="other")
    rows = settings_of(app)
    assert (rows.loc["algo", "Value"], rows.loc["algo", "Other"]) == ("emtc-qplex", "qplex")
    assert rows.loc["gate.enabled", "Other"] == "false"
    assert "gate.tau_start" not in rows.index


def test_a_run_shows_its_result_and_the_command_that_repeats_it(seeded):
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


def test_evaluated_policies_are_listed_with_their_interval(seeded):
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


def test_a_run_shows_its_code_with_uncommitted_changes_and_its_machine(seeded):
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


@pytest.mark.parametrize(
    ("button", "name", "seed", "copied_name"),
    [
        ("clone_run", "Seeded run", 1, "Clone of Seeded run"),
        ("clone_run", "emtc-qplex 3m seed 1", 1, None),
        ("duplicate_run", "Seeded run", 2, "Seeded run, seed 2"),
    ],
    ids=["clone", "clone of a run with an automatic name", "duplicate with the smallest unused seed"],
)
def test_a_copy_of_a_run_is_the_launch_form_with_all_its_settings(seeded, button, name, seed, copied_name):
    db, run_id = seeded
    edit_run(db, run_id, name=name, notes="")
    app = open_page("run", run=run_id)
    app.button(key=button).click().run()
    assert app.title[0].value == "Launch"
    assert not app.button(key="start").disabled
    assert app.text_input(key="set-gate.tau_start").value == "1"
    texts = {field: text for field, text in address(app).items() if field != "run"}
    assert check_request(texts, MAPS).config == config_from_stored({**find_run(db, run_id).config, "seed": seed})
    assert texts.get("name") == copied_name
    app = open_page("launch", **{**texts, "seeds": "3"})
    assert app.text_input(key="launch_name").placeholder == "emtc-qplex 3m seed 3"


def test_name_tags_and_note_are_kept_as_typed_until_they_are_saved_or_changed_elsewhere(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    app.text_area(key=f"run-note-{run_id}").set_value("It *works*.").run()
    app.switch_page("../pages/guide.py").run()
    app.switch_page("../pages/run.py").run()
    assert app.text_area(key=f"run-note-{run_id}").value == "It *works*."
    app.text_input(key=f"run-name-{run_id}").set_value("Better")
    app.multiselect(key=f"run-tags-{run_id}").set_value(["paper"])
    app.button(key="run-keep").click().run()
    run = find_run(db, run_id)
    assert (run.name, run.tags, run.notes) == ("Better", ["paper"], "It *works*.")
    assert "It \\*works\\*\\." in said(app)
    app.text_area(key=f"run-note-{run_id}").set_value("not saved").run()
    edit_run(db, run_id, name="Better", notes="of another user")
    assert app.run().text_area(key=f"run-note-{run_id}").value == "of another user"


def test_the_use_of_the_machine_is_drawn_over_time(seeded):
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
