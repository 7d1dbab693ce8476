"""Time the stages of a training on the device and on the CPU. The loss of the timed updates must agree."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from emtc_core.config.resolve import resolve
from emtc_core.control import NoControl, StopRequested
from emtc_core.embedder.fit import fit
from emtc_core.envs.registry import make_env
from emtc_core.recorder import NullRecorder
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.trainer import Trainer
from tests.bench.memory import fill_memory, write_random_episode
from tests.gpu.cases import (
    ACTING_ENVS,
    fill_buffer,
    greedy_actions,
    make_case,
    make_updates,
    start_learner,
)
from tests.gpu.report import CheckResult, Measurement, Speed
from tests.gpu.target import CPU, CheckSizes, Target
from tests.gpu.updates import LOSS_LIMIT

WRITES = 20
STAGES = {
    "act": f"ms per step of {ACTING_ENVS} environments",
    "update": "ms per update of EMTC(QPLEX), 32 episodes",
    "refit": "ms per refit of the embedder",
    "re-projection": "ms per re-projection of the memory",
    "write": "ms per episode of 150 steps",
    "end to end": "env steps per second, 3m",
}


@dataclass(frozen=True)
class Timed:
    """Result of one device for each stage, in the unit of `STAGES`, and the loss of its first update."""

    values: dict[str, float]
    loss: float


def check_throughput(target: Target, sizes: CheckSizes) -> tuple[CheckResult, tuple[Speed, ...]]:
    """Time each stage of a training on the CPU and on the device, and compare the loss of the first update."""
    cpu = _time_stages(CPU, sizes)
    with target.computing():
        device = _time_stages(target.device, sizes)
    speeds = tuple(Speed(name, unit, cpu.values[name], device.values[name]) for name, unit in STAGES.items())
    difference = abs(device.loss - cpu.loss) / max(abs(cpu.loss), 1e-30)
    end = speeds[-1]
    note = f"end to end {end.device:,.0f} env steps/s on the device, {end.cpu:,.0f} on the CPU"
    return CheckResult("throughput", (Measurement("loss of the first update", difference, LOSS_LIMIT),), note), speeds


def _time_stages(device: torch.device, sizes: CheckSizes) -> Timed:
    case = make_case("emtc-qplex", batch=32, length=sizes.length)
    learner, buffer = start_learner(case, device), fill_buffer(case, device)
    loss = make_updates(learner, case, buffer, count=1)[0].read()["train/loss"]
    numbers = itertools.count(1)

    def update() -> object:
        return make_updates(learner, case, buffer, count=1, first=next(numbers))

    values = {
        "act": 1e3 * _seconds(lambda: greedy_actions(learner, case.info, steps=20), device, repeats=3) / 20,
        "update": 1e3 * _seconds(update, device, repeats=sizes.timed_updates),
    }
    memory, _ = fill_memory(sizes.timed_nodes, device=str(device))
    sample = memory.sample(sizes.timed_nodes)
    rng = np.random.default_rng(2)
    values["refit"] = 1e3 * _seconds(lambda: fit(memory.embedder, sample), device, repeats=1)
    values["re-projection"] = 1e3 * _seconds(memory.reproject, device, repeats=3)
    values["write"] = 1e3 * statistics.median(write_random_episode(memory, rng, i) for i in range(WRITES))
    values["end to end"] = _steps_per_second(device, sizes.timed_steps)
    return Timed({name: values[name] for name in STAGES}, loss)


def _seconds(act: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Return the median duration of the repeats [s]. A first call is not timed."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _steps_per_second(device: torch.device, steps: int) -> float:
    """Train on 3m without a database. The first round compiles kernels and is not timed."""
    config = resolve(map="3m", steps=steps, overrides={"embed.min_entries": 512})
    ticks: list[tuple[float, int]] = []

    def on_progress(env_step: int) -> None:
        ticks.append((time.monotonic(), env_step))
        if env_step >= steps:
            raise StopRequested

    with tempfile.TemporaryDirectory(prefix="emtc-check-") as folder:
        Trainer(
            config,
            env=make_env(config.env, n_envs=config.train.n_envs),
            eval_env=make_env(config.env, n_envs=config.train.n_envs),
            recorder=NullRecorder(),
            control=NoControl(),
            checkpoints=CheckpointStore(Path(folder), keep=1),
            device=device,
            on_progress=on_progress,
        ).run()
    (start, first), (end, last) = ticks[0], ticks[-1]
    return (last - first) / max(end - start, 1e-9)
