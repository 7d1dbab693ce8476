"""Monitoring of a training run: checks of the loss, means of metrics, use of the machine, metrics of plug-ins.

The trainer passes every loss to `LossWatch`. It checks for NaN and infinity at the next update, before a metrics row
and before a checkpoint. On a GPU the loss is copied in the background, so that an update does not wait for the device,
and the learner's statistics stay tensors until they are read. If a loss is not finite, its batch is saved to a file.

A metric of a plug-in is a function `metric(episode) -> float`, recorded as `user/<its name>`. A callback of a plug-in
is made once per run by `make(config)` and has one or more of these methods:

    on_episode(episode, env_step)       after an episode entered the memory
    on_evaluation(evaluation, env_step) after greedy test episodes; its numbers are recorded as user/eval.<name>
    on_refit(values, env_step)          after the embedder was trained; `values` are its metrics by name

Each method returns None or a dictionary of numbers, recorded as `user/<name>`. The arguments are not copies, so a
method must not change them. The state of a callback is not part of a checkpoint.
"""

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.atomic_file import replace_atomically
from emtc_core.config.plugin_settings import split_names
from emtc_core.config.run import RunConfig
from emtc_core.devices import AsyncCopy, fetch
from emtc_core.errors import NonFiniteLossError, PluginError
from emtc_core.install import get_install_command
from emtc_core.learner.targets import IncentiveInputs
from emtc_core.metrics import prepare_open_values
from emtc_core.plugins import Plugin, get_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode
from emtc_core.stopwatch import Elapsed

_LOG = logging.getLogger(__name__)

EVENTS = ("on_episode", "on_evaluation", "on_refit")
"""Names of the methods that a callback may have."""

UpdateInputs = tuple[Batch, IncentiveInputs | None] | Sequence[Episode]
"""Data of one update: a replayed batch with its memory values, or the episodes of a rollout."""

Number = float | torch.Tensor


@dataclass(frozen=True)
class PendingLoss:
    """A loss that is being copied from the device."""

    update: int
    loss: AsyncCopy
    inputs: UpdateInputs


class LossWatch:
    """Checks that the loss of every update is finite."""

    def __init__(self, folder: Path) -> None:
        """Save the batches of losses that are not finite in `folder`, which is created when needed."""
        self._folder = folder
        self._pending: deque[PendingLoss] = deque()

    def watch(self, update: int, loss: Tensor, inputs: UpdateInputs) -> None:
        """Add the loss of one update. Does not wait for the device.

        Source: implementation detail.

        Args:
            update: Number of the update.
            loss: A scalar [loss].
            inputs: The data of the update, saved if the loss is not finite.
        """
        self._pending.append(PendingLoss(update, fetch(loss), inputs))

    def check(self, *, wait: bool = False) -> None:
        """Check the losses that have arrived on the host; with `wait`, wait for all of them.

        Raises:
            NonFiniteLossError: If a loss is NaN or infinite. Its batch is saved before.
        """
        while self._pending and (wait or self._pending[0].loss.has_arrived()):
            pending = self._pending.popleft()
            if not math.isfinite(loss := pending.loss.wait().item()):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path = self._folder / f"non-finite-update-{pending.update:09d}.npz"
                with replace_atomically(path, private=True) as file:
                    np.savez_compressed(file, allow_pickle=False, **_list_arrays(pending.inputs))
                raise NonFiniteLossError(
                    f"The training loss became {loss} at update {pending.update}. Lower train.lr or "
                    f"train.reward_scale. The batch is saved in {path}"
                )


def _list_arrays(inputs: UpdateInputs) -> dict[str, NDArray[np.generic]]:
    """Return the data of an update as NumPy arrays; the episodes of a rollout are concatenated."""
    if isinstance(inputs, tuple):
        batch, incentive = inputs
        fields = vars(batch) | ({} if incentive is None else vars(incentive))
        return {name: x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    names = ("obs", "state", "avail", "action", "reward")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in inputs]) for name in names}
    return arrays | {"length": np.array([episode.length for episode in inputs])}


class MachineWatch:
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
        self._machine = MachineWatch(device)
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


class Hooks:
    """Calls the plug-in metrics and callbacks of one run; does nothing if there are none."""

    def __init__(self, config: RunConfig) -> None:
        """Load the metrics and make the callbacks.

        Raises:
            PluginError: If a plug-in is not installed, or a callback has none of the methods `EVENTS`.
        """
        self._metrics: dict[str, Callable[[Episode], float]] = {
            name: get_plugin("metric", name).load() for name in split_names(config.record.metrics)
        }
        self._callbacks = [
            make_callback(get_plugin("callback", name), config) for name in split_names(config.record.callbacks)
        ]

    def on_episode(self, episode: Episode, env_step: int) -> dict[str, float]:
        """Call metrics and callbacks for a training episode; `env_step` is the step of its last transition."""
        values = {name: metric(episode) for name, metric in self._metrics.items()}
        return prepare_open_values("user", values | self._call_callbacks("on_episode", episode, env_step))

    def on_evaluation(self, evaluation: EvaluationRecord, env_step: int) -> dict[str, float]:
        """Call callbacks for an evaluation. Names get the prefix "eval.": their env steps differ from the others."""
        values = self._call_callbacks("on_evaluation", evaluation, env_step)
        return prepare_open_values("user", {f"eval.{name}": value for name, value in values.items()})

    def on_refit(self, values: Mapping[str, float], env_step: int) -> dict[str, float]:
        """Call callbacks after a refit; `values` are its metrics, empty if there was no refit."""
        return prepare_open_values("user", self._call_callbacks("on_refit", dict(values), env_step)) if values else {}

    def _call_callbacks(self, event: str, subject: Any, env_step: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for callback in self._callbacks:
            if method := getattr(callback, event, None):
                values |= method(subject, env_step) or {}
        return values


def make_callback(plugin: Plugin, config: RunConfig) -> Any:
    """Make the callback object of a plug-in.

    Raises:
        PluginError: If it has none of the methods `EVENTS`.
    """
    callback = plugin.load()(config)
    if not any(callable(getattr(callback, event, None)) for event in EVENTS):
        raise PluginError(f"must have one of {', '.join(EVENTS)}", key=f"callback {plugin.label}")
    return callback
