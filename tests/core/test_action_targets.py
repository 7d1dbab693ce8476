"""Whom an agent aims at, read from its actions."""

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


def test_an_attack_names_the_opponent_of_its_number_and_a_healer_an_agent():
    scene = a_scene()
    actions = np.array([[2, 3], [1, 0]])
    target = find_targets(scene, actions, NAMES)
    assert target.tolist() == [[2, 3, -1, -1, -1, -1], [-1] * 6, [-1] * 6]
    heals = replace(scene, kind=("marine", "medivac", *scene.kind[2:]))
    assert find_targets(heals, actions, NAMES)[0, :2].tolist() == [2, 1]


def test_actions_without_targets_or_of_another_episode_aim_at_nothing():
    scene = a_scene()
    assert find_targets(scene, np.zeros((2, 2), int), ("left", "right")) is None
    assert find_targets(scene, np.zeros((7, 2), int), NAMES) is None
    assert (find_targets(scene, np.full((2, 2), 99), NAMES) == -1).all()
    assert (find_targets(scene, np.full((2, 2), 6), (*NAMES, "a", "b", "attack 9")) == -1).all()


@pytest.mark.parametrize("map", ["3m", "MMM2", "3s_vs_5z"])
def test_targets_from_actions_are_those_that_the_simulators_states_tell(map):
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


def test_smax_aims_by_its_actions_because_its_states_do_not_say():
    states = np.zeros((4, get_env_info(EnvConfig(name="smax", map="3m")).state_dim), np.float32)
    assert make_scene("smax", "3m", states).target is None
    actions = np.full((3, 3), get_action_names("smax", "3m").index("attack 2"))
    scene = make_scene("smax", "3m", states, actions)
    assert scene.target[0].tolist() == [5, 5, 5, -1, -1, -1]
