"""Does the simulator fight like the real game? Scripted policies against published win rates.

The reference is ten episodes per map of the same scripts on the real engine (caiyangcy/SCMM): orders are
given anew every two game loops and at any distance, so the scripts drive the battle itself and not SMAC's
masked actions. Only attack-closest and wall-off are firm; the published text of the others is uncertain.
6h_vs_8z is read from the plots of commit 67da936 of that repository, which later commits removed.
Starts are the default ones, so nothing but the random weapon delay tells one episode from another.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import format_percent
from app.bench import Figure, make_figure
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.env import STEP_LOOPS, Battle, make_skirmish
from emtc_core.envs.skirmish.maps import MAPS

Policy = Callable[[Battle], None]

ORDER_LOOPS = 2
TOLERANCE = 0.2
ATTACK_CLOSEST = {
    "3m": 0.2, "8m": 1.0, "2s3z": 0.8, "3s5z": 0.9, "1c3s5z": 1.0, "3s_vs_5z": 0.0,
    "5m_vs_6m": 0.0, "MMM2": 0.0, "6h_vs_8z": 0.0, "3s5z_vs_3s6z": 0.0, "corridor": 0.1,
}  # fmt: skip
WEAKEST = {
    "3m": 0.6, "8m": 0.4, "2s3z": 0.6, "3s5z": 0.0, "1c3s5z": 0.2, "3s_vs_5z": 0.0,
    "5m_vs_6m": 0.0, "MMM2": 0.0, "6h_vs_8z": 0.0, "3s5z_vs_3s6z": 0.0, "corridor": 0.0,
}  # fmt: skip
WALL_POINT, WALL_REACHED = (9.5, 9.5), 1.5
FIRM, UNCERTAIN = "real engine, 10 episodes: {}", "real engine, script uncertain: {}"


def run(maps: tuple[str, ...] = tuple(MAPS), *, episodes: int = 100, seed: int = 0) -> list[Figure]:
    """Measure `calibration.<policy>.<map>`, the share of episodes won, beside the real engine's."""
    figures = []
    for name in maps:
        if name in ATTACK_CLOSEST:
            share = play_script(name, attack_closest, episodes=episodes, seed=seed)
            figures.append(_figure("attack-closest", name, share, ATTACK_CLOSEST[name]))
            share = play_script(name, attack_weakest, episodes=episodes, seed=seed)
            figures.append(_figure("attack-weakest", name, share, WEAKEST[name], firm=False))
        if name == "corridor":
            share = play_script(name, wall_off, episodes=episodes, seed=seed)
            figures.append(_figure("wall-off", name, share, 1.0))
        figures.append(_random_figure(name, play_random(name, episodes=episodes, seed=seed)))
    return figures


def play_script(map: str, policy: Policy, *, episodes: int, seed: int, config: SkirmishConfig | None = None) -> float:
    """Let a script fight `episodes` battles, with the default settings or others, and tell the share that it wins."""
    spec = MAPS[map]
    battle = Battle(spec, n_envs=episodes, config=config or SkirmishConfig())
    battle.seed(seed)
    battle.restart()
    armed = battle.spec[:, c.S_DELIVERY] != c.HEALING
    stands = np.ones((episodes, 2), dtype=bool)
    for _ in range(spec.episode_limit * STEP_LOOPS // ORDER_LOOPS):
        policy(battle)
        battle.advance(ORDER_LOOPS)
        fighting = (battle.ints[..., c.ALIVE] == 1) & armed
        stands[:, 0] = fighting[:, : battle.n_allies].any(axis=1)
        stands[:, 1] = fighting[:, battle.n_allies :].any(axis=1)
        battle.world.running[:] = stands.all(axis=1)
        if not battle.world.running.any():
            break
    return float((stands[:, 0] & ~stands[:, 1]).mean())


def play_random(map: str, *, episodes: int, seed: int) -> float:
    """Play uniformly random available actions and tell the share of episodes won."""
    env = make_skirmish(map, n_envs=episodes, config=SkirmishConfig())
    rng = np.random.default_rng(seed)
    seen = env.reset(seed)
    while not (seen.terminated | seen.truncated).all():
        seen = env.step((rng.random(seen.avail.shape) * seen.avail).argmax(axis=-1))
    return float(seen.won.mean())


def attack_closest(battle: Battle) -> None:
    """Every fighter attacks the nearest enemy that it can hit; medivacs heal the worst wounded."""
    n = battle.n_allies
    place = battle.floats[..., [c.X, c.Y]]
    distance = np.linalg.norm(place[:, :n, None] - place[:, None, n:], axis=-1)
    _attack_least(battle, distance)


def attack_weakest(battle: Battle) -> None:
    """The whole team attacks the enemy with the least health."""
    n = battle.n_allies
    health = battle.floats[:, None, n:, c.HEALTH]
    _attack_least(battle, np.broadcast_to(health, (len(health), n, health.shape[-1])).copy())


def wall_off(battle: Battle) -> None:
    """Walk behind corridor's choke first, then attack the nearest."""
    n = battle.n_allies
    place = battle.floats[:, :n, [c.X, c.Y]]
    order = battle.ints[:, :n, c.ORDER]
    gone = (order == c.MOVE) | (battle.world.clock[:, None] == 0)
    walking = gone & (np.linalg.norm(place - WALL_POINT, axis=-1) >= WALL_REACHED)
    attack_closest(battle)
    order[walking] = c.MOVE
    battle.ints[:, :n, c.TARGET][walking] = -1
    battle.floats[:, :n, c.ORDER_X][walking], battle.floats[:, :n, c.ORDER_Y][walking] = WALL_POINT


def _attack_least(battle: Battle, cost_BNE: NDArray[np.float64]) -> None:
    n = battle.n_allies
    alive = battle.ints[..., c.ALIVE] == 1
    flies = battle.spec[n:, c.S_LAYER] == c.AIR
    hits = ~flies[None] | (battle.spec[:n, c.S_HITS_AIR] > 0)[:, None]
    cost_BNE[~(hits[None] & alive[:, None, n:])] = np.inf
    target = np.where(np.isfinite(cost_BNE).any(axis=-1), cost_BNE.argmin(axis=-1) + n, -1)
    order = np.where(target >= 0, c.ATTACK, c.STAND)
    mends = battle.spec[:n, c.S_DELIVERY] == c.HEALING
    fraction = battle.floats[:, :n, c.HEALTH] / battle.spec[:n, c.S_HEALTH]
    worst = np.where(alive[:, :n] & ~mends, fraction, np.inf).argmin(axis=1)
    target[:, mends], order[:, mends] = worst[:, None], c.HEAL
    battle.ints[:, :n, c.WINDING][battle.ints[:, :n, c.TARGET] != target] = 0
    battle.ints[:, :n, c.TARGET], battle.ints[:, :n, c.ORDER] = target, order


def _figure(policy: str, map: str, share: float, wanted: float, *, firm: bool = True) -> Figure:
    name, reference = f"calibration.{policy}.{map}", (FIRM if firm else UNCERTAIN).format(format_percent(wanted))
    if not firm:
        return make_figure(name, share, "win share", None, reference, digits=3)
    met = abs(share - wanted) <= TOLERANCE + 1e-9
    return make_figure(name, share, "win share", wanted, reference, met=met, digits=3)


def _random_figure(map: str, share: float) -> Figure:
    reference = "random play never wins on SMAClite either"
    return make_figure(f"calibration.random.{map}", share, "win share", 0.0, reference, digits=3)
