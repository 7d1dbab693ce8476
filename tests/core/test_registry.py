"""The registry: every environment answers the same questions, and asking loads no engine."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import (
    ADAPTERS,
    get_adapter,
    get_env_info,
    list_envs,
    make_env,
)
from emtc_core.errors import EnvUnavailableError
from tests.require import require_env

QUESTIONS = ("list_maps", "find_unavailable_reason", "find_info", "make_env", "make_scene")


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_has_the_functions_of_the_interface(name: str):
    adapter = get_adapter(name)
    assert all(callable(getattr(adapter, question)) for question in QUESTIONS)
    assert adapter.HOW_TO_GET
    assert adapter.list_maps()


def test_sizes_and_drawings_import_no_engine():
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


def test_rows_have_sizes_where_they_are_known():
    rows = {(row.env, row.map): row for row in list_envs()}
    assert {env for env, _ in rows} == set(ADAPTERS)
    assert rows["skirmish", "corridor"].available
    assert (rows["skirmish", "corridor"].state_dim, rows["skirmish", "corridor"].n_actions) == (282, 30)
    assert rows["grf", "academy_counterattack_hard"].obs_dim == 34
    assert rows["pettingzoo", "module:factory"].state_dim is None
    for row in rows.values():
        assert row.available == (not row.reason)


@pytest.mark.parametrize(
    ("env", "map", "word", "hint"),
    [
        ("skirmich", "3m", r"env\.name", "skirmish"),
        ("skirmish", "coridor", "coridor", "corridor"),
        ("smac", "coridor", "coridor", "corridor"),
        ("smacv2", "zerg_5_vs_55", "zerg_5_vs_55", "zerg_5_vs_5"),
        ("smax", "3s_vs_5zz", "3s_vs_5zz", "3s_vs_5z"),
        ("grf", "academy_counterattack_har", "academy_counterattack_har", "academy_counterattack_hard"),
    ],
)
@pytest.mark.parametrize("use", [get_env_info, partial(make_env, n_envs=1)], ids=["sizes", "start"])
def test_an_unknown_environment_or_map_is_refused_with_the_closest_name(
    env: str, map: str, word: str, hint: str, use: Callable[[EnvConfig], object]
):
    with pytest.raises(EnvUnavailableError, match=word) as caught:
        use(EnvConfig(name=env, map=map))
    assert hint in caught.value.hint
