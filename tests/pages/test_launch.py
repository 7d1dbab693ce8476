"""Launch: what is typed is what is checked, marked where it stands, and kept in the address."""

from importlib.machinery import PathFinder

import pytest

from app.jobs import launch
from app.ui import data
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
    ("query", "says"),
    [
        ({"steps": "-5"}, "Must be >= 1 (got -5)."),
        ({"seeds": "one"}, "Must be written as 1, 1,2,5 or 1-5"),
        ({"map": "2s4z"}, "Must be a map of skirmish (got '2s4z'). Did you mean \"2s3z\"?"),
        ({"algo": "dqn"}, "Must be a name that exists (got 'dqn')."),
        ({"preset": "x"}, "Must be a name that exists (got 'x')."),
        ({"train.lr": "-1"}, "Must be > 0"),
        ({"gate.tua": "3"}, 'There is no setting "gate.tua" in this version.'),
    ],
)
def test_an_address_that_asks_for_what_is_none_says_so_and_starts_nothing(empty, query, says):
    app = open_page("launch", **query)
    assert not app.exception
    assert says in plain(app)
    assert app.button(key="start").disabled
    assert len(list_runs(empty)) == 0


def test_a_length_below_one_is_marked_and_start_is_off_until_it_is_mended(empty):
    app = open_page("launch")
    assert not app.button(key="start").disabled
    app.text_input(key="steps").set_value("-5").run()
    assert "Must be >= 1 (got -5)." in plain(app)
    assert app.button(key="start").disabled
    app.text_input(key="steps").set_value("5k").run()
    assert not app.error
    assert not app.button(key="start").disabled


def test_the_address_decides_the_whole_form(empty, monkeypatch):
    monkeypatch.setattr("app.jobs.sweeps.control.start_in_background", lambda db, sweep_id, jobs: None)
    query = {"algo": "emtc-qmix", "map": "2s3z", "steps": "12345", "seeds": "1-4", "name": "Four"}
    app = open_page("launch", **query, **{"gate.tau_end": "0.3", "gate.mode": "recompute", "train.double_q": "false"})
    assert app.selectbox(key="map-skirmish").value == "2s3z"
    assert app.text_input(key="seeds").value == "1-4"
    assert app.text_input(key="set-gate.tau_end").value == "0.3"
    assert app.selectbox(key="set-gate.mode").value == "recompute"
    assert app.toggle(key="set-train.double_q").value is False
    app.button(key="start").click().run()
    (sweep,) = list_sweeps(empty)
    runs = sweep_runs(empty, sweep.id)
    config = runs[0].config
    assert (runs[0].algo, runs[0].map, runs[0].target_steps) == ("emtc-qmix", "2s3z", 12345)
    assert (config["gate"]["tau_end"], config["gate"]["mode"], config["train"]["double_q"]) == (0.3, "recompute", False)
    assert sorted(run.seed for run in runs) == [1, 2, 3, 4]
    assert sweep.name == "Four"


@pytest.mark.parametrize("query", [{"seeds": "1,2"}, {"also": "qplex"}])
def test_several_runs_open_the_page_of_their_sweep(empty, monkeypatch, query):
    monkeypatch.setattr("app.jobs.sweeps.control.start_in_background", lambda db, sweep_id, jobs: None)
    app = open_page("launch", map="3m", steps="500", **query)
    assert app.button(key="start").label == "Start a sweep of 2 runs"
    app.button(key="start").click().run()
    assert app.title[0].value == "Sweeps"
    (sweep,) = list_sweeps(empty)
    assert len(sweep_runs(empty, sweep.id)) == 2


def test_what_was_typed_is_in_the_address_and_there_after_another_page(empty):
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
    assert app.text_input(key="seeds").value == "1-4"
    assert app.text_input(key="steps").value == "12345"
    assert app.selectbox(key="map-skirmish").value == "2s3z"
    assert address(app) == kept


def test_another_link_replaces_what_was_typed(empty):
    app = open_page("launch", seeds="3", steps="777")
    app.switch_page("../pages/home.py").run()
    app.switch_page("../pages/launch.py")
    app.query_params.clear()
    app.query_params["seeds"] = "5"
    app.run()
    assert app.text_input(key="seeds").value == "5"
    assert app.text_input(key="steps").value == "40000"


def test_a_setting_back_at_its_default_leaves_the_address(empty):
    app = open_page("launch", **{"gate.tau_end": "0.3"})
    assert "1 change from preset" in plain(app)
    app.text_input(key="set-gate.tau_end").set_value("0.6").run()
    assert "gate.tau_end" not in app.query_params


def test_what_the_form_does_not_show_is_carried_and_named(empty):
    app = open_page("launch", algo="qmix", **{"gate.tau_end": "0.3"})
    assert "Stored in the run, but without effect for QMIX: gate.tau_end = 0.3." in plain(app)


