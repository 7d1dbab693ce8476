"""Neighborhoods of memory nodes: in other episodes, in the embedding against a layout. What they are worth: `collapse`.

Nodes that stand at one and the same place, as all do in a collapsed embedding, are neighbors in random order: they are
moved apart by less than float32 can say. Without that a tree lists them by row, and rows are episodes.

The memory that is least like its neighbors: where a look at the map begins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from app.analysis.projections.linear import find_neighbors
from app.analysis.projections.snapshots import sample_rows
from storage.queries.memory import Snapshot

OUTLIER_NEIGHBORS = 10
LOOKED_AT = 20_000


@dataclass(frozen=True)
class Outlier:
    """A node whose return stands out from its neighborhood."""

    row: int
    slot: int
    h: float
    around: float  # mean H of its nearest neighbors


def find_outlier(snapshot: Snapshot) -> Outlier | None:
    """Find the node whose H lies highest above the mean of its nearest neighbors; None in a tiny memory.

    Of a large memory a sample is looked at, stratified by return and time.
    """
    rows = sample_rows(snapshot, n=LOOKED_AT, seed=0)
    if len(rows) <= OUTLIER_NEIGHBORS:
        return None
    near, _ = find_neighbors(snapshot.embedding[rows], OUTLIER_NEIGHBORS)
    h = snapshot.h[rows].astype(np.float64)
    around = h[near].mean(axis=1)
    odd = int(np.argmax(h - around))
    return Outlier(int(rows[odd]), int(snapshot.slot[rows[odd]]), float(h[odd]), float(around[odd]))


def find_nearest(points: NDArray[np.floating], row: int, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of one point [k], nearest first, and how far away they are [k]."""
    away = np.linalg.norm(points - points[row], axis=1)
    away[row] = np.inf
    k = min(k, len(points) - 1)
    near = np.argpartition(away, k - 1)[:k] if k else np.empty(0, np.int64)
    near = near[np.argsort(away[near], kind="stable")]
    return near.astype(np.int64), away[near].astype(np.float64)


Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
NEIGHBORS = 15
ASKED = 20_000
_CHUNK = 1000
_UNTIE = 1e-9  # of the largest coordinate


@dataclass(frozen=True)
class Agreement:
    """Mean share of a node's nearest neighbors in 4-D that are among its nearest in a layout."""

    selected: float
    rest: float
    n_selected: int  # nodes that were asked
    n_rest: int
    k: int


