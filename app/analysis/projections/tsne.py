"""t-SNE of the embedding with openTSNE: exact neighbors, interpolation on a grid, seeded, can be canceled.

It uses fewer iterations than the default of the library, because 4-D data that are initialized by PCA converge early.
"""

from typing import Any

import numpy as np
from openTSNE import TSNEEmbedding
from openTSNE.affinity import PerplexityBasedNN
from openTSNE.initialization import rescale
from openTSNE.nearest_neighbors import PrecomputedNeighbors

from app.analysis.projections.linear import compute_pca
from app.analysis.projections.neighbors import find_neighbors
from app.analysis.projections.types import Coordinates, Progress

PERPLEXITY = 30.0
EARLY_ITERATIONS = 125
ITERATIONS = 375
EXAGGERATION = 12
POINTS_PER_EXAGGERATION = 12
"""The exaggeration is at most the number of points divided by this, so fewer than 144 points have less than 12.

With an exaggeration of 12, a layout of 20 points shrinks to one place.
"""
WARM_EARLY_ITERATIONS = 50
WARM_ITERATIONS = 325
WARM_EXAGGERATION = 4
"""The three WARM values are for a given initial layout: there is less early exaggeration, so that nodes move less.

Measured on two snapshots of a 3m run (37K and 71K nodes, 5K landmarks); in brackets with an initial layout by PCA:
trustworthiness 0.9987 (0.9988), continuity 0.992 (0.994), mean movement of the nodes 0.32 (0.57) of the radius of the
map. With the schedule for PCA, nodes moved 0.45. Without early exaggeration, continuity fell to 0.991, or to 0.988 if
the initial layout was not rescaled.
"""
ITERATIONS_PER_REPORT = 5
"""Number of iterations between two progress reports."""
NEIGHBORS_PROGRESS = 0.08
"""Fraction of the progress before the first iteration: the search of neighbors and the affinities."""


def compute_tsne(
    embedding: Coordinates, *, seed: int, n_jobs: int, progress: Progress, init: Coordinates | None = None
) -> Coordinates:
    """Project [n, 4] → [n, 2]; see `snapshots.compute_projection`."""
    n = len(embedding)
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    k = min(n - 1, int(3 * perplexity))
    index, distance = find_neighbors(embedding, k, n_jobs=n_jobs)
    progress(NEIGHBORS_PROGRESS / 2)
    affinities = PerplexityBasedNN(
        perplexity=perplexity,  # type: ignore[arg-type]  # the library accepts floats, but its default is an int
        knn_index=PrecomputedNeighbors(index, distance),
        n_jobs=n_jobs,
    )
    progress(NEIGHBORS_PROGRESS)
    initial = compute_pca(embedding).coordinates if init is None else init
    layout = TSNEEmbedding(
        rescale(initial.astype(np.float64)),
        affinities,
        negative_gradient_method="fft" if n > 2000 else "bh",
        n_jobs=n_jobs,
        random_state=seed,
    )
    is_warm = init is not None
    n_early = WARM_EARLY_ITERATIONS if is_warm else EARLY_ITERATIONS
    n_late = WARM_ITERATIONS if is_warm else ITERATIONS
    exaggeration = min(WARM_EXAGGERATION if is_warm else EXAGGERATION, n / POINTS_PER_EXAGGERATION)
    common: dict[str, Any] = {
        "inplace": True,
        "propagate_exception": True,
        "callbacks_every_iters": ITERATIONS_PER_REPORT,
        "n_jobs": n_jobs,
    }
    report_early = _ProgressCallback(progress, n_finished=0, n_total=n_early + n_late)
    report_late = _ProgressCallback(progress, n_finished=n_early, n_total=n_early + n_late)
    layout.optimize(n_early, exaggeration=exaggeration, momentum=0.5, callbacks=report_early, **common)
    layout.optimize(n_late, momentum=0.8, callbacks=report_late, **common)
    return np.ascontiguousarray(layout, dtype=np.float32)


class _ProgressCallback:
    """Callback of openTSNE. An exception raised by `progress` ends the optimization."""

    def __init__(self, progress: Progress, *, n_finished: int, n_total: int) -> None:
        self._progress = progress
        self._n_finished = n_finished
        self._n_total = n_total

    def __call__(self, iteration: int, error: float, embedding: object) -> bool:
        fraction = (self._n_finished + iteration) / self._n_total
        self._progress(NEIGHBORS_PROGRESS + (1 - NEIGHBORS_PROGRESS) * fraction)
        return False  # True would end the optimization
