"""How long does one embedder cycle take? Sample, refit (Algorithm 1), re-projection and index rebuild."""

import statistics
import time

import torch

from app.bench.memory import SIZES, Figure, figure, fill_memory
from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.fit import fit
from emtc_core.memory.memory import EpisodicMemory

CYCLES = 3


def run(sizes: tuple[int, ...] = SIZES) -> list[Figure]:
    """Measure `embedder.cycle_seconds` at each size, and the share of re-projection and rebuild in it."""
    return [row for size in sizes for row in _measure(size)]


def _measure(size: int) -> list[Figure]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory, _ = fill_memory(size, device=device)
    _cycle(memory)  # first calls of the optimiser and the device
    cycles = [_cycle(memory) for _ in range(CYCLES)]
    whole, reproject = (statistics.median(column) for column in zip(*cycles, strict=True))
    budget = 0.5 if device == "cuda" else 5.0
    return [
        figure("embedder.cycle_seconds", size, whole, "s", budget, "paper: < 2 s on an A100"),
        figure("embedder.reproject_seconds", size, reproject, "s", budget, "re-projection and index rebuild alone"),
    ]


def _cycle(memory: EpisodicMemory) -> tuple[float, float]:
    """Run one cycle; return its seconds and those of re-projection with rebuild."""
    started = time.perf_counter()
    fit(memory.embedder, memory.sample(EmbedConfig().samples))
    fitted = time.perf_counter()
    memory.reproject()
    ended = time.perf_counter()
    return ended - started, ended - fitted
