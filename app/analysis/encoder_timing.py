"""The table `encoder-timing`: the duration of one forward pass of the encoders dCAE and TCSE on this machine.

The sizes are those of the table in the paper. Both encoders have the same network, so their ratio `tcse_over_dcae`
should be 1 within noise.
"""

import statistics
import time

import numpy as np
import pandas as pd
import torch

from emtc_core.config.memory import EmbedConfig
from emtc_core.devices import choose_device
from emtc_core.embedder.networks import Embedder

ENCODER_SIZES = (
    (128, 1, 1), (128, 8, 10), (128, 32, 50), (128, 64, 100), (128, 64, 1),
    (512, 1, 10), (512, 8, 50), (512, 32, 10), (512, 64, 1), (512, 64, 50),
)  # fmt: skip
"""State dimension, batch, sequence length: the rows of the table in the paper."""
REPEATS, WARM_UP, EPISODE_LIMIT = 30, 5, 100


def make_encoder_timing_table() -> pd.DataFrame:
    """Measure the median forward time [ms] of both encoders alternately, and the size of their parameters [kB]."""
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
        for encoder_times, embedder in zip(times, embedders, strict=True):
            seconds = _time_forward(embedder, state, steps)
            if turn >= WARM_UP:
                encoder_times.append(seconds)
    dcae, tcse = (1e3 * statistics.median(encoder_times) for encoder_times in times)
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


def _time_forward(embedder: Embedder, state: torch.Tensor, steps: torch.Tensor) -> float:
    started = time.perf_counter()
    embedder.embed(state, steps)
    if state.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
