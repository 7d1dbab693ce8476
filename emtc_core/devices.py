"""Device of a run, its settings for CUDA, and copies between host and device."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.errors import ConfigError, Fault, make_cuda_error

CUBLAS_WORKSPACE = ":16:8"
"""The one of two workspace sizes for deterministic cuBLAS that cuDNN's recurrent layers also support."""
CUBLASLT_WORKSPACE = "128"
"""The same size [KiB] for cuBLASLt, which shares the workspace; PyTorch warns about its larger default."""
REPLAY_SHARE = 0.5
"""Maximum fraction of the memory of the GPU that a run may plan with, for the replay buffer with
`train.replay_device=auto`."""

MAX_ROWS_ON_HOST = 512
"""Maximum number of agents in all environments together that act on the host with `train.act_device=auto`."""


def choose_device(setting: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Choose the device of a run.

    Raises:
        ConfigError: If CUDA is required and there is no CUDA device.
    """
    if setting == "cuda" and not torch.cuda.is_available():
        raise make_cuda_error("train.device")
    return torch.device("cuda" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def choose_act_device(setting: Literal["auto", "cpu", "cuda"], *, device: torch.device, n_rows: int) -> torch.device:
    """Choose the device that computes actions (`train.act_device`).

    Args:
        setting: auto: the host for up to `MAX_ROWS_ON_HOST` rows, otherwise the device of the learner.
        device: Device of the learner.
        n_rows: Number of environments times number of agents.

    Raises:
        ConfigError: If a GPU is required and the learner does not use one.
    """
    if device.type == "cpu" and setting == "cuda":
        rule = "must be auto or cpu, because the run trains on the CPU"
        raise ConfigError(rule, key="train.act_device", value="cuda")
    is_on_host = setting == "cpu" or (setting == "auto" and n_rows <= MAX_ROWS_ON_HOST)
    return torch.device("cpu") if is_on_host else device


def choose_replay_device(
    setting: Literal["auto", "cpu", "cuda"],
    *,
    device: torch.device,
    size_bytes: int,
    other_bytes: int = 0,
    gpu_share: float | Literal["auto"] = "auto",
) -> torch.device:
    """Choose the device of the replay buffer (`train.replay_device`).

    The run may plan with `gpu_share` of the GPU's memory, and at most with what is free.

    Args:
        setting: auto: a GPU if the buffer needs at most `REPLAY_SHARE` of the memory that the run may plan with.
        device: Device of the learner.
        size_bytes: Size of the buffer [bytes].
        other_bytes: Other memory of the run on the GPU [bytes].
        gpu_share: `train.gpu_share`, dimensionless; auto is 1 here.

    Raises:
        ConfigError: If the buffer is configured for a GPU that is not used or has not enough memory.
    """
    host = torch.device("cpu")
    if device.type == "cpu" and setting == "cuda":
        rule = "must be auto or cpu, because the run trains on the CPU"
        raise ConfigError(rule, key="train.replay_device", value="cuda")
    if device.type == "cpu" or setting == "cpu":
        return host
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    share = 1.0 if gpu_share == "auto" else gpu_share
    planned_bytes = min(free_bytes, share * total_bytes)
    available_bytes = max(0.0, planned_bytes - other_bytes)
    if setting == "auto":
        return device if size_bytes <= min(REPLAY_SHARE * planned_bytes, available_bytes) else host
    if size_bytes > available_bytes:
        rule = (
            f"must be auto or cpu, because the episodes need up to {size_bytes / 1e9:,.1f} GB, and "
            f"{available_bytes / 1e9:,.1f} GB are left of the {planned_bytes / 1e9:,.1f} GB of the GPU that the run "
            f"may plan with (train.gpu_share = {share:g})"
        )
        hint = "Or set a smaller train.replay."
        raise ConfigError(Fault("train.replay_device", "cuda", rule, hint, related=("train.replay",)))
    return device


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
        if os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE) == CUBLAS_WORKSPACE:
            os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", CUBLASLT_WORKSPACE)
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

    def select(self, start: int) -> "AsyncCopy":
        """Return the part of the copy from the element `start` on."""
        return AsyncCopy(self.value[start:], self.arrived)

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


def copy_state(state: Any) -> Any:
    """Copy nested dictionaries and lists of tensors and plain values. Tensors stay on their devices."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: copy_state(value) for name, value in state.items()}
    return [copy_state(value) for value in state] if isinstance(state, list) else state
