"""The speed of football matches, compared with gfootball's environment on the same cores.

Both play random actions and reset after a match. They are measured alternately, so that other load slows both.
gfootball's environment runs once per core, in separate processes.
"""

import multiprocessing
import os
import statistics
import time
import warnings
from typing import Any

import numpy as np

from emtc_core.config.train import EnvConfig
from emtc_core.envs.grf.env import find_unavailable_reason
from emtc_core.envs.grf.scenarios import EPISODE_LIMIT, get_scenario
from emtc_core.envs.registry import make_env
from tests.report import BenchResult, make_result

MAP = "academy_3_vs_1_with_keeper"
COPIES = (1, 8)
_SECONDS = 8.0
_REPEATS = 3


def run() -> list[BenchResult]:
    """Measure `grf.steps_per_second_per_core.<copies>` and `grf.ratio_to_wrapped.<copies>`."""
    if find_unavailable_reason():
        return []
    return [result for copies in COPIES for result in _compare(copies)]


def _compare(copies: int) -> list[BenchResult]:
    cores = min(copies, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pairs = [(_measure_ours(copies) / cores, _measure_gfootball(cores) / cores) for _ in range(_REPEATS)]
    ours, gfootball = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    load = f"{copies} matches on {cores} cores; gfootball's environment: {gfootball:.0f} steps/s per core"
    return [
        make_result(f"grf.steps_per_second_per_core.{copies}", ours, "steps/s", None, load),
        make_result(f"grf.ratio_to_wrapped.{copies}", ratio, "ratio", 1.5, load, met=ratio >= 1.5),
    ]


def _measure_ours(copies: int) -> float:
    """Play one match per copy repeatedly. Return the steps of running matches per second."""
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
        observation = env.step(rng.integers(0, env.info.n_actions, shape))
        running &= ~(observation.terminated | observation.truncated)
    seconds = time.perf_counter() - started
    env.close()
    return steps / seconds


def _measure_gfootball(cores: int) -> float:
    """Play gfootball's environment in `cores` processes at once. Return the sum of their steps per second."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(cores), context.Queue()
    processes = [context.Process(target=_play_gfootball, args=(seed, ready, rates)) for seed in range(cores)]
    for process in processes:
        process.start()
    total = sum(rates.get(timeout=60 + 5 * _SECONDS) for _ in processes)
    for process in processes:
        process.join()
    return total


def _play_gfootball(seed: int, ready: Any, rates: Any) -> None:
    warnings.simplefilter("ignore")  # gfootball imports gym, which warns
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
