"""The duration of one embedder cycle: sample, Algorithm 1, re-projection and index."""

import statistics
import time

import torch

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.fit import fit
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.threads import configure_threads
from tests.bench.memory import SIZES, fill_memory, make_sized_result
from tests.report import BenchResult

CYCLES = 3
MEMORY_SIZES = (*SIZES[:2], 300_000, *SIZES[2:])
"""Numbers of nodes. A run of a million steps has 300,000 nodes early."""


def run(sizes: tuple[int, ...] = MEMORY_SIZES) -> list[BenchResult]:
    """Measure `embedder.cycle_seconds` and `embedder.reproject_seconds` for each size."""
    configure_threads()  # as in a trainer
    return [result for size in sizes for result in _measure(size)]


def _measure(size: int) -> list[BenchResult]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory, _ = fill_memory(size, device=device)
    _run_cycle(memory)  # the first calls of the optimizer and the device are slower
    cycles = [_run_cycle(memory) for _ in range(CYCLES)]
    cycle, reproject = (statistics.median(column) for column in zip(*cycles, strict=True))
    budget = 0.5 if device == "cuda" else 5.0
    return [
        make_sized_result("embedder.cycle_seconds", size, cycle, "s", budget, "paper: < 2 s on an A100"),
        make_sized_result(
            "embedder.reproject_seconds", size, reproject, "s", budget, "re-projection and index rebuild"
        ),
    ]


def _run_cycle(memory: EpisodicMemory) -> tuple[float, float]:
    """Run one cycle. Return its duration [s], and that of the re-projection with the index rebuild."""
    started = time.perf_counter()
    fit(memory.embedder, memory.sample(EmbedConfig().samples))
    fitted = time.perf_counter()
    memory.reproject()
    ended = time.perf_counter()
    return ended - started, ended - fitted
