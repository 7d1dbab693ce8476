"""Means of the metrics of a training since the last report, with the use of the machine.

Statistics of the learner stay tensors on the device until a report reads them in one transfer.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
import torch

from emtc_core.install import get_install_command
from emtc_core.metrics import prepare_open_values
from emtc_core.rollout.episode import Episode
from emtc_core.stopwatch import Elapsed

_LOG = logging.getLogger(__name__)

Number = float | torch.Tensor


class MachineUsage:
    """Measures processor time and memory of this process. One call takes a few tenths of a millisecond."""

    def __init__(self, device: torch.device) -> None:
        """Start to count processor time."""
        self._process = psutil.Process()
        self._device = device
        self._has_gpu_percent = device.type == "cuda"
        self._last_cpu_s, self._last_time_s = self._read_cpu_s(), time.monotonic()

    def measure(self) -> dict[str, float]:
        """Return the metrics of the group `machine` since the last call."""
        cpu_s, time_s = self._read_cpu_s(), time.monotonic()
        used_s, elapsed_s = max(0.0, cpu_s - self._last_cpu_s), time_s - self._last_time_s
        self._last_cpu_s, self._last_time_s = cpu_s, time_s
        values = {
            "machine/cpu_percent": 100 * used_s / max(elapsed_s, 1e-9),
            "machine/cpu_seconds": used_s,
            "machine/memory_bytes": float(self._process.memory_info().rss),
        }
        return values | self._measure_gpu()

    def _read_cpu_s(self) -> float:
        """Read the processor time of this process and its finished child processes [s]."""
        return sum(self._process.cpu_times()[:4])

    def _measure_gpu(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        values = {"machine/gpu_memory_bytes": float(torch.cuda.memory_reserved(self._device))}
        if self._has_gpu_percent:
            try:
                values["machine/gpu_percent"] = float(torch.cuda.utilization(self._device))
            except Exception as exc:  # NVIDIA's library is missing or does not support the device
                self._has_gpu_percent = False
                _LOG.warning("machine/gpu_percent is not recorded (%s). Install: %s", exc, get_install_command("gpu"))
        return values


class MetricsWindow:
    """Collects values by metric name, and returns their means together with the metrics of the machine."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._machine = MachineUsage(device)
        self._restart()

    def _restart(self) -> None:
        self._values: dict[str, list[Number]] = defaultdict(list)
        self._ratios: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
        self._env_steps = 0
        self._times: dict[str, list[Elapsed]] = defaultdict(list)
        self._rollouts_s = 0.0
        self._started = self._clock()

    def add(self, values: Mapping[str, Number]) -> None:
        """Add one observation per name.

        Source: implementation detail.

        Args:
            values: Metric name -> number or scalar tensor, in the unit of the metric [unit varies].
        """
        for name, value in values.items():
            self._values[name].append(value)

    def add_ratios(self, ratios: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add a part and its whole per name. `take` divides the two sums; the result is 0 if the whole is 0.

        Source: implementation detail.

        Args:
            ratios: Metric name -> part and whole, two scalar tensors of one unit [unit varies].
        """
        for name, part_and_whole in ratios.items():
            self._ratios[name].append(part_and_whole)

    def add_episode(self, episode: Episode, *, is_success: bool | None = None) -> None:
        """Add one finished training episode; `is_success` is None if the environment's flag decides."""
        if is_success is not None:
            self.add({"rollout/success_rate": float(is_success)})
        self._env_steps += episode.length
        self.add(prepare_open_values("env", episode.infos))
        self.add(
            {
                "rollout/return": episode.episode_return,
                "rollout/win_rate": float(episode.won),
                "rollout/length": float(episode.length),
                "rollout/epsilon": episode.epsilon,
            }
        )

    def add_rollout_time(self, seconds: float) -> None:
        """Add the time of one round of stepping and acting [s]."""
        self._rollouts_s += seconds

    def add_times(self, times: Mapping[str, Elapsed]) -> None:
        """Add one measured time per name. `take` reads them."""
        for name, elapsed in times.items():
            self._times[name].append(elapsed)

    def take(self) -> dict[str, float]:
        """Return the mean of every name and start a new window. Values on a device are copied in one transfer."""
        elapsed = max(self._clock() - self._started, 1e-9)
        ratios = {name: _divide_sums(pairs) for name, pairs in self._ratios.items()}
        means = _copy_to_host({name: _compute_mean(values) for name, values in self._values.items()} | ratios)
        means["time/env_steps_per_second"] = self._env_steps / elapsed
        means["time/rollout_share"] = self._rollouts_s / elapsed
        for name, times in self._times.items():
            means[name] = sum(time.read_ms() for time in times) / len(times)
        self._restart()
        return means | self._machine.measure()

    def get_state(self) -> dict[str, Any]:
        """Return the values of the open window, for a checkpoint. Times belong to a process and are not included."""
        ratios = {
            name: [torch.stack(sums).cpu() for sums in zip(*pairs, strict=True)] for name, pairs in self._ratios.items()
        }
        return {"values": {name: _pack(values) for name, values in self._values.items()}, "ratios": ratios}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`. The times and the speed of the window start again."""
        self._restart()
        for name, values in state["values"].items():
            self._values[name] = list(values.to(self._device)) if isinstance(values, torch.Tensor) else list(values)
        for name, (parts, wholes) in state["ratios"].items():
            self._ratios[name] = list(zip(parts.to(self._device), wholes.to(self._device), strict=True))


def _pack(values: Sequence[Number]) -> torch.Tensor | list[float]:
    """Return the values of a name as one tensor on the host if all are tensors, else as numbers."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return torch.stack(tensors).cpu() if len(tensors) == len(values) else [float(value) for value in values]


def _compute_mean(values: Sequence[Number]) -> Number:
    """Compute the mean; a tensor on the same device if all values are tensors."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) == len(values):
        return torch.stack([tensor.double() for tensor in tensors]).mean()
    return sum(float(value) for value in values) / len(values)


def _divide_sums(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    part, whole = (torch.stack(sums).double().sum() for sums in zip(*pairs, strict=True))
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(whole))


def _copy_to_host(means: Mapping[str, Number]) -> dict[str, float]:
    """Copy all tensors to the host in one transfer."""
    tensors = [value for value in means.values() if isinstance(value, torch.Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return {name: next(numbers) if isinstance(value, torch.Tensor) else value for name, value in means.items()}
