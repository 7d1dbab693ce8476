"""Where units stand at a start: SMAC's fixed places, the shift, and SMACv2's surround and reflect."""

from typing import Any

import numpy as np
import pytest

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.maps import MAPS
from emtc_core.envs.skirmish.movement import is_point_on_ground
from emtc_core.envs.skirmish.starts import MARGIN
from tests.reference.skirmish_watch import make

MIDDLE = 16.0
COMPILED: Any = is_point_on_ground
SLOW_FITS = COMPILED.py_func


def start(name: str, seed: int = 0, copies: int = 40, **config):
    """The battle after a reset, and the places [B, U, 2] of its units."""
    env = make(name, copies, **config)
    env.reset(seed)
    return env._battle, env._battle.floats[..., [c.X, c.Y]]


def stand(battle, places) -> bool:
    """Whether the rule by which units walk lets every one of them be where it is."""
    return all(SLOW_FITS(battle.world.ground, x, y) for x, y in places.reshape(-1, 2))


@pytest.mark.parametrize("name", MAPS)
def test_every_battle_starts_at_the_same_places_whatever_the_seed(name):
    env = make(name, 3)
    first, later, other = env.reset(1).state, env.reset().state, env.reset(2).state
    np.testing.assert_array_equal(first, np.broadcast_to(first[0], first.shape))
    np.testing.assert_array_equal(first, later)
    np.testing.assert_array_equal(first, other)


def fight(env, seed: int) -> list[np.ndarray]:
    """The states of battles in which everyone goes east and attacks the first enemy that is offered."""
    seen = [env.reset(seed)]
    for _ in range(25):
        avail = seen[-1].avail
        attacks = avail[..., 6:].any(axis=-1)
        action = np.where(
            attacks, 6 + avail[..., 6:].argmax(axis=-1), np.where(avail[..., 4], 4, avail.argmax(axis=-1))
        )
        seen.append(env.step(action))
    return [frame.state for frame in seen]


def test_the_weapon_delay_is_the_only_chance():
    env = make("3m", 8)
    states = fight(env, 1)
    fired = [bool((state[:, 1:12:4] > 0).any()) for state in states]
    before = fired.index(True)
    assert before > 2
    for state in states[:before]:
        np.testing.assert_array_equal(state, np.broadcast_to(state[0], state.shape))
    cooldown = states[before][:, 1:12:4]
    assert len(np.unique(cooldown)) > cooldown.shape[1]
    places = states[before].copy()
    places[:, 1:12:4] = 0.0
    np.testing.assert_array_equal(places, np.broadcast_to(places[0], places.shape))
    other = fight(env, 2)
    np.testing.assert_array_equal(other[before - 1], states[before - 1])
    assert (other[before] != states[before]).any()


def test_the_shift_of_old_is_within_reach_and_keeps_within_its_bound():
    _, fixed = start("3m")
    _, shifted = start("3m", spawn_jitter=0.05)
    assert 0.045 < np.abs(shifted[:, 0] - fixed[:, 0]).max() <= 0.05 + 0.8
    assert (np.abs(np.sort(shifted[..., 1]) - np.sort(fixed[..., 1])) <= 0.05).all()
    assert (shifted[0] != shifted[1]).all()


@pytest.mark.parametrize(
    "config", [{"spawn_jitter": 0.5}, {"random_start": "surround_reflect"}], ids=["jitter", "random"]
)
@pytest.mark.parametrize("name", MAPS)
def test_shifted_and_random_starts_are_free_walkable_ground(name, config):
    battle, places = start(name, **config)
    assert (places > 0).all()
    assert (places < 32).all()
    assert stand(battle, places)
    if "random_start" not in config:
        return
    gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    size = battle.spec[:, c.S_SEPARATION]
    room = size[:, None] + size[None] + MARGIN - 1e-9
    crowded = (gaps < room) & ~np.eye(len(size), dtype=bool)
    kinds = np.array([unit.name for unit in battle.units])
    assert not crowded.any(), kinds[np.argwhere(crowded)[:3, 1:]]


@pytest.mark.parametrize("kind", ["surround", "reflect"])
def test_a_random_start_is_its_copys_own(kind):
    _, few = start("2s3z", 7, 2, random_start=kind)
    _, many = start("2s3z", 7, 5, random_start=kind)
    _, other = start("2s3z", 8, 2, random_start=kind)
    np.testing.assert_array_equal(few, many[:2])
    assert (many[0] != many[1]).any()
    assert (few != other).any()


def test_reflected_enemies_mirror_the_team():
    battle, places = start("3s5z_vs_3s6z", random_start="reflect")
    n, kinds = battle.n_allies, [unit.name for unit in battle.units]
    assert (places[:, :n, 0] < MIDDLE).all()
    assert (places[:, n:, 0] > MIDDLE).all()
    for b in range(len(places)):
        for i in range(n):
            image = (2 * MIDDLE - places[b, i, 0], places[b, i, 1])
            match = np.isclose(places[b, n:], image).all(axis=-1)
            assert match.sum() == 1
            assert kinds[n + match.argmax()] == kinds[i]


def test_a_reflected_team_starts_anywhere_in_its_half():
    _, places = start("3m", copies=400, random_start="reflect")
    team = places[:, :3].reshape(-1, 2)
    assert team.min(axis=0) == pytest.approx([2.4, 7.4], abs=0.3)
    assert team.max(axis=0) == pytest.approx([15.0, 24.6], abs=0.3)
    assert team.mean(axis=0) == pytest.approx([8.5, 16.0], abs=0.5)


def test_a_surrounded_team_stands_in_the_middle_with_groups_on_the_diagonals():
    _, places = start("3m", copies=400, random_start="surround")
    team, enemies = places[:, :3] - MIDDLE, places[:, 3:] - MIDDLE
    assert np.abs(team).max() < 1.5
    assert np.abs(enemies).min(axis=1).max() > 2
    # the ground of 3m is 28 by 18 cells: a group stands where |x| and |y| run from 2 to 14 and from 2 to 9 together
    along = (np.abs(enemies[..., 0]) - 2) / 12, (np.abs(enemies[..., 1]) - 2) / 7
    assert np.median(np.abs(along[0] - along[1])) < 0.1
    quadrants = np.unique((enemies > 0) @ np.array([1, 2]))
    assert set(quadrants.tolist()) == {0, 1, 2, 3}
    used = [len(np.unique((row > 0) @ np.array([1, 2]))) for row in enemies]
    assert set(used) == {1, 2, 3}


def test_surround_and_reflect_share_the_battles_evenly():
    _, places = start("8m", copies=400, random_start="surround_reflect")
    surrounded = np.abs(places[:, :8] - MIDDLE).max(axis=(1, 2)) < 2
    assert 0.4 < surrounded.mean() < 0.6


@pytest.mark.parametrize("name", ["3m", "corridor"])
def test_enemies_come_to_the_team_wherever_it_is(name):
    env = make(name, 20, random_start="surround_reflect")
    seen = env.reset(0)
    battle = env._battle
    for _ in range(60):
        stop = np.where(seen.avail[..., 1], 1, 0)
        seen = env.step(stop)
    hurt = battle.floats[:, : battle.n_allies, c.HEALTH] < battle.spec[: battle.n_allies, c.S_HEALTH]
    dead = battle.ints[:, : battle.n_allies, c.ALIVE] == 0
    assert (hurt | dead).any(axis=1).all()
