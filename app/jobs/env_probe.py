"""Play some episodes in a plug-in environment, in a separate process, before a run with it is created.

The sizes of an environment that a map imports, and whether it can report a success, are unknown until it is created.
This module runs the trial and checks memory and success rule with its result. `emtc_core.envs.trust` decides first
whether the module may be imported at all.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from app.analysis.format import format_number
from emtc_core.config.run import RunConfig
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import IMPORTED_BY_MAP, check_trusted, make_env
from emtc_core.envs.trust import VARIABLE
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError, Fault
from emtc_core.install import memory_bytes
from emtc_core.plugins import FOLDER_VARIABLE, get_user_folder
from emtc_core.plugins import VARIABLE as PLUGINS

ROOT = Path(__file__).resolve().parents[2]
TRIAL_TIMEOUT_S = 60
PLAY_TIME_S = 5.0
EPISODES = 10
MEMORY_SHARE = 0.5
"""Fraction of the machine's memory for episodes. Other runs, the app and the memory nodes need the rest."""
_CACHE_S = 120.0
_ERROR_CACHE_S = 3.0
"""Errors are cached for a short time only, because the user may correct the module."""
_RESULT_PREFIX = "emtc-probe "
_RESULTS: "dict[tuple[str, str, str], tuple[float, Probe | EnvUnavailableError]]" = {}
"""Environment → time and result of its last trial."""


@dataclass(frozen=True)
class Probe:
    """Result of some episodes with random actions."""

    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    steps: int
    """Length of the longest complete episode or, if none is complete, of the part that was played."""
    returns: tuple[float, ...]
    """Undiscounted returns of the complete episodes, in the environment's own unit."""
    reports_success: bool
    """Whether an `info` contained a key for a won or lost episode."""
    has_constant_obs: bool
    """Whether the observations never changed within an episode."""

    @property
    def returns_text(self) -> str:
        """The returns of random play, as a clause for messages."""
        if not self.returns:
            return f"random play had not completed an episode after {self.steps:,} steps"
        if len(self.returns) == 1:
            return f"a random episode returned {format_number(self.returns[0])}"
        low, high = format_number(min(self.returns)), format_number(max(self.returns))
        return f"random play returned {low} to {high} in {len(self.returns)} episodes"


def probe(config: EnvConfig) -> Probe:
    """Play up to `EPISODES` episodes in an environment. The result is cached for two minutes.

    Raises:
        EnvUnavailableError: If the environment cannot be imported, created or played.
    """
    key = (config.model_dump_json(), f"{os.environ.get(VARIABLE)} {os.environ.get(PLUGINS)}", str(get_user_folder()))
    at, result = _RESULTS.get(key, (0.0, None))
    age_s = time.monotonic() - at
    if result is None or age_s > (_CACHE_S if isinstance(result, Probe) else _ERROR_CACHE_S):
        result = _run_trial(config)
        _RESULTS[key] = (time.monotonic(), result)
    if isinstance(result, EnvUnavailableError):
        raise EnvUnavailableError(result.message, reason=result.reason, subject=result.subject)
    return result


def check_fits(config: RunConfig, trial: Probe) -> None:
    """Check that the episodes of the replay buffer fit into memory.

    Raises:
        ConfigError: If they do not fit, with the sizes and a proposal.
    """
    train, available_bytes = config.train, MEMORY_SHARE * memory_bytes()
    n_values = trial.n_agents * trial.obs_dim + trial.state_dim
    step_bytes = 4 * n_values + trial.n_agents * (trial.n_actions + 8) + 8
    length = trial.episode_limit + 1
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
        f"env.pettingzoo.episode_limit = {trial.episode_limit:,} steps with {n_values:,} numbers each "
        f"({trial.n_agents} agents × {trial.obs_dim:,} observed, {trial.state_dim:,} of state)"
    )
    key, value = ("train.replay", train.replay) if can_shrink_replay else ("train.batch", train.batch)
    hint = f"{advice}, or set env.pettingzoo.episode_limit to the real length of an episode."
    related = ("train.replay", "train.batch", "env.pettingzoo.episode_limit")
    raise ConfigError(Fault(key, value, rule, hint, related))


def needs_rule(config: RunConfig, trial: Probe) -> bool:
    """Whether this run needs a success rule, because its environment does not report success."""
    return config.uses_incentive and not trial.reports_success


