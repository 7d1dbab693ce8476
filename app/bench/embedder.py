"""How long does the embedder take? One cycle (sample, Algorithm 1, re-projection, index), and the encoder alone.

The encoder has the paper's sizes, dCAE beside TCSE. Both have the same network, so the ratio should be 1 within noise;
`tcse_over_dcae` names its direction.
"""

import statistics
import time

import numpy as np
import pandas as pd
import torch

from app.bench import BenchResult
from app.bench.memory import SIZES, figure, fill_memory
from emtc_core.config.memory import EmbedConfig
from emtc_core.devices import choose_device, configure_threads
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import EpisodicMemory

CYCLES = 3
HELD = (*SIZES[:2], 300_000, *SIZES[2:])
"""Nodes; of them 300,000 are what a run of a million steps comes to early."""

ENCODER_SIZES = (
    (128, 1, 1), (128, 8, 10), (128, 32, 50), (128, 64, 100), (128, 64, 1),
    (512, 1, 10), (512, 8, 50), (512, 32, 10), (512, 64, 1), (512, 64, 50),
)  # fmt: skip
"""State dimension, batch, sequence length: the rows of the paper's table."""
REPEATS, WARM_UP, EPISODE_LIMIT = 30, 5, 100


def run(sizes: tuple[int, ...] = HELD) -> list[BenchResult]:
    """Measure `embedder.cycle_seconds` at each size, and the share of re-projection and rebuild in it."""
    configure_threads()  # as every trainer does
    return [row for size in sizes for row in _measure(size)]


def _measure(size: int) -> list[BenchResult]:
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


def make_encoder_timing_table() -> pd.DataFrame:
    """Measure the median forward time [ms] of both encoders and their parameters [kB], alternating between them."""
    rows = [_measure_encoder(*size) for size in ENCODER_SIZES]
    return pd.DataFrame(rows)


def _measure_encoder(state_dim: int, batch: int, seq: int) -> dict[str, float | int]:
    device = choose_device("auto")
    embedders = [
        Embedder(EmbedConfig(type=kind), state_dim=state_dim, episode_limit=EPISODE_LIMIT, device=device, seed=0)
        for kind in ("dcae", "tcse")
    ]
    state = torch.rand(batch * seq, state_dim, device=device)
    steps = torch.arange(batch * seq, device=device) % EPISODE_LIMIT
    times: list[list[float]] = [[], []]
    for turn in range(WARM_UP + REPEATS):
        for own, embedder in zip(times, embedders, strict=True):
            seconds = _time(embedder, state, steps)
            if turn >= WARM_UP:
                own.append(seconds)
    dcae, tcse = (1e3 * statistics.median(own) for own in times)
    size = sum(p.numel() * p.element_size() for p in embedders[1].encoder.parameters())
    return {
        "state_dim": state_dim,
        "batch": batch,
        "seq": seq,
        "dcae_ms": float(np.round(dcae, 4)),
        "tcse_ms": float(np.round(tcse, 4)),
        "tcse_over_dcae": float(np.round(tcse / dcae, 3)),
        "encoder_kB": round(size / 1e3, 1),
    }


def _time(embedder: Embedder, state: torch.Tensor, steps: torch.Tensor) -> float:
    started = time.perf_counter()
    embedder.embed(state, steps)
    if state.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
