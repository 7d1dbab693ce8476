"""Weapons, healing, regeneration and walking by worked examples: two units on a field, numbers by hand."""

import numpy as np
import pytest

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.env import Battle
from tests.reference.skirmish_watch import make


def duel(map: str, i: int, j: int, gap: float) -> Battle:
    """Leave units i and j (absolute indices) alive, facing each other `gap` apart, edge to edge; no jitter."""
    battle = make(map)._battle
    battle.seed(0)
    battle.restart()
    battle.ints[0, :, c.ALIVE] = 0
    battle.ints[0, [i, j], c.ALIVE] = 1
    battle.floats[0, :, c.SINCE_DAMAGE] = 0.0
    distance = gap + battle.spec[i, c.S_RADIUS] + battle.spec[j, c.S_RADIUS]
    battle.floats[0, [i, j], c.Y] = 16.0
    battle.floats[0, i, c.X], battle.floats[0, j, c.X] = 14.0, 14.0 + distance
    battle.floats[0, i, [c.FACE_X, c.FACE_Y]] = 1.0, 0.0
    return battle


def attack(battle: Battle, i: int, j: int) -> None:
    battle.ints[0, i, [c.ORDER, c.TARGET]] = c.ATTACK, j


def hold(battle: Battle, j: int) -> None:
    """Keep an enemy from acting: it is stunned by an endless cooldown and pinned to its place."""
    battle.floats[0, j, c.COOLDOWN] = 1e6
    battle.ints[0, j, c.TARGET] = -1


def hits(battle: Battle, i: int, j: int, loops: int) -> list[tuple[int, float, float]]:
    """Record (loop, shield lost, health lost) of unit j while unit i attacks it and j cannot fight back."""
    attack(battle, i, j)
    found = []
    for loop in range(1, loops + 1):
        hold(battle, j)
        x, y = battle.floats[0, j, [c.X, c.Y]]
        before = battle.floats[0, j, [c.SHIELD, c.HEALTH]]
        battle.advance(1)
        battle.floats[0, j, [c.X, c.Y]] = x, y
        lost = before - battle.floats[0, j, [c.SHIELD, c.HEALTH]]
        if lost.sum() > 0.1:
            found.append((loop, round(float(lost[0]), 6), round(float(lost[1]), 6)))
    return found


def test_a_marine_fires_after_its_wind_up_and_kills_in_eight_hits():
    found = hits(duel("3m", 0, 3, 4.0), 0, 3, 140)
    assert found[0] == (2, 0, 6)
    assert [lost for _, _, lost in found] == [6] * 7 + [3]


def test_a_marines_period_is_its_weapon_plus_the_random_delay():
    gaps = []
    for seed in range(20):
        battle = duel("3m", 0, 3, 4.0)
        battle.seed(seed)
        loops = [loop for loop, *_ in hits(battle, 0, 3, 60)]
        gaps += np.diff(loops).tolist()
    assert min(gaps) >= np.floor(13.77 - 1)
    assert max(gaps) <= np.ceil(13.77 + 2)
    assert len(set(gaps)) >= 3


def test_a_stalkers_missile_flies_and_spills_over_the_shield_less_armor():
    battle = duel("3s_vs_5z", 0, 3, 5.0)
    battle.floats[0, 3, c.SHIELD] = 11.0
    found = hits(battle, 0, 3, 45)
    flight = 5.0 / 1.17
    assert found[0] == (1 + 3 + int(flight), 11, 1)
    assert found[1][1:] == (0, 12)


def test_a_zealot_strikes_twice_each_swing():
    battle = duel("3s_vs_5z", 3, 0, 0.0)
    battle.floats[0, 3, [c.FACE_X, c.FACE_Y]] = 1.0, 0.0
    battle.ints[0, 3, c.TARGET] = 0
    lost, last = [], battle.floats[0, 0, c.SHIELD]
    for loop in range(1, 30):
        battle.advance(1)
        if battle.floats[0, 0, c.SHIELD] < last:
            lost.append((loop, last - battle.floats[0, 0, c.SHIELD]))
            last = battle.floats[0, 0, c.SHIELD]
    assert [round(drop) for _, drop in lost[:4]] == [8, 8, 8, 8]
    assert 4 <= lost[1][0] - lost[0][0] <= 5
    assert 18 <= lost[2][0] - lost[0][0] <= 22


@pytest.mark.parametrize(
    ("attacker", "target", "damage"),
    [(1, 15, 18), (1, 10, 13), (0, 10, 30), (0, 15, 20)],
    ids=["stalker-stalker", "stalker-zealot", "colossus-zealot", "colossus-stalker"],
)
def test_a_bonus_counts_against_its_attribute_only(attacker: int, target: int, damage: int):
    """Sorted enemies of 1c3s5z: colossus 9, zealots 10 to 14, stalkers 15 to 17."""
    assert hits(duel("1c3s5z", attacker, target, 3.0), attacker, target, 12)[0][1] == damage


def test_the_colossus_sweeps_a_bar_across_its_line_of_fire():
    battle = duel("1c3s5z", 0, 10, 4.0)
    centre = battle.floats[0, 10, [c.X, c.Y]].copy()
    offsets = {11: (0.0, 1.8), 12: (0.0, -2.0), 13: (0.7, 0.0), 14: (0.6, 1.0)}
    for unit, offset in offsets.items():
        battle.ints[0, unit, c.ALIVE] = 1
        battle.floats[0, unit, [c.X, c.Y]] = centre + offset
    before = battle.floats[0, :, c.SHIELD].copy()
    battle.floats[0, 9:, c.COOLDOWN] = 1e6
    battle.ints[0, 0, c.WINDING] = 1  # fires in the coming loop, before anyone has moved
    battle.floats[0, 0, c.WIND_UP_LEFT] = 0.5
    attack(battle, 0, 10)
    battle.advance(1)
    lost = (before - battle.floats[0, :, c.SHIELD])[10:15]
    np.testing.assert_array_equal(lost, [30, 30, 0, 0, 30])


