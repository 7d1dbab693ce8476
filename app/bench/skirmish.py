"""How many environment steps per second, with observation, state and availability, on one core?

A uniformly random policy over the available actions; only steps of running battles count, although ended
ones are carried along until their batch starts anew, as the collector of training does.
"""

import time

import numpy as np

from app.bench import BenchResult, make_result
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import get_adapter, make_env
from emtc_core.envs.skirmish.env import warm_up

BUDGETS = {"3m": 50_000.0, "3s_vs_5z": 50_000.0, "corridor": 15_000.0}
N_ENVS = 64
SECONDS = 2.0
RESTART_SHARE = 0.5
"""A batch starts anew when this share of its battles has ended."""
SMAX_MAP = "3s_vs_5z"


def run(maps: tuple[str, ...] = tuple(BUDGETS), *, seconds: float = SECONDS) -> list[BenchResult]:
    """Measure `skirmish.steps_per_second.<map>`; beside them SMAX on this machine where it is installed."""
    warm_up()
    speeds = {name: _measure("skirmish", name, seconds=seconds) for name in maps}
    figures = [_figure(name, speed) for name, speed in speeds.items()]
    if SMAX_MAP in speeds and not get_adapter("smax").find_unavailable_reason():
        figures += _compare_with_smax(speeds[SMAX_MAP])
    return figures


def count_steps(env: VectorEnv, *, seconds: float) -> tuple[int, float]:
    """Play at random for some seconds; return the steps of running copies and the seconds that they took."""
    rng = np.random.default_rng(0)
    seen, count = env.reset(0), 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        over = seen.terminated | seen.truncated
        if over.mean() >= RESTART_SHARE:
            seen, over = env.reset(), np.zeros_like(over)
        actions = (rng.random(seen.avail.shape, dtype=np.float32) * seen.avail).argmax(axis=-1)
        count += int((~over).sum())
        seen = env.step(actions)
    return count, elapsed


def _measure(env: str, map: str, *, seconds: float) -> float:
    copies = make_env(EnvConfig(name=env, map=map), n_envs=N_ENVS)
    try:
        count_steps(copies, seconds=seconds / 10)
        count, elapsed = count_steps(copies, seconds=seconds)
    finally:
        copies.close()
    return count / elapsed


def _figure(map: str, speed: float) -> BenchResult:
    reference = "SMAX on two cores: 136 at 8 copies, 1,600 at 128"
    return make_result(f"skirmish.steps_per_second.{map}", speed, "steps/s", BUDGETS.get(map), reference, digits=0)


def _compare_with_smax(speed: float) -> list[BenchResult]:
    smax, reference = _measure("smax", SMAX_MAP, seconds=SECONDS), f"the same {N_ENVS} copies, this run"
    return [
        make_result(f"skirmish.smax_steps_per_second.{SMAX_MAP}", smax, "steps/s", None, reference, digits=0),
        make_result(f"skirmish.speed_over_smax.{SMAX_MAP}", speed / smax, "ratio", None, reference, digits=1),
    ]
