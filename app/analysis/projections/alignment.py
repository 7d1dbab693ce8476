"""Points keep their place from one snapshot of a run to the next, and a PCA keeps its orientation.

A node is the same one where its slot holds the same step of the same episode. Its embedding may be another one: the
embedder was fitted again. So known nodes bring their old place and their new embedding, and the others are placed
among them by what the embedding says now.

The sign of a principal direction means nothing, and after each refit of the embedder another one may come out; so a
map would flip while somebody steps through a run. Following the nodes that two neighboring snapshots share decides
it for every snapshot once and for all: by the run alone, not by the way on which somebody came to look at it, so that
a selection in a link or an entry of the notebook means the same nodes everywhere. Directions are never mixed, and
lengths stay those of the embedding.
"""

from collections.abc import MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import NO_TURN, Coordinates, Drawn, Turn, draw_pca
from storage.engine import Database
from storage.queries.memory import Nodes, Snapshot, get_nodes, list_snapshots

FEWEST_SHARED = 100
"""Nodes that two snapshots must share; with fewer, the later layout begins anew."""

MOST_NODES: Final = 1_000_000
"""As many nodes are read to find the way; later snapshots follow the last one that is within, all of them."""
Turns = MutableMapping[int, Turn]


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


def draw_plane(db: Database, snapshot: Snapshot, known: Turns | None = None) -> Drawn:
    """Draw the PCA of a snapshot the right way round; `known` remembers what was found, by snapshot."""
    return draw_pca(snapshot.embedding, turn=find_turn(db, snapshot, known))


def find_turn(db: Database, snapshot: Snapshot, known: Turns | None = None) -> Turn:
    """Find the signs by which the PCA of a snapshot is shown."""
    turns: Turns = {} if known is None else known
    if snapshot.id in turns:
        return turns[snapshot.id]
    way = _list_way(db, snapshot)
    begin = max((place for place, each in enumerate(way) if each in turns), default=-1)
    nodes = get_nodes(db, way[begin]) if begin >= 0 else None
    for each in way[begin + 1 :]:
        later = get_nodes(db, each)
        turns[each] = _follow(nodes, turns[nodes.id], later) if nodes is not None else NO_TURN
        nodes = later
    return turns[snapshot.id]


def _list_way(db: Database, snapshot: Snapshot) -> list[int]:
    """List the snapshots that lead to this one, oldest first, itself included."""
    listed = list_snapshots(db, snapshot.run_id)
    sizes = dict(zip(listed["id"].astype(int).tolist(), listed["size"].astype(int).tolist(), strict=True))
    ids = [each for each, size in sizes.items() if size]
    total = np.cumsum([sizes[each] for each in ids])
    within = [each for place, each in enumerate(ids) if not place or total[place] <= MOST_NODES]
    before = within[: within.index(snapshot.id)] if snapshot.id in within else within
    return [*before, snapshot.id]


def _follow(earlier: Nodes, turn: Turn, later: Nodes) -> Turn:
    """Choose the signs that bring the shared nodes closest to where they were."""
    before, after = match_rows(earlier, later)
    if len(before) < 2:
        return NO_TURN
    was = _spread(draw_pca(earlier.embedding, turn=turn).coordinates, before)
    now = _spread(draw_pca(later.embedding).coordinates, after)
    first, second = ((was * now).sum(axis=0) >= 0).tolist()
    return (1 if first else -1, 1 if second else -1)


def _spread(places: Coordinates, rows: np.ndarray) -> np.ndarray:
    chosen = places[rows].astype(np.float64)
    return chosen - chosen.mean(axis=0)
