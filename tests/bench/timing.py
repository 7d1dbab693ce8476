"""Durations of repeated calls."""

import statistics
import time
from collections.abc import Callable

import torch


def time_calls(function: Callable[[], object], repeats: int, *, warm_up: int = 0) -> list[float]:
    """Return the durations [s] of `repeats` calls, each until the GPU has finished, after `warm_up` other calls."""
    times = []
    for _ in range(warm_up + repeats):
        started = time.perf_counter()
        function()
        synchronize()
        times.append(time.perf_counter() - started)
    return times[warm_up:]


def median_s(function: Callable[[], object], repeats: int, *, warm_up: int = 0) -> float:
    """Return the median duration [s] of `repeats` calls."""
    return statistics.median(time_calls(function, repeats, warm_up=warm_up))


def median_ms(function: Callable[[], object], repeats: int) -> float:
    """Return the median duration [ms] of `repeats` calls."""
    return 1000 * median_s(function, repeats)


def synchronize() -> None:
    """Wait until the GPU has finished, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
