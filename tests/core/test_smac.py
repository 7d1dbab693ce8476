"""The adapters of StarCraft II: what they say when something is missing, and that they add nothing of their own."""

import math
import os
import signal
import sys

import numpy as np
import psutil
import pytest

from emtc_core.arrays import derive_seed
from emtc_core.config.train import EnvConfig, SkirmishConfig
from emtc_core.envs.base import ResetNeededError
from emtc_core.envs.checker import check_env, random_actions
from emtc_core.envs.registry import check_available, get_env_info, list_doctor_rows, list_envs, make_env, make_scene
from emtc_core.envs.skirmish.maps import MAPS, make_info
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.env import SmacEnv, find_unavailable_reason
from emtc_core.envs.smac.maps import SMAC_MAPS, SMACV2_MAPS, state_names
from emtc_core.errors import EnvUnavailableError
from tests.core.smac_double import StarCraft2Env
from tests.core.smac_machine import ROOT, Machine, wait_until_gone

PAPER = {
    "1c3s5z": (270, 15), "3s5z": (216, 14), "3s_vs_5z": (68, 11), "5m_vs_6m": (98, 12), "MMM2": (322, 18),
    "6h_vs_8z": (140, 14), "3s5z_vs_3s6z": (230, 15), "corridor": (282, 30),
}  # fmt: skip


def pids(env: SmacEnv) -> list[int]:
    return [game._process.pid for game in env._games if game is not None]


def any_actions(seen) -> np.ndarray:
    return random_actions(seen.avail, np.random.default_rng(0))


class TestSizes:
    @pytest.mark.parametrize(("map", "sizes"), PAPER.items())
    def test_those_of_the_papers_maps_are_known_without_the_game(self, map: str, sizes: tuple[int, int]):
        info = get_env_info(EnvConfig(name="smac", map=map))
        assert info is not None
        assert (info.state_dim, info.n_actions) == sizes
        rows = {row.map: row for row in list_envs() if row.env == "smac"}
        assert (rows[map].state_dim, rows[map].n_actions) == sizes

    @pytest.mark.parametrize("map", MAPS)
    def test_smac_and_its_simulator_have_the_same(self, map: str):
        ours, own = get_env_info(EnvConfig(name="smac", map=map)), make_info(MAPS[map], SkirmishConfig())
        assert ours is not None
        for name in ("n_agents", "n_actions", "obs_dim", "state_dim", "episode_limit", "agent_block", "action_names"):
            assert getattr(ours, name) == getattr(own, name)

    @pytest.mark.parametrize(
        ("map", "obs_dim", "state_dim", "n_actions"),
        [
            ("terran_5_vs_5", 82, 120, 11), ("protoss_5_vs_5", 92, 130, 11), ("zerg_5_vs_5", 82, 120, 11),
            ("terran_10_vs_10", 162, 290, 16), ("protoss_10_vs_11", 191, 327, 17), ("zerg_20_vs_20", 322, 780, 26),
            ("terran_20_vs_23", 346, 858, 29), ("protoss_20_vs_23", 389, 901, 29),
        ],
    )  # fmt: skip
    def test_those_of_smacv2_are_what_its_package_tells(self, map, obs_dim, state_dim, n_actions):
        info = get_env_info(EnvConfig(name="smacv2", map=map))
        assert info is not None
        assert (info.obs_dim, info.state_dim, info.n_actions) == (obs_dim, state_dim, n_actions)

    @pytest.mark.parametrize("known", [*SMAC_MAPS.values(), *SMACV2_MAPS.values()])
    def test_every_entry_of_a_state_has_a_name_of_its_own(self, known):
        names = state_names(known)
        assert len(names) == len(set(names)) == known.sizes()["state_shape"]


