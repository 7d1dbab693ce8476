"""Merge the nodes of a stored memory by a wider delta: Algorithm 2 over what a snapshot still holds.

No state is embedded and no torch is needed, so a page's slider runs this. What can be rebuilt and what cannot:

  * Nodes are walked in the order in which Algorithm 2 wrote the states that stand in them: episode by episode, each
    backwards. Each merges into the nearest node kept so far that lies within delta, or is kept itself. For a memory
    in which nothing had merged this equals writing its episodes at the wider delta (a test).
  * A node brings all of its visits at once: N_call and N_xi are summed. H, the success flag, the state that stands
    in the node and its link follow the options of `MemoryConfig`, as in `write`. `backprop_desirability` and the
    first visit that `init_desirability = false` leaves out are not redone.
  * States that had merged before are gone: nothing can be split, so delta can only grow.
  * delta is tested in the scaling that all nodes of the snapshot have; the run measured its own a little earlier.
  * No node is evicted, and lookups are live even if the run's index was stale.

The number of nodes need not fall with delta: a node that vanishes leaves its neighbourhood to others (a test).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.config.memory import MemoryConfig
from emtc_core.memory.index import grid
from emtc_core.memory.index.base import CKDTreeIndex, Points
from emtc_core.memory.scaling import identity_scaling, measure_scaling

Rows = NDArray[np.int64]
NONE = -1
CROWDED = 0.35
"""Cells are this part of the live index's: at a wide delta the kept nodes crowd those, and a slider's reader waits."""


@dataclass(frozen=True)
class StoredNodes:
    """The columns of a memory, one row per node [M]; `next` is the row of the successor, -1 where there is none."""

    embedding: NDArray[np.float32]  # [M, X] as embedded
    episode: NDArray[np.int64]
    t: NDArray[np.int32]
    h: NDArray[np.float64]  # return units
    xi: NDArray[np.bool_]
    n_call: NDArray[np.int64]
    n_xi: NDArray[np.int64]
    next: Rows


@dataclass(frozen=True)
class Remerged:
    """The memory after merging, by the rows [M] it had; values stand in the rows of the nodes that were kept."""

    node: Rows  # row of the node that now holds each row; a row that was kept holds itself
    nearest: Rows  # row of the kept node that a lookup of each row's state finds; -1: none within delta
    h: NDArray[np.float64]
    xi: NDArray[np.bool_]
    n_call: NDArray[np.int64]
    n_xi: NDArray[np.int64]
    next: Rows  # successor of each kept node, a kept row or -1

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Which rows are still nodes [M]."""
        return self.node == np.arange(len(self.node))


def remerge(nodes: StoredNodes, *, delta: float, config: MemoryConfig, at_any_distance: bool = False) -> Remerged:
    """Let stored nodes merge as if they were written at another delta.

    Args:
        nodes: The memory as it was stored.
        delta: Radius for "same memory", > 0, in the space of `config.delta_space`.
        config: Space, metric and options of Algorithm 2; its own delta is not read.
        at_any_distance: Lookups that find nothing within delta take the nearest node instead (`on_miss = "nearest"`).

    Raises:
        ValueError: If delta is not positive and finite, or an embedding is not finite.
    """
    if not 0 < delta < np.inf:
        raise ValueError(f"delta must be positive and finite, got {delta}")
    check_shape("embedding", nodes.embedding, (len(nodes.h), None))
    if not np.isfinite(nodes.embedding).all():
        raise ValueError("embeddings must be finite")
    if not len(nodes.h):
        none = np.zeros(0, np.int64)
        return Remerged(none, none, nodes.h, nodes.xi, nodes.n_call, nodes.n_xi, none)
    order = np.lexsort((-nodes.t.astype(np.int64), nodes.episode))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    z = _place(nodes.embedding, config)[order]
    index = grid.GridIndex(CROWDED * delta, config.delta_metric)
    index.build(z.copy(), size=0)
    h, xi, n_call, n_xi = nodes.h[order], nodes.xi[order], nodes.n_call[order], nodes.n_xi[order]
    link = np.where(nodes.next >= 0, rank[nodes.next], NONE)[order]
    rules = config.shift_keep_max, config.reset_counts_on_shift, config.link_update == "on_improve"
    node = _walk(index.cells(delta), rules, z, h, xi, n_call, n_xi, link)
    link = np.where(link >= 0, node[link], NONE)
    found = _look_up(index, z, node, delta=delta, at_any_distance=at_any_distance)
    rows = np.append(order, NONE)  # the last one serves rank -1
    return Remerged(rows[node][rank], rows[found][rank], h[rank], xi[rank], n_call[rank], n_xi[rank], rows[link][rank])


def _place(embedding: NDArray[np.float32], config: MemoryConfig) -> Points:
    """Scale all nodes [M, X] into the space where delta is tested."""
    raw = config.delta_space == "raw"
    scaling = identity_scaling(embedding.shape[1]) if raw else measure_scaling(embedding)
    return np.ascontiguousarray(scaling.apply(embedding))


def _look_up(index: grid.GridIndex, z: Points, node: Rows, *, delta: float, at_any_distance: bool) -> Rows:
    """Find the kept node nearest to where each state stood; a node that moved may have left states behind."""
    found = np.arange(len(z))  # what a node that was kept and never moved finds: no other stands where it stands
    sought = np.flatnonzero((node != found) | (index.z != z).any(axis=1))
    found[sought] = index.query(z[sought], reach=delta)[0]
    missed = np.flatnonzero(found < 0)
    if at_any_distance and len(missed):
        kept = np.flatnonzero(node == np.arange(len(node)))
        tree = CKDTreeIndex("linf" if index.is_linf else "l2")
        tree.build(index.z[kept])
        found[missed] = kept[tree.query(z[missed])[0]]
    return found


@njit(cache=True, nogil=True)
def _walk(
    cells: grid.Cells,
    rules: tuple[bool, bool, bool],
    z: NDArray[Any],
    h: NDArray[Any],
    xi: NDArray[Any],
    n_call: NDArray[Any],
    n_xi: NDArray[Any],
    link: NDArray[Any],
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Merge rows, given in the order in which they were written, in place; return which node holds each [M]."""
    keep_max, reset_counts, link_on_improve = rules
    node = np.empty(len(h), np.int64)
    for row in range(len(h)):
        into, _ = grid.nearest(cells, z[row])
        if into < 0:
            node[row] = row
            grid.insert(cells, row)
            continue
        node[row] = into
        n_call[into] += n_call[row]
        n_xi[into] += n_xi[row]
        shifts = xi[row] and not xi[into]
        improves = shifts or h[into] < h[row]
        if improves:
            h[into] = max(h[into], h[row]) if shifts and keep_max else h[row]
        if shifts:
            xi[into] = True
            if reset_counts:
                n_call[into], n_xi[into] = n_call[row], n_xi[row]
            grid.remove(cells, into)
            for i in range(z.shape[1]):
                cells.z[into, i] = z[row, i]
            grid.insert(cells, into)
        if improves or not link_on_improve:
            link[into] = link[row]
    return node