def test_shots_cannot_hit_flyers_without_the_weapon_for_it():
    env = make("MMM2")
    seen = env.reset(0)
    battle = env._battle
    medivac = 10 + 11
    battle.floats[0, medivac, [c.X, c.Y]] = battle.floats[0, 0, [c.X, c.Y]] + (3.0, 0.0)
    seen = env.step(np.ones((1, 10), int))
    assert seen.avail[0, 0, 6 + 11], "the mask offers the flyer although a marauder cannot hit it"
    action = np.ones((1, 10), int)
    action[0, 0] = 6 + 11
    env.step(action)
    assert battle.ints[0, 0, c.ORDER] == c.STAND


def test_a_medivac_restores_health_for_energy():
    env = make("MMM2")
    env.reset(0)
    battle, marine, medivac = env._battle, 2, 9
    battle.ints[0, 10:, c.ALIVE] = 0
    battle.ints[0, 10, c.ALIVE] = 1
    battle.floats[0, 10, [c.X, c.Y]] = 29.0, 24.0
    battle.floats[0, marine, c.HEALTH] = 20.0
    battle.floats[0, medivac, [c.X, c.Y]] = battle.floats[0, marine, [c.X, c.Y]] + (1.0, 0.0)
    battle.ints[0, medivac, [c.ORDER, c.TARGET]] = c.HEAL, marine
    battle.advance(8)
    assert battle.floats[0, marine, c.HEALTH] == pytest.approx(24.5)
    assert battle.floats[0, medivac, c.ENERGY] == pytest.approx(50 - 4.5 * 0.33 + 8 * 0.5625 / 16)


def test_shields_recharge_after_160_loops_and_zerg_always():
    battle = duel("corridor", 0, 29, 15.0)
    battle.floats[0, 0, [c.X, c.Y]], battle.floats[0, 29, [c.X, c.Y]] = (4.5, 4.5), (27.0, 27.0)
    battle.floats[0, [0, 29], c.SINCE_DAMAGE] = 0.0
    battle.floats[0, 0, c.SHIELD], battle.floats[0, 29, c.HEALTH] = 10.0, 10.0
    battle.advance(159)
    assert battle.floats[0, 0, c.SHIELD] == 10.0
    assert battle.floats[0, 29, c.HEALTH] == pytest.approx(10 + 159 * 0.2734 / 16)
    battle.advance(8)
    assert battle.floats[0, 0, c.SHIELD] == pytest.approx(10 + 8 * 0.125)


@pytest.mark.parametrize(("name", "distance"), [("3m", 1.125), ("3s_vs_5z", 1.4766)])
def test_a_walker_covers_its_speed_and_does_not_reach_its_point_in_one_step(name: str, distance: float):
    env = make(name)
    env.reset(0)
    start = env._battle.floats[0, 0, [c.X, c.Y]].copy()
    env.step(np.full((1, env.info.n_agents), 3))
    moved = env._battle.floats[0, 0, [c.X, c.Y]] - start
    assert np.hypot(*moved) == pytest.approx(distance, abs=0.02)


def test_a_move_cancels_a_wind_up_and_no_shot_falls():
    battle = duel("3s_vs_5z", 0, 3, 5.0)
    attack(battle, 0, 3)
    hold(battle, 3)
    battle.advance(2)
    assert battle.ints[0, 0, c.WINDING] == 1
    battle.ints[0, 0, [c.ORDER, c.TARGET]] = c.MOVE, -1
    battle.floats[0, 0, [c.ORDER_X, c.ORDER_Y]] = 10.0, 16.0
    battle.advance(10)
    assert battle.floats[0, 3, c.SHIELD] == 50
    assert battle.floats[0, 0, c.COOLDOWN] == 0


def test_allies_never_act_without_an_order():
    env = make("3m", 4)
    seen = env.reset(0)
    while not (seen.terminated | seen.truncated).all():
        seen = env.step(np.where(seen.avail[..., 1], 1, 0))
    assert seen.terminated.all()
    assert not seen.won.any()
    np.testing.assert_array_equal(env._battle.floats[:, 3:, c.HEALTH], 45)


@pytest.mark.parametrize(
    ("gap", "blocked", "target"),
    [(2.5, 0.0, 0), (0.0, 0.0, 1), (2.5, 20.0, 1)],
    ids=["another ally is nearer", "another ally is within reach", "the way is blocked"],
)
def test_a_melee_unit_keeps_its_target_unless_another_is_within_reach_or_the_way_is_blocked(
    gap: float, blocked: float, target: int
):
    """A zealot chases ally 0, four cells away; ally 1 is at the gap (smac.md 6.2)."""
    battle = duel("3s_vs_5z", 3, 0, 4.0)
    battle.ints[0, 1, c.ALIVE] = 1
    distance = gap + battle.spec[1, c.S_RADIUS] + battle.spec[3, c.S_RADIUS]
    battle.floats[0, 1, [c.X, c.Y]] = 14.0, 16.0 + distance
    battle.ints[0, 3, [c.ORDER, c.TARGET]] = c.ATTACK, 0
    battle.floats[0, 3, c.BLOCKED] = blocked
    battle.advance(8)  # long enough for each enemy to look around twice
    assert battle.ints[0, 3, c.TARGET] == target
