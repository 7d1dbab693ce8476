"""Search a script that wins a map of `skirmish`. A script that wins proves that the map can be won.

    python -m tests.reference.skirmish_search 6h_vs_8z --generations 100

Every agent scores its legal actions and takes the best one. A score is linear in the features of `score_moves` and
`score_attacks`. All agents use the same weights; there is one set for each of four cases: an enemy that attacks this
agent is near or not, and the weapon is ready or not. The cross-entropy method searches the weights. Scripts read the
enemies' targets and the weapon's cooldown, which agents do not observe.

The result depends on `--seed`: a search can stop improving before its first win. Only for maps without medivacs.
"""

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish import columns as c
from emtc_core.envs.skirmish.env import Battle, SkirmishEnv
from tests.reference.skirmish_watch import is_over, make

Array = NDArray[np.float64]

STEP_2A = np.array([[0.0, 0.0, 1.0, -1.0], [1.0, -1.0, 0.0, 0.0]])
"""Directions of north, south, east and west: dx, dy."""
N_MOVE, N_ATTACK, N_CASES = 10, 5, 4
N_WEIGHTS = N_CASES * (N_MOVE + N_ATTACK) + 2
POPULATION, ELITE, EPISODES = 64, 12, 6
FAR = 6.0
"""Gaps are cut at this value, in cells."""


def score_moves(battle: Battle, weights_BNF: Array, targeted_BNE: NDArray[np.bool_]) -> Array:
    """Score the four moves [B, N, 4] by where one step ends: gaps, ground, directions, other agents."""
    n = battle.n_allies
    place, alive = battle.floats[..., [c.X, c.Y]], battle.ints[..., c.ALIVE] == 1
    here_BN12 = place[:, :n, None]
    step = battle.spec[:n, c.S_SPEED, None] * 8.0
    there_BN42 = here_BN12 + (step[..., None] * STEP_2A.T)
    bodies_NE = battle.spec[:n, None, c.S_RADIUS] + battle.spec[None, n:, c.S_RADIUS]
    gap_BN4E = np.linalg.norm(there_BN42[:, :, :, None] - place[:, None, None, n:], axis=-1) - bodies_NE[:, None]
    gap_BN4E = np.where(alive[:, None, None, n:], gap_BN4E, np.inf)
    chaser_BN4E = np.where(targeted_BNE[:, :, None], gap_BN4E, np.inf)
    cell = np.clip((here_BN12 + 3.0 * (there_BN42 - here_BN12)).astype(int), 0, len(battle.walkable) - 1)
    middle = np.argwhere(battle.walkable).mean(axis=0) + 0.5
    outward_BN2 = _unit(place[:, :n] - middle)
    enemies_B12 = _mean_place(place[:, n:], alive[:, n:])
    allies_B12 = _mean_place(place[:, :n], alive[:, :n])
    other_BN4N = np.linalg.norm(there_BN42[:, :, :, None] - place[:, None, None, :n], axis=-1)
    other_BN4N = np.where(alive[:, None, None, :n] & ~np.eye(n, dtype=bool)[:, None], other_BN4N, np.inf)
    features = (
        np.ones(gap_BN4E.shape[:-1]),
        np.minimum(gap_BN4E.min(axis=-1), FAR) / 3.0,
        np.minimum(chaser_BN4E.min(axis=-1), FAR) / 3.0,
        np.exp(-gap_BN4E).sum(axis=-1),
        ~battle.walkable[cell[..., 0], cell[..., 1]],
        outward_BN2 @ STEP_2A,
        np.stack([-outward_BN2[..., 1], outward_BN2[..., 0]], axis=-1) @ STEP_2A,
        _unit(place[:, :n] - enemies_B12) @ STEP_2A,
        _unit(allies_B12 - place[:, :n]) @ STEP_2A,
        np.exp(-other_BN4N.min(axis=-1)),
    )
    return sum(weights_BNF[..., k, None] * feature for k, feature in enumerate(features))  # type: ignore[return-value]


def score_attacks(battle: Battle, weights_BNF: Array, targeted_BNE: NDArray[np.bool_]) -> Array:
    """Score the attacks [B, N, E] by the target's vigor, its distance, its own target and a running wind-up."""
    n = battle.n_allies
    place, vigor = battle.floats[..., [c.X, c.Y]], battle.floats[..., c.HEALTH] + battle.floats[..., c.SHIELD]
    whole = battle.spec[n:, c.S_HEALTH] + battle.spec[n:, c.S_SHIELD]
    distance_BNE = np.linalg.norm(place[:, :n, None] - place[:, None, n:], axis=-1)
    aimed_BNE = battle.ints[:, :n, None, c.TARGET] == np.arange(n, n + len(whole))
    features = (
        np.ones_like(distance_BNE),
        np.broadcast_to((vigor[:, n:] / whole)[:, None], distance_BNE.shape),
        distance_BNE / FAR,
        targeted_BNE,
        aimed_BNE & (battle.ints[:, :n, None, c.WINDING] == 1),
    )
    weights = weights_BNF[..., N_MOVE:]
    return sum(weights[..., k, None] * feature for k, feature in enumerate(features))  # type: ignore[return-value]