def test_the_presets_values_come_back_at_one_press(empty):
    app = open_page("launch", steps="777", **{"gate.tau_end": "0.3"})
    app.button(key="launch_reset").click().run()
    assert app.text_input(key="set-gate.tau_end").value == "0.6"
    assert app.text_input(key="steps").value == "777"
    assert "gate.tau_end" not in app.query_params


def test_what_this_version_does_not_know_can_be_left_out(empty):
    app = open_page("launch", algorithm="qmix", **{"gate.colour": "red"})
    assert 'The form does not have the URL parameter "algorithm". Did you mean "algo"?' in plain(app)
    app.button(key="launch_leave_out").click().run()
    assert not app.warning
    assert not app.button(key="start").disabled
    assert address(app) == {}


def test_a_press_that_races_with_a_wrong_value_starts_nothing(empty, monkeypatch):
    monkeypatch.setattr(launch, "spawn", lambda *args, **named: pytest.fail("a trainer was started"))
    app = open_page("launch")
    app.text_input(key="steps").set_value("-5")
    app.button(key="start").click().run()
    assert not app.exception
    assert len(list_runs(empty)) == 0


def test_algorithms_are_called_as_everywhere(empty):
    app = open_page("launch")
    assert "EMTC(QPLEX)" in app.selectbox(key="algo").options
    assert "emtc-qplex" not in app.selectbox(key="algo").options
    assert app.selectbox(key="algo").value == "emtc-qplex", "the address and the command line keep its id"


def test_several_algorithms_and_seeds_become_a_sweep_at_one_press(empty, monkeypatch):
    started = []
    monkeypatch.setattr(
        "app.jobs.sweeps.control.start_in_background", lambda db, sweep_id, jobs: started.append(sweep_id)
    )
    query = {"also": "qplex,vdn", "seeds": "1,2", "steps": "500", "map": "2s3z", "train.lr": "0.001", "name": "Three"}
    app = open_page("launch", **query)
    assert app.multiselect(key="also").value == ["qplex", "vdn"]
    assert app.button(key="start").label == "Start a sweep of 6 runs"
    app.button(key="start").click().run()
    assert not app.exception
    (sweep,) = list_sweeps(empty)
    assert (started, sweep.name) == ([sweep.id], "Three")
    runs = sweep_runs(empty, sweep.id)
    assert {(run.algo, run.seed) for run in runs} == {(a, s) for a in ("emtc-qplex", "qplex", "vdn") for s in (1, 2)}
    assert {(run.map, run.config["train"]["lr"], run.target_steps) for run in runs} == {("2s3z", 0.001, 500)}
    assert app.title[0].value == "Sweeps"


def test_a_further_algorithm_that_is_none_is_marked_and_starts_nothing(empty):
    app = open_page("launch", also="qplex,dqn")
    assert "Must be a name that exists (got 'dqn')" in plain(app)
    assert app.button(key="start").disabled
    assert list_sweeps(empty) == []


def test_expected_memory_stands_beside_time_and_disk(empty):
    app = open_page("launch")
    (memory,) = [metric.value for metric in app.metric if metric.label == "Expected memory"]
    assert memory.startswith("≤")


def test_what_is_installed_while_the_app_runs_is_offered_without_a_restart(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smax, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))  # not the real one

    def is_offered() -> set[bool]:
        return {row.available for row in data.list_environments() if row.env == "smax"}

    assert is_offered() == {False}
    for package in ("jaxmarl", "jax"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    assert is_offered() == {True}


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


def test_an_environment_that_is_not_installed_looks_so_and_the_reason_is_next_to_start(empty, monkeypatch):
    monkeypatch.setattr(smax, "find_unavailable_reason", lambda: "jaxmarl is missing.")
    data._list_environments.clear()
    app = open_page("launch", env="smax")
    data._list_environments.clear()
    assert "smax · not installed" in app.selectbox(key="env").options
    assert app.button(key="start").disabled
    text = plain(app)
    assert text.index("jaxmarl is missing.") > text.index("All settings"), "in the bar of Start, which stays in view"


def test_a_search_shows_the_matching_settings_and_a_changed_one_shows_its_default(empty):
    app = open_page("launch", **{"gate.tau_end": "0.3"})
    assert app.text_input(key="set-gate.tau_end").label == ":primary[●] tau end τ_end [return] :gray[· default 0\\.6]"
    app.text_input(key="launch_search").set_value("temperature start").run()
    assert [field.key for field in app.text_input if str(field.key).startswith("set-")] == ["set-gate.tau_start"]
    app.text_input(key="launch_search").set_value("nothing like it").run()
    assert "No setting matches." in plain(app)
