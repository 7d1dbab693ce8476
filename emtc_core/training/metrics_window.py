"""Means of the metrics of a training since the last report, with the use of the machine."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch

from emtc_core.install import get_install_command
from emtc_core.learner.targets import LearnerStats
from emtc_core.metrics import prepare_open_values
from emtc_core.rollout.episode import Episode
from emtc_core.stopwatch import Elapsed, compute_mean_ms

_LOG = logging.getLogger(__name__)


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
        self._clock = clock
        self._machine = MachineUsage(device)
        self._restart()

    def _restart(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)
        self._updates: dict[str, list[float]] = defaultdict(list)
        self._ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._env_steps = 0
        self._times: dict[str, list[Elapsed]] = defaultdict(list)
        self._rollouts_s = 0.0
        self._started = self._clock()

    def add(self, values: Mapping[str, float]) -> None:
        """Add one observation per name."""
        for name, value in values.items():
            self._values[name].append(value)

    def add_update(self, stats: LearnerStats) -> None:
        """Add the statistics of one update of the learner, which must be on the host."""
        for name, value in stats.read().items():
            self._updates[name].append(value)
        for name, part_and_whole in stats.read_ratios().items():
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
        """Return the mean of every name and start a new window."""
        elapsed = max(self._clock() - self._started, 1e-9)
        means = {name: sum(values) / len(values) for name, values in self._values.items()}
        means |= {name: _to_tensor(values).mean().item() for name, values in self._updates.items()}
        means |= {name: _divide_sums(pairs) for name, pairs in self._ratios.items()}
        means["time/env_steps_per_second"] = self._env_steps / elapsed
        means["time/rollout_share"] = self._rollouts_s / elapsed
        means |= {name: compute_mean_ms(times) for name, times in self._times.items()}
        self._restart()
        return means | self._machine.measure()

    def get_state(self) -> dict[str, Any]:
        """Return the values of the open window, for a checkpoint. Times belong to a process and are not included."""
        return {
            "values": {name: list(values) for name, values in self._values.items()},
            "updates": {name: _to_tensor(values) for name, values in self._updates.items()},
            "ratios": {name: _to_tensor(pairs) for name, pairs in self._ratios.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`. The times and the speed of the window start again."""
        self._restart()
        for name, values in state["values"].items():
            self._values[name] = list(values)
        for name, values in state["updates"].items():
            self._updates[name] = values.tolist()
        for name, pairs in state["ratios"].items():
            self._ratios[name] = [(part, whole) for part, whole in pairs.tolist()]


def _to_tensor(values: list[float] | list[tuple[float, float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _divide_sums(pairs: list[tuple[float, float]]) -> float:
    """Divide the sum of the parts by the sum of the wholes; 0 if the latter is 0."""
    parts, wholes = ([pair[i] for pair in pairs] for i in range(2))
    part, whole = _to_tensor(parts).sum().item(), _to_tensor(wholes).sum().item()
    return part / whole if whole > 0 else 0.0
