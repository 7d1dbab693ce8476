"""Split a batch of episodes into parts, one per core, and join the results of the parts.

A thread of a `WorkerPool` runs each part through the same code as a whole batch. The episodes of a part depend only on
the episode lengths, and results are summed in the order of the parts. The same number of parts therefore always gives
the same bits. Another number of parts gives other rounding errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.learner.backbones.base import JointValues, Unrolled
from emtc_core.learner.networks import SequenceBatch
from emtc_core.learner.targets import Incentive, IncentiveInputs
from emtc_core.replay_buffer.buffer import Batch

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class BatchPart:
    """P of the B episodes of a batch. Source: implementation detail."""

    rows: Rows  # [P] indices of the episodes in the batch
    batch: Batch
    recalled: IncentiveInputs | None


@dataclass(frozen=True)
class ForwardPass:
    """Results of the forward pass over the episodes of a part."""

    seq: SequenceBatch
    online: Unrolled
    taken: JointValues  # of the actions that were taken
    next_values: JointValues  # of the target copy at the next step
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

    Source: implementation detail.

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
    columns: dict[str, Any] = {"steps": batch.steps.select(rows)}
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            # The copy [P, T] is time-major in memory, like the tensors of a batch.
            columns[name] = value.transpose(0, 1).index_select(1, indices).transpose(0, 1)
        elif isinstance(value, np.ndarray):
            columns[name] = value[rows]
    selected = None if recalled is None else IncentiveInputs(**{n: v[indices] for n, v in vars(recalled).items()})
    return BatchPart(rows, replace(batch, **columns), selected)