def find_elsewhere(
    points: NDArray[np.floating], episode: NDArray[np.int64], rows: Rows, *, k: int, seed: int = 0, n_jobs: int = 1
) -> tuple[Rows, Floats]:
    """Find the k nearest nodes of other episodes.

    Args:
        points: All nodes [M, d].
        episode: Their episodes [M].
        rows: The nodes [Q] that ask.
        k: Neighbors of each.
        seed: Of the order among nodes at one and the same place.
        n_jobs: Threads.

    Returns:
        Rows [Q, k] and distances [Q, k], nearest first; −1 and infinity where there are no more other nodes.
    """
    apart = _untie(points, seed)
    tree = KDTree(apart)
    enough = min(len(points), k + int(np.unique(episode, return_counts=True)[1].max(initial=0)))
    index, distance = np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), np.inf)
    waiting, asked = np.arange(len(rows)), min(enough, k + 14)
    while len(waiting):
        short = []
        for some in np.array_split(waiting, -(-len(waiting) // _CHUNK)):
            found = tree.query(apart[rows[some]], k=asked, workers=n_jobs)
            far, near = (np.reshape(part, (len(some), asked)) for part in found)
            other = episode[near] != episode[rows[some]][:, None]
            order = np.argsort(~other, axis=1, kind="stable")[:, :k]  # other episodes first, still nearest first
            kept = np.take_along_axis(other, order, axis=1)
            width = order.shape[1]
            index[some, :width] = np.where(kept, np.take_along_axis(near, order, axis=1), -1)
            distance[some, :width] = np.where(kept, np.take_along_axis(far, order, axis=1), np.inf)
            short.append(some[other.sum(axis=1) < k])
        waiting = np.concatenate(short) if asked < enough else waiting[:0]
        asked = min(enough, 2 * asked)
    return index, distance


def neighbor_agreement(
    embedding: NDArray[np.floating],
    layout: NDArray[np.floating],
    rows: Rows,
    k: int = NEIGHBORS,
    *,
    most: int = ASKED,
    n_jobs: int = 1,
) -> Agreement:
    """How far a layout can be trusted about a selection: do its neighbors stay neighbors?

    Args:
        embedding: Nodes [M, 4].
        layout: Their places [M, 2]; nodes without a place (NaN) take no part.
        rows: The selected rows.
        k: Neighbors that are compared.
        most: Nodes of the selection, and of the rest, that are asked; a sample when there are more.
        n_jobs: Threads.
    """
    shown = np.flatnonzero(np.isfinite(layout).all(axis=1))
    selected = np.isin(shown, rows)
    rng = np.random.default_rng(0)
    asked = [_some(np.flatnonzero(part), most, rng) for part in (selected, ~selected)]
    near = [_nearest(space[shown], np.concatenate(asked), k, n_jobs) for space in (embedding, layout)]
    share = (near[0][:, :, None] == near[1][:, None, :]).any(axis=2).mean(axis=1) if near[0].size else np.empty(0)
    parts = np.split(share, [len(asked[0])])
    means = [float(part.mean()) if len(part) else float("nan") for part in parts]
    return Agreement(means[0], means[1], len(parts[0]), len(parts[1]), k)


def rank_layout(points: NDArray[np.floating], layout: NDArray[np.floating], *, k: int = NEIGHBORS) -> Floats:
    """Compute each point's part of trustworthiness and of continuity of a layout [n, 2] of points [n, d].

    Returns:
        [n, 2], each in [0, 1]; their means over points are the two published numbers. Needs n > 2 k + 1.

    Source: Venna, Kaski 2001, "Neighborhood preservation in nonlinear projection methods".
    """
    spaces = [np.asarray(space, np.float64) for space in (points, layout)]
    n = len(points)
    if n <= 2 * k + 1:
        raise ValueError(f"{n} points have no ranks of {k} neighbors; {2 * k + 2} would do")
    parts = np.empty((n, 2))
    for start in range(0, n, _CHUNK // 4):
        chunk = np.arange(start, min(n, start + _CHUNK // 4))
        true, drawn = (_distances(space, chunk) for space in spaces)
        for column, (ranked, shown) in enumerate(((true, drawn), (drawn, true))):
            near = np.argpartition(shown, k - 1, axis=1)[:, :k]
            rank = _ranks(ranked, near)
            parts[chunk, column] = 1 - 2 / (k * (2 * n - 3 * k - 1)) * np.maximum(rank - k, 0).sum(axis=1)
    return parts


def _distances(space: Floats, chunk: Rows) -> Floats:
    """Squared distances of some points to all [C, n]; a point is infinitely far from itself."""
    squared = np.zeros((len(chunk), len(space)))
    for axis in space.T:
        squared += (axis[chunk][:, None] - axis[None, :]) ** 2
    squared[np.arange(len(chunk)), chunk] = np.inf
    return squared


def _ranks(distance: Floats, near: Rows) -> Rows:
    """Count for each neighbor [C, k] the points that are as near or nearer by distance [C, n]; twins share a rank."""
    order = np.sort(distance, axis=1)
    wanted = np.take_along_axis(distance, near, axis=1)
    return np.stack([np.searchsorted(row, each) for row, each in zip(order, wanted, strict=True)]) + 1


def _untie(points: NDArray[np.floating], seed: int) -> Floats:
    """Move each point a little, so that twins stand in random order and a tree can part them."""
    exact = np.asarray(points, np.float64)
    reach = _UNTIE * max(1.0, float(np.abs(exact).max(initial=0.0)))
    return exact + np.random.default_rng(seed).uniform(-reach, reach, exact.shape)


def _nearest(points: NDArray[np.floating], rows: Rows, k: int, n_jobs: int) -> Rows:
    """Find the k nearest other points [Q, k]; the point itself is the first that a tree without twins finds."""
    apart = _untie(points, 0)
    k = min(k, len(points) - 1)
    if k < 1:
        return np.empty((len(rows), 0), np.int64)
    return np.asarray(KDTree(apart).query(apart[rows], k=k + 1, workers=n_jobs)[1])[:, 1:]


def _some(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
