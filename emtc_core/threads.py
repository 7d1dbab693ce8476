"""Number of threads of torch's operations and of an update."""

import os
import sys
from functools import cache, wraps
from typing import Any, Literal

import psutil
import torch

MAX_AUTO_THREADS = 4
"""Maximum of `train.threads = auto`: the networks are small, and a part of an update always runs in one thread."""
CPU_SAMPLE_S = 0.3
"""Time in which the use of the processor is measured [s]."""


def configure_threads() -> None:
    """Let every operation of torch use one thread.

    The networks are small: with two threads, the synchronization at every operation takes longer than the work saves,
    and several times longer on a busy machine. `train.threads` distributes episodes instead (`learner.batch_parts`).
    """
    torch.set_num_threads(1)
    _prevent_compiler_import()


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


def choose_threads(setting: int | Literal["auto"], *, may_use_all: bool = True, n_other_threads: int = 0) -> int:
    """Choose the number of threads of an update (`train.threads`). auto counts the idle cores.

    Args:
        setting: The configured value.
        may_use_all: Whether the run may use all idle cores; False for a run of a sweep.
        n_other_threads: Number of further threads of the learner; auto leaves one core for each.
    """
    if setting != "auto":
        return max(1, setting)
    return max(1, min(MAX_AUTO_THREADS, count_idle_cores() - n_other_threads)) if may_use_all else 1


def count_idle_cores() -> int:
    """Count the idle cores that this process may use, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = psutil.cpu_percent(interval=CPU_SAMPLE_S) / 100 * (os.cpu_count() or 1)
    return max(1, usable - round(busy))
