"""Launch with an environment of a user: its map is typed, and a rule of success can be chosen."""

import pytest

from storage.queries.runs import list_runs
from tests.pages.test_pages import open_page, said

ZOO = "tests.core.zoo_example"


@pytest.fixture
def form(empty):
    app = open_page("launch")
    return app.selectbox(key="env").set_value("pettingzoo").run()


def type_map(form, map: str):
    return form.text_input(key="map-pettingzoo").set_value(map).run()


def plain(form) -> str:
    return said(form).replace("\\", "")


def test_a_map_is_typed_not_chosen_and_nothing_starts_before(form, empty):
    assert not form.exception
    assert "Type the map" in plain(form)
    assert form.button(key="start").disabled
    assert len(list_runs(empty)) == 0


@pytest.mark.parametrize(
    ("map", "sentence"),
    [
        ("nonsense", "env.map must have the form module:factory for pettingzoo, got 'nonsense'."),
        ("a_missing_game:make", "No module named 'a_missing_game'"),
    ],
)
def test_a_map_that_must_fail_is_one_sentence_and_no_button(form, map, sentence):
    form = type_map(form, map)
    assert not form.exception
    (error,) = form.error
    assert sentence in error.value.replace("\\", "")
    assert form.button(key="start").disabled


def test_a_good_map_may_start(form):
    form = type_map(form, f"{ZOO}:make")
    assert not form.error
    assert not form.button(key="start").disabled
    assert not form.warning


def test_a_return_can_be_chosen_from_which_an_episode_is_a_success(form, monkeypatch):
    map = f"{ZOO}:make_speechless"
    form = type_map(form, map)
    assert "What counts as a success?" in plain(form)
    assert not form.button(key="start").disabled
    form = form.radio(key=f"success-{map}").set_value("return_threshold").run()
    assert form.button(key="start").disabled
    form = form.text_input(key=f"threshold-{map}").set_value("much").run()
    assert "memory.success_threshold must be a number (got 'much')." in form.error[0].value.replace("\\", "")
    form = form.text_input(key=f"threshold-{map}").set_value("9.5").run()
    assert not form.error
    asked = []
    monkeypatch.setattr("app.ui.launch.form.launch_run", lambda db, config, **named: asked.append(config) or "x")
    form.button(key="start").click().run()
    assert (asked[0].memory.success, asked[0].memory.success_threshold) == ("return_threshold", 9.5)


def test_an_algorithm_without_an_incentive_needs_no_rule_of_success(form):
    form = type_map(form, f"{ZOO}:make")
    form = form.selectbox(key="algo").set_value("qmix").run()
    assert not form.exception
    assert "What counts as a success?" not in plain(form)
