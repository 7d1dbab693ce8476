"""Carry the places of one snapshot's nodes to a later snapshot of the same run, so that points keep their place.

A node is the same one where its slot holds the same step of the same episode. Its embedding may be another one: the
embedder was fitted again. So known nodes bring their old place and their new embedding, and the others are placed
among them by what the embedding says now.
"""

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import Coordinates
from storage.queries.memory import Nodes, Snapshot

FEWEST_SHARED = 100
"""Nodes that two snapshots must share; with fewer, the later layout begins anew."""


def match_rows(earlier: Snapshot | Nodes, later: Snapshot | Nodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the rows of the same nodes in two snapshots of a run: same slot, same episode, same step."""
    _, before, after = np.intersect1d(earlier.slot, later.slot, assume_unique=True, return_indices=True)
    same = (earlier.episode[before] == later.episode[after]) & (earlier.t[before] == later.t[after])
    return before[same], after[same]


def carry_places(earlier: Snapshot, coordinates: Coordinates, later: Snapshot) -> Coordinates:
    """Give the nodes of a later snapshot [M, 2] the places that they had; NaN where a node had none."""
    before, after = match_rows(earlier, later)
    carried = np.full((later.size, 2), np.nan, np.float32)
    carried[after] = coordinates[before]
    return carried


def complete_places(
    embedding: Coordinates, carried: Coordinates, rows: NDArray[np.int64], *, n_jobs: int = 1
) -> Coordinates | None:
    """Fill in where the given rows begin: carried places as they are, the others among them.

    Args:
        embedding: All nodes [M, 4] of the later snapshot.
        carried: Their places [M, 2], NaN where unknown.
        rows: The rows [n] that shall be laid out.
        n_jobs: Threads.

    Returns:
        Places [n, 2], finite; None where too few are known.
    """
    from app.analysis.projections.placing import place  # only now: no page needs a compiler

    known = np.isfinite(carried.sum(axis=1))
    if known.sum() < FEWEST_SHARED:
        return None
    begin = carried[rows]
    strange = ~known[rows]
    begin[strange] = place(embedding[known], carried[known], embedding[rows[strange]], n_jobs=n_jobs)
    return begin


def move_rigidly(drawn: Coordinates, like: Coordinates) -> Coordinates:
    """Turn, mirror and shift a layout [n, 2] so that its points come closest to other places of theirs [n, 2].

    Distances within the layout stay. Points whose other place is unknown (NaN) move along.
    """
    known = np.isfinite(like).all(axis=1)
    if known.sum() < 2:
        return drawn
    points, wanted = drawn.astype(np.float64), like[known].astype(np.float64)
    centre, goal = points[known].mean(axis=0), wanted.mean(axis=0)
    left, _, right = np.linalg.svd((points[known] - centre).T @ (wanted - goal))
    return ((points - centre) @ (left @ right) + goal).astype(np.float32)
