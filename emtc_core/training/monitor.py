"""What is watched while a run learns: losses that are NaN or infinite, the averages of its metrics, and its machine.

The trainer hands over every update and asks before it relies on the weights: at the next update, before a metrics row,
before a checkpoint. On a GPU the loss is copied in the background, so that no update waits for the device, and the
learner's statistics stay tensors until they are read. The batch behind a loss that is no number is kept.

Metrics and callbacks from outside watch, too. A metric is a function of an episode, `metric(episode) -> float`,
recorded as `user/<its name>`. A callback is made once per run by `make(config)` and has any of

    on_episode(episode, env_step)       after an episode entered the memory
    on_evaluation(evaluation, env_step) after greedy test episodes; its numbers are recorded as user/eval.<name>
    on_refit(values, env_step)          after the embedder was trained; `values` are its metrics by name

each of which returns None or a dictionary of numbers, recorded as `user/<name>`. They are told copies of nothing: what
they are given is read, never changed. What one keeps is no part of a checkpoint.
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

from emtc_core.config.outside import split_names
from emtc_core.config.run import RunConfig
from emtc_core.devices import AsyncCopy, Elapsed, fetch
from emtc_core.errors import NonFiniteLossError, PluginError
from emtc_core.install import how_to_install
from emtc_core.learner.targets import IncentiveInputs
from emtc_core.metrics import open_values
from emtc_core.plugins import Plugin, get_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode

_LOG = logging.getLogger(__name__)

Learned = tuple[Batch, IncentiveInputs | None] | Sequence[Episode]

Number = float | torch.Tensor


@dataclass(frozen=True)
class Pending:
    """A loss on its way from the device."""

    update: int
    loss: AsyncCopy
    learned: Learned


class LossWatch:
    """Holds the updates whose loss has not been looked at."""

    def __init__(self, folder: Path) -> None:
        """Keep offending batches in `folder`, made on demand."""
        self._folder = folder
        self._pending: deque[Pending] = deque()

    def watch(self, update: int, loss: Tensor, learned: Learned) -> None:
        """Take note of one update; returns without waiting for the device."""
        self._pending.append(Pending(update, fetch(loss), learned))

    def check(self, *, wait: bool = False) -> None:
        """Look at the losses that have arrived, or at all of them.

        Raises:
            NonFiniteLossError: At the first that is NaN or infinite, after its batch was saved.
        """
        while self._pending and (wait or self._pending[0].loss.is_here()):
            pending = self._pending.popleft()
            if not math.isfinite(loss := pending.loss.wait().item()):
                path = self._save(pending)
                raise NonFiniteLossError(
                    f"The training loss became {loss} at update {pending.update}. Lower train.lr or "
                    f"train.reward_scale. The batch is kept in {path}",
                    reason="training_loss",
                    subject=pending.update,
                )

    def _save(self, pending: Pending) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"non-finite-update-{pending.update:09d}.npz"
        np.savez_compressed(path, allow_pickle=False, **_arrays(pending.learned))
        return path


def _arrays(learned: Learned) -> dict[str, NDArray[np.generic]]:
    """Lay out what an update saw: a replayed batch with its recall, or the episodes of a rollout end to end."""
    if isinstance(learned, tuple):
        batch, recalled = learned
        fields = vars(batch) | ({} if recalled is None else vars(recalled))
        return {name: x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in fields.items()}
    names = ("obs", "state", "avail", "action", "reward")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in learned]) for name in names}
    return arrays | {"length": np.array([episode.length for episode in learned])}


class MachineWatch:
    """Measures what this process takes of its machine; one call takes some tenths of a millisecond."""

    def __init__(self, device: torch.device) -> None:
        """Begin to count processor time."""
        self._process = psutil.Process()
        self._device = device
        self._knows_use = device.type == "cuda"
        self._since = self._cpu_s(), time.monotonic()

    def measure(self) -> dict[str, float]:
        """Return the metrics of the group `machine`, of the time since the last call."""
        (before_s, before), now = self._since, (self._cpu_s(), time.monotonic())
        self._since = now
        cpu_s = max(0.0, now[0] - before_s)
        values = {
            "machine/cpu_percent": 100 * cpu_s / max(now[1] - before, 1e-9),
            "machine/cpu_seconds": cpu_s,
            "machine/memory_bytes": float(self._process.memory_info().rss),
        }
        return values | self._measure_gpu()

    def _cpu_s(self) -> float:
        """Processor time so far, with that of children that have ended [s]."""
        return sum(self._process.cpu_times()[:4])

    def _measure_gpu(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        values = {"machine/gpu_memory_bytes": float(torch.cuda.memory_reserved(self._device))}
        if self._knows_use:
            try:
                values["machine/gpu_percent"] = float(torch.cuda.utilization(self._device))
            except Exception as exc:  # the library is missing or does not know the device: the others stay
                self._knows_use = False
                _LOG.warning("machine/gpu_percent is not recorded (%s). Get it with: %s", exc, how_to_install("gpu"))
        return values


class MetricsWindow:
    """Collects numbers by metric name and hands over their means, with what the machine was asked for meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._machine = MachineWatch(device)
        self._restart()

    def _restart(self) -> None:
        self._values: dict[str, list[Number]] = defaultdict(list)
        self._shares: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
        self._env_steps = 0
        self._times: dict[str, list[Elapsed]] = defaultdict(list)
        self._rollouts: list[Elapsed] = []
        self._started = time.monotonic()

    def add(self, values: Mapping[str, Number]) -> None:
        """Add one observation per name."""
        for name, value in values.items():
            self._values[name].append(value)

    def add_shares(self, shares: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add a part and its whole per name; `take` divides the sums, and gives 0 where the whole is 0."""
        for name, part_and_whole in shares.items():
            self._shares[name].append(part_and_whole)

    def add_episode(self, episode: Episode, *, is_success: bool | None = None) -> None:
        """Add one finished training episode; `is_success` where its return decides that."""
        if is_success is not None:
            self.add({"rollout/success_rate": float(is_success)})
        self._env_steps += episode.length
        self.add(open_values("env", episode.infos))
        self.add(
            {
                "rollout/return": episode.episode_return,
                "rollout/win_rate": float(episode.won),
                "rollout/length": float(episode.length),
                "rollout/epsilon": episode.epsilon,
            }
        )

    def add_rollout_time(self, elapsed: Elapsed) -> None:
        """Add the time of one round of stepping and acting."""
        self._rollouts.append(elapsed)

    def add_times(self, times: Mapping[str, Elapsed]) -> None:
        """Add one time per name; they are read with the other values."""
        for name, elapsed in times.items():
            self._times[name].append(elapsed)

    def take(self) -> dict[str, float]:
        """Return the mean of every name and start a new window; what lies on a device comes over in one transfer."""
        elapsed = max(time.monotonic() - self._started, 1e-9)
        shares = {name: _share(pairs) for name, pairs in self._shares.items()}
        means = _fetch({name: _mean(values) for name, values in self._values.items()} | shares)
        means["time/env_steps_per_second"] = self._env_steps / elapsed
        means["time/rollout_share"] = sum(each.read_ms() for each in self._rollouts) / 1e3 / elapsed
        means |= {name: sum(each.read_ms() for each in times) / len(times) for name, times in self._times.items()}
        self._restart()
        return means | self._machine.measure()


def _mean(values: Sequence[Number]) -> Number:
    """Average numbers, or tensors of one device, which stay there."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) == len(values):
        return torch.stack([tensor.double() for tensor in tensors]).mean()
    return sum(float(value) for value in values) / len(values)


def _share(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    part, whole = (torch.stack(sums).double().sum() for sums in zip(*pairs, strict=True))
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(whole))


def _fetch(means: Mapping[str, Number]) -> dict[str, float]:
    tensors = [value for value in means.values() if isinstance(value, torch.Tensor)]
    fetched = iter(torch.stack(tensors).tolist() if tensors else [])
    return {name: next(fetched) if isinstance(value, torch.Tensor) else value for name, value in means.items()}


EVENTS = ("on_episode", "on_evaluation", "on_refit")


class Hooks:
    """The metrics and callbacks of one run; a run without any has one that does nothing."""

    def __init__(self, config: RunConfig) -> None:
        """Load and make them.

        Raises:
            PluginError: If one is not here, or is none.
        """
        self._metrics: dict[str, Callable[[Episode], float]] = {
            name: get_plugin("metric", name).load() for name in split_names(config.record.metrics)
        }
        self._callbacks = [
            make_callback(get_plugin("callback", name), config) for name in split_names(config.record.callbacks)
        ]

    def on_episode(self, episode: Episode, env_step: int) -> dict[str, float]:
        """Tell of a training episode; `env_step` is that of its last transition."""
        measured = {name: measure(episode) for name, measure in self._metrics.items()}
        return open_values("user", measured | self._ask("on_episode", episode, env_step))

    def on_evaluation(self, evaluation: EvaluationRecord, env_step: int) -> dict[str, float]:
        """Tell of an evaluation; its numbers have names of their own, as they come at steps of their own."""
        told = self._ask("on_evaluation", evaluation, env_step)
        return open_values("user", {f"eval.{name}": value for name, value in told.items()})

    def on_refit(self, values: Mapping[str, float], env_step: int) -> dict[str, float]:
        """Tell of a refit, where there was one."""
        return open_values("user", self._ask("on_refit", dict(values), env_step)) if values else {}

    def _ask(self, event: str, about: Any, env_step: int) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for callback in self._callbacks:
            if hear := getattr(callback, event, None):
                told |= hear(about, env_step) or {}
        return told


def make_callback(plugin: Plugin, config: RunConfig) -> Any:
    """Make a callback.

    Raises:
        PluginError: If it hears nothing.
    """
    made = plugin.load()(config)
    if not any(callable(getattr(made, event, None)) for event in EVENTS):
        raise PluginError(f"must have one of {', '.join(EVENTS)}", key=f"callback {plugin.label}")
    return made
