"""Find the GPU of this machine, its free memory, and NVIDIA MPS; compute how many runs fit into this memory.

The app never loads torch, so a subprocess queries torch.

MPS (Multi-Process Service) lets the kernels of several processes run on one GPU at the same time. Without it they take
turns. CUDA uses a running MPS by itself. Trainers inherit the environment variable with its directory. This module
never starts MPS and never changes the compute mode of a GPU.
"""

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.install import CHECKOUT
from emtc_core.memory_estimate import count_gpu_bytes

MPS_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DEFAULT: Final = "/tmp/nvidia-mps"
"""Directory of the pipes of MPS if the variable is not set."""
MPS_COMMAND: Final = "nvidia-cuda-mps-control -d"
"""Command that starts MPS."""
_DEVICE_FILES: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap", "/dev/kfd")
"""One of these exists on Linux if there is a GPU that torch can use: NVIDIA, WSL, Jetson, AMD."""
_CACHE_S: Final = 300
"""Time for which the result of a query is cached [s]. A page needs it at each interaction; a query takes seconds."""
_QUERY_PROGRAM: Final = """
import json, torch
if torch.cuda.is_available():
    free, total = torch.cuda.mem_get_info()
    print(json.dumps([torch.cuda.get_device_name(), free, total]))
"""


@dataclass(frozen=True)
class Gpu:
    """The GPU that trainers use: its name, free memory and total memory [bytes]."""

    name: str
    free_bytes: int
    total_bytes: int


def find_gpu() -> Gpu | None:
    """Find the GPU that trainers of this process would use, or return None. The result is cached for some minutes."""
    if os.name == "posix" and not any(Path(file).exists() for file in _DEVICE_FILES):
        return None
    cache_period = int(time.monotonic() // _CACHE_S)
    return _query_torch(cache_period, os.environ.get("CUDA_VISIBLE_DEVICES"))


@lru_cache(maxsize=1)
def _query_torch(cache_period: int, visible_devices: str | None) -> Gpu | None:
    """Query torch in a subprocess. The arguments are only the key of the cache."""
    command = [sys.executable, "-c", _QUERY_PROGRAM]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return None
    name, free_bytes, total_bytes = json.loads(lines[-1])
    return Gpu(name, free_bytes, total_bytes)


def get_mps_directory() -> Path:
    """Return the directory in which CUDA looks for MPS."""
    return Path(os.environ.get(MPS_VARIABLE) or MPS_DEFAULT)


def is_mps_running() -> bool:
    """Whether an MPS control daemon answers. The file of its pipe or socket remains after the daemon was killed."""
    control = get_mps_directory() / "control"
    try:
        mode = control.stat().st_mode
        if stat.S_ISSOCK(mode):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                client.connect(str(control))
            return True
        if stat.S_ISFIFO(mode):
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))  # raises OSError if no process reads the pipe
            return True
    except OSError as exc:
        return exc.errno in (errno.EACCES, errno.EPERM)  # the daemon of another user
    return False


def check_mps() -> None:
    """Check that CUDA_MPS_PIPE_DIRECTORY, if it is set on a machine with a GPU, is the directory of a running MPS.

    Raises:
        ConfigError: If no MPS runs in this directory.
    """
    directory = os.environ.get(MPS_VARIABLE)
    if directory and not is_mps_running() and find_gpu() is not None:
        hint = f"Start MPS with: {MPS_COMMAND}, or unset the variable."
        raise ConfigError("must be the directory of a running NVIDIA MPS", key=MPS_VARIABLE, value=directory, hint=hint)


def describe_mps() -> str:
    """Write whether MPS runs, and how to start it."""
    if is_mps_running():
        return f"NVIDIA MPS runs ({get_mps_directory()}): runs compute on the GPU at the same time."
    return f"NVIDIA MPS does not run, so parallel runs take turns on the GPU. Start it with: `{MPS_COMMAND}`"


def count_fitting_runs(configs: list[RunConfig]) -> tuple[int, int] | None:
    """Count the runs of these configurations that fit into the free memory of the GPU at the same time.

    Returns:
        The number of runs, at least 1, and the memory of the largest one [bytes]. None if no run uses a GPU.
    """
    gpu_configs = [config for config in configs if config.train.device != "cpu"]
    gpu = find_gpu() if gpu_configs else None
    if gpu is None:
        return None
    needed_bytes = max(count_gpu_bytes(config, get_env_info(config.env)) for config in gpu_configs)
    return max(1, gpu.free_bytes // needed_bytes), needed_bytes


def check_fitting_runs(configs: list[RunConfig], jobs: int) -> None:
    """Check that the GPU has enough memory for `jobs` runs at the same time.

    Raises:
        ConfigError: If it has not, with the largest number of runs that fit.
    """
    n_runs = min(jobs, len(configs))
    if n_runs <= 1:
        return
    fitting = count_fitting_runs(configs)
    gpu = find_gpu()
    if fitting is None or gpu is None:
        return
    n_fitting, needed_bytes = fitting
    if n_runs <= n_fitting:
        return
    rule = (
        f"must be at most {n_fitting}: each of {n_runs} runs at the same time needs up to {needed_bytes / 1e9:.1f} GB "
        f"of the GPU's memory, and {gpu.free_bytes / 1e9:.1f} GB are free"
    )
    raise ConfigError(rule, key="--jobs", value=jobs)
