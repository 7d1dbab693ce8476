"""Where a run computes: CUDA when there is one, else the CPU with a sensible number of threads; and its random tensors.

Random tensors of whatever computes on a device are drawn on the host and sent along, so that a run can change devices:
a generator of a GPU has another algorithm and a state of 16 bytes, which no CPU can go on from. Every stateful
generator of a run is therefore one of the host; what is drawn is small, and nobody waits for it to arrive.
"""

import contextlib
import hashlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.errors import missing_cuda

MOST_THREADS = 4
"""Of `train.threads = auto`: the networks are small, and what an update does alone does not shrink."""
GLANCE_S = 0.3
CUBLAS_WORKSPACE = ":16:8"
"""Of the two sizes that make cuBLAS deterministic, the one that cuDNN's recurrent layers take, too."""


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Choose the device of a run.

    Raises:
        ConfigError: If CUDA is wanted and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise missing_cuda("train.device")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def set_matmul_precision(precision: Literal["highest", "high"]) -> None:
    """Set how CUDA multiplies float32 numbers in this process (`train.matmul_precision`).

    PyTorch's own defaults differ between operations: TF32 in cuDNN's GRU, float32 in matrix products.
    """
    backends, mode = torch.backends, {"highest": "ieee", "high": "tf32"}[precision]
    backends.cuda.matmul.fp32_precision = mode
    backends.cudnn.conv.fp32_precision = mode
    backends.cudnn.rnn.fp32_precision = mode


def set_determinism(wanted: bool) -> None:
    """Choose or give up deterministic algorithms on CUDA in this process (`train.deterministic`).

    Sets what PyTorch's notes on reproducibility list. It comes before the first matrix product: cuBLAS reads its
    workspace's size once. An operation without a deterministic algorithm then raises a RuntimeError; none is used here.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False  # every buffer here is written before it is read
    if wanted != torch.are_deterministic_algorithms_enabled():  # the call loads the compiler
        torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.deterministic = wanted
    torch.backends.cudnn.benchmark = False


def send(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Put an array on a device; to a GPU it travels in the background, so that nobody waits for the work before it."""
    return send_tensor(torch.from_numpy(np.ascontiguousarray(array)), device)


def send_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Put a host tensor on a device, as `send` does an array."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class AsyncCopy:
    """A tensor on its way to the host."""

    value: torch.Tensor
    arrived: torch.cuda.Event | None = None

    def is_here(self) -> bool:
        """Whether `wait` would return at once."""
        return self.arrived is None or self.arrived.query()

    def wait(self) -> torch.Tensor:
        """Return it when it has arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.value


def fetch(tensor: torch.Tensor) -> AsyncCopy:
    """Copy a tensor to the host; from a GPU it travels in the background, so that nobody waits for the work before."""
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return AsyncCopy(tensor)
    value = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return AsyncCopy(value, arrived)


@dataclass(frozen=True)
class Elapsed:
    """A measured time: by the host's clock, or between two events of a GPU."""

    host_ms: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def read_ms(self) -> float:
        """Return the time [ms]; waits until a GPU has come to its end."""
        if self.events is None:
            return self.host_ms
        start, end = self.events
        end.synchronize()
        return start.elapsed_time(end)


class Stopwatch:
    """Measures work on a device from the moment when it is made.

    On a GPU both ends are events of its stream. The host's clock would measure how long the launches take, and count
    the wait for earlier work as time of whatever reads a value first.
    """

    def __init__(self, device: torch.device) -> None:
        self._started_s = time.perf_counter()
        self._event = _record_event() if device.type == "cuda" else None

    def stop(self) -> Elapsed:
        """Return the time until now, which may be read later; measuring goes on."""
        events = (self._event, _record_event()) if self._event else None
        return Elapsed(1e3 * (time.perf_counter() - self._started_s), events)


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def autocast(device: torch.device, *, wanted: bool) -> contextlib.AbstractContextManager[object]:
    """Compute in bfloat16 where that is safe, on CUDA if wanted."""
    if wanted and device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def configure_threads() -> None:
    """Let every operation of torch use one thread.

    The networks are small: two threads that wait for each other at every operation are slower than one, and several
    times slower on a busy machine. `train.threads` shares out episodes instead (learner.parts).
    """
    torch.set_num_threads(1)
    _spare_compiler()


@cache
def _spare_compiler() -> None:
    """Let torch's optimizers work without torch's compiler: loading it takes a third of the time of a trainer's start.

    Around each step they call it twice, to no effect where nothing is compiled; the step itself is torch's own. Nothing
    is changed where the compiler has been loaded already, or of a torch that is built otherwise.
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


def choose_threads(wanted: int | Literal["auto"], *, alone: bool = True, beside: int = 0) -> int:
    """Turn `train.threads` into a number; auto counts the cores that nothing uses at this moment.

    Args:
        wanted: As configured.
        alone: Whether this run may have them all; one of a sweep's runs may not.
        beside: Threads that the learner has besides, for which auto leaves a core.
    """
    if wanted != "auto":
        return max(1, wanted)
    return max(1, min(MOST_THREADS, count_idle_cores() - beside)) if alone else 1


def count_idle_cores() -> int:
    """Count the cores that this process may use and nobody does, at least one: the run's own."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = psutil.cpu_percent(interval=GLANCE_S) / 100 * (os.cpu_count() or 1)
    return max(1, usable - round(busy))


_LOG = logging.getLogger(__name__)


def rand(shape: Sequence[int], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw uniform numbers in [0, 1)."""
    return send_tensor(torch.rand(tuple(shape), generator=generator), device)


def permutation(n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw an order of n things, int64."""
    return send_tensor(torch.randperm(n, generator=generator), device)


def fork(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Make a generator on a device for many draws at once, seeded by the host's; on the CPU it is the host's own."""
    if device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def branch(generator: torch.Generator) -> torch.Generator:
    """Make a generator for one of several threads, seeded by the one they share."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Go on from a saved state; one that a GPU's generator left seeds this one, always in the same way."""
    state = state.cpu()
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return
    digest = hashlib.sha256(state.numpy().tobytes()).digest()
    generator.manual_seed(int.from_bytes(digest[:7]))
    _LOG.warning(
        "The checkpoint's random numbers come from a GPU's generator, which this version does not use. They go on from "
        "a seed made of its state: repeatable, but not what the run would have drawn there."
    )


def copy_state(state: Any) -> Any:
    """Copy nested dictionaries and lists of tensors and plain values; tensors stay on their devices."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: copy_state(value) for name, value in state.items()}
    return [copy_state(value) for value in state] if isinstance(state, list) else state
