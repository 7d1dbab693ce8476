"""Number of threads of torch's operations, and the thread that shares the work of a run.

A run has one or two threads (`train.threads`). Work is divided in the same parts for any number of threads, so the
number changes the speed only. PyTorch and compiled functions release the interpreter lock while they compute.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import Any, TypeVar

import psutil
import torch

T = TypeVar("T")

MAX_THREADS = 2
"""Threads of a run that is alone on its machine: the work is divided in two parts (`learner.step_rows.N_PARTS`)."""
CPU_SAMPLE_S = 0.3
"""Time in which the use of the processor is measured [s]."""

_pool: ThreadPoolExecutor | None = None
"""The second thread of this process; None if the run has one thread."""


def configure_threads(threads: int = 1) -> None:
    """Set the number of threads of this process, and let every operation of torch use one thread.

    The networks are small: with two threads in each operation, the synchronization takes longer than the work saves,
    and several times longer on a busy machine. `run_together` distributes larger tasks instead.

    Args:
        threads: Number of threads of `run_together` and `start_task`.
    """
    global _pool
    torch.set_num_threads(1)
    _prevent_compiler_import()
    if _pool is not None:
        _pool.shutdown()
    _pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="emtc") if threads > 1 else None


def start_task(task: Callable[[], T]) -> Callable[[], T]:
    """Start a task in the second thread and return a function that waits for its result, or raises its exception.

    With one thread the task runs at once. The waiting thread runs the task itself if the second thread has not started
    it yet, so a task may start other tasks. Tasks that run at the same time must not change data that another one uses.
    """
    if _pool is None:
        result = task()
        return lambda: result
    future = _pool.submit(task)
    return lambda: task() if future.cancel() else future.result()


def run_together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks, with the second thread if there is one, and return their results in the order of the tasks.

    Raises:
        Exception: That of the first failed task.
    """
    waits = [start_task(task) for task in tasks[1:]]
    first = tasks[0]()
    return [first, *(wait() for wait in waits)]


@cache
def _prevent_compiler_import() -> None:
    """Prevent torch's optimizers from importing torch's compiler, which takes a third of a trainer's start time.

    The optimizers call the compiler before and after each step, which has no effect without compiled code. The step
    itself does not change. Nothing is changed if the compiler is already imported, or if torch has other internals.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        method: Any = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if method is not None:
            method.__dynamo_disable = method
    for kind in (torch.optim.Adam, torch.optim.RMSprop):
        step: Any = getattr(kind.step, "__wrapped__", None)
        if step is not None:
            kind.step = wraps(step)(torch.no_grad()(step))


def choose_threads(setting: int, *, is_alone: bool = True) -> int:
    """Choose the number of threads of a run (`train.threads`).

    Args:
        setting: The configured value; 0 means `MAX_THREADS` if enough cores are idle.
        is_alone: Whether the run may use an idle core; False for a run of a sweep.
    """
    if setting:
        return setting
    return min(MAX_THREADS, count_idle_cores()) if is_alone else 1


def count_idle_cores() -> int:
    """Count the idle cores that this process may use, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = psutil.cpu_percent(interval=CPU_SAMPLE_S) / 100 * (os.cpu_count() or 1)
    return max(1, usable - round(busy))
