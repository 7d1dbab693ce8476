"""Which way round is the PCA of a snapshot shown? As that of the snapshot before it, from the first one on.

The sign of a principal direction means nothing, and after each refit of the embedder another one may come out; so a
map would flip while somebody steps through a run. Following the nodes that two neighboring snapshots share decides
it for every snapshot once and for all: by the run alone, not by the way on which somebody came to look at it, so that
a selection in a link or an entry of the notebook means the same nodes everywhere. Directions are never mixed, and
lengths stay those of the embedding.
"""

from collections.abc import MutableMapping
from typing import Final

import numpy as np

from app.analysis.projections.alignment import match_rows
from app.analysis.projections.linear import NO_TURN, Coordinates, Drawn, Turn, draw_pca
from storage.engine import Database
from storage.queries.memory import Nodes, Snapshot, get_nodes, list_snapshots

MOST_NODES: Final = 1_000_000
"""As many nodes are read to find the way; later snapshots follow the last one that is within, all of them."""
Turns = MutableMapping[int, Turn]


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
