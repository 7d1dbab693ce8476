"""Threads of the learner on the CPU: a pool that runs tasks in parallel, and one background thread.

PyTorch releases the interpreter lock while it computes, so several threads can compute at the same time. Tasks that run
at the same time must not share mutable data; then all numbers equal those of a single thread. Without a free core there
is no gain.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """One additional thread that runs its tasks in the order of submission."""

    def __init__(self, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="learner") if device.type == "cpu" else None

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """Start a task and return a function that waits for its result, or raises the task's exception.

        Args:
            work: The task.
            *args: Arguments of the task.
            **kwargs: Keyword arguments of the task.
        """
        if self._pool is not None:
            return self._pool.submit(work, *args, **kwargs).result
        result = work(*args, **kwargs)
        return lambda: result


class WorkerPool:
    """A pool of threads. Tasks that run at the same time must be independent of each other."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="part") if threads > 1 else None

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run all tasks and return the results in their order, or raise the exception of the first failed task."""
        if self._pool is None:
            return [task() for task in tasks]
        futures = [self._pool.submit(task) for task in tasks]
        return [future.result() for future in futures]
