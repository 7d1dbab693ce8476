"""A batch in parts, one for each core: who computes which episodes, and how the results become one again.

Every part goes through the same code as a whole batch would, on a thread of a `Team`. Which episodes stand in which
part follows from their lengths alone and sums over parts are taken in their order, so k parts always give the same
bits; other than those of k - 1, as floating-point sums do. Before: the learner; after: `recurrence`, which lets go of
the interpreter.

`Background` is a second thread of the CPU for work that the rest of an update need not wait for. PyTorch lets go of
the interpreter while it computes, so two chains of small operations, each on one thread, run beside each other without
a barrier at every operation. Where no core is free it gains nothing. What is submitted must share nothing that changes
with what runs beside it; then every number is the same as without a second thread. On CUDA the work is done at once:
there the device is what is busy.
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
from emtc_core.learner.backbones.base import Evaluation, Unrolled
from emtc_core.learner.targets import Incentive, IncentiveInputs
from emtc_core.replay_buffer.buffer import Batch

P = ParamSpec("P")
T = TypeVar("T")
Rows = NDArray[np.int64]


class Background:
    """One more thread, which does its work in the order it was given."""

    def __init__(self, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="learner") if device.type == "cpu" else None

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """Start the work; what is returned waits for its result, or raises what it raised."""
        if self._pool is not None:
            return self._pool.submit(work, *args, **kwargs).result
        result = work(*args, **kwargs)
        return lambda: result


class Team:
    """Threads that share what is to be done; nothing they do at once may depend on each other."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="part") if threads > 1 else None

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Do everything; return the results in the order of the tasks, or raise what the first of them raised."""
        if self._pool is None:
            return [task() for task in tasks]
        waiting = [self._pool.submit(task) for task in tasks]
        return [each.result() for each in waiting]


@dataclass(frozen=True)
class Part:
    """Some episodes of a batch."""

    rows: Rows  # [P] which of the batch's B
    batch: Batch
    recalled: IncentiveInputs | None


@dataclass(frozen=True)
class Valued:
    """What the networks say of some episodes."""

    seq: networks.Sequence
    online: Unrolled
    taken: Evaluation
    following: Evaluation
    gained: Incentive | None


def split(batch: Batch, recalled: IncentiveInputs | None, k: int) -> list[Part]:
    """Deal the episodes out, longest first, so that each of k parts has about as much to do."""
    order = np.argsort(-batch.length, kind="stable")
    return [_take(batch, recalled, np.sort(order[i::k])) for i in range(k)]


def join(parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    """Put values [T, P, ...] of all parts together in the batch's order: [T, B, ...]."""
    places = torch.from_numpy(np.argsort(np.concatenate([part.rows for part in parts])))
    return torch.cat(list(values), 1).index_select(1, places)


def join_unrolled(parts: Sequence[Part], unrolled: Sequence[Unrolled]) -> Unrolled:
    """Put together what passes over the parts gave, without graphs; fractions are no one's business elsewhere."""
    names = ("hidden", "q", "best", "greedy")
    return Unrolled(**{name: join(parts, [getattr(u, name).detach() for u in unrolled]) for name in names})


def _take(batch: Batch, recalled: IncentiveInputs | None, rows: Rows) -> Part:
    places = torch.from_numpy(rows)
    columns = {
        name: _pick(value, places) if isinstance(value, Tensor) else value[rows] for name, value in vars(batch).items()
    }
    kept = None if recalled is None else IncentiveInputs(**{n: v[places] for n, v in vars(recalled).items()})
    return Part(rows, replace(batch, **columns), kept)


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """Copy episodes [P, T, ...] so that they lie time-major, as a batch's do."""
    return values.transpose(0, 1).index_select(1, places).transpose(0, 1)
