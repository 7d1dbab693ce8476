"""Try a stranger's environment for some episodes before a run is made of it, in an interpreter of its own.

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

from app.analysis.format import number
from emtc_core.config.run import RunConfig
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import IMPORTED_BY_MAP, check_trusted, make_env
from emtc_core.envs.trust import VARIABLE
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError, Fault
from emtc_core.install import memory_bytes
from emtc_core.plugins import FOLDER_VARIABLE, home_folder
from emtc_core.plugins import VARIABLE as PLUGINS

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
LONGEST_TRIAL_S = 5.0
EPISODES = 10
MEMORY_SHARE = 0.5
"""Of this machine's memory for episodes: other runs, the app and the memory's nodes need some too."""
_KEPT_S = {True: 120.0, False: 3.0}  # a trial that failed is soon made again: its module may have been mended
_MARK = "emtc-probe "


@dataclass(frozen=True)
class Probe:
    """What some episodes of random actions showed."""

    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    steps: int
    """Of the longest episode, or of as much of the first as the time held."""
    returns: tuple[float, ...]
    """Of the whole episodes, undiscounted, in the environment's unit."""
    tells_success: bool
    """Whether any info said that an episode was won, or was not."""
    is_blind: bool
    """Whether what agents observe never changed within an episode."""

    @property
    def random_play(self) -> str:
        """What random play returned, as a clause."""
        if not self.returns:
            return f"random play had ended no episode after {self.steps:,} steps"
        if len(self.returns) == 1:
            return f"a random episode returned {number(self.returns[0])}"
        low, high = number(min(self.returns)), number(max(self.returns))
        return f"random play returned {low} to {high} in {len(self.returns)} episodes"


def probe(config: EnvConfig) -> Probe:
    """Make the environment and play up to `EPISODES` episodes; the answer is kept for two minutes.

    Raises:
        EnvUnavailableError: In one sentence, if it cannot be imported, made or played.
    """
    key = (config.model_dump_json(), f"{os.environ.get(VARIABLE)} {os.environ.get(PLUGINS)}", str(home_folder()))
    known = _ANSWERS.get(key)
    if known is None or time.monotonic() - known[0] > _KEPT_S[isinstance(known[1], Probe)]:
        known = _ANSWERS[key] = (time.monotonic(), _ask(config))
    if isinstance(known[1], EnvUnavailableError):
        raise EnvUnavailableError(known[1].message, reason=known[1].reason, subject=known[1].subject)
    return known[1]


_ANSWERS: dict[tuple[str, str, str], tuple[float, Probe | EnvUnavailableError]] = {}


def check_fits(config: RunConfig, seen: Probe) -> None:
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
        else f"Set a smaller train.batch (now {train.batch}) and train.replay, or shrink the observations (pictures: "
        "emtc_core.envs.zoo.wrapped.SmallPictures)"
    )
    rule = (
        f"must be smaller: the episodes of this run would need {(steps + in_work) * step_bytes / 1e9:,.0f} GB, and it "
        f"may use {room / 1e9:,.1f} GB, half of this machine's memory. An episode has up to "
        f"env.pettingzoo.episode_limit = {seen.episode_limit:,} steps, each of {numbers:,} numbers "
        f"({seen.n_agents} agents × {seen.obs_dim:,} observed, {seen.state_dim:,} of state)"
    )
    key, value = ("train.replay", train.replay) if fitting >= train.batch else ("train.batch", train.batch)
    hint = f"{advice}, or env.pettingzoo.episode_limit to what an episode really lasts."
    related = ("train.replay", "train.batch", "env.pettingzoo.episode_limit")
    raise ConfigError(Fault(key, value, rule, hint, related))


def needs_rule(config: RunConfig, seen: Probe) -> bool:
    """Whether this run needs a rule for what counts as a success, because nothing in its environment says so."""
    return config.uses_incentive and not seen.tells_success


