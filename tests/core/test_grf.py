"""Football: line-ups, layouts, the twin that goes through gfootball's own environment, worker processes."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from emtc_core.config.train import EnvConfig, GrfConfig
from emtc_core.envs.grf.env import GrfEnv, engine_seed
from emtc_core.envs.grf.scenarios import SCENARIOS, ObservationMap, StateLayout, in_own_half, make_scene
from emtc_core.envs.registry import make_env
from emtc_core.errors import EnvUnavailableError
from tests.require import require_env

SIZES = {"academy_3_vs_1_with_keeper": 26, "academy_counterattack_easy": 30, "academy_counterattack_hard": 34}
ROOT = Path(__file__).parents[2]
SHOT, RIGHT = 12, 5


@pytest.fixture
def engine_needed():
    require_env("grf")


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_a_trimmed_squad_is_the_keeper_and_the_observed_players(scenario):
    assert len(scenario.trimmed.left) == scenario.n_agents + 1
    assert len(scenario.trimmed.right) == scenario.n_opponents
    assert scenario.trimmed.left[0].role == scenario.trimmed.right[0].role == "GK"
    assert scenario.full.left[-scenario.n_agents :] == scenario.trimmed.left[1:]


def test_an_observation_is_the_state_in_the_agents_own_frame():
    layout = StateLayout(n_agents=2, n_opponents=1)
    # two agents, their motions, one opponent, its motion, the ball and its motion
    state = np.array([[0.5, 0.1, 0.7, -0.2, 1, 2, 3, 4, 0.9, 0.3, 5, 6, 0.6, 0.05, 0.25, 7, 8, 9]])
    obs = ObservationMap(layout).observe(state)
    first = [0.5, 0.1, 0.2, -0.3, 1, 2, 3, 4, 0.4, 0.2, 5, 6, 0.1, -0.05, 0.25, 7, 8, 9]
    second = [0.7, -0.2, -0.2, 0.3, 3, 4, 1, 2, 0.2, 0.5, 5, 6, -0.1, 0.25, 0.25, 7, 8, 9]
    np.testing.assert_allclose(obs[0], np.array([first, second], np.float32), atol=1e-6)


def test_the_own_half_is_entered_by_the_ball_or_any_agent_but_not_by_an_opponent():
    layout = StateLayout(n_agents=2, n_opponents=1)
    states = np.full((4, layout.dim), 0.5)
    states[0, layout.ball_at] = -0.01
    states[1, 2] = -0.01  # the second agent's x
    states[2, layout.opponents_at] = -0.9
    states[3, 1] = -0.4  # the first agent's y
    assert in_own_half(layout, states).tolist() == [True, True, False, False]


def test_a_scene_shows_players_and_ball_with_up_pointing_up():
    dim = SIZES["academy_3_vs_1_with_keeper"]
    states = np.arange(2 * dim, dtype=np.float32).reshape(2, dim) / 100
    scene = make_scene("academy_3_vs_1_with_keeper", states)
    assert scene.kind == ("player", "player", "player", "keeper", "player", "ball")
    assert scene.team.tolist() == [0, 0, 0, 1, 1, 2]
    np.testing.assert_allclose(scene.position[0, 0], [0.0, -0.01])
    np.testing.assert_allclose(scene.position[1, 5], [0.46, -0.47])
    assert scene.alive.all()


def test_engine_seeds_differ_by_copy_and_episode():
    seeds = {engine_seed(7, copy, episode) for copy in range(20) for episode in range(20)}
    assert len(seeds) == 400
    assert engine_seed(7, 0) == engine_seed(7, 0, 0)


def newest_child() -> psutil.Process:
    """The process that was started last; numbers of processes begin anew when they are used up."""
    return max(psutil.Process().children(), key=psutil.Process.create_time)


@pytest.mark.ci
@pytest.mark.grf
@pytest.mark.usefixtures("engine_needed")
class TestWithTheEngine:
    @pytest.mark.parametrize("map", SIZES)
    @pytest.mark.filterwarnings("ignore")  # gym, which only gfootball's own environment needs, warns at import
    def test_it_agrees_step_by_step_with_the_wrapped_environment(self, map: str):
        from tests.reference.grf_wrapper import wrapped

        rng = np.random.default_rng(3)
        env = make_env(EnvConfig(name="grf", map=map, grf=GrfConfig(reward="emu")), n_envs=1)
        for seed in range(3):
            twin = wrapped(map, engine_seed(seed, 0))
            seen, over = env.reset(seed), False
            twin.reset()
            while not over:
                np.testing.assert_array_equal(seen.state[0], twin.state().astype(np.float32))
                for agent in range(env.info.n_agents):
                    np.testing.assert_array_equal(seen.obs[0, agent], twin.obs(agent).astype(np.float32))
                actions = rng.integers(0, 19, (1, env.info.n_agents))
                seen = env.step(actions)
                reward, over, scored = twin.step(actions[0].tolist())
                assert seen.reward[0] == reward
                assert (seen.terminated | seen.truncated)[0] == over
                assert seen.won[0] == scored
            np.testing.assert_array_equal(seen.state[0], twin.state().astype(np.float32))
            twin.close()
        env.close()

    @pytest.mark.filterwarnings("ignore")
    def test_full_squads_are_gfootballs_own(self):
        from tests.reference.grf_wrapper import wrapped

        map = "academy_counterattack_easy"
        env = make_env(EnvConfig(name="grf", map=map, grf=GrfConfig(trimmed=False)), n_envs=1)
        twin = wrapped(map, engine_seed(1, 0), trimmed=False)
        seen = env.reset(1)
        twin.reset()
        for _ in range(10):
            np.testing.assert_array_equal(seen.state[0], twin.state().astype(np.float32))
            seen = env.step(np.full((1, 4), RIGHT))
            twin.step([RIGHT] * 4)
        env.close()
        twin.close()

    def test_a_goal_pays_once_and_is_the_success(self):
        env = make_env(EnvConfig(name="grf", map="academy_3_vs_1_with_keeper"), n_envs=4)
        won_return = self._search_goal(env)
        assert won_return == 1.0
        env.close()

    @staticmethod
    def _search_goal(env) -> float:
        """Run at goal and shoot until some copy scores; return that copy's return."""
        for seed in range(30):
            seen, total = env.reset(seed), np.zeros(env.n_envs)
            for t in range(60):
                action = RIGHT if t < 8 else SHOT
                seen = env.step(np.full((env.n_envs, 3), action))
                total += seen.reward
            if seen.won.any():
                assert seen.terminated[seen.won].all()
                return float(total[seen.won][0])
        raise AssertionError("no shot went in")

    @pytest.mark.parametrize(("reward", "paid"), [("paper", [1, -1, 0]), ("emu", [100, -1, 0])])
    def test_only_our_own_goal_is_a_success(self, reward: str, paid: list[float]):
        env = GrfEnv("academy_3_vs_1_with_keeper", n_envs=3, config=GrfConfig(reward=reward, workers=1))
        env.reset(0)

        def score() -> None:
            env._group.shared.goal[:] = [1, -1, 0]
            env._group.shared.ended[:] = [True, True, False]

        env._group.step = score  # type: ignore[method-assign]  # opponents rarely score
        seen = env.step(np.zeros((3, 3), int))
        assert seen.won.tolist() == [True, False, False]
        assert seen.reward.tolist() == paid
        env.close()

    @pytest.mark.parametrize("end", ["close", "drop"])
    def test_an_environment_ends_its_worker_processes(self, end: str):
        others = psutil.Process().children()
        env = GrfEnv("academy_3_vs_1_with_keeper", n_envs=2, config=GrfConfig(workers=2))
        workers = [child for child in psutil.Process().children() if child not in others]
        assert len(workers) == 2
        if end == "close":
            env.close()
        del env
        gc.collect()
        assert not [worker for worker in workers if worker.is_running()]

    def test_a_dead_worker_is_reported_in_a_sentence(self):
        env = GrfEnv("academy_3_vs_1_with_keeper", n_envs=2, config=GrfConfig(workers=1))
        worker = newest_child()
        worker.kill()
        worker.wait()
        with pytest.raises(EnvUnavailableError, match="engine"):
            env.reset(0)
        env.close()

    def test_an_interrupt_from_the_keyboard_is_left_to_the_parent(self):
        env = GrfEnv("academy_3_vs_1_with_keeper", n_envs=2, config=GrfConfig(workers=1))
        worker = newest_child()
        env.reset(0)
        worker.send_signal(signal.SIGINT)
        seen = env.step(np.zeros((2, 3), int))
        assert np.isfinite(seen.state).all()
        env.close()

    def test_workers_end_with_a_killed_parent(self, tmp_path: Path):
        script = tmp_path / "parent.py"  # no main guard: a worker must not run its parent's script again
        script.write_text(
            "from emtc_core.config.train import EnvConfig\n"
            "from emtc_core.envs.registry import make_env\n"
            "env = make_env(EnvConfig(name='grf', map='academy_3_vs_1_with_keeper'), n_envs=2)\n"
            "env.reset(0)\n"
            "print('ready', flush=True)\n"
            "input()\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        parent = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        workers = psutil.Process(parent.pid).children()
        assert workers
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive
        assert parent.stdin is not None
        parent.stdin.close()
        parent.stdout.close()
