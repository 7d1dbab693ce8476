"""Fast projections (axis pairs and PCA), and the types, the sampling and the neighbor search of all projections.

A projection shows all memory nodes or a seeded sample, stratified by return × time. The neighbor search is exact, and
the order of its results does not depend on the number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

Progress = Callable[[float], None]
Coordinates = NDArray[np.float32]
AxisSigns = tuple[int, int]
"""Signs, 1 or -1, of the two directions of a PCA."""
DEFAULT_SIGNS: AxisSigns = (1, 1)

AXIS_PAIRS: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))
STRATA = 10
"""Number of strata of the return and of the time, each."""


@dataclass(frozen=True)
class LabeledPoints:
    """Coordinates [n, 2] with the labels of the axes."""

    coordinates: Coordinates
    x_label: str
    y_label: str


def ignore_progress(part: float) -> None:
    """Ignore the progress (default callback)."""


def select_axes(embedding: Coordinates, pair: tuple[int, int]) -> LabeledPoints:
    """Select two dimensions of the embedding."""
    first, second = pair
    names = [f"embedding x{axis + 1} [1]" for axis in pair]
    return LabeledPoints(np.ascontiguousarray(embedding[:, [first, second]], dtype=np.float32), *names)


def compute_pca(
    embedding: Coordinates,
    *,
    fit_on: NDArray[np.int64] | None = None,
    earlier: Coordinates | None = None,
    signs: AxisSigns = DEFAULT_SIGNS,
) -> LabeledPoints:
    """Project on the two principal components; the axis labels contain their fractions of the variance.

    The sign of a component is arbitrary. It is chosen so that the largest loading is positive, times `signs`.

    Args:
        embedding: Points [n, 4].
        fit_on: Rows from which the components are computed; default: all.
        earlier: Earlier coordinates [n, 2] of the same points, NaN if there are none. The signs and one common scale of
            both axes are chosen to match them. The axes are not rotated.
        signs: Additional signs of the components.
    """
    fitted = embedding if fit_on is None else embedding[fit_on]
    center = fitted.mean(axis=0, dtype=np.float64)
    centered = fitted.astype(np.float64) - center
    variance, axes = np.linalg.eigh(centered.T @ centered / max(1, len(fitted)))
    axes = axes[:, ::-1][:, :2]
    largest_loadings = axes[np.argmax(np.abs(axes), axis=0), [0, 1]]
    axes *= np.sign(largest_loadings) * signs
    fractions = variance[::-1][:2] / max(variance.sum(), 1e-30)
    labels = [f"principal component {i + 1} ({100 * part:.0f} % of variance)" for i, part in enumerate(fractions)]
    coordinates = (embedding.astype(np.float64) - center) @ axes
    if earlier is not None:
        coordinates = _flip_and_scale(coordinates, earlier)
    return LabeledPoints(coordinates.astype(np.float32), *labels)


def _flip_and_scale(coordinates: NDArray[np.float64], earlier: Coordinates) -> NDArray[np.float64]:
    """Flip and scale coordinates [n, 2] to match the finite earlier ones [n, 2]."""
    has_earlier = np.isfinite(earlier).all(axis=1)
    if has_earlier.sum() < 2:
        return coordinates
    new = coordinates[has_earlier]
    new = new - new.mean(axis=0)
    old = earlier[has_earlier].astype(np.float64)
    old = old - old.mean(axis=0)
    signs = np.where((new * old).sum(axis=0) < 0, -1.0, 1.0)
    new_size = float(np.sqrt((new**2).mean()))
    old_size = float(np.sqrt((old**2).mean()))
    scale = old_size / new_size if new_size and old_size else 1.0
    return coordinates * signs * scale


def find_distinct_points(points: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the different points, in the order of their first rows.

    Returns:
        The first row [k] of each different point, and for each row [n] the index of its point.
    """
    _, first_rows, index = np.unique(points, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first_rows)
    return first_rows[order], np.argsort(order)[index.ravel()]


def find_neighbors(
    points: NDArray[np.floating], k: int, *, n_jobs: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of each point.

    Returns:
        Indices [n, k] and distances [n, k], nearest first, without the point itself.
    """
    tree = KDTree(points.astype(np.float64))
    distance, index = (np.asarray(part) for part in tree.query(points, k=k + 1, workers=n_jobs))
    is_removed = index == np.arange(len(points))[:, None]  # the point itself
    # With more than k points at equal coordinates, the point itself can be missing. Remove the last point instead.
    is_removed[~is_removed.any(axis=1), -1] = True
    index = index[~is_removed].reshape(-1, k)
    distance = distance[~is_removed].reshape(-1, k)
    return index.astype(np.int64), distance.astype(np.float64)


def sample_stratified_rows(h: NDArray[np.floating], t: NDArray[np.integer], *, n: int, seed: int) -> NDArray[np.int64]:
    """Sample n rows with the same fraction of nodes from each stratum of return × time.

    Strata are deciles of each quantity. The numbers of rows per stratum are rounded by largest remainder.

    Args:
        h: Return of each node.
        t: Time step of each node.
        n: Number of rows.
        seed: Random seed.

    Returns:
        Exactly n rows, ascending; all rows if there are at most n.
    """
    total = len(h)
    if total <= n:
        return np.arange(total, dtype=np.int64)
    stratum = _deciles(h) * STRATA + _deciles(t)
    counts = np.bincount(stratum, minlength=STRATA * STRATA)
    # The number of rows of each stratum. The strata with the largest remainders get the rows that are still missing.
    exact_quota = counts * (n / total)
    quota = np.floor(exact_quota).astype(np.int64)
    n_missing = n - int(quota.sum())
    quota[np.argsort(quota - exact_quota, kind="stable")[:n_missing]] += 1
    # The rows in the order of the strata, and in random order within a stratum.
    shuffled = np.random.default_rng(seed).permutation(total)
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    # The first rows of each stratum are selected.
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank_in_stratum = np.arange(total) - np.repeat(starts, counts)
    return np.sort(order[rank_in_stratum < np.repeat(quota, counts)])


def _deciles(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the decile of each value, 0…9; equal values have equal deciles."""
    exact = np.nan_to_num(values.astype(np.float64))
    edges = np.quantile(exact, np.linspace(0, 1, STRATA + 1)[1:-1])
    return np.searchsorted(edges, exact, side="right").astype(np.int64)
