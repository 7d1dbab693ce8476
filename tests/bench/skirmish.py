"""Environment steps per second of skirmish on one core, with observation, state and available actions.

The policy is uniformly random over the available actions. Only steps of running battles are counted. Ended battles stay
in the batch until it is reset, as in the collector of a training.
"""

import time

import numpy as np

from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import get_adapter, make_env
from emtc_core.envs.skirmish.env import warm_up
from tests.report import BenchResult, make_result

BUDGETS = {"3m": 50_000.0, "3s_vs_5z": 50_000.0, "corridor": 15_000.0}
N_ENVS = 64
SECONDS = 2.0
RESET_SHARE = 0.5
"""A batch is reset when this share of its battles has ended."""
SMAX_MAP = "3s_vs_5z"


def run(maps: tuple[str, ...] = tuple(BUDGETS), *, seconds: float = SECONDS) -> list[BenchResult]:
    """Measure `skirmish.steps_per_second.<map>`, and SMAX on this machine if it is installed."""
    warm_up()
    speeds = {name: _measure("skirmish", name, seconds=seconds) for name in maps}
    reference = "SMAX on two cores: 136 at 8 copies, 1,600 at 128"
    results = [
        make_result(f"skirmish.steps_per_second.{name}", speed, "steps/s", BUDGETS.get(name), reference, digits=0)
        for name, speed in speeds.items()
    ]
    if SMAX_MAP in speeds and not get_adapter("smax").find_unavailable_reason():
        results += _compare_with_smax(speeds[SMAX_MAP])
    return results


def count_steps(env: VectorEnv, *, seconds: float) -> tuple[int, float]:
    """Play randomly for `seconds`. Return the number of steps of running copies and the elapsed time [s]."""
    rng = np.random.default_rng(0)
    observation, count = env.reset(0), 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        is_over = observation.terminated | observation.truncated
        if is_over.mean() >= RESET_SHARE:
            observation, is_over = env.reset(), np.zeros_like(is_over)
        actions = (rng.random(observation.avail.shape, dtype=np.float32) * observation.avail).argmax(axis=-1)
        count += int((~is_over).sum())
        observation = env.step(actions)
    return count, elapsed


def _measure(env: str, map: str, *, seconds: float) -> float:
    copies = make_env(EnvConfig(name=env, map=map), n_envs=N_ENVS)
    try:
        count_steps(copies, seconds=seconds / 10)
        count, elapsed = count_steps(copies, seconds=seconds)
    finally:
        copies.close()
    return count / elapsed


def _compare_with_smax(speed: float) -> list[BenchResult]:
    smax, reference = _measure("smax", SMAX_MAP, seconds=SECONDS), f"{N_ENVS} copies on this machine"
    return [
        make_result(f"skirmish.smax_steps_per_second.{SMAX_MAP}", smax, "steps/s", None, reference, digits=0),
        make_result(f"skirmish.speed_over_smax.{SMAX_MAP}", speed / smax, "ratio", None, reference, digits=1),
    ]