def warn_about_success(config: RunConfig, trial: Probe) -> str:
    """Return a warning if no episode or every episode would count as a success; else an empty text."""
    if not needs_rule(config, trial):
        return ""
    if config.memory.success == "flag":
        return (
            f"No info of {describe_env(config.env)} contained won, is_success or battle_won in random play. If none "
            f"ever "
            "does, no episode is a success: ρ stays 0 and the incentive is off. In that case set "
            "memory.success=return_threshold, and set memory.success_threshold to the episode return from which an "
            f"episode is a success, in the environment's own unit ({trial.returns_text})."
        )
    threshold = config.memory.success_threshold
    if len(trial.returns) > 1 and min(trial.returns) >= threshold:
        return (
            f"Every episode counts as a success: memory.success_threshold = {threshold:g} [env return], and "
            f"{trial.returns_text}. Set a higher threshold."
        )
    return ""


def warn_about_obs(config: RunConfig, trial: Probe) -> str:
    """Return a warning if the observations never changed; else an empty text."""
    if not trial.has_constant_obs or trial.steps < 2:
        return ""
    return (
        f"The observations of the agents of {describe_env(config.env)} never changed in random play, so the agents "
        f"cannot "
        'learn from them. Games that observe their screen draw it only if they are made with render_mode="rgb_array".'
    )


def describe_env(config: EnvConfig) -> str:
    """Return the name of an environment in messages: the import path, or the name of the plug-in."""
    return config.map if config.name in IMPORTED_BY_MAP else config.name


def play(env: VectorEnv) -> Probe:
    """Play episodes with random actions, up to `EPISODES` episodes or `PLAY_TIME_S`."""
    info, rng = env.info, np.random.default_rng(0)
    deadline = time.monotonic() + PLAY_TIME_S
    returns: list[float] = []
    longest, has_constant_obs = 0, True
    while len(returns) < EPISODES and time.monotonic() < deadline:
        steps, episode_return, is_over, has_changed = _play_episode(env, rng, seed=len(returns), deadline=deadline)
        has_constant_obs &= not has_changed
        if is_over:
            returns.append(episode_return)
        if is_over or not returns:
            longest = max(longest, steps)
    sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
    return Probe(*sizes, longest, tuple(returns), bool(getattr(env, "reports_success", True)), has_constant_obs)


def _run_trial(config: EnvConfig) -> Probe | EnvUnavailableError:
    """Run this module in another process and read its result."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=config.model_dump_json(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TRIAL_TIMEOUT_S,
            env={**os.environ, FOLDER_VARIABLE: str(get_user_folder())},
        )
    except subprocess.TimeoutExpired:
        message = f"{describe_env(config)} did not play one step within {TRIAL_TIMEOUT_S} seconds."
        return EnvUnavailableError(message, reason="timeout", subject="env.map")
    lines = [line for line in done.stdout.splitlines() if line.startswith(_RESULT_PREFIX)]
    if not lines:
        last_line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        message = f"{describe_env(config)} ended the process of its trial: {last_line[:300]}"
        return EnvUnavailableError(message, reason="ended", subject="env.map")
    answer = json.loads(lines[-1].removeprefix(_RESULT_PREFIX))
    if "message" in answer:
        return EnvUnavailableError(**answer)
    return Probe(**(answer | {"returns": tuple(answer["returns"])}))


def _play_episode(
    env: VectorEnv, rng: np.random.Generator, *, seed: int, deadline: float
) -> tuple[int, float, bool, bool]:
    """Play one episode; return its length, its return, whether it is complete, and whether an observation changed."""
    first = step = env.reset(seed)
    n_steps, episode_return, has_changed = 0, 0.0, False
    while not (step.terminated | step.truncated)[0]:
        if n_steps and time.monotonic() > deadline:
            return n_steps, episode_return, False, has_changed
        actions = [rng.choice(np.flatnonzero(row)) for row in step.avail[0]]
        step = env.step(np.array([actions]))
        n_steps, episode_return = n_steps + 1, episode_return + float(step.reward[0])
        is_present = step.obs[0].any(axis=-1)  # an agent that has left the game observes zeros
        has_changed |= bool((step.obs != first.obs)[0, is_present].any())
    return n_steps, episode_return, True, has_changed


def _main() -> None:
    config = EnvConfig.model_validate_json(sys.stdin.read())
    with redirect_stdout(sys.stderr):  # the environment may print
        answer = _try_env(config)
    sys.stdout.write(f"\n{_RESULT_PREFIX}{json.dumps(answer)}\n")


def _try_env(config: EnvConfig) -> dict[str, object]:
    try:
        check_trusted(config)
        env = make_env(config, n_envs=1)
        try:
            return asdict(play(env))
        finally:
            env.close()
    except EmtcError as exc:
        return {"message": str(exc), "reason": exc.reason, "subject": str(exc.subject)}
    except Exception as exc:
        message = f"{describe_env(config)} failed in random play: {exc!r}."
        return {"message": message, "reason": "play_failed", "subject": "env.map"}


if __name__ == "__main__":
    _main()
