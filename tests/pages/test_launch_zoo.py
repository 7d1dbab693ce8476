"""Launch with an environment of a user: its map is typed, and a rule of success can be chosen."""

import pytest

from tests.pages.test_launch import plain
from tests.pages.test_pages import open_page

ZOO = "tests.core.zoo_example"


@pytest.fixture
def form(empty):
    app = open_page("launch")
    return app.selectbox(key="env").set_value("pettingzoo").run()


def type_map(form, map: str):
    return form.text_input(key="map-pettingzoo").set_value(map).run()


def test_a_typed_map_is_checked_before_the_start(form):
    assert not form.exception
    assert "Type the map" in plain(form)
    assert form.button(key="start").disabled
    for map, word in (("nonsense", "module:factory"), ("a_missing_game:make", "'a_missing_game'")):
        type_map(form, map)
        assert not form.exception
        assert [word in error.value.replace("\\", "") for error in form.error] == [True], map
        assert form.button(key="start").disabled, map
    type_map(form, f"{ZOO}:make")
    assert not form.error
    assert not form.warning
    assert not form.button(key="start").disabled


def test_a_return_can_be_chosen_from_which_an_episode_is_a_success(form, monkeypatch):
    map = f"{ZOO}:make_speechless"
    success = f"success-{map}"
    form = type_map(form, map)
    assert not form.button(key="start").disabled
    form = form.selectbox(key="algo").set_value("qmix").run()
    assert success not in [radio.key for radio in form.radio], "without an incentive, no rule is needed"
    form = form.selectbox(key="algo").set_value("emtc-qplex").run()
    form = form.radio(key=success).set_value("return_threshold").run()
    assert form.button(key="start").disabled
    assert not form.error, "it is only incomplete"
    form = form.text_input(key=f"threshold-{map}").set_value("much").run()
    assert "memory.success_threshold must be a number (got 'much')" in form.error[0].value.replace("\\", "")
    form = form.text_input(key=f"threshold-{map}").set_value("9.5").run()
    assert not form.error
    asked = []
    monkeypatch.setattr("app.ui.launch.form.launch_run", lambda db, config, **named: asked.append(config) or "x")
    form.button(key="start").click().run()
    assert (asked[0].memory.success, asked[0].memory.success_threshold) == ("return_threshold", 9.5)
