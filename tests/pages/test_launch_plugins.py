"""Launch with a plug-in: its arguments are fields of the form, like any setting."""

import sys

import pytest

from emtc_core import plugins
from tests.pages.test_launch import plain
from tests.pages.test_pages import open_page

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


@pytest.mark.parametrize(
    ("choice", "key", "invalid", "rule", "valid", "default"),
    [
        ({"env": "guess"}, "env.plugin.guess.doors", "9", "<= 8 (got 9)", "4", "3"),
        ({"gate.type": "steep"}, "gate.plugin.steep.at", "99", "<= 10.0 (got 99.0)", "2", "1"),
    ],
    ids=["environment", "gate"],
)
def test_an_argument_is_a_field_with_its_bounds_and_goes_into_the_run(lab, choice, key, invalid, rule, valid, default):
    form = open_page("launch", **choice, **{key: invalid})
    assert not form.exception
    assert [rule in error.value.replace("\\", "") for error in form.error] == [True]
    assert form.button(key="start").disabled
    form = form.text_input(key=f"set-{key}").set_value(valid).run()
    assert not form.exception
    assert not form.error
    assert not form.button(key="start").disabled
    assert f"`{key}` = {valid} ({default})" in plain(form)
    others = {field.key for field in open_page("launch").text_input}
    assert f"set-{key}" not in others, "only where the plug-in is selected"
