"""Consistent projections of successive snapshots: initial layouts of nodes, and the signs of a PCA.

A snapshot is a stored copy of the episodic memory. A node is one stored state, and a slot is its index in the memory.
A node is the same in two snapshots if its slot contains the same step of the same episode. Its embedding can differ,
because the embedder was refitted. A new layout therefore starts with the earlier coordinates of the shared nodes. The
other nodes are placed near them according to their new embedding.

The sign of a principal component is arbitrary and can change after each refit, so the map would flip between two
snapshots of a run. For each snapshot the signs are chosen to match the nodes that it shares with the previous snapshot.
The signs depend only on the run and not on the order in which snapshots are viewed. Therefore a polygon in a link or in
a notebook entry always selects the same nodes. Only the signs are changed, so directions and
distances are the same as in the embedding.
"""

from collections.abc import MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import DEFAULT_SIGNS, AxisSigns, LabeledPoints, compute_pca
from app.analysis.projections.types import Coordinates
from storage.engine import Database
from storage.queries.memory import Nodes, Snapshot, get_nodes, list_snapshots

SignCache = MutableMapping[int, AxisSigns]
"""Signs of the PCA by snapshot id."""
MIN_SHARED_NODES = 100
"""Minimum number of shared nodes of two snapshots; with fewer, the later layout is initialized by PCA."""
MAX_NODES: Final = 1_000_000
"""Maximum number of nodes, over all snapshots of a run, that are read to find the signs.

Later snapshots are compared with the last snapshot before the limit.
"""


def match_rows(earlier: Snapshot | Nodes, later: Snapshot | Nodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the rows of the shared nodes in two snapshots of a run: same slot, same episode, same step."""
    _, earlier_rows, later_rows = np.intersect1d(earlier.slot, later.slot, assume_unique=True, return_indices=True)
    is_same_episode = earlier.episode[earlier_rows] == later.episode[later_rows]
    is_same_step = earlier.t[earlier_rows] == later.t[later_rows]
    is_same_node = is_same_episode & is_same_step
    return earlier_rows[is_same_node], later_rows[is_same_node]


def transfer_coordinates(earlier: Snapshot, coordinates: Coordinates, later: Snapshot) -> Coordinates:
    """Return the earlier coordinates of the nodes [M, 2] of a later snapshot; NaN for new nodes."""
    earlier_rows, later_rows = match_rows(earlier, later)
    transferred = np.full((later.size, 2), np.nan, np.float32)
    transferred[later_rows] = coordinates[earlier_rows]
    return transferred


def make_initial_layout(
    embedding: Coordinates, earlier_coordinates: Coordinates, rows: NDArray[np.int64], *, n_jobs: int = 1
) -> Coordinates | None:
    """Make the initial layout of the given rows: earlier coordinates where they exist, the other nodes near them.

    Args:
        embedding: Embedding [M, 4] of all nodes of the later snapshot.
        earlier_coordinates: Their earlier coordinates [M, 2]; NaN for new nodes.
        rows: The rows [n] of the layout.
        n_jobs: Number of threads.

    Returns:
        Finite coordinates [n, 2]; None if too few nodes have earlier coordinates.
    """
    # Imported here because `placing` imports numba. This is slow, and pages import this module.
    from app.analysis.projections.placing import place_points

    has_earlier = np.isfinite(earlier_coordinates.sum(axis=1))  # the sum is NaN for new nodes
    if has_earlier.sum() < MIN_SHARED_NODES:
        return None
    layout = earlier_coordinates[rows]
    is_new = ~has_earlier[rows]
    new_points = embedding[rows[is_new]]
    layout[is_new] = place_points(embedding[has_earlier], earlier_coordinates[has_earlier], new_points, n_jobs=n_jobs)
    return layout


def move_rigidly(layout: Coordinates, target: Coordinates) -> Coordinates:
    """Rotate, reflect and shift a layout [n, 2] so that its points are as close as possible to `target` [n, 2].

    Distances within the layout do not change. Points with NaN in `target` are moved with the others.
    """
    has_target = np.isfinite(target).all(axis=1)
    if has_target.sum() < 2:
        return layout
    points = layout.astype(np.float64)
    finite_target = target[has_target].astype(np.float64)
    center = points[has_target].mean(axis=0)
    target_center = finite_target.mean(axis=0)
    # Orthogonal Procrustes problem: the singular vectors of the covariance give the rotation or reflection.
    covariance = (points[has_target] - center).T @ (finite_target - target_center)
    left, _, right = np.linalg.svd(covariance)
    moved = (points - center) @ (left @ right) + target_center
    return moved.astype(np.float32)


def compute_aligned_pca(db: Database, snapshot: Snapshot, cache: SignCache | None = None) -> LabeledPoints:
    """Compute the PCA of a snapshot with consistent signs; see `find_axis_signs`."""
    return compute_pca(snapshot.embedding, signs=find_axis_signs(db, snapshot, cache))


def find_axis_signs(db: Database, snapshot: Snapshot, cache: SignCache | None = None) -> AxisSigns:
    """Find the signs of the PCA of a snapshot; new signs are added to the cache."""
    signs: SignCache = {} if cache is None else cache
    if snapshot.id in signs:
        return signs[snapshot.id]
    ids = _list_needed_snapshots(db, snapshot)
    last_cached = max((i for i, snapshot_id in enumerate(ids) if snapshot_id in signs), default=-1)
    previous = get_nodes(db, ids[last_cached]) if last_cached >= 0 else None
    for snapshot_id in ids[last_cached + 1 :]:
        nodes = get_nodes(db, snapshot_id)
        if previous is None:
            signs[snapshot_id] = DEFAULT_SIGNS
        else:
            signs[snapshot_id] = _match_signs(previous, signs[previous.id], nodes)
        previous = nodes
    return signs[snapshot.id]


def _list_needed_snapshots(db: Database, snapshot: Snapshot) -> list[int]:
    """List the ids of the snapshots whose signs are needed for this one, oldest first; the last id is its own."""
    snapshots = list_snapshots(db, snapshot.run_id)
    sizes = dict(zip(snapshots["id"].astype(int).tolist(), snapshots["size"].astype(int).tolist(), strict=True))
    within_limit = []
    n_nodes = 0
    for snapshot_id, size in sizes.items():
        if not size:
            continue
        n_nodes += size
        if not within_limit or n_nodes <= MAX_NODES:  # the first snapshot is always read
            within_limit.append(snapshot_id)
    if snapshot.id in within_limit:
        return within_limit[: within_limit.index(snapshot.id) + 1]
    return [*within_limit, snapshot.id]


def _match_signs(earlier: Nodes, earlier_signs: AxisSigns, later: Nodes) -> AxisSigns:
    """Choose the signs for which the shared nodes are closest to their earlier coordinates."""
    earlier_rows, later_rows = match_rows(earlier, later)
    if len(earlier_rows) < 2:
        return DEFAULT_SIGNS
    old = compute_pca(earlier.embedding, signs=earlier_signs).coordinates[earlier_rows].astype(np.float64)
    new = compute_pca(later.embedding).coordinates[later_rows].astype(np.float64)
    products = (old - old.mean(axis=0)) * (new - new.mean(axis=0))
    keeps_first, keeps_second = (products.sum(axis=0) >= 0).tolist()
    return (1 if keeps_first else -1, 1 if keeps_second else -1)