def choose(battle: Battle, avail_BNA: NDArray[np.bool_], weights_BP: Array) -> NDArray[np.int64]:
    """Choose the actions [B, N] of scripts with weights [B, P]; no-op where an agent is dead."""
    n = battle.n_allies
    place, alive = battle.floats[..., [c.X, c.Y]], battle.ints[..., c.ALIVE] == 1
    targeted_BNE = alive[:, None, n:] & (battle.ints[:, None, n:, c.TARGET] == np.arange(n)[:, None])
    distance_BNE = np.linalg.norm(place[:, :n, None] - place[:, None, n:], axis=-1)
    near_BN = (targeted_BNE & (distance_BNE < weights_BP[:, -1, None, None])).any(axis=-1)
    ready_BN = battle.floats[:, :n, c.COOLDOWN] <= weights_BP[:, -2, None]
    case_BN = 2 * near_BN + ready_BN
    table_BCF = weights_BP[:, :-2].reshape(len(weights_BP), N_CASES, -1)
    weights_BNF = table_BCF[np.arange(len(table_BCF))[:, None], case_BN]
    score_BNA = np.zeros(avail_BNA.shape)
    score_BNA[..., 2:6] = score_moves(battle, weights_BNF, targeted_BNE)
    score_BNA[..., 6:] = score_attacks(battle, weights_BNF, targeted_BNE)
    return np.where(avail_BNA, score_BNA, -np.inf).argmax(axis=-1)


def play_scripts(env: SkirmishEnv, weights_BP: Array, seed: int) -> tuple[NDArray[np.bool_], Array, Array]:
    """Play one battle per script; return won [B], and the shares of health and shield left to enemies and allies."""
    battle, seen = env._battle, env.reset(seed)
    while not is_over(seen).all():
        seen = env.step(choose(battle, seen.avail, weights_BP))
    n = battle.n_allies
    left = battle.floats[..., c.HEALTH] + battle.floats[..., c.SHIELD]
    whole = battle.spec[:, c.S_HEALTH] + battle.spec[:, c.S_SHIELD]
    return seen.won, left[:, n:].sum(axis=1) / whole[n:].sum(), left[:, :n].sum(axis=1) / whole[:n].sum()


def search(map: str, *, generations: int, seed: int, spawn_jitter: float) -> Array:
    """Search weights [P] by the cross-entropy method and return the best script.

    The value of a script is the mean over its battles of: damage, plus .5 for a win, plus .3 times the allied health
    left after a win.
    """
    rng = np.random.default_rng(seed)
    env = make(map, POPULATION * EPISODES, spawn_jitter=spawn_jitter)
    mean, deviation = make_first_weights(), np.ones(N_WEIGHTS)
    top, top_value = mean, -np.inf
    rank = np.log(ELITE + 1) - np.log(np.arange(1, ELITE + 1))
    for generation in range(generations):
        scripts = mean + deviation * rng.standard_normal((POPULATION, N_WEIGHTS))
        scripts[0] = mean
        won, enemies, allies = play_scripts(env, np.repeat(scripts, EPISODES, axis=0), generation)
        value = (1.0 - enemies + won * (0.5 + 0.3 * allies)).reshape(POPULATION, EPISODES).mean(axis=1)
        best = scripts[np.argsort(-value)[:ELITE]]
        if value.max() > top_value:
            top, top_value = best[0], value.max()
        variance = np.average((best - mean) ** 2, axis=0, weights=rank)
        mean = 0.3 * mean + 0.7 * np.average(best, axis=0, weights=rank)
        deviation = np.sqrt(0.5 * deviation**2 + 0.5 * variance) + 0.01
        share = won.reshape(POPULATION, EPISODES).mean(axis=1).max()
        sys.stdout.write(f"generation {generation}: value {value.max():.3f}, best script wins {share:.2f}\n")
    env.close()
    return top


def make_first_weights() -> Array:
    """Make a kite to start from: fire when ready, walk away from whoever is near."""
    table = np.zeros((N_CASES, N_MOVE + N_ATTACK))
    table[:, [1, 2, 4]] = 0.5, 1.0, -1.0
    table[2:, 0] = 1.0
    table[:, N_MOVE] = -1.0, 3.0, -1.0, 3.0
    table[:, N_MOVE + 1 :] = -1.0, -0.5, 0.0, 2.0
    return np.concatenate([table.ravel(), [2.0, 4.0]])


def _unit(vector: Array) -> Array:
    return vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-9)


def _mean_place(place_BU2: Array, alive_BU: NDArray[np.bool_]) -> Array:
    total = (place_BU2 * alive_BU[..., None]).sum(axis=1, keepdims=True)
    return total / np.maximum(alive_BU.sum(axis=1), 1)[:, None, None]


def main() -> None:
    parser = argparse.ArgumentParser(description="Search a script that wins a map of skirmish.")
    parser.add_argument("map")
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spawn-jitter", type=float, default=0.0)
    parser.add_argument("--episodes", type=int, default=256)
    args = parser.parse_args()
    weights = search(args.map, generations=args.generations, seed=args.seed, spawn_jitter=args.spawn_jitter)
    env = make(args.map, args.episodes, spawn_jitter=args.spawn_jitter)
    won, enemies, allies = play_scripts(env, np.repeat(weights[None], args.episodes, axis=0), 1_000_000)
    sys.stdout.write(
        f"{args.map}: won {won.sum()} of {len(won)}, enemies' health left {enemies.mean():.3f},"
        f" allies' health left {allies.mean():.3f}\n"
    )


if __name__ == "__main__":
    main()
