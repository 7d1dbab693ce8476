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
    axes *= np.sign(axes[np.argmax(np.abs(axes), axis=0), [0, 1]]) * signs
    fractions = variance[::-1][:2] / max(variance.sum(), 1e-30)
    labels = [f"principal component {i + 1} ({100 * part:.0f} % of variance)" for i, part in enumerate(fractions)]
    coordinates = (embedding.astype(np.float64) - center) @ axes
    if earlier is not None:
        coordinates = _flip_and_scale(coordinates, earlier)
    return LabeledPoints(coordinates.astype(np.float32), *labels)


def _flip_and_scale(coordinates: NDArray[np.float64], like: Coordinates) -> NDArray[np.float64]:
    """Flip and scale coordinates to match the finite ones of `like`."""
    has_earlier = np.isfinite(like).all(axis=1)
    if has_earlier.sum() < 2:
        return coordinates
    now, before = coordinates[has_earlier] - coordinates[has_earlier].mean(axis=0), like[has_earlier].astype(np.float64)
    before = before - before.mean(axis=0)
    signs = np.where((now * before).sum(axis=0) < 0, -1.0, 1.0)
    size_now, size_before = (float(np.sqrt((part**2).mean())) for part in (now, before))
    return coordinates * signs * (size_before / size_now if size_now and size_before else 1.0)


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
    is_self = index == np.arange(len(points))[:, None]
    # with more than k points at equal coordinates, the point itself can be missing: remove the last one instead
    is_self[~is_self.any(axis=1), -1] = True
    index, distance = index[~is_self].reshape(-1, k), distance[~is_self].reshape(-1, k)
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
    exact = counts * (n / total)
    quota = np.floor(exact).astype(np.int64)
    short = n - int(quota.sum())
    quota[np.argsort(quota - exact, kind="stable")[:short]] += 1
    shuffled = np.random.default_rng(seed).permutation(total)
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(total) - np.repeat(starts, counts)
    return np.sort(order[rank < np.repeat(quota, counts)])


def _deciles(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the decile of each value, 0…9; equal values have equal deciles."""
    exact = np.nan_to_num(values.astype(np.float64))
    edges = np.quantile(exact, np.linspace(0, 1, STRATA + 1)[1:-1])
    return np.searchsorted(edges, exact, side="right").astype(np.int64)
