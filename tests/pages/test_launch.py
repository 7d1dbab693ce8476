"""Launch: what is typed is what is checked, marked at its field, and kept in the address."""

from importlib.machinery import PathFinder

import pytest

from app.jobs import launch
from app.ui import data
from app.ui.launch.form import MORE_PRESETS
from emtc_core.config.run import PRESETS
from emtc_core.envs import smax
from storage.queries.runs import list_runs
from storage.runs.sweeps import list_sweeps, sweep_runs
from tests.pages.test_pages import open_page, said


def plain(app) -> str:
    return said(app).replace("\\", "")


def address(app) -> dict[str, str]:
    """The address as a reader sees it; the tool has lists where a test wrote it."""
    return {name: text if isinstance(text, str) else text[0] for name, text in app.query_params.items()}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"steps": "-5"}, "(got -5)"),
        ({"seeds": "one"}, "1,2,5"),
        ({"map": "2s4z"}, '"2s3z"'),
        ({"algo": "dqn"}, "'dqn'"),
        ({"preset": "x"}, "'x'"),
        ({"also": "qplex,dqn"}, "'dqn'"),
        ({"gate.tau_end": "9"}, "<= gate.tau_start"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_invalid_value_of_a_link_is_marked_at_its_field_and_starts_nothing(empty, query, words):
    app = open_page("launch", **query)
    assert not app.exception
    assert [words in error.value.replace("\\", "") for error in app.error] == [True], "next to Start"
    marked = [part.value for part in app.markdown if str(part.value).startswith(":red[:material/error:")]
    assert [words in text.replace("\\", "") for text in marked] == [True], "under its field"
    assert app.button(key="start").disabled


def test_a_corrected_length_enables_start_and_a_wrong_one_that_is_still_sent_starts_nothing(empty, monkeypatch):
    monkeypatch.setattr(launch, "spawn", lambda *args, **named: pytest.fail("a trainer was started"))
    app = open_page("launch", steps="-5")
    assert app.button(key="start").disabled
    app.text_input(key="steps").set_value("5k").run()
    assert not app.error
    assert not app.button(key="start").disabled
    app.text_input(key="steps").set_value("-5")
    app.button(key="start").click().run()
    assert not app.exception
    assert ["(got -5)" in error.value.replace("\\", "") for error in app.error] == [True]
    assert len(list_runs(empty)) == 0


def test_a_link_fills_the_whole_form_and_starts_a_sweep_of_its_algorithms_and_seeds(empty, monkeypatch):
    started = []
    monkeypatch.setattr(
        "app.jobs.sweeps.control.start_in_background", lambda db, sweep_id, jobs: started.append(sweep_id)
    )
    query = {"algo": "emtc-qmix", "also": "qplex,vdn", "map": "2s3z", "steps": "12345", "seeds": "1,2", "name": "Six"}
    app = open_page("launch", **query, **{"gate.tau_end": "0.3", "gate.mode": "recompute", "train.double_q": "false"})
    assert app.selectbox(key="algo").value == "emtc-qmix"
    assert "EMTC(QMIX)" in app.selectbox(key="algo").options
    assert app.multiselect(key="also").value == ["qplex", "vdn"]
    assert app.selectbox(key="map-skirmish").value == "2s3z"
    assert app.text_input(key="seeds").value == "1,2"
    assert app.text_input(key="set-gate.tau_end").value == "0.3"
    assert app.selectbox(key="set-gate.mode").value == "recompute"
    assert app.toggle(key="set-train.double_q").value is False
    assert "6 runs" in app.button(key="start").label
    app.button(key="start").click().run()
    assert not app.exception
    assert app.title[0].value == "Sweeps"
    (sweep,) = list_sweeps(empty)
    assert (started, sweep.name) == ([sweep.id], "Six")
    runs = sweep_runs(empty, sweep.id)
    assert {(run.algo, run.seed) for run in runs} == {(a, s) for a in ("emtc-qmix", "qplex", "vdn") for s in (1, 2)}
    assert {(run.map, run.target_steps, run.config["train"]["double_q"]) for run in runs} == {("2s3z", 12345, False)}
    (gate,) = (run.config["gate"] for run in runs if (run.algo, run.seed) == ("emtc-qmix", 1))
    assert (gate["tau_end"], gate["mode"]) == (0.3, "recompute")


def test_typed_values_are_in_the_address_and_stay_until_another_link_replaces_them(empty):
    app = open_page("launch")
    app.text_input(key="seeds").set_value("1-4").run()
    app.text_input(key="steps").set_value("12345").run()
    app.text_input(key="set-gate.tau_end").set_value("0.3").run()
    app.selectbox(key="map-skirmish").set_value("2s3z").run()
    kept = {"seeds": "1-4", "steps": "12345", "gate.tau_end": "0.3", "map": "2s3z"}
    assert address(app) == kept
    app.switch_page("../pages/home.py").run()
    app.query_params.clear()  # as a page's link in the sidebar does
    app.switch_page("../pages/launch.py").run()
    assert not app.exception
    assert address(app) == kept
    assert app.text_input(key="steps").value == "12345"
    app.switch_page("../pages/home.py").run()
    app.switch_page("../pages/launch.py")
    app.query_params.clear()
    app.query_params["seeds"] = "5"
    app.run()
    assert app.text_input(key="seeds").value == "5"
    assert app.text_input(key="steps").value == "40000"


def test_a_changed_setting_shows_its_default_and_is_reset_with_the_others(empty):
    app = open_page("launch", steps="777", **{"gate.tau_end": "0.3", "gate.tau_start": "2"})
    assert "default 0\\.6" in app.text_input(key="set-gate.tau_end").label
    assert "2 changes from preset" in plain(app)
    assert "without effect" not in plain(app)
    app.text_input(key="set-gate.tau_end").set_value("0.6").run()
    assert address(app) == {"steps": "777", "gate.tau_start": "2"}
    app.selectbox(key="algo").set_value("qmix").run()
    assert "without effect for QMIX: gate.tau_start = 2." in plain(app)
    app.selectbox(key="algo").set_value("emtc-qplex").run()
    app.button(key="launch_reset").click().run()
    assert address(app) == {"steps": "777"}
    assert app.text_input(key="set-gate.tau_start").value == "1.2"


def test_names_that_this_version_does_not_know_can_be_removed(empty):
    app = open_page("launch", algorithm="qmix", **{"gate.colour": "red"})
    (warning,) = (each.value.replace("\\", "") for each in app.warning)
    assert 'URL parameter "algorithm". Did you mean "algo"?' in warning
    assert 'no setting "gate.colour"' in warning
    assert app.button(key="start").disabled
    app.button(key="launch_leave_out").click().run()
    assert not app.warning
    assert not app.button(key="start").disabled
    assert address(app) == {}


def test_every_preset_can_be_selected(empty):
    app = open_page("launch")
    assert app.radio(key="preset").value == "demo"
    assert set(app.radio(key="preset").options) == set(PRESETS) - set(MORE_PRESETS)
    app.toggle(key="more_presets").set_value(True).run()
    assert app.radio(key="preset").options == list(PRESETS)
    app.radio(key="preset").set_value(MORE_PRESETS[-1]).run()
    assert not app.exception
    assert not app.error
    assert app.query_params["preset"] == MORE_PRESETS[-1]


def test_the_expected_cost_of_a_run_is_shown(empty):
    costs = [metric.value for metric in open_page("launch").metric if metric.label.startswith("Expected")]
    assert [cost[0] for cost in costs] == ["≈", "≈", "≤"], "duration, disk, memory"


def test_an_environment_is_offered_without_a_restart_once_its_packages_are_installed(empty, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smax, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))  # not the real one
    app = open_page("launch", env="smax")
    assert "smax · not installed" in app.selectbox(key="env").options
    assert app.button(key="start").disabled
    text = plain(app)
    assert text.index("smax is not available here") > text.index("All settings"), "in the bar of Start"
    for package in ("jaxmarl", "jax"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    assert {row.available for row in data.list_environments() if row.env == "smax"} == {True}


def test_settings_of_a_gate_that_is_off_are_disabled(empty):
    app = open_page("launch", **{"gate.enabled": "false"})
    fields = [*app.text_input, *app.selectbox, *app.toggle]
    gate = {field.key: field.disabled for field in fields if str(field.key).startswith("set-gate.")}
    assert not gate.pop("set-gate.enabled")
    assert len(gate) > 10
    assert all(gate.values())
    app.toggle(key="set-gate.enabled").set_value(True).run()
    assert not app.text_input(key="set-gate.tau_start").disabled
    assert not app.text_input(key="set-gate.tau_decay_steps").disabled
    app.selectbox(key="set-gate.schedule").set_value("adaptive").run()
    assert app.text_input(key="set-gate.tau_decay_steps").disabled, "the schedule is adaptive"


def test_a_search_shows_the_matching_settings_with_their_command(empty):
    app = open_page("launch")
    app.text_input(key="launch_search").set_value("temperature start").run()
    (field,) = (field for field in app.text_input if str(field.key).startswith("set-"))
    assert field.key == "set-gate.tau_start"
    assert "--set gate.tau_start=" in field.help
    app.text_input(key="launch_search").set_value("nothing like it").run()
    assert "No setting matches." in plain(app)
