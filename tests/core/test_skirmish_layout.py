"""Sizes and layouts of skirmish against decoders written from the published description."""

import numpy as np
import pytest

from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.maps import MAPS, make_info
from tests.reference.skirmish_layout import FACTS, Row, decode_obs, decode_state
from tests.reference.skirmish_watch import draw, make

COOLDOWN_SCALE = {
    "marine": 15, "marauder": 25, "stalker": 35, "zealot": 22, "colossus": 24, "hydralisk": 10, "medivac": 200,
}  # fmt: skip
PLAY_STEPS = 30


@pytest.mark.parametrize("name", FACTS)
def test_sizes_equal_the_published_ones(name):
    facts, env = FACTS[name], make(name, 2)
    seen = env.reset(0)
    assert env.info == make_info(MAPS[name], SkirmishConfig())
    assert seen.obs.shape == (2, facts.n, facts.obs_dim)
    assert seen.obs.dtype == np.float32
    assert seen.state.shape == (2, facts.state_dim)
    assert seen.state.dtype == np.float32
    assert seen.avail.shape == (2, facts.n, facts.n_actions)
    assert seen.avail.dtype == np.bool_
    assert env.info.episode_limit == facts.limit
    assert env.info.agent_block == 4 + facts.ally_shield + facts.bits
    assert len(env.info.action_names) == facts.n_actions
    assert MAPS[name].max_reward == facts.max_reward


@pytest.fixture(scope="module", params=FACTS)
def played(request):
    """Observations and true arrays along a battle in which units fight and die."""
    env = make(request.param, 2)
    rng, frames = np.random.default_rng(3), []
    seen = env.reset(3)
    for _ in range(PLAY_STEPS):
        battle = env._battle
        frames.append((seen, battle.floats.copy(), battle.ints.copy()))
        seen = env.step(draw(seen.avail, rng, fight=0.9))
    return request.param, env, frames


def test_the_state_decodes_to_the_battle(played):
    name, env, frames = played
    facts, spec = FACTS[name], env._battle.spec
    for seen, floats, ints in frames:
        allies, enemies, actions = decode_state(facts, seen.state[1])
        for j, row in enumerate(allies + enemies):
            alive = ints[1, j, c.ALIVE] == 1
            kind = env._battle.units[j].name
            if not alive:
                assert (row.health, row.x, row.y) == (0, 16, 16)
                assert not row.shield
                assert not row.clock
                assert row.kind is None
                continue
            assert row.health == pytest.approx(floats[1, j, c.HEALTH] / spec[j, c.S_HEALTH], rel=1e-6)
            assert (row.x, row.y) == pytest.approx(floats[1, j, [c.X, c.Y]].tolist(), abs=1e-4)
            if row.shield is not None:
                assert row.shield == pytest.approx(floats[1, j, c.SHIELD] / spec[j, c.S_SHIELD], rel=1e-6)
            if row.clock is not None:
                source = c.ENERGY if kind == "medivac" else c.COOLDOWN
                assert row.clock == pytest.approx(floats[1, j, source] / COOLDOWN_SCALE[kind], rel=1e-6)
        last = ints[1, : facts.n, c.LAST_ACTION].tolist()
        assert actions == [None if action < 0 else action for action in last]


def test_type_bits_are_those_of_smac_with_the_enemy_swap(played):
    name, env, frames = played
    facts = FACTS[name]
    swapped = name in ("2s3z", "3s5z", "3s5z_vs_3s6z")
    order = {2: ("stalker", "zealot"), 3: ("colossus", "stalker", "zealot"), 0: ()}[facts.bits]
    order = ("marauder", "marine", "medivac") if name == "MMM2" else order
    allies, enemies, _ = decode_state(facts, frames[0][0].state[0])
    kinds = [unit.name for unit in env._battle.units]
    for j, row in enumerate(allies + enemies):
        if not order:
            assert row.kind is None
        elif swapped and j >= facts.n:
            assert row.kind == 1 - order.index(kinds[j])
        else:
            assert row.kind == order.index(kinds[j])


def test_the_observation_shows_what_the_state_holds(played):
    name, _, frames = played
    facts = FACTS[name]
    for seen, _, _ in frames:
        allies, enemies, _ = decode_state(facts, seen.state[0])
        for i, me in enumerate(allies):
            if me.health == 0:
                assert not seen.obs[0, i].any()
                continue
            moves, enemy_rows, ally_rows, own = decode_obs(facts, seen.obs[0, i])
            assert moves == seen.avail[0, i, 2:6].tolist()
            assert own == (me.health, me.shield, me.kind)
            for k, (row, unit) in enumerate(zip(enemy_rows, enemies, strict=True)):
                _assert_row(row, me, unit, float(seen.avail[0, i, 6 + k]))
            for row, unit in zip(ally_rows, allies[:i] + allies[i + 1 :], strict=True):
                _assert_row(row, me, unit, 1.0)


def _assert_row(row: Row, me: Row, unit: Row, flag: float):
    gap = np.hypot(unit.x - me.x, unit.y - me.y)
    if abs(gap - 9) < 1e-3:
        return
    if unit.health == 0 or gap >= 9:
        assert (row.flag, row.distance, row.x, row.y, row.health) == (0, 0, 0, 0, 0)
        assert not row.shield
        assert row.kind is None
        return
    assert row.flag == flag
    assert (row.health, row.shield, row.kind) == (unit.health, unit.shield, unit.kind)
    assert (row.distance, row.x, row.y) == pytest.approx((gap, unit.x - me.x, unit.y - me.y), abs=1e-4)


def test_availability_follows_the_rules_of_smac(played):
    name, env, frames = played
    n, grid = FACTS[name].n, env._battle.walkable
    kinds = [unit.name for unit in env._battle.units]
    for seen, floats, ints in frames:
        for i in range(n):
            avail = seen.avail[0, i].tolist()
            if ints[0, i, c.ALIVE] == 0:
                assert avail == [True] + [False] * (len(avail) - 1)
                continue
            x, y = floats[0, i, [c.X, c.Y]]
            cells = [(x, y + 1), (x, y - 1), (x + 1, y), (x - 1, y)]
            assert avail[:6] == [False, True, *(bool(grid[int(cx), int(cy)]) for cx, cy in cells)]
            for k, offered in enumerate(avail[6:]):
                heals = kinds[i] == "medivac"
                j = k if heals else n + k
                near = np.hypot(*(floats[0, j, [c.X, c.Y]] - (x, y))) <= 6.0
                valid = not heals or (k < n and kinds[j] != "medivac")
                assert offered == bool(valid and near and ints[0, j, c.ALIVE] == 1)


def test_enemies_are_sorted_by_type_and_place_or_stand_as_created():
    ordered = make("1c3s5z", 4)
    ordered.reset(1)
    names = [unit.name for unit in ordered._battle.units[9:]]
    assert names == ["colossus"] + ["zealot"] * 5 + ["stalker"] * 3
    x = ordered._battle.floats[:, 10:15, c.X]
    assert (np.diff(x, axis=1) >= 0).all()
    official = make("1c3s5z", 4, enemy_order="official")
    names = [unit.name for unit in official._battle.units[9:]]
    assert names == ["colossus"] + ["stalker"] * 3 + ["zealot"] * 5
    assert list(official.scene(official.reset(0).state).kind[9:]) == names
    mmm = make("MMM2")
    assert [unit.name for unit in mmm._battle.units[:10]] == ["marauder"] * 2 + ["marine"] * 7 + ["medivac"]
