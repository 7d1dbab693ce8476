"""t-SNE of the memory by openTSNE: exact neighbors, interpolation on a grid, seeded, cancellable.

Fewer iterations than the library's default: 4-D clouds start from their principal plane and settle early.
"""

from typing import Any

import numpy as np
from openTSNE import TSNEEmbedding
from openTSNE.affinity import PerplexityBasedNN
from openTSNE.initialization import rescale
from openTSNE.nearest_neighbors import PrecomputedNeighbors

from app.analysis.projections.linear import Coordinates, Progress, draw_pca, find_neighbors

PERPLEXITY = 30.0
EARLY_ITERATIONS = 125
ITERATIONS = 375
BEGUN_EARLY_ITERATIONS, BEGUN_ITERATIONS, BEGUN_EXAGGERATION = 50, 325, 4
"""From given places: shaken less, so that nodes keep their place. On two snapshots of a 3m run (37K, 71K nodes, 5K
landmarks) trustworthiness was 0.9987 (0.9988 from PCA), continuity 0.992 (0.994), and nodes moved 0.32 (0.57) of the
map's radius; with the full schedule 0.45, with no exaggeration at all continuity fell to 0.991 or, at scale, 0.988."""
EVERY = 5
SETTLED = 0.08  # part of the work done before the first iteration, for the progress bar


def compute_tsne(
    embedding: Coordinates, *, seed: int, n_jobs: int, progress: Progress, begin: Coordinates | None = None
) -> Coordinates:
    """Project [n, 4] → [n, 2], from the principal plane or from given places [n, 2]."""
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
    first = draw_pca(embedding).coordinates if begin is None else begin
    layout = TSNEEmbedding(
        rescale(first.astype(np.float64)),
        affinities,
        negative_gradient_method="fft" if n > 2000 else "bh",
        n_jobs=n_jobs,
        random_state=seed,
    )
    if begin is None:
        _optimize(layout, (EARLY_ITERATIONS, ITERATIONS), 12, n_jobs, progress)
    else:
        _optimize(layout, (BEGUN_EARLY_ITERATIONS, BEGUN_ITERATIONS), BEGUN_EXAGGERATION, n_jobs, progress)
    return np.ascontiguousarray(layout, dtype=np.float32)


def _optimize(
    layout: TSNEEmbedding, iterations: tuple[int, int], exaggeration: float, n_jobs: int, progress: Progress
) -> None:
    """Optimise in place: first exaggerated, then not."""
    early, late = iterations

    def reporter(before: int) -> "_Report":
        return _Report(progress, before, early + late)

    common: dict[str, Any] = {
        "inplace": True,
        "propagate_exception": True,
        "callbacks_every_iters": EVERY,
        "n_jobs": n_jobs,
    }
    layout.optimize(early, exaggeration=exaggeration, momentum=0.5, callbacks=reporter(0), **common)
    layout.optimize(late, momentum=0.8, callbacks=reporter(early), **common)


class _Report:
    """openTSNE's callback: an exception raised by `progress` ends the optimisation."""

    def __init__(self, progress: Progress, before: int, total: int) -> None:
        self._progress, self._before, self._total = progress, before, total

    def __call__(self, iteration: int, error: float, embedding: object) -> bool:
        done = (self._before + iteration) / self._total
        self._progress(SETTLED + (1 - SETTLED) * done)
        return False
