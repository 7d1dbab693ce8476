"""Device and number of threads of a run, copies between host and device, timing, and random tensors.

Random tensors are drawn on the host and copied to the device, so that a run can be resumed on another device. A GPU's
generator uses another algorithm with a state of 16 bytes, which a CPU generator cannot continue. So every generator
whose state is saved is on the host. The tensors are small, and the copies run in the background.
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

from emtc_core.errors import make_cuda_error

MAX_AUTO_THREADS = 4
"""Maximum of `train.threads = auto`: the networks are small, and a part of an update always runs in one thread."""
CPU_SAMPLE_S = 0.3
"""Time in which the use of the processor is measured [s]."""
CUBLAS_WORKSPACE = ":16:8"
"""The one of two workspace sizes for deterministic cuBLAS that cuDNN's recurrent layers also support."""


def choose_device(setting: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Choose the device of a run.

    Raises:
        ConfigError: If CUDA is required and there is no CUDA device.
    """
    if setting == "cuda" and not torch.cuda.is_available():
        raise make_cuda_error("train.device")
    return torch.device("cuda" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def set_matmul_precision(precision: Literal["highest", "high"]) -> None:
    """Set how CUDA multiplies float32 numbers in this process (`train.matmul_precision`).

    PyTorch's own defaults differ between operations: TF32 in cuDNN's GRU, float32 in matrix products.
    """
    backends, mode = torch.backends, {"highest": "ieee", "high": "tf32"}[precision]
    backends.cuda.matmul.fp32_precision = mode
    backends.cudnn.conv.fp32_precision = mode
    backends.cudnn.rnn.fp32_precision = mode


def set_determinism(enabled: bool) -> None:
    """Switch deterministic algorithms on CUDA on or off in this process (`train.deterministic`).

    Sets the options in PyTorch's notes on reproducibility. It must be called before the first matrix product, because
    cuBLAS reads its workspace size only once. An operation without a deterministic algorithm then raises a
    RuntimeError; this project uses no such operation.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False  # every buffer here is written before it is read
    if enabled != torch.are_deterministic_algorithms_enabled():  # the call loads the compiler
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled
    torch.backends.cudnn.benchmark = False


def send(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy an array to a device. A copy to a GPU runs in the background: it does not wait for earlier GPU work.

    Source: implementation detail.

    Args:
        array: Any shape [unit varies].
        device: Device of the result.

    Returns:
        A tensor of the same shape, dtype and unit.
    """
    return send_tensor(torch.from_numpy(np.ascontiguousarray(array)), device)


def send_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to a device, like `send`.

    Source: implementation detail.

    Args:
        tensor: Any shape [unit varies].
        device: Device of the result.

    Returns:
        A tensor of the same shape, dtype and unit.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class AsyncCopy:
    """A tensor that is being copied to the host, of any shape [unit varies].

    Source: implementation detail.
    """

    value: torch.Tensor
    arrived: torch.cuda.Event | None = None

    def has_arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return self.arrived is None or self.arrived.query()

    def wait(self) -> torch.Tensor:
        """Wait for the copy and return the tensor, of any shape [unit varies].

        Source: implementation detail.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.value


def fetch(tensor: torch.Tensor) -> AsyncCopy:
    """Copy a tensor to the host. A copy from a GPU runs in the background: it does not wait for earlier GPU work.

    Source: implementation detail.

    Args:
        tensor: Any shape [unit varies].
    """
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return AsyncCopy(tensor)
    value = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return AsyncCopy(value, arrived)


@dataclass(frozen=True)
class Elapsed:
    """A measured time, by the host's clock or between two GPU events."""

    host_ms: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def read_ms(self) -> float:
        """Return the time [ms]. Waits until the GPU has reached the second event."""
        if self.events is None:
            return self.host_ms
        start, end = self.events
        end.synchronize()
        return start.elapsed_time(end)


class Stopwatch:
    """Measures the time of work on a device, from the creation of the stopwatch.

    On a GPU, start and end are events of its stream. The host's clock would only measure the kernel launches, and it
    would add the wait for earlier work to the code that first reads a value.
    """

    def __init__(self, device: torch.device) -> None:
        self._started_s = time.perf_counter()
        self._event = _record_event() if device.type == "cuda" else None

    def stop(self) -> Elapsed:
        """Return the time until now, to be read later. The stopwatch continues."""
        events = (self._event, _record_event()) if self._event else None
        return Elapsed(1e3 * (time.perf_counter() - self._started_s), events)


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def autocast(device: torch.device, *, enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Make the context of bfloat16 autocast, on CUDA only and if it is enabled."""
    if enabled and device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def configure_threads() -> None:
    """Let every operation of torch use one thread.

    The networks are small: with two threads, the synchronization at every operation takes longer than the work saves,
    and several times longer on a busy machine. `train.threads` distributes episodes instead (`learner.batch_parts`).
    """
    torch.set_num_threads(1)
    _spare_compiler()


@cache
def _spare_compiler() -> None:
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


_LOG = logging.getLogger(__name__)


def rand(shape: Sequence[int], *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample uniform numbers in [0, 1).

    Source: `torch.rand` with a CPU generator, so that all devices get the same numbers.

    Args:
        shape: Shape of the result.
        generator: CPU generator of the numbers.
        device: Device of the result.

    Returns:
        Float32 tensor of that shape, dimensionless.
    """
    return send_tensor(torch.rand(tuple(shape), generator=generator), device)


def permutation(n: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample a random permutation of 0 … n-1.

    Source: `torch.randperm` with a CPU generator, so that all devices get the same numbers.

    Args:
        n: Length of the permutation.
        generator: CPU generator of the numbers.
        device: Device of the result.

    Returns:
        Int64 indices, shape [n].
    """
    return send_tensor(torch.randperm(n, generator=generator), device)


def fork(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Make a generator on a GPU, seeded by the host's generator. On the CPU, return the host's generator."""
    if device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def branch(generator: torch.Generator) -> torch.Generator:
    """Make a generator for one thread, seeded by a shared generator."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Restore a saved state. The state of a GPU's generator is hashed to a seed, so the result is repeatable.

    Source: implementation detail.

    Args:
        generator: CPU generator that is changed.
        state: Result of `get_state` of a generator, a vector of bytes of any shape.
    """
    state = state.cpu()
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return
    digest = hashlib.sha256(state.numpy().tobytes()).digest()
    generator.manual_seed(int.from_bytes(digest[:7]))
    _LOG.warning(
        "The checkpoint has the state of a GPU's random generator, which this version does not use. A seed is computed "
        "from it: the result is repeatable, but the random numbers differ from those of the GPU's generator."
    )


def copy_state(state: Any) -> Any:
    """Copy nested dictionaries and lists of tensors and plain values. Tensors stay on their devices."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: copy_state(value) for name, value in state.items()}
    return [copy_state(value) for value in state] if isinstance(state, list) else state
