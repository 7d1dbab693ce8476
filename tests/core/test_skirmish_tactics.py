"""Tactics that decide the real maps must decide these: focus fire, kiting, the choke, and no free lunch."""

import numpy as np
import pytest

from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.maps import MAPS
from tests.reference.calibration import (
    ATTACK_CLOSEST,
    TOLERANCE,
    attack_closest,
    attack_weakest,
    play_random,
    play_script,
    wall_off,
)
from tests.reference.skirmish_search import make_first_weights, play_scripts
from tests.reference.skirmish_watch import is_over, make

SAFE = 3.5
STEPS = {2: (0.0, 1.0), 3: (0.0, -1.0), 4: (1.0, 0.0), 5: (-1.0, 0.0)}


@pytest.mark.parametrize(
    ("name", "script", "jitter", "low", "high"),
    [
        *((name, attack_closest, 0.0, share - TOLERANCE, share + TOLERANCE) for name, share in ATTACK_CLOSEST.items()),
        *((name, attack_closest, 0.05, share - TOLERANCE, share + TOLERANCE) for name, share in ATTACK_CLOSEST.items()),
        ("corridor", wall_off, 0.0, 0.8, 1.0),
        *((name, attack_weakest, 0.0, 0.0, 0.3) for name in ("3s5z", "1c3s5z", "corridor", "3s5z_vs_3s6z")),
    ],
)
def test_a_script_wins_as_often_as_on_the_real_engine(name, script, jitter, low, high):
    config = SkirmishConfig(spawn_jitter=jitter)
    share = play_script(name, script, episodes=100, seed=0, config=config)
    assert low - 1e-9 <= share <= high + 1e-9


@pytest.mark.parametrize("name", MAPS)
def test_random_play_never_wins(name):
    assert play_random(name, episodes=64, seed=0) == 0.0


def test_a_script_of_the_search_plays_until_every_battle_has_ended():
    env = make("6h_vs_8z", 2)
    _, enemies, allies = play_scripts(env, np.repeat(make_first_weights()[None], 2, axis=0), seed=0)
    assert (((enemies == 0) | (allies == 0)) | (env._steps == MAPS["6h_vs_8z"].episode_limit)).all()


def test_stalkers_that_stand_lose_to_zealots_and_stalkers_that_kite_win():
    assert play_script("3s_vs_5z", attack_closest, episodes=50, seed=0) == 0.0
    assert play_kiting(episodes=20) >= 0.7


def play_kiting(episodes: int) -> float:
    """Shoot when ready, else keep away from the nearest zealot; share of battles won."""
    env = make("3s_vs_5z", episodes)
    seen = env.reset(0)
    while not is_over(seen).all():
        actions = np.zeros((episodes, 3), int)
        for b, i in np.argwhere(seen.avail[..., 1] & ~is_over(seen)[:, None]):
            actions[b, i] = kite(env._battle.floats[b], env._battle.ints[b], seen.avail[b, i], i)
        seen = env.step(actions)
    return float(seen.won.mean())


def kite(floats, ints, avail, i: int) -> int:
    place, living = floats[:, [c.X, c.Y]], ints[3:, c.ALIVE] == 1
    gap = np.where(living, np.linalg.norm(place[3:] - place[i], axis=-1), np.inf)
    if floats[i, c.COOLDOWN] <= 2 and avail[6:].any():
        vigor = floats[3:, c.HEALTH] + floats[3:, c.SHIELD]
        return 6 + int(np.where(avail[6:], vigor, np.inf).argmin())
    if gap.min() > SAFE:
        toward = place[3 + gap.argmin()] - place[i]
        best = max(STEPS, key=lambda action: float(np.dot(STEPS[action], toward)))
        return best if gap.min() > 5.8 and avail[best] else 1
    open_moves = [action for action in STEPS if avail[action]]
    return max(open_moves, key=lambda action: _safety(place[i] + 1.477 * np.array(STEPS[action]), place[3:], living))


def _safety(point, foes, living) -> float:
    gaps = np.sort(np.linalg.norm(foes[living] - point, axis=-1))
    return float(gaps[0] + 0.1 * gaps[min(1, len(gaps) - 1)] - 0.02 * np.linalg.norm(point - 16))


def test_melee_units_surround_a_lone_target():
    env = make("3s_vs_5z")
    env.reset(0)
    battle = env._battle
    battle.ints[0, :2, c.ALIVE] = 0
    battle.floats[0, 2, [c.X, c.Y]] = 16.0, 16.0
    reached = []
    for _ in range(20):
        battle.floats[0, 2, c.HEALTH] = 80.0
        battle.advance(8)
        reached.append(int((battle.ints[0, 3:, c.MOBILITY] == c.PLANTED).sum()))
    assert max(reached) == 5, "five zealots must all reach a standing stalker"


def test_enemies_leave_a_waiting_team_alone_once_they_have_arrived():
    env = make("3s_vs_5z")
    env.reset(0)
    battle = env._battle
    battle.floats[0, :3, c.X], battle.floats[0, :3, c.Y] = 27.0, [27.0, 28.0, 26.0]
    for _ in range(60):
        env.step(np.ones((1, 3), int))
    assert (battle.floats[0, :3, c.SHIELD] == 80).all()
    assert np.linalg.norm(battle.floats[0, 3:, [c.X, c.Y]].T - (9, 16), axis=-1).max() < 4