def why_no_success(config: RunConfig, seen: Probe) -> str:
    """Why the rule for a success tells nothing apart in this run, and what to set; empty where it may."""
    if not needs_rule(config, seen):
        return ""
    if config.memory.success == "flag":
        return (
            f"No info of {name_game(config.env)} said won, is_success or battle_won in random play. If none ever "
            "does, no episode is a success: ρ stays 0 and the incentive is off. Then set "
            "memory.success=return_threshold, and memory.success_threshold to the episode "
            "return, in the environment's own unit, that counts "
            f"as one ({seen.random_play})."
        )
    threshold = config.memory.success_threshold
    if len(seen.returns) > 1 and min(seen.returns) >= threshold:
        return (
            f"Every episode counts as a success: memory.success_threshold = {threshold:g} [env return], and "
            f"{seen.random_play}. Set it above that."
        )
    return ""


def why_blind(config: RunConfig, seen: Probe) -> str:
    """A warning where agents have nothing to act on; else empty."""
    if not seen.is_blind or seen.steps < 2:
        return ""
    return (
        f"What the agents of {name_game(config.env)} observe never changed in random play, so nothing can be learned "
        "from it. "
        'Games that show their screen draw it only if they are made with render_mode="rgb_array".'
    )


def name_game(config: EnvConfig) -> str:
    """The game as a sentence calls it: by its import path, or by the name of the plug-in that it is."""
    return config.map if config.name in IMPORTED_BY_MAP else config.name


def _ask(config: EnvConfig) -> Probe | EnvUnavailableError:
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
        message = f"{name_game(config)} did not play one step within {PATIENCE_S} seconds."
        return EnvUnavailableError(message, reason="timeout", subject="env.map")
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        message = f"{name_game(config)} ended the process that tried it: {said[:300]}"
        return EnvUnavailableError(message, reason="ended", subject="env.map")
    answer = json.loads(lines[-1].removeprefix(_MARK))
    if "message" in answer:
        return EnvUnavailableError(**answer)
    return Probe(**(answer | {"returns": tuple(answer["returns"])}))


def play(env: VectorEnv) -> Probe:
    """Play episodes of random actions, as many as `EPISODES` or `LONGEST_TRIAL_S` hold."""
    info, rng = env.info, np.random.default_rng(0)
    deadline = time.monotonic() + LONGEST_TRIAL_S
    returns: list[float] = []
    longest, is_blind = 0, True
    while len(returns) < EPISODES and time.monotonic() < deadline:
        steps, episode_return, is_over, has_changed = _play_once(env, rng, seed=len(returns), deadline=deadline)
        is_blind &= not has_changed
        if is_over:
            returns.append(episode_return)
        if is_over or not returns:
            longest = max(longest, steps)
    sizes = (info.n_agents, info.n_actions, info.obs_dim, info.state_dim, info.episode_limit)
    return Probe(*sizes, longest, tuple(returns), bool(getattr(env, "tells_success", True)), is_blind)


def _play_once(
    env: VectorEnv, rng: np.random.Generator, *, seed: int, deadline: float
) -> tuple[int, float, bool, bool]:
    """Play one episode; return its steps and return, whether it came to its end, and whether anything changed."""
    first = seen = env.reset(seed)
    steps, episode_return, has_changed = 0, 0.0, False
    while not (seen.terminated | seen.truncated)[0]:
        if steps and time.monotonic() > deadline:
            return steps, episode_return, False, has_changed
        choices = [rng.choice(np.flatnonzero(row)) for row in seen.avail[0]]
        seen = env.step(np.array([choices]))
        steps, episode_return = steps + 1, episode_return + float(seen.reward[0])
        present = seen.obs[0].any(axis=-1)  # who left observes zeros
        has_changed |= bool((seen.obs != first.obs)[0, present].any())
    return steps, episode_return, True, has_changed


def _main() -> None:
    config = EnvConfig.model_validate_json(sys.stdin.read())
    with redirect_stdout(sys.stderr):
        answer = _try(config)
    sys.stdout.write(f"\n{_MARK}{json.dumps(answer)}\n")


def _try(config: EnvConfig) -> dict[str, object]:
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
        message = f"{name_game(config)} failed in random play: {exc!r}."
        return {"message": message, "reason": "play_failed", "subject": "env.map"}


if __name__ == "__main__":
    _main()
