"""The environment of a run that is a plug-in or imported by its map. It is checked in the first seconds of its run.

The sizes of such an environment, and whether it reports success, are known only when it runs. `check_fits` checks the
memory for its episodes. `ExternalEnv` makes one sentence of an error in it. After the first training episodes it warns
if no episode or every episode is a success, and if the observations never changed.
"""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.format import format_number
from app.jobs.env_calls import EnvWrapper
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo, Observation, VectorEnv
from emtc_core.envs.registry import describe_env
from emtc_core.errors import ConfigError, EmtcError, EnvDataError, Fault
from emtc_core.install import memory_bytes

P = ParamSpec("P")
R = TypeVar("R")

N_EPISODES = 10
"""The warnings are logged after this number of training episodes."""
MEMORY_SHARE = 0.5
"""Fraction of the machine's memory for episodes. Other runs, the app and the memory nodes need the rest."""
_LOG = logging.getLogger(__name__)


def check_fits(config: RunConfig, info: EnvInfo) -> None:
    """Check that the episodes of the replay buffer fit into memory.

    Raises:
        ConfigError: If they do not fit, with the sizes and a proposal.
    """
    train, available_bytes = config.train, MEMORY_SHARE * memory_bytes()
    n_values = info.n_agents * info.obs_dim + info.state_dim
    step_bytes = 4 * n_values + info.n_agents * (info.n_actions + 8) + 8
    length = info.episode_limit + 1
    n_temporary = (2 * train.batch + train.n_envs) * length  # a batch, its copy, and the episodes being played
    n_stored = min(train.replay * length, train.t_max + train.replay)
    needed_bytes = (n_stored + n_temporary) * step_bytes
    if needed_bytes <= available_bytes:
        return
    max_replay = int(available_bytes / step_bytes / length) - 2 * train.batch - train.n_envs
    can_shrink_replay = max_replay >= train.batch
    advice = (
        f"Set train.replay={max_replay}"
        if can_shrink_replay
        else f"Set a smaller train.batch (now {train.batch}) and train.replay, or make the observations smaller "
        "(pictures: emtc_core.envs.zoo.wrapped.SmallPictures)"
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
    """The same environment. Its errors become one sentence, and its first episodes are checked.

    Args:
        env: The environment for training.
        config: Settings of the run.
    """

    def __init__(self, env: VectorEnv, config: RunConfig) -> None:
        super().__init__(env)
        self._config = config
        self._name = describe_env(config.env)
        self._returns: list[float] = []
        self._is_checked = False
        self._has_constant_obs = True
        self._max_length = 0
        self._first: Observation | None = None
        self._t = 0
        self._episode_return = np.zeros(env.n_envs)
        self._is_over = np.ones(env.n_envs, bool)

    def reset(self, seed: int | None = None) -> Observation:
        self._first = self._call("reset", self._env.reset, seed)
        self._t = 0
        self._episode_return[:] = 0
        self._is_over[:] = False
        return self._first

    def step(self, actions: NDArray[np.integer]) -> Observation:
        observation = self._call("step", self._env.step, actions)
        if not self._is_checked:
            self._check(observation)
        return observation

    def _call(self, name: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except EmtcError:
            raise
        except Exception as error:  # a user's code may raise anything; the traceback contains the cause
            raise EnvDataError(f"{self._name} failed in {name}: {error!r}.") from error

    def _check(self, observation: Observation) -> None:
        """Add one step to the statistics, and log the warnings if there are enough episodes."""
        self._t += 1
        self._max_length = max(self._max_length, self._t)
        is_running = ~self._is_over
        self._episode_return += np.where(is_running, observation.reward, 0.0)
        if self._first is not None:
            is_present = observation.obs.any(axis=-1)  # an agent that has left the game observes zeros
            has_changed = (observation.obs != self._first.obs).any(axis=-1) & is_present & is_running[:, None]
            self._has_constant_obs &= not has_changed.any()
        has_ended = is_running & (observation.terminated | observation.truncated)
        self._returns += self._episode_return[has_ended].tolist()
        self._is_over |= has_ended
        if len(self._returns) >= N_EPISODES:
            self._is_checked = True
            for warning in filter(None, (self._find_success_warning(), self._find_obs_warning())):
                _LOG.warning(warning)

    def _find_success_warning(self) -> str:
        """Return a warning if no episode or every episode would count as a success; else an empty text."""
        memory = self._config.memory
        if not self._config.uses_incentive or getattr(self._env, "reports_success", True):
            return ""
        low, high = format_number(min(self._returns)), format_number(max(self._returns))
        returns = f"the first {len(self._returns)} episodes returned {low} to {high}"
        if memory.success == "flag":
            return (
                f"No info of {self._name} contained won, is_success or battle_won. If none ever does, no episode is a "
                "success: ρ stays 0 and the incentive is off. In that case set memory.success=return_threshold, and "
                "set memory.success_threshold to the episode return from which an episode is a success, in the "
                f"environment's own unit ({returns})."
            )
        if min(self._returns) >= memory.success_threshold:
            return (
                "Every episode counts as a success: memory.success_threshold = "
                f"{memory.success_threshold:g} [env return], and {returns}. Set a higher threshold."
            )
        return ""

    def _find_obs_warning(self) -> str:
        """Return a warning if the observations never changed; else an empty text."""
        if not self._has_constant_obs or self._max_length < 2:
            return ""
        return (
            f"The observations of the agents of {self._name} never changed, so the agents cannot learn from them. "
            'Games that observe their screen draw it only if they are made with render_mode="rgb_array".'
        )
