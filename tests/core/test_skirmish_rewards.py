"""Reward bookkeeping: what SMAC pays, in its own numbers."""

import numpy as np
import pytest

from emtc_core.envs.skirmish import columns as c
from tests.reference.skirmish_layout import FACTS
from tests.reference.skirmish_watch import make, play

WON_MAPS = ("3m", "MMM2", "corridor")


def totals(env, floats):
    return floats[..., env.info.n_agents :, [c.HEALTH, c.SHIELD]].sum(axis=(-1, -2))


@pytest.mark.parametrize("name", FACTS)
def test_each_reward_is_the_damage_and_the_kills_of_its_step(name):
    env, facts = make(name, 3), FACTS[name]
    rng = np.random.default_rng(0)
    seen = env.reset(4)
    for _ in range(40):
        running = env._battle.world.running.copy()
        before, alive = totals(env, env._battle.floats), env._battle.ints[:, facts.n :, c.ALIVE].sum(axis=1)
        weight = rng.random(seen.avail.shape) * seen.avail
        weight[..., 6:] *= 3
        seen = env.step(weight.argmax(axis=-1))
        after, left = totals(env, env._battle.floats), env._battle.ints[:, facts.n :, c.ALIVE].sum(axis=1)
        points = np.abs(before - after + 10 * (alive - left)) + 200 * (seen.won & running)
        np.testing.assert_allclose(seen.reward, points * running * 20 / facts.max_reward, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WON_MAPS)
def test_a_victory_over_helpless_enemies_returns_twenty(name):
    env = make(name)
    seen, earned = env.reset(0), 0.0
    battle, n = env._battle, env.info.n_agents
    for _ in range(env.info.episode_limit):
        battle.floats[0, n:, c.COOLDOWN] = 1e6
        battle.floats[0, :, c.SINCE_DAMAGE] = 0.0  # no shield recharges
        fighters = battle.spec[:, c.S_DELIVERY] != c.HEALING
        living = np.flatnonzero((battle.ints[0, :, c.ALIVE] == 1) & fighters)
        foe = living[living >= n][0]
        battle.floats[0, foe, [c.HEALTH, c.SHIELD]] = np.minimum(battle.floats[0, foe, [c.HEALTH, c.SHIELD]], 1.0)
        battle.ints[0, foe, c.ALIVE] = 0  # one enemy falls per step
        battle.floats[0, foe, [c.HEALTH, c.SHIELD]] = 0.0
        seen = env.step(np.where(seen.avail[..., 1], 1, 0))
        earned += float(seen.reward[0])
        if seen.terminated[0]:
            break
    assert seen.won[0]
    spared = 160.0 if name == "MMM2" else 0.0  # the medivac that survives: 150 health and 10 for its death
    regrown = 1.0 if name == "corridor" else 1e-3
    assert earned == pytest.approx(20 * (1 - spared / FACTS[name].max_reward), abs=regrown)


def test_shields_that_recharge_pay_in_positive_numbers_as_in_smac():
    env = make("3s_vs_5z")
    seen = env.reset(0)
    env._battle.floats[0, 3:, c.SHIELD] = 20.0
    env._battle.floats[0, 3:, c.PREVIOUS_TOTAL] = 120.0
    seen = env.step(np.ones((1, 3), int))
    assert seen.reward[0] == pytest.approx(5 * 8 * 0.125 * 20 / 1000)


def test_sparse_rewards_pay_the_end_alone_and_keep_the_scale():
    env = make("3m", 8, reward_sparse=True)
    seen = play(env, 0)
    assert all((frame.reward[~frame.terminated] == 0).all() for frame in seen)
    total = sum(frame.reward for frame in seen)
    lost = seen[-1].terminated & ~seen[-1].won
    np.testing.assert_allclose(total[lost], -20 / 365, rtol=1e-6)
    assert env.info.reward_range == pytest.approx((-20 / 365, 20 / 365))


def test_only_a_medivac_that_is_left_loses_and_pays_nothing():
    env = make("MMM2")
    env.reset(0)
    env._battle.ints[0, :9, c.ALIVE] = 0
    seen = env.step(np.ones((1, 10), int))
    assert (seen.terminated[0], seen.won[0], seen.reward[0]) == (True, False, 0)


def test_a_battle_without_survivors_is_not_won_and_pays_the_kills():
    env = make("3m")
    env.reset(0)
    env._battle.ints[0, :, c.ALIVE] = 0
    env._battle.floats[0, :, c.HEALTH] = 0
    env._battle.world.running[:] = True
    seen = env.step(np.ones((1, 3), int))
    assert (seen.terminated[0], seen.won[0]) == (True, False)
    assert seen.reward[0] == pytest.approx((135 + 30) * 20 / 365)
