"""Plays the public package `smac` as its own examples do, in the interpreter that has it: the slow truth.

python smac_play.py MAP EPISODES FIGHT OUT.npz
"""

import sys

import numpy as np


def choose(avail: np.ndarray, fight: bool) -> np.ndarray:
    """Choose actions [N] from what is available [N, A]: shoot the first in range, or walk east; or stand still."""
    avail = np.asarray(avail, bool)
    standing = np.where(avail[:, 1], 1, 0)
    if not fight:
        return standing
    shots = avail[:, 6:]
    walk = np.where(avail[:, 4], 4, standing)
    return np.where(shots.any(axis=1), 6 + shots.argmax(axis=1), walk)


def main(map_name: str, episodes: int, fight: bool, out: str) -> None:
    """Play and save every view of every step."""
    from smac.env import StarCraft2Env

    env = StarCraft2Env(map_name=map_name, continuing_episode=True)
    views: dict[str, list] = {"obs": [], "state": [], "avail": [], "reward": [], "over": [], "won": [], "cut": []}
    for _ in range(episodes):
        env.reset()
        reward, over, info = 0.0, False, {}
        while True:
            seen = (env.get_obs(), env.get_state(), env.get_avail_actions(), reward, over)
            ends = (info.get("battle_won", False), info.get("episode_limit", False))
            for name, value in zip(views, (*seen, *ends), strict=True):
                views[name].append(np.asarray(value))
            if over:
                break
            reward, over, info = env.step(choose(np.asarray(seen[2]), fight).tolist())
    np.savez(out, **{name: np.stack(values) for name, values in views.items()})
    env.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4])
