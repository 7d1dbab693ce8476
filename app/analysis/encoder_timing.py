"""The table `encoder-timing`: the duration of one forward pass of the encoders dCAE and TCSE on this machine.

Both embed a state for the episodic memory. dCAE is the deterministic conditional autoencoder of EMU. TCSE, the
temporally consistent semantic embedder of EMTC, is trained with a contrastive loss in addition. The sizes are those of
the table in the paper. Both encoders have the same network, so their ratio `tcse_over_dcae` should be 1 within noise.
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
REPEATS = 30
"""Number of measured forward passes of each encoder."""
WARM_UP = 5
"""Number of forward passes before them that are not measured."""
EPISODE_LIMIT = 100
"""Maximum number of steps of an episode, by which the embedders divide the time step."""


def make_encoder_timing_table() -> pd.DataFrame:
    """Measure the median forward time [ms] of both encoders alternately, and the size of their parameters [kB]."""
    rows = [_measure_encoder(*size) for size in ENCODER_SIZES]
    return pd.DataFrame(rows)


def _measure_encoder(state_dim: int, batch: int, seq: int) -> dict[str, float | int]:
    """Measure both encoders with one size of the states and the batch: one row of the table."""
    device = choose_device("auto")
    embedders = [
        Embedder(EmbedConfig(type=kind), state_dim=state_dim, episode_limit=EPISODE_LIMIT, device=device, seed=0)
        for kind in ("dcae", "tcse")
    ]
    state = torch.rand(batch * seq, state_dim, device=device)
    steps = torch.arange(batch * seq, device=device) % EPISODE_LIMIT
    seconds_by_embedder: list[list[float]] = [[], []]
    for repeat in range(WARM_UP + REPEATS):
        for measured, embedder in zip(seconds_by_embedder, embedders, strict=True):
            seconds = _time_forward(embedder, state, steps)
            if repeat >= WARM_UP:
                measured.append(seconds)
    dcae_ms, tcse_ms = (1e3 * statistics.median(seconds) for seconds in seconds_by_embedder)
    parameters = embedders[0].encoder.parameters()  # both encoders have the same size
    size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return {
        "state_dim": state_dim,
        "batch": batch,
        "seq": seq,
        "dcae_ms": float(np.round(dcae_ms, 4)),
        "tcse_ms": float(np.round(tcse_ms, 4)),
        "tcse_over_dcae": float(np.round(tcse_ms / dcae_ms, 3)),
        "encoder_kB": round(size_bytes / 1e3, 1),
    }


def _time_forward(embedder: Embedder, state: torch.Tensor, steps: torch.Tensor) -> float:
    """Measure the duration of one forward pass [s]."""
    started = time.perf_counter()
    embedder.embed(state, steps)
    if state.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
