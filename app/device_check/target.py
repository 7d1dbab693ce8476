"""The device that is checked, and how much each check computes."""

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
    """Entered around whatever the device computes, and left for what the CPU computes as its reference. Tests plant an
    error there."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Sizes:
    """How much each check computes."""

    algos: tuple[str, ...] = ()
    """Algorithms of the check `update`; empty: all."""
    batch: int = 16
    """Episodes of an update."""
    length: int = 40
    """Longest of them [env steps]."""
    updates: int = 20
    acting_steps: int = 50
    """Steps of 32 environments in which greedy actions are compared."""
    rows: int = 65_536
    """States that are embedded."""
    nodes: int = 100_000
    queries: int = 2000
    replay: int = 2000
    """Episodes of 160 steps in the full replay buffer."""
    capacity: int = 100_000
    """Nodes of the full memory."""
    resume_steps: int = 1500
    """Env steps on each of the three devices of the check `resume`."""
    timed_updates: int = 10
    timed_nodes: int = 100_000
    timed_steps: int = 6000
    """Env steps of the timed training."""
    training_s: float = 60.0
    training_steps: int = 40_000
    """Most env steps of the check `training`, whatever its time."""


FULL = Sizes()
QUICK = Sizes(
    batch=8,
    length=20,
    acting_steps=32,
    queries=500,
    replay=200,
    capacity=20_000,
    resume_steps=300,
    timed_updates=3,
    timed_nodes=20_000,
    timed_steps=1200,
    training_s=12.0,
    training_steps=8000,
)
