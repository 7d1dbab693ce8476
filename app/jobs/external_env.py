"""Checks of a user's environment at the start of a run: a plug-in, or an environment whose map is `module:factory`.

The sizes of such an environment are known only after its start. `check_fits` checks that the replay buffer of its
episodes fits into memory. `ExternalEnv` checks its first observations, and converts its exceptions to one sentence.
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
"""Fraction of the machine's RAM for the replay buffer. Other runs, the app and the episodic memory need the rest."""
_N_OBSERVATIONS_TO_CHECK = 2
"""The observations of the first reset and of the first step."""


def check_fits(config: RunConfig, info: EnvInfo) -> None:
    """Check that the replay buffer and the batches of a run fit into memory.

    Raises:
        ConfigError: If they do not fit, with the sizes and a proposal.
    """
    train = config.train
    available_bytes = MEMORY_SHARE * memory_bytes()
    sizes = estimate_memory(config, info)
    needed_bytes = sizes["replay"] + sizes["batches"]
    if needed_bytes <= available_bytes:
        return
    n_values = info.n_agents * info.obs_dim + info.state_dim
    episode_bytes = count_episode_pages(info) * PAGE_ROWS * count_row_bytes(info)
    # The buffer allocates one page (block of rows) more than its episodes need, so one episode less is advised.
    max_replay = int((available_bytes - sizes["batches"]) // episode_bytes) - 1
    can_shrink_replay = max_replay >= train.batch
    if can_shrink_replay:
        key, value = "train.replay", train.replay
        advice = f"Set train.replay={max_replay}"
    else:
        key, value = "train.batch", train.batch
        advice = (
            f"Set a smaller train.batch (now {train.batch}) and train.replay, or make the observations smaller "
            "(pictures: average blocks of pixels)"
        )
    rule = (
        f"must be smaller: the episodes of this run would need {needed_bytes / 1e9:,.0f} GB. "
        f"{available_bytes / 1e9:,.1f} GB are allowed, half of this machine's memory. An episode has up to "
        f"env.pettingzoo.episode_limit = {info.episode_limit:,} steps with {n_values:,} numbers each "
        f"({info.n_agents} agents × {info.obs_dim:,} observed, {info.state_dim:,} of state)"
    )
    hint = f"{advice}, or set env.pettingzoo.episode_limit to the real length of an episode."
    related = ("train.replay", "train.batch", "env.pettingzoo.episode_limit")
    raise ConfigError(Fault(key, value, rule, hint, related))


class ExternalEnv(EnvWrapper):
    """Wraps an environment: checks its first observations, and converts its exceptions to an EnvDataError.

    Args:
        env: The environment for training.
        name: Its name in messages.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        super().__init__(env)
        self._name = name
        self._n_checked = 0

    def reset(self, seed: int | None = None) -> Observation:
        return self._check_call("reset", self._env.reset, seed)

    def step(self, actions: NDArray[np.integer]) -> Observation:
        return self._check_call("step", self._env.step, actions)

    def _check_call(
        self, name: str, function: Callable[P, Observation], *args: P.args, **named: P.kwargs
    ) -> Observation:
        try:
            observation = function(*args, **named)
            faults: list[str] = []
            if self._n_checked < _N_OBSERVATIONS_TO_CHECK:
                self._n_checked += 1
                faults = list_observation_faults(self.info, self.n_envs, observation)
        except EmtcError:
            raise
        except Exception as error:  # the user's code may raise any exception
            raise EnvDataError(f"{self._name} failed in {name}: {error!r}.") from error
        if faults:
            raise EnvDataError(
                f"{self._name} breaks the interface of an environment in {name}: {faults[0]}",
                hint="Correct it. List all its faults with: emtc_core.envs.checker.check_env(env)",
            )
        return observation
