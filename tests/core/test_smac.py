"""The adapters of StarCraft II: what they say when something is missing, and that they add nothing of their own."""

import os
import signal

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
from emtc_core.envs.smac.maps import SMAC_MAPS, SMACV2_MAPS, SmacMap
from emtc_core.errors import EnvUnavailableError
from tests.core.smac_double import StarCraft2Env
from tests.core.smac_machine import Machine, wait_until_gone


def pids(env: SmacEnv) -> list[int]:
    return [game._process.pid for game in env._games if game is not None]


def any_actions(seen) -> np.ndarray:
    return random_actions(seen.avail, np.random.default_rng(0))


class TestSizes:
    @pytest.mark.parametrize("map", MAPS)
    def test_smac_and_its_simulator_have_the_same_sizes(self, map: str):
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
    def test_sizes_of_smacv2_are_those_of_its_package(self, map, obs_dim, state_dim, n_actions):
        info = get_env_info(EnvConfig(name="smacv2", map=map))
        assert info is not None
        assert (info.obs_dim, info.state_dim, info.n_actions) == (obs_dim, state_dim, n_actions)


class TestWhatIsMissing:
    def test_a_missing_python_environment_is_reported_with_the_command_that_makes_it(self, monkeypatch, tmp_path):
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

    def test_the_first_missing_part_is_named(self, machine: Machine):
        """Parts are installed one after the other."""
        python = machine.python.read_text().partition("\n")[2]
        machine.python.unlink()
        assert "EMTC_SMAC_PYTHON" in find_unavailable_reason()
        machine.make_python("exit 3")
        assert "cannot run the check (CalledProcessError)" in find_unavailable_reason()
        machine.make_python(python)
        assert "the package smac is not in" in find_unavailable_reason()
        machine.package("smac", "facade")
        assert "hyperparameter optimizer" in find_unavailable_reason()
        machine.package("smac", "env", "starcraft2")
        assert "the package pysc2 is not in" in find_unavailable_reason()
        machine.package("pysc2")
        assert "SC2PATH" in find_unavailable_reason()
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


class TestInstalled:
    def test_the_maps_of_the_packages_and_of_the_user_are_listed(self, ready: Machine):
        ready.add_maps("my_map")
        rows = {row.map: row for row in list_envs() if row.env == "smac"}
        assert rows["25m"].available
        assert rows["25m"].obs_dim == 4 + 25 * 5 + 24 * 5 + 1
        assert rows["my_map"].obs_dim is None
        assert "32x32_flat" not in rows
        rows = {row.map: row for row in list_envs() if row.env == "smacv2"}
        assert len(rows) == 15
        assert rows["terran_10_vs_11"].available

    @pytest.mark.parametrize(("env", "map", "copies"), [("smac", "3m", 3), ("smacv2", "terran_5_vs_5", 1)])
    def test_it_follows_the_contract(self, ready: Machine, env: str, map: str, copies: int):
        made = ready.make(map, copies, env=env)
        with pytest.raises(ResetNeededError):
            made.step(np.zeros((copies, made.info.n_agents), np.int64))
        assert made.info.env == env
        assert env == "smacv2" or made.info == get_env_info(EnvConfig(name=env, map=map))
        assert check_env(made, steps=130, reproducible=False) == []
        workers = pids(made)
        assert len(set(workers)) == copies
        made.close()
        made.close()
        assert not any(psutil.pid_exists(pid) for pid in workers)
        assert len(ready.events("close")) == copies

    def test_observations_and_rewards_are_those_of_the_game(self, ready: Machine):
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

    def test_every_copy_has_its_own_seed_and_game(self, ready: Machine):
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

    def test_output_of_the_game_is_not_read_as_a_reply(self, ready: Machine, capfd):
        env = ready.make(does="chatter")
        env.step(any_actions(env.reset(0)))
        env.close()
        assert "the game speaks" in capfd.readouterr().err


class TestWorkersThatEnd:
    def test_a_killed_worker_truncates_only_its_battle_and_is_started_again(self, ready: Machine):
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

    @pytest.mark.parametrize("end", ["killed", "closed"])
    def test_the_game_of_a_worker_that_ends_is_ended_too(self, ready: Machine, end: str):
        env = ready.make(does="child")
        seen = env.reset(0)
        game = int(ready.events("child")[0][-1])
        if end == "killed":
            os.kill(pids(env)[0], signal.SIGKILL)
            env.step(any_actions(seen))
            assert wait_until_gone(game)
        env.close()
        assert wait_until_gone(game)

    @pytest.mark.parametrize(("does", "how"), [("die", "SIGKILL"), ("die-at-reset", "with exit code 7")])
    def test_a_game_that_ends_again_and_again_ends_the_run_with_a_sentence(self, ready: Machine, does: str, how: str):
        env = ready.make(does=does)

        def play() -> None:
            for _ in range(5):
                seen = env.reset(0)
                while not seen.truncated[0]:
                    seen = env.step(any_actions(seen))

        with pytest.raises(EnvUnavailableError, match="copy 0") as caught:
            play()
        assert how in str(caught.value.__cause__)
        assert len(ready.events("launch")) == (3 if does == "die" else 0)
        env.close()

    @pytest.mark.parametrize(
        ("does", "sentence"),
        [
            ("", "smac 3m could not be made: TypeError: Descriptors cannot be created directly."),
            ("refuse", "smac 3m could not start a battle: RuntimeError: SC2 did not start."),
            ("fail", "smac 3m could not continue: AssertionError: a unit is nowhere."),
        ],
        ids=["import", "reset", "step"],
    )
    def test_an_error_of_the_package_is_one_line(self, ready: Machine, does: str, sentence: str):
        if not does:
            ready.package("smac", "env", text="raise TypeError('Descriptors cannot\\nbe created directly.')")

        def play() -> None:
            env = ready.make(does=does)
            env.step(any_actions(env.reset(0)))

        with pytest.raises(EnvUnavailableError) as caught:
            play()
        assert str(caught.value) == f"{sentence} The log contains the details."

    def test_a_reply_that_was_not_read_is_not_taken_for_the_next_one(self, ready: Machine):
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

    @pytest.mark.slow
    def test_a_silent_worker_is_ended(self, ready: Machine, monkeypatch):
        monkeypatch.setattr(game_link, "REPLY_TIMEOUT_S", 3.0)
        env = ready.make(does="hang")
        seen = env.step(any_actions(env.reset(0)))
        assert seen.truncated[0]
        assert pids(env) == []
        env.close()


def test_replays_are_drawn_from_states_alone():
    states = make_env(EnvConfig(map="3m"), n_envs=1).reset(0).state
    scene = make_scene("smac", "3m", states)
    assert scene.note == "StarCraft II."
    assert len(scene.kind) == 6
    assert scene.walkable is None


@pytest.mark.parametrize(
    ("env", "map", "known"),
    [(env, map, known) for env, maps in (("smac", SMAC_MAPS), ("smacv2", SMACV2_MAPS)) for map, known in maps.items()],
)
def test_every_entry_of_a_state_that_cannot_be_drawn_has_its_own_name(env: str, map: str, known: SmacMap):
    scene = make_scene(env, map, np.zeros((2, known.sizes()["state_shape"]), np.float32))
    names = scene.value_names
    assert len(set(names)) == len(names)
    assert len(names) == (0 if map in MAPS else known.sizes()["state_shape"])
    assert bool(scene.note)
