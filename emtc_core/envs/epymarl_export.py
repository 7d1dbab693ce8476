"""Skirmish as EPyMARL's `gymma` environments want it, made from the PettingZoo export.

EPyMARL asks gymnasium for an id; the module in front of the colon is imported, which registers every map:

    key=emtc_core.envs.epymarl_export:skirmish-3m-v0
    python src/main.py --config=qmix --env-config=gymma with env_args.key=$key env_args.time_limit=60

(`reward_scalarisation=mean` keeps the return's own unit; EPyMARL's default sums the agents' equal rewards.) Spaces are
tuples with an entry for each agent, observations and rewards stand in the same order, every agent has the team's
reward, and infos say `battle_won` as 0 or 1. A `gymma` environment has no masks: an action that the game forbids is
replaced by the first that it allows.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from emtc_core.envs.pettingzoo_export import parallel_env
from emtc_core.envs.registry import get_adapter

Observations = tuple[NDArray[np.float32], ...]


class TupleEnv(gymnasium.Env[Observations, tuple[int, ...]]):
    """One copy of an exported environment, spoken to in tuples and lists."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's form)

    def __init__(self, map: str = "3m", *, env: str = "skirmish") -> None:
        self._env = parallel_env(map, env=env)
        self._agents = list(self._env.possible_agents)
        self.n_agents = len(self._agents)
        self.observation_space = spaces.Tuple([self._vector(agent) for agent in self._agents])
        self.action_space = spaces.Tuple([self._env.action_space(agent) for agent in self._agents])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode; without a seed the game's own generator goes on."""
        super().reset(seed=seed)
        seen, _ = self._env.reset(seed=seed, options=options)
        return self._in_order(seen), {"battle_won": 0}

    def step(self, action: Any) -> tuple[Observations, Any, bool, bool, dict[str, Any]]:
        """Step with one action per agent; rewards are a list, as multi-agent environments of gymnasium have it."""
        chosen = dict(zip(self._agents, map(int, action), strict=True))
        seen, rewards, terminated, truncated, infos = self._env.step(chosen)
        info = {"battle_won": int(any(each["won"] for each in infos.values()))}
        listed = [rewards[agent] for agent in self._agents]
        return self._in_order(seen), listed, any(terminated.values()), any(truncated.values()), info

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _vector(self, agent: str) -> spaces.Space[Any]:
        space = self._env.observation_space(agent)
        assert isinstance(space, spaces.Dict)  # the export's own form
        return space["observation"]

    def _in_order(self, seen: dict[str, Any]) -> Observations:
        return tuple(seen[agent]["observation"] for agent in self._agents)


def register() -> list[str]:
    """Register every map of skirmish with gymnasium once, and list the ids."""
    ids = {f"skirmish-{map}-v0": map for map in get_adapter("skirmish").list_maps()}
    for id, map in ids.items():
        if id not in gymnasium.registry:
            gymnasium.register(id, f"{__name__}:TupleEnv", kwargs={"map": map}, disable_env_checker=True)
    return list(ids)


register()
