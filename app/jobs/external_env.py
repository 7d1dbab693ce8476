"""The environment of a run that is a plug-in or imported by its map. It is checked in the first seconds of its run.

The sizes of such an environment are known only when it runs. `check_fits` checks the memory for its episodes.
`ExternalEnv` checks its first observations, and makes one sentence of an error in it.
"""

from collections.abc import Callable
from typing import ParamSpec

import numpy as np
from numpy.typing import NDArray

from app.jobs.env_calls import EnvWrapper
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo, Observation, VectorEnv
from emtc_core.envs.checker import list_observation_faults
from emtc_core.errors import ConfigError, EmtcError, EnvDataError, Fault
from emtc_core.install import memory_bytes
from emtc_core.memory_estimate import estimate_memory
from emtc_core.replay_buffer.sizes import PAGE_ROWS, count_episode_pages, count_row_bytes

P = ParamSpec("P")

MEMORY_SHARE = 0.5
"""Fraction of the machine's memory for episodes. Other runs, the app and the memory nodes need the rest."""
_N_CHECKED = 2
"""Number of checked observations: that of the first reset and that of the first step."""


def check_fits(config: RunConfig, info: EnvInfo) -> None:
    """Check that the episodes of the replay buffer fit into memory.

    Raises:
        ConfigError: If they do not fit, with the sizes and a proposal.
    """
    train, available_bytes = config.train, MEMORY_SHARE * memory_bytes()
    sizes = estimate_memory(config, info)
    needed_bytes = sizes["replay"] + sizes["batches"]
    if needed_bytes <= available_bytes:
        return
    n_values = info.n_agents * info.obs_dim + info.state_dim
    episode_bytes = count_episode_pages(info) * PAGE_ROWS * count_row_bytes(info)
    max_replay = int((available_bytes - sizes["batches"]) // episode_bytes) - 1  # the buffer has one page more
    can_shrink_replay = max_replay >= train.batch
    advice = (
        f"Set train.replay={max_replay}"
        if can_shrink_replay
        else f"Set a smaller train.batch (now {train.batch}) and train.replay, or make the observations smaller "
        "(pictures: average blocks of pixels)"
    )
    rule = (
        f"must be smaller: the episodes of this run would need {needed_bytes / 1e9:,.0f} GB. "
        f"{available_bytes / 1e9:,.1f} GB are allowed, half of this machine's memory. An episode has up to "
        f"env.pettingzoo.episode_limit = {info.episode_limit:,} steps with {n_values:,} numbers each "
        f"({info.n_agents} agents × {info.obs_dim:,} observed, {info.state_dim:,} of state)"
    )
    key, value = ("train.replay", train.replay) if can_shrink_replay else ("train.batch", train.batch)
    hint = f"{advice}, or set env.pettingzoo.episode_limit to the real length of an episode."
    related = ("train.replay", "train.batch", "env.pettingzoo.episode_limit")
    raise ConfigError(Fault(key, value, rule, hint, related))


class ExternalEnv(EnvWrapper):
    """The same environment. Its errors become one sentence, and its first observations are checked.

    Args:
        env: The environment for training.
        name: Its name in messages.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        super().__init__(env)
        self._name = name
        self._n_checked = 0

    def reset(self, seed: int | None = None) -> Observation:
        return self._call("reset", self._env.reset, seed)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        return self._call("step", self._env.step, actions)

    def _call(self, name: str, function: Callable[P, Observation], *args: P.args, **named: P.kwargs) -> Observation:
        try:
            observation = function(*args, **named)
            faults = [] if self._n_checked >= _N_CHECKED else self._check(observation)
        except EmtcError:
            raise
        except Exception as error:  # a user's code may raise anything; the traceback contains the cause
            raise EnvDataError(f"{self._name} failed in {name}: {error!r}.") from error
        if faults:
            raise EnvDataError(
                f"{self._name} breaks the interface of an environment in {name}: {faults[0]}",
                hint="Correct it. List all its faults with: emtc_core.envs.checker.check_env(env)",
            )
        return observation

    def _check(self, observation: Observation) -> list[str]:
        self._n_checked += 1
        return list_observation_faults(self.info, self.n_envs, observation)
