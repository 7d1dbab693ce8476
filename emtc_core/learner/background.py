"""Work on a second thread of the CPU that the rest of an update need not wait for.

PyTorch lets go of the interpreter while it computes, so two chains of small operations, each on one thread, run
beside each other without a barrier at every operation. Where no core is free it gains nothing. What is submitted must
share nothing that changes with what runs beside it; then every number is the same as without a second thread. On
CUDA the work is done at once: there the device is what is busy.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


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
