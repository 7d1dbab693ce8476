"""Replays from stored states alone."""

import numpy as np
import pytest

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.maps import MAPS, make_scene
from tests.reference.skirmish_watch import draw, make


@pytest.mark.parametrize("name", ["3s5z", "MMM2", "corridor"])
def test_frames_show_where_units_were_and_whom_they_aimed_at(name):
    env, rng = make(name), np.random.default_rng(0)
    seen, n = env.reset(0), make(name).info.n_agents
    states, truth, actions = [seen.state[0]], [env._battle.floats[0].copy()], []
    for _ in range(40):
        choice = draw(seen.avail, rng, fight=0.9)
        seen = env.step(choice)
        if (seen.terminated | seen.truncated)[0]:
            break
        states.append(seen.state[0])
        truth.append(env._battle.floats[0].copy())
        actions.append(choice[0])
    scene = env.scene(np.array(states))
    floats = np.array(truth)
    np.testing.assert_allclose(scene.position[0], floats[0][:, [c.X, c.Y]], atol=1e-4)
    alive = floats[..., c.HEALTH] > 0
    np.testing.assert_array_equal(scene.alive, alive)
    np.testing.assert_allclose(scene.position[alive], floats[..., [c.X, c.Y]][alive], atol=1e-4)
    shield = env._battle.spec[:, c.S_SHIELD]
    np.testing.assert_allclose(scene.shield, floats[..., c.SHIELD] / np.where(shield > 0, shield, 1), atol=1e-6)
    kinds = [unit.name for unit in env._battle.units]
    assert list(scene.kind) == kinds
    assert scene.team.tolist() == [0] * n + [1] * (len(kinds) - n)
    for t, action in enumerate(actions):
        for i in range(n):
            aimed = action[i] - 6 + (0 if kinds[i] == "medivac" else n) if action[i] >= 6 else -1
            assert scene.target[t, i] == aimed
    assert (scene.target[-1] == -1).all()


def test_the_dead_lie_where_they_were_seen_last():
    env = make("3m")
    states = [env.reset(0).state[0]]
    env._battle.floats[0, 4, [c.X, c.Y]] = 20.0, 12.0
    states.append(env._observe(np.zeros(1, np.float32)).state[0])
    env._battle.ints[0, 4, c.ALIVE] = 0
    states += [env._observe(np.zeros(1, np.float32)).state[0]] * 2
    scene = make_scene(MAPS["3m"], np.array(states))
    assert not scene.alive[2:, 4].any()
    np.testing.assert_allclose(scene.position[3, 4], (20, 12), atol=1e-5)
