"""Env steps per second of several trainings at the same time, on the device that they choose.

Each training is a process with its own database. All start from the same filled memory and wait for each other after
their first round. The speed is that of the time in which all of them train.
"""

import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from pathlib import Path
from threading import Barrier

import numpy as np

from app.analysis.provenance import library_versions
from app.jobs.gpu import check_fitting_runs, check_mps, describe_mps, find_gpu
from emtc_core.config.resolve import resolve
from storage.runs.changes import create_run
from tests.bench.end_to_end import FILLED_MAP, FILLED_NODES, FILLED_STEPS, save_filled_state, train_and_time
from tests.records import opened_database
from tests.report import BenchResult, make_result

START_TIMEOUT_S = 600.0
DATABASE = "bench.db"

Times = list[tuple[float, int]]
"""Time [s] and env step after each round."""


def run(counts: Sequence[int], *, nodes: int = FILLED_NODES, steps: int = FILLED_STEPS) -> list[BenchResult]:
    """Measure each number of trainings.

    Args:
        counts: Numbers of trainings at the same time.
        nodes: Number of nodes in the memory of each at the start.
        steps: Env steps of each training.

    Raises:
        ConfigError: If the largest number does not fit into the GPU's memory.
    """
    config = resolve(env="skirmish", map=FILLED_MAP, overrides=["train.threads=1"])
    check_mps()
    check_fitting_runs([config] * max(counts), max(counts))
    gpu = find_gpu()
    device = f"{gpu.name}; {describe_mps()}" if gpu else "CPU"
    results: list[BenchResult] = []
    with tempfile.TemporaryDirectory(prefix="emtc-bench-") as folder:
        filled = Path(folder) / "filled"
        filled.mkdir()
        with opened_database(f"sqlite:///{filled / DATABASE}") as database:
            settings, t_max = config.model_dump(mode="json"), config.train.t_max
            run_id = create_run(database, settings, target_steps=t_max, versions=library_versions())
            save_filled_state(database, run_id, config, nodes=nodes)
        for count in counts:
            times = _train_together(filled, run_id, count, steps=steps)
            speed = compute_speed(times)
            name = f"end_to_end.steps_per_second.skirmish.{FILLED_MAP}.jobs_{count}"
            case = f"{speed / count:.0f} steps/s each, from memories of {nodes:,} nodes; {device}"
            results.append(make_result(name, speed, "steps/s", reference=case, digits=1))
    return results


def compute_speed(times: Sequence[Times]) -> float:
    """Compute the env steps per second of all trainings in the time in which all of them train."""
    started = max(run_times[0][0] for run_times in times)
    ended = min(run_times[-1][0] for run_times in times)
    n_steps = 0.0
    for run_times in times:
        moments, env_steps = zip(*run_times, strict=True)
        first, last = np.interp([started, ended], moments, env_steps)
        n_steps += last - first
    return float(n_steps / (ended - started))


def _train_together(filled: Path, run_id: str, count: int, *, steps: int) -> list[Times]:
    """Train copies of a run in processes."""
    folders = [filled.with_name(f"copy-{i}") for i in range(count)]
    for folder in folders:
        shutil.copytree(filled, folder)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with context.Manager() as manager, ProcessPoolExecutor(count, mp_context=context) as pool:
        barrier = manager.Barrier(count)
        trainings = [pool.submit(_train, folder, run_id, steps, 1 / count, barrier) for folder in folders]
        try:
            times = [training.result() for training in as_completed(trainings)]
        except BaseException:
            barrier.abort()
            raise
    for folder in folders:
        shutil.rmtree(folder)
    return times


def _train(folder: Path, run_id: str, steps: int, gpu_share: float, barrier: Barrier) -> Times:
    """Train a run in this process."""
    with (
        redirect_stdout(sys.stderr),  # the parent prints JSON
        opened_database(f"sqlite:///{folder / DATABASE}", create=False) as database,
    ):
        return train_and_time(
            database,
            run_id,
            steps=steps,
            wait=lambda: barrier.wait(START_TIMEOUT_S),
            gpu_share=gpu_share,
        )
