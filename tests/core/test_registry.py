"""The registry: every environment answers the same questions, and asking loads no engine."""

import json
import subprocess
import sys

import numpy as np
import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import (
    ADAPTERS,
    get_adapter,
    get_env_info,
    list_doctor_rows,
    list_envs,
    make_env,
    make_scene,
)
from emtc_core.errors import EnvUnavailableError
from tests.require import require_env

QUESTIONS = ("list_maps", "find_unavailable_reason", "find_info", "make_env", "make_scene")


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_answers_every_question(name: str):
    adapter = get_adapter(name)
    assert all(callable(getattr(adapter, question)) for question in QUESTIONS)
    assert adapter.HOW_TO_GET
    assert adapter.list_maps()


def test_asking_for_sizes_and_drawings_loads_no_engine():
    for env in ("grf", "smax", "pettingzoo"):
        require_env(env)
    program = (
        "import json, sys\n"
        "from emtc_core.envs.registry import list_envs, make_scene\n"
        "import numpy as np\n"
        "rows = list_envs()\n"
        "for row in rows:\n"
        "    if row.state_dim:\n"
        "        make_scene(row.env, row.map, np.zeros((2, row.state_dim), np.float32))\n"
        "heavy = ('torch', 'numba', 'jax', 'gym', 'pettingzoo', 'smac', 'streamlit')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_rows_carry_sizes_wherever_they_are_known():
    rows = {(row.env, row.map): row for row in list_envs()}
    assert {env for env, _ in rows} == set(ADAPTERS)
    assert rows["skirmish", "corridor"].available
    assert (rows["skirmish", "corridor"].state_dim, rows["skirmish", "corridor"].n_actions) == (282, 30)
    assert rows["grf", "academy_counterattack_hard"].obs_dim == 34
    assert rows["pettingzoo", "module:factory"].state_dim is None
    for row in rows.values():
        assert row.available == (not row.reason)


def test_the_doctor_says_how_to_get_what_is_missing():
    for row in list_doctor_rows():
        assert row.usable == (not row.reason)
        assert row.how_to_get


def test_an_unknown_environment_is_refused_with_the_closest_name():
    with pytest.raises(EnvUnavailableError, match=r"env\.name") as caught:
        make_env(EnvConfig(name="skirmich", map="3m"), n_envs=1)
    assert "skirmish" in caught.value.hint


@pytest.mark.parametrize("env", ["skirmish", "smac", "smax", "grf"])
def test_an_unknown_map_is_refused_by_every_question(env: str):
    config = EnvConfig(name=env, map="no_such_map")
    with pytest.raises(EnvUnavailableError):
        make_env(config, n_envs=1)
    with pytest.raises(EnvUnavailableError):
        get_env_info(config)


def test_at_least_one_copy_is_made():
    with pytest.raises(ValueError, match=r"\bn_envs\b.*\b0\b"):
        make_env(EnvConfig(), n_envs=0)


def test_a_scene_of_an_unknown_environment_is_refused():
    with pytest.raises(EnvUnavailableError, match=r"env\.name"):
        make_scene("chess", "board", np.zeros((1, 1), np.float32))


def test_football_that_was_missing_is_found_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    require_env("grf")
    monkeypatch.setattr("emtc_core.envs.grf.env.find_spec", lambda name: None)
    grf = get_adapter("grf")
    assert grf.find_unavailable_reason() == "the package gfootball is not installed."
    monkeypatch.undo()
    assert grf.find_unavailable_reason() == ""
