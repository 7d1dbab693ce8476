"""Projections that answer at once, axis pairs and PCA; types, sample and neighbors that all projections share.

A picture shows a sample of N memory nodes, stratified by return × time and seeded, or all of them. Neighbors are exact
and come in a fixed order whatever the number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

Progress = Callable[[float], None]
Coordinates = NDArray[np.float32]
Turn = tuple[int, int]
"""The signs, 1 or -1, by which the two directions of a PCA are shown."""
NO_TURN: Turn = (1, 1)

AXIS_PAIRS: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))


@dataclass(frozen=True)
class Drawn:
    """Coordinates [n, 2] and what the two axes mean."""

    coordinates: Coordinates
    x_label: str
    y_label: str


def ignore_progress(part: float) -> None:
    """Receive progress and do nothing."""


def draw_axes(embedding: Coordinates, pair: tuple[int, int]) -> Drawn:
    """Show two of the embedding's own coordinates."""
    first, second = pair
    names = [f"embedding x{axis + 1} [1]" for axis in pair]
    return Drawn(np.ascontiguousarray(embedding[:, [first, second]], dtype=np.float32), *names)


def draw_pca(
    embedding: Coordinates,
    *,
    fit_on: NDArray[np.int64] | None = None,
    like: Coordinates | None = None,
    turn: Turn = NO_TURN,
) -> Drawn:
    """Show the two directions of largest variance, each with its share of it.

    A direction's sign is chosen so that its largest loading is positive; otherwise it would be arbitrary.

    Args:
        embedding: Points [n, 4].
        fit_on: Rows that decide the directions; all of them when missing.
        like: Earlier places [n, 2] of the same points, NaN where there was none: signs and the one scale of both
            axes are chosen so that the picture comes closest to them. Directions are never mixed.
        turn: Signs by which the directions are shown instead.
    """
    fitted = embedding if fit_on is None else embedding[fit_on]
    centre = fitted.mean(axis=0, dtype=np.float64)
    spread = fitted.astype(np.float64) - centre
    variance, axes = np.linalg.eigh(spread.T @ spread / max(1, len(fitted)))
    axes = axes[:, ::-1][:, :2]
    axes *= np.sign(axes[np.argmax(np.abs(axes), axis=0), [0, 1]]) * turn
    share = variance[::-1][:2] / max(variance.sum(), 1e-30)
    labels = [f"principal component {i + 1} ({100 * s:.0f} % of variance)" for i, s in enumerate(share)]
    drawn = (embedding.astype(np.float64) - centre) @ axes
    return Drawn((drawn if like is None else _flip_and_scale(drawn, like)).astype(np.float32), *labels)


def _flip_and_scale(drawn: NDArray[np.float64], like: Coordinates) -> NDArray[np.float64]:
    known = np.isfinite(like).all(axis=1)
    if known.sum() < 2:
        return drawn
    now, before = drawn[known] - drawn[known].mean(axis=0), like[known].astype(np.float64)
    before = before - before.mean(axis=0)
    signs = np.where((now * before).sum(axis=0) < 0, -1.0, 1.0)
    size_now, size_before = (float(np.sqrt((part**2).mean())) for part in (now, before))
    return drawn * signs * (size_before / size_now if size_now and size_before else 1.0)


def find_neighbors(
    points: NDArray[np.floating], k: int, *, n_jobs: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of each point.

    Returns:
        Indices [n, k] and distances [n, k], nearest first, the point itself left out.
    """
    tree = KDTree(points.astype(np.float64))
    distance, index = (np.asarray(part) for part in tree.query(points, k=k + 1, workers=n_jobs))
    own = index == np.arange(len(points))[:, None]
    own[~own.any(axis=1), -1] = True  # k + 1 or more twins stand in its place: leave the last one out
    keep = ~own
    return index[keep].reshape(-1, k).astype(np.int64), distance[keep].reshape(-1, k).astype(np.float64)


STRATA = 10  # in each direction


def stratified_rows(h: NDArray[np.floating], t: NDArray[np.integer], *, n: int, seed: int) -> NDArray[np.int64]:
    """Choose n rows so that every stratum of return × time gives the same share of its nodes.

    Strata are deciles of each quantity. Shares are rounded by largest remainder, so exactly n rows come
    back, ascending; all rows when there are no more than n.
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
    """Number the decile of each value, 0…9; equal values share one."""
    finite = np.nan_to_num(values.astype(np.float64))
    edges = np.quantile(finite, np.linspace(0, 1, STRATA + 1)[1:-1])
    return np.searchsorted(edges, finite, side="right").astype(np.int64)
