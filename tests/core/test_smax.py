"""SMAX: sizes and drawings without the package, rules with it (the contract tests play it as well)."""

import numpy as np
import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import get_env_info, make_env, make_scene
from emtc_core.envs.smax import ARMIES
from tests.require import require_env


@pytest.fixture
def package():
    require_env("smax")


def test_a_scene_reads_health_place_kind_and_team_off_the_world_state():
    info = get_env_info(EnvConfig(name="smax", map="3m"))
    assert info is not None
    states = np.zeros((3, info.state_dim), np.float32)
    rows = states[:, :60].reshape(3, 6, 10)
    rows[:, :, 0] = 0.5
    rows[:, :, 1:3] = np.arange(12).reshape(6, 2)
    rows[2, 4] = 0  # the fifth unit dies
    states[:, 60:63], states[:, 63:66] = 0, 1
    states[:, -6:] = 5
    scene = make_scene("smax", "3m", states)
    assert scene.kind == ("hydralisk",) * 6
    assert scene.team.tolist() == [0, 0, 0, 1, 1, 1]
    assert scene.alive[:, 4].tolist() == [True, True, False]
    np.testing.assert_array_equal(scene.position[2, 4], [8, 9])
    assert scene.health[0, 0] == 0.5


@pytest.mark.ci
@pytest.mark.usefixtures("package")
class TestWithThePackage:
    @pytest.mark.parametrize("map", ["2s3z", "3s_vs_5z"])
    def test_sizes_are_those_of_a_battle(self, map: str):
        import jax

        env = make_env(EnvConfig(name="smax", map=map), n_envs=2)
        _, seen = jax.eval_shape(env._battles.reset, 0)  # compiles nothing
        info = env.info
        assert seen["obs"].shape == (2, info.n_agents, info.obs_dim)
        assert seen["state"].shape == (2, info.state_dim)
        assert seen["avail"].shape == (2, info.n_agents, info.n_actions)

    def test_armies_are_the_packages(self):
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        theirs = {name: (s.num_allies, s.num_enemies) for name, s in MAP_NAME_TO_SCENARIO.items()}
        assert theirs == ARMIES
