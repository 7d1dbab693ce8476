"""UMAP of the embedding with umap-learn: exact neighbors, seeded, can be canceled.

The steps of the library are called one by one, because `UMAP.fit` has three disadvantages:

* If points are added later, it does not use the neighbors that the caller computed.
* It rescales the initial layout.
* It does not report progress and cannot be canceled.
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import compute_pca
from app.analysis.projections.neighbors import find_neighbors
from app.analysis.projections.types import Coordinates, Progress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # UMAP warns that its parametric variant needs TensorFlow
    from umap import layouts, umap_

N_NEIGHBORS = 15
"""Number of neighbors, including the point itself, as in umap-learn."""
MIN_DIST = 0.1
NEGATIVE_SAMPLE_RATE = 5
MAX_INITIAL_COORDINATE = 10.0
"""Largest coordinate of the initial layout."""
EPOCHS_PER_REPORT = 10
"""Number of epochs between two progress reports."""
WARM_LEARNING_RATE = 0.25
"""Initial learning rate of a layout that starts from earlier coordinates. A layout that starts from PCA uses 1.

Measured on two snapshots of a run on the map 3m (37K and 71K nodes, 5K landmarks): the layout is as good as one that
starts from PCA, and the nodes move only half as far from their earlier positions.
"""
GRAPH_PROGRESS = 0.1
"""Finished fraction of the computation when the neighbor graph is ready and the first epoch starts."""
_MAX_INT32 = 2**31 - 1


def compute_umap(
    embedding: Coordinates, *, seed: int, progress: Progress, init: Coordinates | None = None
) -> Coordinates:
    """Project [n, 4] → [n, 2]; see `snapshots.compute_projection`."""
    _enable_kernel_cache()
    epochs = 200 if len(embedding) > 10_000 else 500
    graph = make_graph(embedding, n_neighbors=min(N_NEIGHBORS, len(embedding) - 1), seed=seed).tocoo()
    progress(GRAPH_PROGRESS)
    is_sampled = graph.data >= graph.data.max() / epochs  # edges with smaller weights are never sampled
    layout = _make_pca_layout(embedding, seed) if init is None else init.astype(np.float32)
    a, b = umap_.find_ab_params(1.0, MIN_DIST)
    coordinates = layouts.optimize_layout_euclidean(
        head_embedding=layout,
        tail_embedding=layout,  # the same array, because all points are moved
        head=graph.row[is_sampled],
        tail=graph.col[is_sampled],
        n_epochs=epochs,
        n_vertices=len(embedding),
        epochs_per_sample=umap_.make_epochs_per_sample(graph.data[is_sampled], epochs),
        a=a,
        b=b,
        rng_state=np.random.default_rng(seed).integers(-_MAX_INT32, _MAX_INT32, size=3),
        initial_alpha=1.0 if init is None else WARM_LEARNING_RATE,
        negative_sample_rate=NEGATIVE_SAMPLE_RATE,
        tqdm_kwds={
            "disable": False,
            "file": _ProgressFile(progress, epochs),
            "bar_format": "{n}",
            "mininterval": 0,
            "miniters": EPOCHS_PER_REPORT,
        },
        move_other=True,
    )
    return np.ascontiguousarray(coordinates, dtype=np.float32)


def make_graph(points: NDArray[np.floating], *, n_neighbors: int, seed: int = 0) -> Any:
    """Make the symmetric fuzzy graph: a sparse matrix [n, n] of the probabilities that two points are neighbors."""
    index, distance = find_neighbors(points, n_neighbors - 1)
    self_index = np.arange(len(points))[:, None]  # the library expects each point as its first neighbor
    self_distance = np.zeros_like(self_index)
    graph, *_ = umap_.fuzzy_simplicial_set(
        points,
        n_neighbors,
        np.random.RandomState(seed),
        "euclidean",
        knn_indices=np.hstack([self_index, index]).astype(np.int32),
        knn_dists=np.hstack([self_distance, distance]).astype(np.float32),
    )
    return graph


def _make_pca_layout(embedding: Coordinates, seed: int) -> Coordinates:
    """Make the initial layout: a scaled PCA with small noise, as in umap-learn."""
    layout = compute_pca(embedding).coordinates.astype(np.float64)
    layout *= MAX_INITIAL_COORDINATE / max(float(np.abs(layout).max()), 1e-12)
    noise = np.random.default_rng(seed).normal(scale=1e-4 * MAX_INITIAL_COORDINATE, size=layout.shape)
    return (layout + noise).astype(np.float32)


@cache
def _enable_kernel_cache() -> None:
    """Enable numba's disk cache for three kernels of the library. The library itself enables it for one kernel only."""
    for kernel in (
        umap_.smooth_knn_dist,
        umap_.compute_membership_strengths,
        layouts._nb_optimize_layout_euclidean_single_epoch,
    ):
        kernel.enable_caching()


class _ProgressFile:
    """File to which the progress bar of the library writes the number of the epoch.

    The computation is canceled if the callback `progress` raises.
    """

    def __init__(self, progress: Progress, epochs: int) -> None:
        self._progress = progress
        self._epochs = epochs
        self._last_epoch = 0

    def write(self, text: str) -> None:
        """Report a new epoch."""
        epoch = int(text) if text.strip().isdigit() else 0
        if epoch > self._last_epoch:
            self._last_epoch = epoch
            self._progress(GRAPH_PROGRESS + (1 - GRAPH_PROGRESS) * epoch / self._epochs)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
