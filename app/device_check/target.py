"""The device that is checked, and the sizes of the checks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Target:
    """The device that is checked."""

    device: torch.device
    computing: Callable[[], AbstractContextManager[object]] = nullcontext
    """Makes the context manager around the computations on the device; the CPU reference is computed without it.

    Tests use it to insert errors."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class CheckSizes:
    """Sizes of the checks."""

    algos: tuple[str, ...] = ()
    """Algorithms of the checks `update`, `repeat` and `synchronization`; empty: the default of each check."""
    batch: int = 16
    """Episodes per update."""
    length: int = 40
    """Maximum length of an episode [env steps]."""
    updates: int = 20
    acting_steps: int = 50
    """Steps in 32 environments. At each step, the greedy actions on the device and on the CPU are compared."""
    rows: int = 65_536
    """Number of states that the embedder embeds."""
    nodes: int = 100_000
    """Memory nodes of the check `index`."""
    queries: int = 2000
    """Points of the check `index` whose nearest node is searched."""
    resume_steps: int = 1500
    """Env steps of each of the three parts of the check `resume`: on the CPU, on the device, and on the CPU again."""
    timed_updates: int = 10
    timed_nodes: int = 100_000
    timed_steps: int = 6000
    """Env steps of the timed training."""
    training_s: float = 60.0
    training_steps: int = 40_000
    """Maximum env steps of the check `training`."""


FULL = CheckSizes()
QUICK = CheckSizes(
    batch=8,
    length=20,
    acting_steps=32,
    queries=500,
    resume_steps=300,
    timed_updates=3,
    timed_nodes=20_000,
    timed_steps=1200,
    training_s=12.0,
    training_steps=8000,
)
