"""A stranger's environment is tried before a run: its sizes, its faults, its memory, and whether it can be won."""

import os
import re
from importlib.util import find_spec

import pytest

from app.cli.main import run
from app.jobs import env_probe
from app.jobs.launch import check_startable, find_obs_warning, find_success_warning, launch_run, spawn
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, EnvUnavailableError
from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.errors import raises
from tests.require import require

ZOO = "tests.core.zoo_example"


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMTC_ENV_MODULES", f"{ZOO},a_game_of_mine")
    monkeypatch.setattr(env_probe, "_RESULTS", {})


def plan(map: str, **overrides: object) -> RunConfig:
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    return resolve(env="pettingzoo", map=map, overrides={"train.device": "cpu", **keys})


def test_a_trial_tells_the_sizes_and_is_made_once(monkeypatch):
    config = plan(f"{ZOO}:make").env
    seen = env_probe.probe(config)
    assert (seen.n_agents, seen.n_actions, seen.obs_dim, seen.state_dim, seen.episode_limit) == (2, 3, 2, 4, 500)
    assert 1 <= seen.steps <= 30
    assert len(seen.returns) == env_probe.EPISODES
    assert all(value > 0 for value in seen.returns)
    monkeypatch.setattr(env_probe, "_run_trial", lambda config: pytest.fail("it was asked again"))
    assert env_probe.probe(config) == seen


@pytest.mark.parametrize(
    ("map", "reason"),
    [
        ("module:factory", "unlisted"),
        ("nonsense", "not_a_factory"),
        (f"{ZOO}:missing", "not_callable"),
        (f"{ZOO}.deeper:make", "not_importable"),
        (f"{ZOO}:make_continuous", "not_discrete"),
    ],
)
def test_what_must_fail_is_refused_in_one_sentence_and_leaves_no_run(tmp_path, map, reason):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    with raises(EnvUnavailableError, reason=reason, subject="env.map") as caught:
        launch_run(db, plan(map))
    assert "\n" not in str(caught.value)
    assert len(list_runs(db)) == 0
    db.dispose()


@pytest.mark.parametrize(
    ("body", "reason", "cause"),
    [
        ("import sys; sys.exit('no licence')", "ended", "no licence"),
        ("print('chatter'); 1 / 0", "import_failed", "ZeroDivisionError"),
        ("def make():\n    raise OSError('no display')", "factory_failed", "OSError"),
    ],
)
def test_a_module_in_the_folder_of_the_command_is_tried_and_its_faults_are_told(
    tmp_path, monkeypatch, body, reason, cause
):
    (tmp_path / "a_game_of_mine.py").write_text(body + "\n")
    monkeypatch.chdir(tmp_path)
    with raises(EnvUnavailableError, reason=reason, subject="env.map") as caught:
        check_startable(plan("a_game_of_mine:make"))
    assert cause in str(caught.value)


def test_a_trainer_of_its_own_looks_where_the_command_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.txt"
    code = "import os; print(os.environ['EMTC_ENV_FOLDER'])"
    spawn(["timeit", "-n1", "-r1", code], log).wait(30)
    assert log.read_text().startswith(os.fspath(tmp_path))


def test_images_that_would_exhaust_the_memory_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(env_probe, "memory_bytes", lambda: 64 * 10**9)
    with raises(ConfigError, key="train.replay", value=5000) as caught:
        check_startable(plan(f"{ZOO}:make_pictures"))
    (fault,) = caught.value.faults
    for number in ("84,672", "21,168", "42,336", "32.0 GB"):
        assert number in fault.rule
    advised = int(re.findall(r"train\.replay=(\d+)", fault.hint)[0])
    check_startable(plan(f"{ZOO}:make_pictures", train__replay=advised))
    with pytest.raises(ConfigError):
        check_startable(plan(f"{ZOO}:make_pictures", train__replay=advised + 2))
    check_startable(plan(f"{ZOO}:make_pictures", env__pettingzoo__episode_limit=15))


def test_a_machine_too_small_for_one_batch_is_told_to_make_it_smaller(monkeypatch):
    monkeypatch.setattr(env_probe, "memory_bytes", lambda: 10**9)
    with raises(ConfigError, key="train.batch", value=32):
        check_startable(plan(f"{ZOO}:make_pictures"))


def test_the_command_warns_before_it_starts_and_tries_what_was_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("app.cli.train.launch_run", lambda *arguments, **named: "abcd2345")
    monkeypatch.delenv("EMTC_ENV_MODULES")
    words = ["train", "--env", "pettingzoo", "--detach", "--db", f"sqlite:///{tmp_path / 'x.db'}", "--map"]
    assert run([*words, f"{ZOO}:make_speechless"]) == 0
    warning = capsys.readouterr().err
    for part in ("Warning: No info of", "memory.success=return_threshold", "random play returned"):
        assert part in warning
    assert run([*words, f"{ZOO}:missing"]) == 2
    assert "has no callable named" in capsys.readouterr().err


def test_simple_spread_is_tried_and_doubted(monkeypatch):
    require("mpe2", find_spec("mpe2") is not None, "the extra `mpe` is not installed")
    monkeypatch.setenv("EMTC_ENV_MODULES", "mpe2")
    config = plan("mpe2.simple_spread_v3:parallel_env", env__pettingzoo__episode_limit=25)
    seen = env_probe.probe(config.env)
    assert (seen.n_agents, seen.n_actions, seen.obs_dim, seen.state_dim, seen.steps) == (3, 5, 18, 54, 25)
    assert "memory.success_threshold" in find_success_warning(config)


def test_a_game_that_shows_nothing_is_doubted():
    assert "made with render_mode" in find_obs_warning(plan(f"{ZOO}:make_blind"))
    assert find_obs_warning(plan(f"{ZOO}:make")) == ""
    assert find_obs_warning(resolve()) == ""


def test_an_environment_that_never_says_won_is_doubted_until_a_return_decides():
    doubt = find_success_warning(plan(f"{ZOO}:make_speechless"))
    assert "memory.success=return_threshold" in doubt
    assert "ρ stays 0" in doubt
    assert "random play returned" in doubt
    asked = {"memory__success": "return_threshold", "memory__success_threshold": 20.0}
    assert find_success_warning(plan(f"{ZOO}:make_speechless", **asked)) == ""
    easy = find_success_warning(plan(f"{ZOO}:make_speechless", **asked | {"memory__success_threshold": -1.0}))
    assert "Every episode counts as a success: memory.success_threshold = -1 [env return]" in easy
    assert find_success_warning(plan(f"{ZOO}:make_speechless", algo="qmix")) == ""
    assert find_success_warning(plan(f"{ZOO}:make")) == ""
    assert find_success_warning(resolve()) == ""
