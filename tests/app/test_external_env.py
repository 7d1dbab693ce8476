"""An environment of a user: what can be checked without it is refused before a run exists, the rest by the trainer."""

import json
import os
import re
from pathlib import Path

import pytest

from app.cli.main import run
from app.jobs import external_env
from app.jobs.external_env import ExternalEnv, check_fits
from app.jobs.launch import check_startable, launch_run, spawn
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import make_env
from emtc_core.errors import ConfigError, EnvDataError, EnvUnavailableError
from storage.engine import open_database
from storage.queries.runs import list_runs
from storage.runs.rows import find_run
from tests.errors import raises
from tests.process.trainers import wait_until

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


def test_a_module_in_the_folder_of_the_command_is_found_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "a_game_of_mine.py").write_text("raise SystemExit('it was imported')\n")
    monkeypatch.chdir(tmp_path)
    check_startable(plan("a_game_of_mine:make"))


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("import sys; sys.exit('no licence')", "no licence"),
        ("print('chatter'); 1 / 0", "failed when it was imported: ZeroDivisionError"),
        ("def make():\n    raise OSError('no display')", "OSError('no display')"),
        ("", "has no callable named 'make'"),
        ("from tests.core.zoo_example import make_continuous as make", "must have discrete actions"),
        (
            "from tests.core.zoo_example import Corridor as make\nmake.step = lambda self, actions: 1 / 0",
            "a_game_of_mine:make failed in step: ZeroDivisionError",
        ),
        (
            "from numpy import zeros\nfrom tests.core.zoo_example import Corridor as make\n"
            "make.reset = lambda self, **_: (setattr(self, 'agents', self.possible_agents[:]) or "
            "dict.fromkeys(self.agents, zeros(99)), {agent: {} for agent in self.agents})",
            "a_game_of_mine:make failed in reset: ValueError",
        ),
        (
            "from tests.core.zoo_example import Corridor\n\n\n"
            "class Broken(Corridor):\n    def _observe(self, agents=None):\n"
            "        return {agent: value * float('nan') for agent, value in super()._observe(agents).items()}\n\n\n"
            "make = Broken",
            "a_game_of_mine:make breaks the interface of an environment in reset: obs must be finite",
        ),
    ],
)
def test_a_run_of_a_broken_environment_fails_with_the_reason(
    tmp_path: Path, monkeypatch, capsys, body: str, cause: str
) -> None:
    (tmp_path / "a_game_of_mine.py").write_text(body + "\n")
    path = [str(Path(external_env.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    words = ["train", "--env", "pettingzoo", "--map", "a_game_of_mine:make", "--algo", "qmix", "--steps", "100"]
    assert run([*words, "--detach", "--json", "--db", url]) == 0
    run_id = json.loads(capsys.readouterr().out.splitlines()[-1])["run_id"]
    row = wait_for_end(url, run_id)
    assert row["status"] == "failed"
    assert cause in row["error"]
    assert "\n" not in row["error"]
    assert row["env_steps"] == 0


def wait_for_end(url: str, run_id: str) -> dict[str, object]:
    db = open_database(url)
    wait_until(lambda: find_run(db, run_id).status in ("failed", "finished", "stopped"), what="the end of the run")
    row = find_run(db, run_id)
    db.dispose()
    return {"status": row.status, "error": row.error or "", "env_steps": row.env_steps}


def test_a_trainer_of_its_own_looks_where_the_command_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.txt"
    code = "import os; print(os.environ['EMTC_ENV_FOLDER'])"
    spawn(["timeit", "-n1", "-r1", code], log).wait(30)
    assert log.read_text().startswith(os.fspath(tmp_path))


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


def test_a_machine_too_small_for_one_batch_is_told_to_make_it_smaller(monkeypatch):
    monkeypatch.setattr(external_env, "memory_bytes", lambda: 10**9)
    with raises(ConfigError, key="train.batch", value=32):
        check_fits(plan(f"{ZOO}:make_pictures"), get_info(f"{ZOO}:make_pictures"))


def test_an_error_of_the_environment_names_it(monkeypatch):
    config = plan(f"{ZOO}:make")
    inner = make_env(config.env, n_envs=1)
    monkeypatch.setattr(inner, "reset", lambda seed: 1 / 0)
    with pytest.raises(EnvDataError, match=r"zoo_example:make failed in reset: ZeroDivisionError"):
        ExternalEnv(inner, "zoo_example:make").reset(1)
