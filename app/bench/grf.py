"""How much faster than gfootball's own environment are the football matches, on the same cores?

Both play random actions and start anew when a match is over, in turns, so that what else the machine does
slows both. Theirs is one wrapped environment per core, which has no other core to wait for.
"""

import multiprocessing
import os
import statistics
import time
import warnings
from typing import Any

import numpy as np

from app.bench import BenchResult, make_result
from emtc_core.config.train import EnvConfig
from emtc_core.envs.grf.env import find_unavailable_reason
from emtc_core.envs.grf.scenarios import EPISODE_LIMIT, get_scenario
from emtc_core.envs.registry import make_env

MAP = "academy_3_vs_1_with_keeper"
COPIES = (1, 8)
_SECONDS = 8.0
_REPEATS = 3


def run() -> list[BenchResult]:
    """Measure `grf.steps_per_second_per_core.<copies>` and `grf.ratio_to_wrapped.<copies>`."""
    if find_unavailable_reason():
        return []
    return [figure for copies in COPIES for figure in _compare(copies)]


def _compare(copies: int) -> list[BenchResult]:
    cores = min(copies, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pairs = [(_play_ours(copies) / cores, _play_theirs(cores) / cores) for _ in range(_REPEATS)]
    ours, theirs = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    where = f"{copies} matches on {cores} cores; gfootball's own environment: {theirs:.0f} steps/s per core"
    return [
        make_result(f"grf.steps_per_second_per_core.{copies}", ours, "steps/s", None, where),
        make_result(f"grf.ratio_to_wrapped.{copies}", ratio, "ratio", 1.5, where, met=ratio >= 1.5),
    ]


def _play_ours(copies: int) -> float:
    """Play rounds of one match per copy; only steps of running matches count."""
    env = make_env(EnvConfig(name="grf", map=MAP), n_envs=copies)
    rng = np.random.default_rng(0)
    shape = (copies, env.info.n_agents)
    steps, seed, running = 0, 0, np.zeros(copies, bool)
    env.reset(0)
    started = time.perf_counter()
    while time.perf_counter() - started < _SECONDS:
        if not running.any():
            seed += 1
            env.reset(seed)
            running[:] = True
        steps += int(running.sum())
        seen = env.step(rng.integers(0, env.info.n_actions, shape))
        running &= ~(seen.terminated | seen.truncated)
    seconds = time.perf_counter() - started
    env.close()
    return steps / seconds


def _play_theirs(cores: int) -> float:
    """Play one wrapped environment in each of so many processes at once."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(cores), context.Queue()
    processes = [context.Process(target=_play_wrapped, args=(seed, ready, rates)) for seed in range(cores)]
    for process in processes:
        process.start()
    total = sum(rates.get(timeout=60 + 5 * _SECONDS) for _ in processes)
    for process in processes:
        process.join()
    return total


def _play_wrapped(seed: int, ready: Any, rates: Any) -> None:
    warnings.simplefilter("ignore")  # gym, which only gfootball's own environment needs, warns at import
    import gfootball.env as football  # pyright: ignore[reportMissingImports]  (an extra)

    n_agents = get_scenario(MAP).n_agents
    env: Any = football.create_environment(
        env_name=MAP,
        representation="simple115",
        rewards="scoring",
        number_of_left_players_agent_controls=n_agents,
        number_of_right_players_agent_controls=0,
        other_config_options={"game_engine_random_seed": seed},
    )
    rng = np.random.default_rng(seed)
    env.reset()
    ready.wait()
    steps, t = 0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < _SECONDS:
        _, _, done, _ = env.step(rng.integers(0, 19, n_agents).tolist())
        steps, t = steps + 1, t + 1
        raw = env.unwrapped.observation()[0]
        in_own_half = raw["ball"][0] < 0 or bool((raw["left_team"][-n_agents:, 0] < 0).any())
        if done or in_own_half or t >= EPISODE_LIMIT:
            env.reset()
            t = 0
    rates.put(steps / (time.perf_counter() - started))
