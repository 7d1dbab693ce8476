"""Try a stranger's environment for one episode before a run is made of it, in an interpreter of its own.

Nobody knows the sizes of an environment that a map imports, nor whether it can ever say "won", until it has been
made. What lives here: the trial, and what follows from it for memory and for the success rule. What does not: whether
a module may be imported at all (`emtc_core.envs.trust`), which is asked first.
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

from emtc_core.config.env import EnvConfig
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import check_trusted, make_env
from emtc_core.envs.trust import FOLDER_VARIABLE, VARIABLE, home_folder
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError
from emtc_core.machine import memory_bytes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
LONGEST_EPISODE_S = 5.0
MEMORY_SHARE = 0.5
"""Of this machine's memory for episodes: other runs, the app and the memory's nodes need some too."""
_KEPT_S = {True: 120.0, False: 3.0}  # a trial that failed is soon made again: its module may have been mended
_MARK = "emtc-rehearsal "


@dataclass(frozen=True)
class Rehearsal:
    """What one episode of random actions showed."""

    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    steps: int
    episode_return: float
    """Undiscounted, in the environment's unit."""
    tells_success: bool
    """Whether any info said that the episode was won, or was not."""


def rehearse(config: EnvConfig) -> Rehearsal:
    """Make the environment and play one episode; the answer is kept for two minutes.

    Raises:
        EnvUnavailableError: In one sentence, if it cannot be imported, made or played.
    """
    key = (config.model_dump_json(), os.environ.get(VARIABLE, ""), str(home_folder()))
    known = _ANSWERS.get(key)
    if known is None or time.monotonic() - known[0] > _KEPT_S[isinstance(known[1], Rehearsal)]:
        known = _ANSWERS[key] = (time.monotonic(), _ask(config))
    if isinstance(known[1], str):
        raise EnvUnavailableError(known[1])
    return known[1]


_ANSWERS: dict[tuple[str, str, str], tuple[float, Rehearsal | str]] = {}


def check_fits(config: RunConfig, seen: Rehearsal) -> None:
    """Refuse a run whose episodes cannot all be in memory, before anything is created.

    Raises:
        ConfigError: With the numbers, and what to set.
    """
    train, room = config.train, MEMORY_SHARE * memory_bytes()
    numbers = seen.n_agents * seen.obs_dim + seen.state_dim
    step_bytes = 4 * numbers + seen.n_agents * (seen.n_actions + 8) + 8
    length = seen.episode_limit + 1
    in_work = (2 * train.batch + train.n_envs) * length  # a batch, its copy, and the episodes being played
    steps = min(train.replay * length, train.t_max + train.replay)
    if (steps + in_work) * step_bytes <= room:
        return
    fitting = int(room / step_bytes / length) - 2 * train.batch - train.n_envs
    advice = (
        f"Set train.replay={fitting}"
        if fitting >= train.batch
        else f"Set a smaller train.batch (now {train.batch}) and train.replay, or shrink the observations"
    )
    raise ConfigError(
        f"The episodes of this run would need {(steps + in_work) * step_bytes / 1e9:,.0f} GB, and it may take "
        f"{room / 1e9:,.1f} GB, half of this machine's memory: train.replay = {train.replay:,} episodes of up to "
        f"env.pettingzoo.episode_limit = {seen.episode_limit:,} steps, each of {numbers:,} numbers "
        f"({seen.n_agents} agents × {seen.obs_dim:,} observed, {seen.state_dim:,} of state). "
        f"{advice}, or env.pettingzoo.episode_limit to what an episode really lasts."
    )


def why_no_success(config: RunConfig, seen: Rehearsal) -> str:
    """Say that nothing in this run may ever count as a success, and what to set; empty where something can."""
    if not config.uses_incentive or config.memory.success != "flag" or seen.tells_success:
        return ""
    return (
        f"No info of {config.env.map} said won, is_success or battle_won in an episode of {seen.steps:,} random steps. "
        "If none ever does, no episode is a success: ρ stays 0 and the incentive is off. Then set "
        "memory.success=return_threshold, and memory.success_threshold to the return that counts as one "
        f"(this episode's was {seen.episode_return:.4g})."
    )


def _ask(config: EnvConfig) -> Rehearsal | str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=config.model_dump_json(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PATIENCE_S,
            env={**os.environ, FOLDER_VARIABLE: str(home_folder())},
        )
    except subprocess.TimeoutExpired:
        return f"{config.map} did not play one step within {PATIENCE_S} seconds."
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"{config.map} ended the process that tried it: {said[:300]}"
    answer = json.loads(lines[-1].removeprefix(_MARK))
    return answer if isinstance(answer, str) else Rehearsal(**answer)


def play(env: VectorEnv) -> Rehearsal:
    """Play one episode of random actions, or as much of it as five seconds hold."""
    rng, info = np.random.default_rng(0), env.info
    seen, steps, episode_return = env.reset(0), 0, 0.0
    deadline = time.monotonic() + LONGEST_EPISODE_S
    while not (seen.terminated | seen.truncated)[0] and time.monotonic() < deadline:
        choices = [rng.choice(np.flatnonzero(row)) for row in seen.avail[0]]
        seen = env.step(np.array([choices]))
        steps, episode_return = steps + 1, episode_return + float(seen.reward[0])
    sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
    return Rehearsal(*sizes, steps, episode_return, bool(getattr(env, "tells_success", True)))


def _main() -> None:
    config = EnvConfig.model_validate_json(sys.stdin.read())
    with redirect_stdout(sys.stderr):
        answer = _try(config)
    sys.stdout.write(f"\n{_MARK}{json.dumps(answer)}\n")


def _try(config: EnvConfig) -> dict[str, object] | str:
    try:
        check_trusted(config)
        env = make_env(config, n_envs=1)
        try:
            return asdict(play(env))
        finally:
            env.close()
    except EmtcError as exc:
        return str(exc)
    except Exception as exc:
        return f"{config.map} failed in an episode of random actions: {exc!r}."


if __name__ == "__main__":
    _main()
