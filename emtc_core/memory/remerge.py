"""Merge the nodes of a stored memory with a wider delta: Algorithm 2 on the nodes of a snapshot.

This needs no embedder and no torch, so a slider of a page can run it. Differences from a new run:

  * Nodes are processed in the order in which Algorithm 2 wrote their states: episode by episode, each backwards. A node
    merges into the nearest remaining node within delta; else it remains. If the run merged no states, the result equals
    a write of all its episodes with the wider delta (there is a test).
  * All visits of a node are added at once: N_call and N_xi are summed. H, success flag, state and link of the node
    follow the options of `MemoryConfig`, as in `write`. `backprop_desirability` is not applied again. The rule of
    `init_desirability = false`, which starts N_xi of a new node at 0, is not applied again either.
  * States that merged before cannot be separated, so delta can only grow.
  * With `delta_space = normalized`, distances are divided by the standard deviation of the snapshot's nodes. The run
    measured its standard deviation a little earlier.
  * No node is evicted. Each lookup sees all earlier merges, also if the run used `index = stale_target_update`.

A larger delta can give more nodes: when a node disappears, states near it may remain as separate nodes (there is a
test).
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
NO_ROW = -1
CELL_SHARE = 0.35
"""Cell size as a fraction of the size in a run. With a wide delta, cells of that size would contain too many nodes."""


@dataclass(frozen=True)
class StoredNodes:
    """The columns of a stored memory, one row per node [M].

    Source: the nodes of Algorithm 2.
    """

    embedding: NDArray[np.float32]  # [M, X] [embedding], not scaled
    episode: NDArray[np.int64]  # [M] episode of the node's state, dimensionless
    t: NDArray[np.int32]  # [M] time step of the state [steps]
    h: NDArray[np.float64]  # [M] [return]
    xi: NDArray[np.bool_]  # [M] boolean, success flag
    n_call: NDArray[np.int64]  # [M] [visits]
    n_xi: NDArray[np.int64]  # [M] [visits] in successful trajectories
    next: Rows  # [M] row index of the successor; -1 without one


@dataclass(frozen=True)
class MergedNodes:
    """The memory after the merges, with its original rows [M]. Values are valid in the rows of remaining nodes.

    Source: Algorithm 2.
    """

    node: Rows  # [M] row index of the node into which each row merged; its own row for a remaining node
    nearest: Rows  # [M] row index of the remaining node that a lookup of each state finds; -1: none within delta
    h: NDArray[np.float64]  # [M] [return]
    xi: NDArray[np.bool_]  # [M] boolean, success flag
    n_call: NDArray[np.int64]  # [M] [visits]
    n_xi: NDArray[np.int64]  # [M] [visits] in successful trajectories
    next: Rows  # [M] row index of the successor of each remaining node; -1 without one


def remerge(nodes: StoredNodes, *, delta: float, config: MemoryConfig, at_any_distance: bool = False) -> MergedNodes:
    """Merge stored nodes as if they were written with another delta.

    Args:
        nodes: The stored memory.
        delta: Merge radius, > 0, in the space of `config.delta_space`.
        config: Space and metric of the distance, and options of Algorithm 2; its delta is not read.
        at_any_distance: If no node is within delta, a lookup returns the nearest node (`on_miss = "nearest"`).

    Raises:
        ValueError: If delta is not positive and finite, or an embedding is not finite.
    """
    if not 0 < delta < np.inf:
        raise ValueError(f"delta must be positive and finite, got {delta}")
    check_shape("embedding", nodes.embedding, (len(nodes.h), None))
    if not np.isfinite(nodes.embedding).all():
        raise ValueError("embeddings must be finite")
    if not len(nodes.h):
        empty = np.zeros(0, np.int64)
        return MergedNodes(empty, empty, nodes.h, nodes.xi, nodes.n_call, nodes.n_xi, empty)
    write_order = np.lexsort((-nodes.t.astype(np.int64), nodes.episode))
    position_in_order = np.empty_like(write_order)
    position_in_order[write_order] = np.arange(len(write_order))
    scaling = identity_scaling(nodes.embedding.shape[1])
    if config.delta_space != "raw":
        scaling = measure_scaling(nodes.embedding)
    z = np.ascontiguousarray(scaling.apply(nodes.embedding))[write_order]
    index = grid.GridIndex(CELL_SHARE * delta, config.delta_metric)
    index.build(z.copy(), size=0)
    h, xi = nodes.h[write_order], nodes.xi[write_order]
    n_call, n_xi = nodes.n_call[write_order], nodes.n_xi[write_order]
    link = np.where(nodes.next >= 0, position_in_order[nodes.next], NO_ROW)[write_order]
    rules = (
        config.shift_on_success,
        config.shift_keep_max,
        config.reset_counts_on_shift,
        config.link_update == "on_improve",
    )
    node = _merge_rows(index.cells(delta), rules, z, h, xi, n_call, n_xi, link)
    link = np.where(link >= 0, node[link], NO_ROW)
    nearest = _find_nearest(index, z, node, delta=delta, at_any_distance=at_any_distance)
    original_row = np.append(write_order, NO_ROW)  # so that original_row[-1] is NO_ROW
    return MergedNodes(
        node=original_row[node][position_in_order],
        nearest=original_row[nearest][position_in_order],
        h=h[position_in_order],
        xi=xi[position_in_order],
        n_call=n_call[position_in_order],
        n_xi=n_xi[position_in_order],
        next=original_row[link][position_in_order],
    )


def _find_nearest(index: grid.GridIndex, z: Points, node: Rows, *, delta: float, at_any_distance: bool) -> Rows:
    """Find the remaining node nearest to the original position of each state.

    A node can move in a merge, so the node that a state merged into is not always the nearest one.
    """
    nearest = np.arange(len(z))  # a node that remains and did not move finds itself
    to_search = np.flatnonzero((node != nearest) | (index.z != z).any(axis=1))
    nearest[to_search] = index.query(z[to_search], reach=delta)[0]
    misses = np.flatnonzero(nearest < 0)
    if at_any_distance and len(misses):
        remaining = np.flatnonzero(node == np.arange(len(node)))
        tree = CKDTreeIndex("linf" if index.is_linf else "l2")
        tree.build(index.z[remaining])
        nearest[misses] = remaining[tree.query(z[misses])[0]]
    return nearest


@njit(cache=True, nogil=True)
def _merge_rows(
    cells: grid.Cells,
    rules: tuple[bool, bool, bool, bool],
    z: NDArray[Any],
    h: NDArray[Any],
    xi: NDArray[Any],
    n_call: NDArray[Any],
    n_xi: NDArray[Any],
    link: NDArray[Any],
) -> NDArray[Any]:  # pragma: no cover  # compiled
    """Merge rows in place, in the order in which they were written; return [M], the row of each row's node."""
    can_shift, keep_max, reset_counts, link_on_improve = rules
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
        shifts = xi[row] and not xi[into] and can_shift
        improves = shifts or h[into] < h[row]
        if improves:
            h[into] = max(h[into], h[row]) if shifts and keep_max else h[row]
        xi[into] |= xi[row]
        if shifts:
            if reset_counts:
                n_call[into], n_xi[into] = n_call[row], n_xi[row]
            grid.remove(cells, into)
            for i in range(z.shape[1]):
                cells.z[into, i] = z[row, i]
            grid.insert(cells, into)
        if improves or not link_on_improve:
            link[into] = link[row]
    return node
