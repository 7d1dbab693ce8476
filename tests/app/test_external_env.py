"""An environment of a user: what can be checked without it is refused before a run exists, the rest by the trainer."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from app.cli.main import run
from app.jobs import external_env
from app.jobs.external_env import check_fits
from app.jobs.launch import launch_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import make_env
from emtc_core.errors import ConfigError, EnvUnavailableError
from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.errors import raises

ZOO = "tests.core.zoo_example"


def plan(map: str, **overrides: object) -> RunConfig:
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    return resolve(env="pettingzoo", map=map, overrides={"train.device": "cpu", **keys})


def get_info(map: str) -> EnvInfo:
    env = make_env(plan(map).env, n_envs=1)
    env.close()
    return env.info


@pytest.mark.parametrize(
    ("map", "word"),
    [("nonsense", "nonsense"), ("a_game_of_mine:make", "a_game_of_mine")],
)
def test_a_map_without_a_module_is_refused_in_one_sentence_and_leaves_no_run(tmp_path, map, word):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(EnvUnavailableError, match=word) as caught:
        launch_run(db, plan(map))
    assert "\n" not in str(caught.value)
    assert len(list_runs(db)) == 0
    db.dispose()


CORRIDOR = "from tests.core.zoo_example import Corridor\n\n\nclass make(Corridor):\n    "
BROKEN = {
    "exit": ("import sys; sys.exit('no licence')", "no licence"),
    "import": ("print('chatter'); 1 / 0", "failed when it was imported: ZeroDivisionError"),
    "factory": ("def make():\n    raise OSError('no display')", "OSError('no display')"),
    "no factory": ("", "has no callable named 'make'"),
    "actions": ("from tests.core.zoo_example import make_continuous as make", "must have discrete actions"),
    "step": (f"{CORRIDOR}def step(self, actions): 1 / 0", "a_game_of_mine:make failed in step: ZeroDivisionError"),
    "shape": (
        f"{CORRIDOR}def _observe(self, agents=None):\n"
        "        return {agent: [0.0] * 99 for agent in super()._observe(agents)}",
        "a_game_of_mine:make failed in reset: ValueError",
    ),
    "values": (
        f"{CORRIDOR}def _observe(self, agents=None):\n"
        "        return {agent: value * float('nan') for agent, value in super()._observe(agents).items()}",
        "a_game_of_mine:make breaks the interface of an environment in reset: obs must be finite",
    ),
}


@pytest.mark.parametrize(("body", "cause"), BROKEN.values(), ids=BROKEN)
def test_a_run_of_a_broken_environment_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, cause: str
) -> None:
    (tmp_path / "a_game_of_mine.py").write_text(body + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds this folder
    monkeypatch.delitem(sys.modules, "a_game_of_mine", raising=False)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    words = ["train", "--env", "pettingzoo", "--map", "a_game_of_mine:make", "--algo", "qmix", "--steps", "100"]
    with suppress(SystemExit):  # of the module
        assert run([*words, "--db", url]) == 1
        assert cause in capsys.readouterr().err
    db = open_database(url)
    (row,) = list_runs(db).itertuples()
    assert (row.status, row.env_steps) == ("failed", 0)
    assert cause in row.error
    assert "\n" not in row.error
    db.dispose()


def test_images_that_would_exhaust_the_memory_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(external_env, "memory_bytes", lambda: 64 * 10**9)
    info = get_info(f"{ZOO}:make_pictures")
    with raises(ConfigError, key="train.replay", value=5000) as caught:
        check_fits(plan(f"{ZOO}:make_pictures"), info)
    (fault,) = caught.value.faults
    for number in ("84,672", "21,168", "42,336", "32.0 GB"):
        assert number in fault.rule
    advised = int(re.findall(r"train\.replay=(\d+)", fault.hint)[0])
    check_fits(plan(f"{ZOO}:make_pictures", train__replay=advised), info)
    with pytest.raises(ConfigError):
        check_fits(plan(f"{ZOO}:make_pictures", train__replay=advised + 2), info)
    monkeypatch.setattr(external_env, "memory_bytes", lambda: 10**9)
    with raises(ConfigError, key="train.batch", value=32):  # not even one batch fits
        check_fits(plan(f"{ZOO}:make_pictures"), info)
