"""Launch with an environment from outside: its arguments are fields of the form, like any setting."""

import sys

import pytest

from emtc_core import plugins
from tests.pages.test_pages import open_page, said

LAB = "tests.core.lab_example"


@pytest.fixture
def lab(empty, monkeypatch):
    """An app started with EMTC_PLUGINS, its caches as new."""
    monkeypatch.setattr(plugins, "_REGISTERED", {})
    monkeypatch.setenv(plugins.VARIABLE, LAB)
    sys.modules.pop(LAB, None)
    plugins._import_modules.cache_clear()
    yield
    sys.modules.pop(LAB, None)
    plugins._import_modules.cache_clear()


def test_an_argument_is_a_field_with_its_bounds_and_goes_into_the_run(lab):
    form = open_page("launch", env="guess", **{"env.plugin.guess.doors": "9"})
    assert not form.exception
    assert form.selectbox(key="map-guess").options == ["plain", "dark"]
    assert "<= 8 (got 9)" in " ".join(each.value for each in form.error).replace("\\", "")
    assert form.button(key="start").disabled
    form = form.text_input(key="set-env.plugin.guess.doors").set_value("4").run()
    assert not form.exception
    assert not form.error
    assert not form.button(key="start").disabled
    assert "`env.plugin.guess.doors` = 4" in said(form)
    assert "steep" in form.selectbox(key="set-gate.type").options


def test_the_arguments_of_a_gate_are_fields_where_it_is_chosen(lab):
    form = open_page("launch", **{"gate.type": "steep", "gate.plugin.steep.at": "99"})
    assert not form.exception
    assert "<= 10.0 (got 99.0)" in " ".join(each.value for each in form.error).replace("\\", "")
    form = form.text_input(key="set-gate.plugin.steep.at").set_value("2").run()
    assert not form.exception
    assert not form.error
    assert "`gate.plugin.steep.at` = 2 (1)" in said(form)
    plain = open_page("launch")
    assert not any(each.key == "set-gate.plugin.steep.at" for each in plain.text_input)
