"""Skirmish as a gymnasium environment for EPyMARL (`gymma`), made from the PettingZoo export.

EPyMARL passes an id to gymnasium. gymnasium imports the module before the colon, and this registers every map:

    key=emtc_core.envs.epymarl_export:skirmish-3m-v0
    python src/main.py --config=qmix --env-config=gymma with env_args.key=$key env_args.time_limit=60

Also set `reward_scalarisation=mean` to keep the unit of the return; EPyMARL's default sums the agents' equal rewards.

Spaces, observations and rewards have one entry per agent, in the same order. Every agent receives the team's reward.
The infos contain `battle_won` as 0 or 1. `gymma` has no action masks: an action that is not available is replaced by
the first available one.
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
    """One copy of an exported environment, with tuples in place of PettingZoo's dictionaries."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's form)

    def __init__(self, map: str = "3m", *, env: str = "skirmish") -> None:
        self._env = parallel_env(map, env=env)
        self._agents = list(self._env.possible_agents)
        self.n_agents = len(self._agents)
        self.observation_space = spaces.Tuple([self._get_observation_space(agent) for agent in self._agents])
        self.action_space = spaces.Tuple([self._env.action_space(agent) for agent in self._agents])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode. Source: the multi-agent form of gymnasium that EPyMARL's `gymma` reads.

        Args:
            seed: Seed of the game. None: the game continues with its random generator.
            options: Ignored.

        Returns:
            One observation per agent, each of shape [O] [observation features], and the info `battle_won`.
        """
        super().reset(seed=seed)
        observations, _ = self._env.reset(seed=seed, options=options)
        return self._to_tuple(observations), {"battle_won": 0}

    def step(self, action: Any) -> tuple[Observations, Any, bool, bool, dict[str, Any]]:
        """Step with one action per agent. Source: the multi-agent form of gymnasium that EPyMARL's `gymma` reads.

        Args:
            action: One action index per agent.

        Returns:
            One observation per agent, each of shape [O] [observation features]; one reward per agent [reward]; whether
            the game ended; whether the time limit ended it; the info `battle_won`.
        """
        actions = dict(zip(self._agents, map(int, action), strict=True))
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        info = {"battle_won": int(any(agent_info["won"] for agent_info in infos.values()))}
        reward_list = [rewards[agent] for agent in self._agents]
        return self._to_tuple(observations), reward_list, any(terminated.values()), any(truncated.values()), info

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _get_observation_space(self, agent: str) -> spaces.Space[Any]:
        space = self._env.observation_space(agent)
        assert isinstance(space, spaces.Dict)  # always so in the export
        return space["observation"]

    def _to_tuple(self, observations: dict[str, Any]) -> Observations:
        return tuple(observations[agent]["observation"] for agent in self._agents)


def register() -> list[str]:
    """Register every map of skirmish with gymnasium, if it is not registered yet, and return the ids."""
    ids = {f"skirmish-{map}-v0": map for map in get_adapter("skirmish").list_maps()}
    for id, map in ids.items():
        if id not in gymnasium.registry:
            gymnasium.register(id, f"{__name__}:TupleEnv", kwargs={"map": map}, disable_env_checker=True)
    return list(ids)


register()
