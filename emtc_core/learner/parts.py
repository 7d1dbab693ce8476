"""Parallel updates on the CPU: split a batch of episodes into parts, one per core, and join the results.

A thread of a `WorkerPool` runs each part through the same code as a whole batch. The episodes of a part depend only on
the episode lengths, and results are summed in the order of the parts. The same number of parts therefore always gives
the same bits. Another number of parts gives other rounding errors. The learner calls this module. The recurrence
releases the interpreter lock, so the parts run in parallel.

`Background` is one more CPU thread for work that the rest of an update does not wait for. PyTorch releases the
interpreter lock while it computes, so two chains of small operations run in parallel. Without a free core there is no
gain. Work on the two threads must not share mutable data; then all numbers equal those of a single thread. On CUDA the
work runs immediately on the calling thread, because the GPU is the bottleneck.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.learner import networks
from emtc_core.learner.backbones.base import JointValues, Unrolled
from emtc_core.learner.targets import Incentive, IncentiveInputs
from emtc_core.replay_buffer.buffer import Batch

P = ParamSpec("P")
T = TypeVar("T")
Rows = NDArray[np.int64]


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


@dataclass(frozen=True)
class BatchPart:
    """P of the B episodes of a batch. Source: bookkeeping."""

    rows: Rows  # [P] indices of the episodes in the batch
    batch: Batch
    recalled: IncentiveInputs | None


@dataclass(frozen=True)
class ForwardPass:
    """Results of the forward pass over the episodes of a part."""

    seq: networks.Sequence
    online: Unrolled
    taken: JointValues  # of the actions that were taken
    following: JointValues  # of the target copy at the next step
    incentive: Incentive | None


def split(batch: Batch, recalled: IncentiveInputs | None, k: int) -> list[BatchPart]:
    """Split a batch into k parts of about the same number of steps.

    Part i gets the i-th longest episode and every k-th after it.

    Args:
        batch: The batch.
        recalled: Memory values of the batch; None without a memory.
        k: Number of parts.
    """
    order = np.argsort(-batch.length, kind="stable")
    return [_make_part(batch, recalled, np.sort(order[i::k])) for i in range(k)]


def join(parts: Sequence[BatchPart], values: Sequence[Tensor]) -> Tensor:
    """Join the values of all parts in the order of the batch.

    Source: bookkeeping.

    Args:
        parts: The parts.
        values: One tensor [T, P, ...] per part [unit varies].

    Returns:
        [T, B, ...] [unit varies].
    """
    order = torch.from_numpy(np.argsort(np.concatenate([part.rows for part in parts])))
    return torch.cat(list(values), 1).index_select(1, order)


def join_unrolled(parts: Sequence[BatchPart], unrolled: Sequence[Unrolled]) -> Unrolled:
    """Join the forward passes of all parts, detached. Quantile fractions are left out, as no caller reads them."""
    names = ("hidden", "q", "best", "greedy")
    return Unrolled(**{name: join(parts, [getattr(u, name).detach() for u in unrolled]) for name in names})


def _make_part(batch: Batch, recalled: IncentiveInputs | None, rows: Rows) -> BatchPart:
    indices = torch.from_numpy(rows)
    columns = {
        # The copy [P, T, ...] is time-major in memory, like the tensors of a batch.
        name: value.transpose(0, 1).index_select(1, indices).transpose(0, 1)
        if isinstance(value, Tensor)
        else value[rows]
        for name, value in vars(batch).items()
    }
    selected = None if recalled is None else IncentiveInputs(**{n: v[indices] for n, v in vars(recalled).items()})
    return BatchPart(rows, replace(batch, **columns), selected)
