"""A stand-in for the packages `smac` and `smacv2` in a worker's interpreter: their documented interface over a
skirmish battle, whose layouts, rewards and ends are SMAC's own.

What it does is written to the file SMAC_DOUBLE_LOG; SMAC_DOUBLE_DOES makes it misbehave.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import make_env

LOG_VARIABLE, DOES_VARIABLE = "SMAC_DOUBLE_LOG", "SMAC_DOUBLE_DOES"


def tell(event: str) -> None:
    """Note what happened, and to which process."""
    if log := os.environ.get(LOG_VARIABLE):
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()} {event}\n")


class StarCraft2Env:
    """One battle in SMAC's words: rewards and ends from `step`, everything else by asking."""

    def __init__(self, map_name: str = "8m", seed: int | None = None, continuing_episode: bool = False, **_: object):
        self._battle = make_env(EnvConfig(map=map_name), n_envs=1)
        self._seed, self._continuing = seed, continuing_episode
        self._does = os.environ.get(DOES_VARIABLE, "")
        self._episode_count = self._steps = 0

    def get_env_info(self) -> dict:
        info = self._battle.info
        return {
            "state_shape": info.state_dim,
            "obs_shape": info.obs_dim,
            "n_actions": info.n_actions,
            "n_agents": info.n_agents,
            "episode_limit": info.episode_limit,
            "agent_features": ["feature"] * info.agent_block,
        }

    def reset(self) -> tuple[list[np.ndarray], np.ndarray]:
        if self._does == "refuse":
            raise RuntimeError("SC2 did not\nstart")
        if self._does == "die-at-reset":
            os._exit(7)
        if self._episode_count == 0:
            tell(f"launch {self._seed}")
            self._launch()
        self._seen = self._battle.reset(self._seed if self._episode_count == 0 else None)
        return self.get_obs(), self.get_state()

    def _launch(self) -> None:
        if self._does == "chatter":
            sys.stdout.write("the game speaks\n" * 3)
            sys.stdout.flush()
            sys.stdin.read()  # it must find nothing of the trainer's there
        if self._does == "child":
            tell(f"child {subprocess.Popen(['sleep', '300']).pid}")

    def step(self, actions: Sequence[int]) -> tuple[float, bool, dict]:
        assert all(isinstance(action, int) for action in actions)
        self._steps += 1
        if self._does == "lose":
            return 0, True, {}
        if self._does == "fail":
            raise AssertionError("a unit is\nnowhere")
        if self._does == "hang":
            time.sleep(300)
        if self._does == "die" and self._steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self._seen = self._battle.step(np.array([actions]))
        over = bool(self._seen.terminated[0] | self._seen.truncated[0])
        self._episode_count += over
        info = {"battle_won": bool(self._seen.won[0])}
        if self._seen.truncated[0] and self._continuing:
            info["episode_limit"] = True
        return float(self._seen.reward[0]), over, info

    def get_obs(self) -> list[np.ndarray]:
        return list(self._seen.obs[0])

    def get_state(self) -> np.ndarray:
        return self._seen.state[0]

    def get_avail_actions(self) -> list[list[int]]:
        return self._seen.avail[0].astype(int).tolist()

    def close(self) -> None:
        tell("close")


class StarCraftCapabilityEnvWrapper:
    """SMACv2's way of holding an environment; its teams are those of a skirmish map."""

    def __init__(self, **kwargs: Any):
        config = kwargs["capability_config"]
        assert kwargs["map_name"].startswith("10gen_")
        assert config["team_gen"]["unit_types"]
        self.env = StarCraft2Env("2s3z" if config["n_units"] == 5 else "MMM2", kwargs["seed"], True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)
