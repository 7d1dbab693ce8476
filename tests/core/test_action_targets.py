"""The unit that an agent aims at, computed from its actions."""

from dataclasses import replace

import numpy as np
import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import get_action_names, get_env_info, make_env, make_scene
from emtc_core.envs.scene import find_targets

NAMES = ("no-op", "stop", "attack 0", "attack 1")


def a_scene():
    states = np.zeros((3, 26), np.float32)
    scene = make_scene("grf", "academy_3_vs_1_with_keeper", states)
    return replace(scene, team=np.array([0, 0, 1, 1, 1, 2], np.int8))


def test_actions_without_targets_or_of_another_episode_have_no_targets():
    scene = a_scene()
    assert find_targets(scene, np.zeros((2, 2), int), ("left", "right")) is None
    assert find_targets(scene, np.zeros((7, 2), int), NAMES) is None
    assert (find_targets(scene, np.full((2, 2), 99), NAMES) == -1).all()
    assert (find_targets(scene, np.full((2, 2), 6), (*NAMES, "a", "b", "attack 9")) == -1).all()


@pytest.mark.parametrize("map", ["MMM2"])
def test_targets_from_actions_equal_those_in_the_states_of_the_simulator(map):
    """MMM2 has healers, which aim at agents."""
    env = make_env(EnvConfig(name="skirmish", map=map), n_envs=1)
    seen, rng = env.reset(0), np.random.default_rng(0)
    states, actions = [seen.state[0]], []
    for _ in range(30):
        chosen = np.argmax(
            rng.random(seen.avail.shape) * seen.avail * (1 + 9 * (np.arange(env.info.n_actions) > 5)), -1
        )
        seen = env.step(chosen)
        if (seen.terminated | seen.truncated)[0]:
            break
        states.append(seen.state[0])
        actions.append(chosen[0])
    told = make_scene("skirmish", map, np.array(states))
    found = find_targets(told, np.array(actions), get_action_names("skirmish", map))
    assert (told.target >= 0).any()
    np.testing.assert_array_equal(found, told.target)


def test_targets_of_smax_come_from_its_actions_because_its_states_have_none():
    states = np.zeros((4, get_env_info(EnvConfig(name="smax", map="3m")).state_dim), np.float32)
    assert make_scene("smax", "3m", states).target is None
    actions = np.full((3, 3), get_action_names("smax", "3m").index("attack 2"))
    scene = make_scene("smax", "3m", states, actions)
    assert scene.target[0].tolist() == [5, 5, 5, -1, -1, -1]
