"""Where a run computes: CUDA when there is one, else the CPU with a sensible number of threads."""

import contextlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.errors import ConfigError

DEFAULT_THREADS = 1
"""The networks are small: a second thread gains little on an idle machine, and on a busy one waiting for it makes an
update of football size two to ten times slower. `train.threads` sets more, for wide networks."""


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Choose the device of a run.

    Raises:
        ConfigError: If CUDA is wanted and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device is cuda, but torch sees no CUDA device here. Use auto or cpu; see: emtc doctor")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


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


def autocast(device: torch.device, *, wanted: bool) -> contextlib.AbstractContextManager[object]:
    """Compute in bfloat16 where that is safe, on CUDA if wanted."""
    if wanted and device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def configure_threads(threads: int) -> int:
    """Set torch's CPU threads; 0 means the default. Returns the number in force."""
    torch.set_num_threads(threads or DEFAULT_THREADS)
    return torch.get_num_threads()
