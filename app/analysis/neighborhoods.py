"""Nearest neighbors of memory nodes: neighbors from other episodes, and how well a layout keeps the neighbors.

A node is a stored state of the episodic memory with its embedding (4-D). A layout is a projection of the embeddings to
the plane. H is the highest return that was reached from the state of a node.

Nodes with equal coordinates, as in a collapsed embedding, must be neighbors in random order. A tree would return them
in the order of rows, which is the order of episodes. All points are therefore moved by a random offset that is smaller
than the resolution of float32.

`find_outliers` finds the nodes that the memory confuses: their H differs most from the mean H of their neighbors.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from app.analysis.projections.snapshots import sample_rows
from app.analysis.samples import count_nodes
from storage.queries.memory import Snapshot

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
NEIGHBORS = 15
"""Default number k of nearest neighbors."""
MAX_QUERY_NODES = 20_000
"""Default maximum number of nodes for which neighbors are searched."""
OUTLIER_NEIGHBORS = 10
"""Number of nearest neighbors with which `find_outliers` compares a node."""
MAX_OUTLIER_CANDIDATES = 20_000
"""Maximum number of nodes in the search for outliers."""
_CHUNK = 1000
"""Number of query nodes that are searched at the same time, to limit the memory."""
_EXTRA_NEIGHBORS = 14
"""Additional neighbors in the first query, because some neighbors belong to the same episode."""
_RELATIVE_OFFSET = 1e-9
"""Maximum random offset of a point, as a fraction of the largest coordinate."""


@dataclass(frozen=True)
class Outlier:
    """A node whose H differs from the mean H of its neighbors. H is in units of the return."""

    row: int
    slot: int
    episode: int  # the episode that wrote the node
    h: float
    neighbors_h: float  # mean H of its nearest neighbors
    searched: str  # "20,000 of 970,657 nodes" if only a part of the memory was searched; otherwise empty


@dataclass(frozen=True)
class Agreement:
    """Mean fraction of a node's nearest neighbors in 4-D that are also nearest neighbors in a layout."""

    selected: float  # mean over the selected nodes
    rest: float  # mean over the other nodes
    n_selected: int  # number of nodes in the mean
    n_rest: int
    k: int  # number of neighbors that are compared


def find_outliers(snapshot: Snapshot, embedding: NDArray[np.floating], *, n: int = 5, n_jobs: int = 1) -> list[Outlier]:
    """Find the nodes whose H differs most from the mean H of their nearest neighbors.

    Large memories are sampled, stratified by return and time; the neighbors are searched among all nodes.

    Args:
        snapshot: The nodes.
        embedding: Their embeddings [M, X], in the space in which the memory compares nodes.
        n: Maximum number of outliers.
        n_jobs: Number of threads.

    Returns:
        The outliers, largest difference first. Empty if there are too few nodes, or no node differs.
    """
    if snapshot.size <= OUTLIER_NEIGHBORS:
        return []
    rows = sample_rows(snapshot, n=MAX_OUTLIER_CANDIDATES, seed=0)
    neighbors = _find_nearest_others(embedding, rows, OUTLIER_NEIGHBORS, n_jobs)
    h = snapshot.h.astype(np.float64)
    neighbors_h = h[neighbors].mean(axis=1)
    differs = ~np.isclose(h[rows], neighbors_h)
    difference = np.where(differs, np.abs(h[rows] - neighbors_h), 0.0)
    largest = np.argsort(-difference, kind="stable")[: min(n, int(differs.sum()))]
    is_part = len(rows) < snapshot.size or snapshot.whole is not None
    searched = count_nodes(len(rows), snapshot) if is_part else ""
    return [
        Outlier(
            row=int(rows[i]),
            slot=int(snapshot.slot[rows[i]]),
            episode=int(snapshot.episode[rows[i]]),
            h=float(h[rows[i]]),
            neighbors_h=float(neighbors_h[i]),
            searched=searched,
        )
        for i in largest
    ]


