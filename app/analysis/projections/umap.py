"""UMAP of the memory by umap-learn: exact neighbors in four dimensions, seeded, from PCA or from given places.

The library's own steps are called one by one, because `UMAP.fit` searches for neighbors again where it is given them
for new points, rescales the places that a layout begins from, and can neither be watched nor cancelled.
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import Coordinates, Progress, draw_pca, find_neighbors

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # that its parametric kind needs TensorFlow
    from umap import layouts, umap_

N_NEIGHBORS = 15  # with the point itself, as umap-learn counts
MIN_DIST = 0.1
NEGATIVE_RATE = 5
EXTENT = 10.0  # of the first layout
EVERY = 10  # epochs between two reports
BEGUN_RATE = 0.25
"""First step of a layout that begins from given places; from PCA it is 1. On two snapshots of a 3m run (37K, 71K nodes,
5K landmarks) the quality stayed that of a cold start, and nodes moved half as far."""
SETTLED = 0.1  # part of the work done before the first epoch, for the progress bar
_MOST = 2**31 - 1


def compute_umap(
    embedding: Coordinates, *, seed: int, progress: Progress, begin: Coordinates | None = None
) -> Coordinates:
    """Project [n, 4] → [n, 2], from the principal plane or from given places [n, 2]."""
    _keep_compiled()
    epochs = 200 if len(embedding) > 10_000 else 500
    graph = make_graph(embedding, n_neighbors=min(N_NEIGHBORS, len(embedding) - 1), seed=seed).tocoo()
    progress(SETTLED)
    heavy = graph.data >= graph.data.max() / epochs  # the others would never be visited
    layout = _first_layout(embedding, seed) if begin is None else begin.astype(np.float32)
    a, b = umap_.find_ab_params(1.0, MIN_DIST)
    drawn = layouts.optimize_layout_euclidean(
        layout,
        layout,
        graph.row[heavy],
        graph.col[heavy],
        epochs,
        len(embedding),
        umap_.make_epochs_per_sample(graph.data[heavy], epochs),
        a,
        b,
        np.random.default_rng(seed).integers(-_MOST, _MOST, size=3),
        initial_alpha=1.0 if begin is None else BEGUN_RATE,
        negative_sample_rate=NEGATIVE_RATE,
        tqdm_kwds=_watched_by(progress, epochs),
        move_other=True,
    )
    return np.ascontiguousarray(drawn, dtype=np.float32)


def make_graph(points: NDArray[np.floating], *, n_neighbors: int, seed: int = 0) -> Any:
    """Build the symmetric fuzzy graph [n, n], a sparse matrix whose weights are probabilities of being neighbors."""
    index, distance = find_neighbors(points, n_neighbors - 1)
    own = np.arange(len(points))[:, None]
    return umap_.fuzzy_simplicial_set(
        points,
        n_neighbors,
        np.random.RandomState(seed),
        "euclidean",
        knn_indices=np.hstack([own, index]).astype(np.int32),
        knn_dists=np.hstack([np.zeros_like(own), distance]).astype(np.float32),
    )[0]


def _first_layout(embedding: Coordinates, seed: int) -> Coordinates:
    plane = draw_pca(embedding).coordinates.astype(np.float64)
    plane *= EXTENT / max(float(np.abs(plane).max()), 1e-12)
    shaken = plane + np.random.default_rng(seed).normal(scale=1e-4 * EXTENT, size=plane.shape)
    return shaken.astype(np.float32)


@cache
def _keep_compiled() -> None:
    """Let numba keep the library's kernels on disk, as the library itself does for one of them only."""
    for kernel in (
        umap_.smooth_knn_dist,
        umap_.compute_membership_strengths,
        layouts._nb_optimize_layout_euclidean_single_epoch,
    ):
        kernel.enable_caching()


def _watched_by(progress: Progress, epochs: int) -> dict[str, Any]:
    """What makes the library's progress bar report every few epochs; an exception in `progress` ends the layout."""
    return {
        "disable": False, "file": _Report(progress, epochs), "bar_format": "{n}", "mininterval": 0, "miniters": EVERY,
    }  # fmt: skip


class _Report:
    """The file that the progress bar writes its epoch to."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        self._progress, self._epochs, self._last = progress, epochs, 0

    def write(self, text: str) -> None:
        """Report an epoch, once."""
        epoch = int(text) if text.strip().isdigit() else 0
        if epoch > self._last:
            self._last = epoch
            self._progress(SETTLED + (1 - SETTLED) * epoch / self._epochs)

    def flush(self) -> None:
        """Nothing is held back."""