class TestWhatIsMissing:
    def test_first_the_isolated_environment_with_the_command_that_makes_it(self, monkeypatch, tmp_path):
        monkeypatch.delenv(game_link.PYTHON_VARIABLE, raising=False)
        monkeypatch.setattr(game_link, "home", lambda: tmp_path)
        assert find_unavailable_reason() == f"its separate Python environment {tmp_path / 'env'} does not exist."
        with pytest.raises(EnvUnavailableError, match="smac") as caught:
            make_env(EnvConfig(name="smac", map="3m"), n_envs=1)
        assert caught.value.hint.endswith("python -m emtc_core.envs.smac.install")
        with pytest.raises(EnvUnavailableError, match="Python environment") as caught:
            check_available(EnvConfig(name="smacv2", map="zerg_5_vs_5"))
        assert caught.value.hint.endswith("emtc doctor")
        advice = {row.env: row.how_to_get for row in list_doctor_rows()}
        assert advice["smac"] == advice["smacv2"] == "python -m emtc_core.envs.smac.install"

    def test_an_interpreter_of_ones_own_that_is_not_there_is_named(self, machine: Machine):
        machine.python.unlink()
        assert find_unavailable_reason() == f"EMTC_SMAC_PYTHON is {machine.python}, which does not exist."

    def test_an_interpreter_that_does_not_answer_is_named(self, machine: Machine):
        machine.make_python("exit 3")
        assert (
            find_unavailable_reason() == f"the interpreter {machine.python} cannot run the check (CalledProcessError)."
        )

    def test_the_optimiser_of_that_name_is_recognised(self, machine: Machine):
        machine.package("smac", "facade")
        assert "hyperparameter optimizer" in find_unavailable_reason()

    def test_then_the_packages_then_the_game_then_the_maps(self, machine: Machine):
        assert find_unavailable_reason() == f"the package smac is not in the environment of {machine.python}."
        machine.package("smac", "env", "starcraft2")
        assert find_unavailable_reason() == f"the package pysc2 is not in the environment of {machine.python}."
        machine.package("pysc2")
        assert find_unavailable_reason() == f"StarCraft II is not in {machine.game} (SC2PATH)."
        (machine.game / "Versions").mkdir(parents=True)
        assert find_unavailable_reason() == f"SMAC's maps are not in {machine.game / 'Maps'}."
        machine.add_maps("3m")
        assert find_unavailable_reason() == ""
        reasons = {row.env: row.reason for row in list_doctor_rows()}
        assert reasons["smac"] == ""
        assert "the package smacv2 is not" in reasons["smacv2"]

    def test_a_single_missing_map_is_named(self, machine: Machine):
        machine.install_all("3m")
        with pytest.raises(EnvUnavailableError, match=r"\b8m\.SC2Map\b"):
            machine.make("8m")
        with pytest.raises(EnvUnavailableError, match=r"\b32x32_flat\.SC2Map\b"):
            machine.make("zerg_5_vs_5", env="smacv2")

    def test_this_projects_packages_do_not_reach_the_games_interpreter(self, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("VIRTUAL_ENV", "x")
        assert not {"PYTHONPATH", "VIRTUAL_ENV"} & game_link.isolated_environ().keys()


class TestInstalled:
    def test_maps_are_listed_and_one_of_ones_own_too(self, ready: Machine):
        ready.add_maps("my_map")
        rows = {row.map: row for row in list_envs() if row.env == "smac"}
        assert rows["25m"].available
        assert rows["25m"].obs_dim == 4 + 25 * 5 + 24 * 5 + 1
        assert rows["my_map"].obs_dim is None
        assert "32x32_flat" not in rows
        rows = {row.map: row for row in list_envs() if row.env == "smacv2"}
        assert len(rows) == 15
        assert rows["terran_10_vs_11"].available

    def test_it_keeps_the_contract(self, ready: Machine):
        env = ready.make("3m", 3)
        assert env.info == get_env_info(EnvConfig(name="smac", map="3m"))
        assert check_env(env, steps=150, reproducible=False) == []
        workers = pids(env)
        assert len(set(workers)) == 3
        env.close()
        env.close()
        assert not any(map(psutil.pid_exists, workers))
        assert len(ready.events("close")) == 3

    def test_a_step_before_the_first_reset_is_refused(self, ready: Machine):
        env = ready.make("3m", 2)
        with pytest.raises(ResetNeededError):
            env.step(np.zeros((2, 3), np.int64))
        env.close()

    def test_this_process_never_meets_the_packages(self, ready: Machine):
        env = ready.make()
        env.step(any_actions(env.reset(0)))
        env.close()
        assert not {"smac", "smacv2", "pysc2", "s2clientprotocol"} & sys.modules.keys()

    def test_so_does_smacv2(self, ready: Machine):
        env = ready.make("terran_5_vs_5", 2, env="smacv2")
        assert env.info.env == "smacv2"
        assert check_env(env, steps=130, reproducible=False) == []
        env.close()

    def test_it_shows_what_the_game_shows(self, ready: Machine):
        env = ready.make("2s3z", 2)
        game = StarCraft2Env("2s3z", derive_seed(4, "smac", 1), continuing_episode=True)
        seen, rng, over = env.reset(4), np.random.default_rng(0), False
        game.reset()
        while not over:
            np.testing.assert_array_equal(seen.obs[1], np.stack(game.get_obs()))
            np.testing.assert_array_equal(seen.state[1], game.get_state())
            np.testing.assert_array_equal(seen.avail[1], np.array(game.get_avail_actions(), bool))
            actions = random_actions(seen.avail, rng)
            seen = env.step(actions)
            reward, over, info = game.step(actions[1].tolist())
            assert seen.reward[1] == np.float32(reward)
        assert seen.won[1] == info["battle_won"]
        assert seen.truncated[1] == info.get("episode_limit", False)
        env.close()

    def test_every_copy_has_a_seed_and_a_game_of_its_own(self, ready: Machine):
        env = ready.make("3m", 2)
        env.reset(7)
        env.reset(8)
        env.close()
        launched = ready.events("launch")
        assert {int(seed) for *_, seed in launched} == {derive_seed(7, "smac", 0), derive_seed(7, "smac", 1)}
        assert len({pid for pid, *_ in launched}) == len(launched) == 2

    def test_a_broken_connection_truncates_and_is_not_won(self, ready: Machine):
        env = ready.make(does="lose")
        seen = env.step(any_actions(env.reset(0)))
        assert seen.truncated[0]
        assert not seen.terminated[0]
        assert not seen.won[0]
        env.close()
        assert len(ready.events("launch")) == 1

    def test_what_the_game_prints_is_no_answer(self, ready: Machine, capfd):
        env = ready.make(does="chatter")
        env.step(any_actions(env.reset(0)))
        env.close()
        assert "the game speaks" in capfd.readouterr().err


class TestWorkersThatEnd:
    def test_one_that_is_killed_truncates_its_battle_alone_and_is_started_anew(self, ready: Machine):
        env = ready.make("3m", 2)
        seen = env.reset(0)
        first, other = pids(env)
        os.kill(first, signal.SIGKILL)
        seen = env.step(any_actions(seen))
        assert seen.truncated.tolist() == [True, False]
        assert not seen.terminated.any()
        assert not seen.won.any()
        still = env.step(any_actions(seen))
        np.testing.assert_array_equal(still.obs[0], seen.obs[0])
        seen = env.reset()
        assert seen.avail.any(axis=(1, 2)).all()
        assert pids(env)[0] != first
        assert pids(env)[1] == other
        assert not env.step(any_actions(seen)).truncated.any()
        env.close()
        seeds = [int(event[-1]) for event in ready.events("launch")]
        assert seeds[2] == derive_seed(0, "smac", 0, 1)

    def test_the_game_that_it_leaves_ends_with_it(self, ready: Machine):
        env = ready.make(does="child")
        seen = env.reset(0)
        game = int(ready.events("child")[0][-1])
        os.kill(pids(env)[0], signal.SIGKILL)
        env.step(any_actions(seen))
        assert wait_until_gone(game)
        env.close()

    def test_closing_ends_the_game_too(self, ready: Machine):
        env = ready.make(does="child")
        env.reset(0)
        game = int(ready.events("child")[0][-1])
        env.close()
        assert wait_until_gone(game)

    def test_a_game_that_dies_again_and_again_ends_the_run_with_a_sentence(self, ready: Machine):
        env = ready.make(does="die")

        def play() -> None:
            for _ in range(5):
                seen = env.reset(0)
                while not seen.truncated[0]:
                    seen = env.step(any_actions(seen))

        with pytest.raises(EnvUnavailableError, match="copy 0") as caught:
            play()
        assert "SIGKILL" in str(caught.value.__cause__)
        assert len(ready.events("launch")) == 3
        env.close()

    def test_so_does_one_that_dies_at_its_start(self, ready: Machine):
        env = ready.make(does="die-at-reset")
        with pytest.raises(EnvUnavailableError, match="copy 0") as caught:
            env.reset(0)
        assert "with exit code 7" in str(caught.value.__cause__)
        env.close()

    def test_a_game_that_cannot_start_is_told_in_one_line(self, ready: Machine):
        env = ready.make(does="refuse")
        with pytest.raises(EnvUnavailableError) as refusal:
            env.reset(0)
        assert str(refusal.value) == (
            "smac 3m could not start a battle: RuntimeError: SC2 did not start. The log contains the details."
        )
        env.close()

    def test_an_exchange_that_is_broken_off_leaves_no_answer_for_the_next(self, ready: Machine):
        env = ready.make("3m", 2)
        seen = env.reset(0)
        actions = any_actions(seen)

        class StopError(Exception):
            pass

        def stop(*_: object) -> None:
            raise StopError

        env._games[1].receive_step = stop  # pyright: ignore  # as a signal would
        with pytest.raises(StopError):
            env.step(actions)
        assert pids(env) == []
        again = env.reset(0)
        assert again.avail.any(axis=(1, 2)).all()
        assert not env.step(any_actions(again)).truncated.any()
        env.close()

    def test_a_fault_of_the_package_is_told_in_one_line(self, ready: Machine):
        env = ready.make(does="fail")
        actions = any_actions(env.reset(0))
        with pytest.raises(EnvUnavailableError, match="continue") as caught:
            env.step(actions)
        assert "AssertionError: a unit" in str(caught.value)
        env.close()

    def test_a_package_that_does_not_load_is_told_in_one_line(self, ready: Machine):
        ready.package("smac", "env", text="raise TypeError('Descriptors cannot\\nbe created directly.')")
        with pytest.raises(EnvUnavailableError) as refusal:
            ready.make()
        said = "TypeError: Descriptors cannot be created directly."
        assert str(refusal.value) == f"smac 3m could not be made: {said} The log contains the details."

    @pytest.mark.slow
    def test_a_silent_worker_is_ended(self, ready: Machine, monkeypatch):
        monkeypatch.setattr(game_link, "REPLY_TIMEOUT_S", 3.0)
        env = ready.make(does="hang")
        seen = env.step(any_actions(env.reset(0)))
        assert seen.truncated[0]
        assert pids(env) == []
        env.close()

    def test_an_interpreter_that_cannot_start_is_named(self, ready: Machine, monkeypatch):
        monkeypatch.setattr(game_link, "_CACHE_S", math.inf)  # else a slow machine asks the broken one what it has
        ready.make().close()
        ready.python.write_text("#!/no/such/interpreter\n")
        with pytest.raises(EnvUnavailableError, match=str(ready.python)):
            ready.make()


def test_replays_are_drawn_from_states_alone():
    states = make_env(EnvConfig(map="3m"), n_envs=1).reset(0).state
    scene = make_scene("smac", "3m", states)
    assert scene.note == "StarCraft II."
    assert len(scene.kind) == 6
    assert scene.walkable is None


@pytest.mark.parametrize(("env", "map"), [("smac", "25m"), ("smacv2", "protoss_5_vs_5")])
def test_states_that_cannot_be_drawn_are_shown_with_their_names(env: str, map: str):
    info = get_env_info(EnvConfig(name=env, map=map))
    assert info is not None
    actions = np.zeros((1, info.n_agents), np.int64)
    scene = make_scene(env, map, np.zeros((2, info.state_dim), np.float32), actions)
    assert scene.note
    assert len(scene.value_names) == info.state_dim
    assert scene.value_names[0] == "agent 0 health"
