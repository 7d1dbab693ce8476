"""t-SNE of the memory by openTSNE: exact neighbors, interpolation on a grid, seeded, cancellable.

Fewer iterations than the library's default: 4-D clouds start from their principal plane and settle early.
"""

from typing import Any

import numpy as np
from openTSNE import TSNEEmbedding
from openTSNE.affinity import PerplexityBasedNN
from openTSNE.initialization import rescale
from openTSNE.nearest_neighbors import PrecomputedNeighbors

from app.projections.linear import Coordinates, Progress, draw_pca
from app.projections.neighbors import find_neighbors

PERPLEXITY = 30.0
EARLY_ITERATIONS = 125
ITERATIONS = 375
EVERY = 5
SETTLED = 0.08  # part of the work done before the first iteration, for the progress bar


def compute_tsne(embedding: Coordinates, *, seed: int, n_jobs: int, progress: Progress) -> Coordinates:
    """Project [n, 4] → [n, 2]."""
    n = len(embedding)
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    k = min(n - 1, int(3 * perplexity))
    index, distance = find_neighbors(embedding, k, n_jobs=n_jobs)
    progress(SETTLED / 2)
    affinities = PerplexityBasedNN(
        perplexity=perplexity,  # type: ignore[arg-type]  # the library takes fractions, its default misleads
        knn_index=PrecomputedNeighbors(index, distance),
        n_jobs=n_jobs,
    )
    progress(SETTLED)
    layout = TSNEEmbedding(
        rescale(draw_pca(embedding).coordinates.astype(np.float64)),
        affinities,
        negative_gradient_method="fft" if n > 2000 else "bh",
        n_jobs=n_jobs,
        random_state=seed,
    )
    total = EARLY_ITERATIONS + ITERATIONS

    def reporter(before: int) -> "_Report":
        return _Report(progress, before, total)

    common: dict[str, Any] = {
        "inplace": True,
        "propagate_exception": True,
        "callbacks_every_iters": EVERY,
        "n_jobs": n_jobs,
    }
    layout.optimize(EARLY_ITERATIONS, exaggeration=12, momentum=0.5, callbacks=reporter(0), **common)
    layout.optimize(ITERATIONS, momentum=0.8, callbacks=reporter(EARLY_ITERATIONS), **common)
    return np.ascontiguousarray(layout, dtype=np.float32)


class _Report:
    """openTSNE's callback: an exception raised by `progress` ends the optimisation."""

    def __init__(self, progress: Progress, before: int, total: int) -> None:
        self._progress, self._before, self._total = progress, before, total

    def __call__(self, iteration: int, error: float, embedding: object) -> bool:
        done = (self._before + iteration) / self._total
        self._progress(SETTLED + (1 - SETTLED) * done)
        return False
