"""Laws that no game loop of any battle may break, watched loop by loop under random play."""

import numpy as np
import pytest

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.maps import MAPS
from emtc_core.envs.skirmish.units import HEAL_RATE, SHIELD_DELAY, SHIELD_RATE, ZERG_RATE
from tests.reference.skirmish_watch import make, play

ROUNDING = 1e-9


class Laws:
    """Looks at a battle after each loop; `launched` remembers when each weapon fired last."""

    def __init__(self) -> None:
        self.launched: dict[tuple[int, int], int] = {}
        self.loops = 0

    def look(self, battle, floats, ints):
        self.loops += 1
        ran = battle.world.running
        now, spec = battle.floats, battle.spec
        was_alive, alive = ints[..., c.ALIVE] == 1, battle.ints[..., c.ALIVE] == 1
        assert not (alive & ~was_alive).any(), "a dead unit came back"
        self._vitals(battle, floats, was_alive)
        place = now[..., [c.X, c.Y]]
        assert battle.walkable[place[..., 0].astype(int), place[..., 1].astype(int)].all(), "off the ground"
        moved = np.linalg.norm(place - floats[..., [c.X, c.Y]], axis=-1)
        assert (moved[~was_alive | ~ran[:, None]] == 0).all(), "the dead or a finished battle moved"
        assert (now[..., c.COOLDOWN] <= spec[:, c.S_PERIOD] + 2).all()
        self._weapons(battle, floats, was_alive)

    def _vitals(self, battle, floats, was_alive):
        now, spec = battle.floats, battle.spec
        assert (now[..., [c.HEALTH, c.SHIELD, c.ENERGY]] >= 0).all()
        assert (now[..., c.HEALTH] <= spec[:, c.S_HEALTH] + ROUNDING).all()
        rise = now[..., c.HEALTH] - floats[..., c.HEALTH]
        own = np.where(spec[:, c.S_ZERG] > 0, ZERG_RATE, 0.0)
        healed = battle.spec[:, c.S_BIOLOGICAL] * HEAL_RATE * (spec[:, c.S_DELIVERY] == c.HEALING).any()
        assert (rise <= own + healed + ROUNDING).all(), "health rose by itself"
        gain = now[..., c.SHIELD] - floats[..., c.SHIELD]
        assert (gain <= SHIELD_RATE + ROUNDING).all()
        early = floats[..., c.SINCE_DAMAGE] + 1 < SHIELD_DELAY
        assert (gain[early] <= ROUNDING).all(), "a shield recharged too soon"
        assert (rise[~was_alive] <= 0).all()
        assert (now[..., c.HEALTH][battle.ints[..., c.ALIVE] == 0] == 0).all()

    def _weapons(self, battle, floats, was_alive):
        fired = battle.floats[..., c.COOLDOWN] > floats[..., c.COOLDOWN]
        assert not (fired & ~was_alive).any(), "a dead unit fired"
        for b, i in np.argwhere(fired):
            clock = int(battle.world.clock[b])
            last = self.launched.get((b, i))
            if last is not None and clock > last:
                least = battle.spec[i, c.S_PERIOD] - 1 - np.ceil(battle.spec[i, c.S_WIND_UP])
                assert clock - last >= least, "a weapon fired before its cooldown had run out"
            self.launched[b, i] = clock


@pytest.mark.parametrize("name", MAPS)
def test_no_loop_of_a_random_battle_breaks_a_law(name):
    laws = Laws()
    play(make(name, 2), 7, fight=0.7, look=laws.look)
    assert laws.loops > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_no_loop_of_many_random_battles_breaks_a_law(name):
    for seed in range(12):
        laws = Laws()
        play(make(name, 64), seed, fight=0.5 + 0.5 * (seed % 2), look=laws.look)
        assert laws.loops > 50


def test_the_dead_score_nothing_once_their_missiles_have_landed():
    env = make("3s_vs_5z", 4)
    lost = {}

    def look(battle, floats, ints):
        for b in np.flatnonzero(~(ints[:, :3, c.ALIVE] == 1).any(axis=1)):
            if (ints[b, :3, c.PENDING_TARGET] < 0).all():
                drop = floats[b, 3:, [c.HEALTH, c.SHIELD]].sum() - battle.floats[b, 3:, [c.HEALTH, c.SHIELD]].sum()
                lost[b] = max(lost.get(b, 0.0), drop)

    play(env, 5, fight=1.0, look=look)
    assert lost
    assert max(lost.values()) <= 0
