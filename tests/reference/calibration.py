"""Does the simulator fight like the real game? Win rates of scripted policies, compared with published win rates.

The reference values are win rates of the same scripts in ten episodes per map on the real engine (caiyangcy/SCMM). The
scripts give orders every two game loops and at any distance, so they control the battle directly and not through
SMAC's masked actions. Only the published text of attack-closest and wall-off is certain. The values of 6h_vs_8z are
from the plots of commit 67da936 of that repository, which later commits removed. Starting positions are the default
ones, so episodes differ only by the random weapon delay.

    python -m tests.reference.calibration
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import format_percent
from emtc_core.config.train import SkirmishConfig
from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.env import STEP_LOOPS, Battle, make_skirmish
from emtc_core.envs.skirmish.maps import MAPS
from tests.report import BenchResult, add_json_option, make_result, run_and_report

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
CERTAIN, UNCERTAIN = "real engine, 10 episodes: {}", "real engine, script uncertain: {}"


def run(maps: tuple[str, ...] = tuple(MAPS), *, episodes: int = 100, seed: int = 0) -> list[BenchResult]:
    """Measure `calibration.<policy>.<map>`, the win rate, with the real engine's win rate as budget."""
    results = []
    for name in maps:
        if name in ATTACK_CLOSEST:
            win_rate = play_script(name, attack_closest, episodes=episodes, seed=seed)
            results.append(_make_result("attack-closest", name, win_rate, ATTACK_CLOSEST[name]))
            win_rate = play_script(name, attack_weakest, episodes=episodes, seed=seed)
            results.append(_make_result("attack-weakest", name, win_rate, WEAKEST[name], is_certain=False))
        if name == "corridor":
            win_rate = play_script(name, wall_off, episodes=episodes, seed=seed)
            results.append(_make_result("wall-off", name, win_rate, 1.0))
        win_rate = play_random(name, episodes=episodes, seed=seed)
        reference = "random play never wins on SMAClite either"
        results.append(make_result(f"calibration.random.{name}", win_rate, "win share", 0.0, reference, digits=3))
    return results


def _make_result(policy: str, map: str, win_rate: float, real: float, *, is_certain: bool = True) -> BenchResult:
    name, reference = f"calibration.{policy}.{map}", (CERTAIN if is_certain else UNCERTAIN).format(format_percent(real))
    if not is_certain:
        return make_result(name, win_rate, "win share", None, reference, digits=3)
    met = abs(win_rate - real) <= TOLERANCE + 1e-9
    return make_result(name, win_rate, "win share", real, reference, met=met, digits=3)


def play_script(map: str, policy: Policy, *, episodes: int, seed: int, config: SkirmishConfig | None = None) -> float:
    """Play `episodes` battles with a script and return the win rate.

    Args:
        map: Name of the map.
        policy: The script. It writes its orders into the battle.
        episodes: Number of battles, which are played as one batch.
        seed: Seed of the battles.
        config: Settings of the simulator, or None for the defaults.
    """
    spec = MAPS[map]
    battle = Battle(spec, n_envs=episodes, config=config or SkirmishConfig())
    battle.seed(seed)
    battle.restart()
    is_armed = battle.spec[:, c.S_DELIVERY] != c.HEALING
    has_fighters = np.ones((episodes, 2), dtype=bool)
    for _ in range(spec.episode_limit * STEP_LOOPS // ORDER_LOOPS):
        policy(battle)
        battle.advance(ORDER_LOOPS)
        is_fighting = (battle.ints[..., c.ALIVE] == 1) & is_armed
        has_fighters[:, 0] = is_fighting[:, : battle.n_allies].any(axis=1)
        has_fighters[:, 1] = is_fighting[:, battle.n_allies :].any(axis=1)
        battle.world.running[:] = has_fighters.all(axis=1)
        if not battle.world.running.any():
            break
    return float((has_fighters[:, 0] & ~has_fighters[:, 1]).mean())


def play_random(map: str, *, episodes: int, seed: int) -> float:
    """Play `episodes` battles with uniformly random available actions and return the win rate."""
    env = make_skirmish(map, n_envs=episodes, config=SkirmishConfig())
    rng = np.random.default_rng(seed)
    observation = env.reset(seed)
    while not (observation.terminated | observation.truncated).all():
        observation = env.step((rng.random(observation.avail.shape) * observation.avail).argmax(axis=-1))
    return float(observation.won.mean())


def attack_closest(battle: Battle) -> None:
    """Every fighter attacks the nearest enemy that it can hit. Medivacs heal the ally with the least health."""
    n = battle.n_allies
    position = battle.floats[..., [c.X, c.Y]]
    distance = np.linalg.norm(position[:, :n, None] - position[:, None, n:], axis=-1)
    _attack_cheapest(battle, distance)


def attack_weakest(battle: Battle) -> None:
    """Every fighter attacks the enemy with the least health."""
    n = battle.n_allies
    health = battle.floats[:, None, n:, c.HEALTH]
    _attack_cheapest(battle, np.broadcast_to(health, (len(health), n, health.shape[-1])).copy())


def wall_off(battle: Battle) -> None:
    """Walk behind the choke of corridor first, then attack the nearest enemy."""
    n = battle.n_allies
    position = battle.floats[:, :n, [c.X, c.Y]]
    order = battle.ints[:, :n, c.ORDER]
    has_not_attacked = (order == c.MOVE) | (battle.world.clock[:, None] == 0)
    is_walking = has_not_attacked & (np.linalg.norm(position - WALL_POINT, axis=-1) >= WALL_REACHED)
    attack_closest(battle)
    order[is_walking] = c.MOVE
    battle.ints[:, :n, c.TARGET][is_walking] = -1
    battle.floats[:, :n, c.ORDER_X][is_walking], battle.floats[:, :n, c.ORDER_Y][is_walking] = WALL_POINT


def _attack_cheapest(battle: Battle, cost_BNE: NDArray[np.float64]) -> None:
    """Order each ally to attack the enemy of lowest cost that it can hit, and each medivac to heal."""
    n = battle.n_allies
    is_alive = battle.ints[..., c.ALIVE] == 1
    is_air = battle.spec[n:, c.S_LAYER] == c.AIR
    can_hit = ~is_air[None] | (battle.spec[:n, c.S_HITS_AIR] > 0)[:, None]
    cost_BNE[~(can_hit[None] & is_alive[:, None, n:])] = np.inf
    target = np.where(np.isfinite(cost_BNE).any(axis=-1), cost_BNE.argmin(axis=-1) + n, -1)
    order = np.where(target >= 0, c.ATTACK, c.STAND)
    is_medivac = battle.spec[:n, c.S_DELIVERY] == c.HEALING
    health = battle.floats[:, :n, c.HEALTH] / battle.spec[:n, c.S_HEALTH]
    weakest = np.where(is_alive[:, :n] & ~is_medivac, health, np.inf).argmin(axis=1)
    target[:, is_medivac], order[:, is_medivac] = weakest[:, None], c.HEAL
    battle.ints[:, :n, c.WINDING][battle.ints[:, :n, c.TARGET] != target] = 0
    battle.ints[:, :n, c.TARGET], battle.ints[:, :n, c.ORDER] = target, order


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, play the scripts and print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.reference.calibration", description=__doc__.partition("\n\n")[0]
    )
    add_json_option(parser)
    return run_and_report("calibration", run, json=parser.parse_args(arguments).json)


if __name__ == "__main__":
    sys.exit(main())