def find_nearest(points: NDArray[np.floating], row: int, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other points of one point.

    Returns:
        Rows [k] and distances [k], nearest first.
    """
    distance = np.linalg.norm(points - points[row], axis=1)
    distance[row] = np.inf
    k = min(k, len(points) - 1)
    nearest = np.argpartition(distance, k - 1)[:k] if k else np.empty(0, np.int64)
    nearest = nearest[np.argsort(distance[nearest], kind="stable")]
    return nearest.astype(np.int64), distance[nearest].astype(np.float64)


def find_neighbors_in_other_episodes(
    points: NDArray[np.floating], episode: NDArray[np.int64], rows: Rows, *, k: int, seed: int = 0, n_jobs: int = 1
) -> tuple[Rows, Floats]:
    """Find the k nearest nodes of other episodes.

    Args:
        points: Coordinates of all nodes [M, d].
        episode: Episodes of all nodes [M].
        rows: Rows [Q] of the query nodes.
        k: Number of neighbors.
        seed: Random seed of the order of nodes with equal coordinates.
        n_jobs: Number of threads.

    Returns:
        Rows [Q, k] and distances [Q, k], nearest first; −1 and infinity if there are fewer than k other nodes.
    """
    shifted = _add_offsets(points, seed)
    tree = KDTree(shifted)
    _, episode_sizes = np.unique(episode, return_counts=True)
    max_queried = min(len(points), k + int(episode_sizes.max(initial=0)))
    index = np.full((len(rows), k), -1, np.int64)
    distance = np.full((len(rows), k), np.inf)
    pending = np.arange(len(rows))  # query nodes that need more neighbors
    n_queried = min(max_queried, k + _EXTRA_NEIGHBORS)
    while len(pending):
        incomplete = []
        for chunk in np.array_split(pending, ceil(len(pending) / _CHUNK)):
            result = tree.query(shifted[rows[chunk]], k=n_queried, workers=n_jobs)
            # for one neighbor, `query` returns arrays without the second dimension
            distances, neighbors = (np.reshape(part, (len(chunk), n_queried)) for part in result)
            is_other = episode[neighbors] != episode[rows[chunk]][:, None]
            # Move neighbors from other episodes to the front. A stable sort keeps them nearest first.
            order = np.argsort(~is_other, axis=1, kind="stable")[:, :k]
            is_valid = np.take_along_axis(is_other, order, axis=1)
            width = order.shape[1]
            index[chunk, :width] = np.where(is_valid, np.take_along_axis(neighbors, order, axis=1), -1)
            distance[chunk, :width] = np.where(is_valid, np.take_along_axis(distances, order, axis=1), np.inf)
            incomplete.append(chunk[is_other.sum(axis=1) < k])
        if n_queried == max_queried:
            break
        pending = np.concatenate(incomplete)
        n_queried = min(max_queried, 2 * n_queried)
    return index, distance


def measure_neighbor_agreement(
    embedding: NDArray[np.floating],
    layout: NDArray[np.floating],
    rows: Rows,
    k: int = NEIGHBORS,
    *,
    max_nodes: int = MAX_QUERY_NODES,
    n_jobs: int = 1,
) -> Agreement:
    """Measure how many neighbors in the embedding remain neighbors in the layout, for a selection and for the rest.

    Args:
        embedding: Nodes [M, 4].
        layout: Their coordinates [M, 2]; nodes with NaN are left out.
        rows: The selected rows.
        k: Number of neighbors that are compared.
        max_nodes: Maximum number of query nodes in the selection and in the rest; larger sets are sampled.
        n_jobs: Number of threads.
    """
    rows_in_layout = np.flatnonzero(np.isfinite(layout).all(axis=1))
    is_selected = np.isin(rows_in_layout, rows)
    rng = np.random.default_rng(0)
    queries = []
    for mask in (is_selected, ~is_selected):
        candidates = np.flatnonzero(mask)
        if len(candidates) > max_nodes:
            candidates = np.sort(rng.choice(candidates, max_nodes, replace=False))
        queries.append(candidates)
    query_rows = np.concatenate(queries)
    near_in_embedding = _find_nearest_others(embedding[rows_in_layout], query_rows, k, n_jobs)
    near_in_layout = _find_nearest_others(layout[rows_in_layout], query_rows, k, n_jobs)
    shared_fractions = np.empty(0)
    if near_in_embedding.size:
        is_shared = (near_in_embedding[:, :, None] == near_in_layout[:, None, :]).any(axis=2)
        shared_fractions = is_shared.mean(axis=1)
    selected, rest = np.split(shared_fractions, [len(queries[0])])
    return Agreement(_mean(selected), _mean(rest), len(selected), len(rest), k)


def compute_layout_quality(points: NDArray[np.floating], layout: NDArray[np.floating], *, k: int = NEIGHBORS) -> Floats:
    """Compute the trustworthiness and the continuity of a layout [n, 2] of points [n, d], per point.

    Returns:
        [n, 2], each in [0, 1]. Their means over the points are the trustworthiness and the continuity of the source.

    Raises:
        ValueError: If n <= 2 k + 1.

    Source: Venna, Kaski 2001, "Neighborhood preservation in nonlinear projection methods".
    """
    spaces = [np.asarray(space, np.float64) for space in (points, layout)]
    n = len(points)
    if n <= 2 * k + 1:
        raise ValueError(f"ranks of {k} neighbors need at least {2 * k + 2} points, got {n}")
    parts = np.empty((n, 2))
    for start in range(0, n, _CHUNK // 4):
        chunk = np.arange(start, min(n, start + _CHUNK // 4))
        in_points, in_layout = (_squared_distances(space, chunk) for space in spaces)
        # Trustworthiness ranks the neighbors in the layout by their distance in the original space. Continuity ranks
        # the neighbors in the original space by their distance in the layout.
        for column, (rank_by, near_by) in enumerate(((in_points, in_layout), (in_layout, in_points))):
            near = np.argpartition(near_by, k - 1, axis=1)[:, :k]
            excess_rank = np.maximum(_rank_neighbors(rank_by, near) - k, 0).sum(axis=1)
            # the factor scales the largest possible sum of excess ranks to 1
            parts[chunk, column] = 1 - 2 / (k * (2 * n - 3 * k - 1)) * excess_rank
    return parts


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _squared_distances(space: Floats, chunk: Rows) -> Floats:
    """Compute the squared distances [C, n] of some points to all points; the distance to itself is infinite."""
    squared = np.zeros((len(chunk), len(space)))
    for axis in space.T:
        squared += (axis[chunk][:, None] - axis[None, :]) ** 2
    squared[np.arange(len(chunk)), chunk] = np.inf
    return squared


def _rank_neighbors(distance: Floats, near: Rows) -> Rows:
    """Return the rank [C, k] of each neighbor [C, k] by distance [C, n]; equal distances have equal ranks."""
    sorted_distance = np.sort(distance, axis=1)
    near_distance = np.take_along_axis(distance, near, axis=1)
    ranks = [np.searchsorted(row, values) for row, values in zip(sorted_distance, near_distance, strict=True)]
    return np.stack(ranks) + 1


def _add_offsets(points: NDArray[np.floating], seed: int) -> Floats:
    """Add a small random offset to each point, so that a tree returns points with equal coordinates in random order."""
    exact = np.asarray(points, np.float64)
    limit = _RELATIVE_OFFSET * max(1.0, float(np.abs(exact).max(initial=0.0)))
    return exact + np.random.default_rng(seed).uniform(-limit, limit, exact.shape)


def _find_nearest_others(points: NDArray[np.floating], rows: Rows, k: int, n_jobs: int) -> Rows:
    """Find the k nearest other points [Q, k]."""
    shifted = _add_offsets(points, 0)
    k = min(k, len(points) - 1)
    if k < 1:
        return np.empty((len(rows), 0), np.int64)
    # The neighbors do not depend on the shape of the tree, and this one is built about four times as fast.
    tree = KDTree(shifted, balanced_tree=False, compact_nodes=False)
    neighbors = np.asarray(tree.query(shifted[rows], k=k + 1, workers=n_jobs)[1])
    return neighbors[:, 1:]  # the first neighbor is the point itself, because no two shifted points are equal
