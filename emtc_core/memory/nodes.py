"""The node table of the episodic memory: columns, eviction order, and reading by slot.

A node has a slot; slots 0 … size-1 are always occupied. A node also has a unique uid, so that a reused slot can be
recognized. The columns grow geometrically up to the capacity. The eviction order is a doubly linked list of slots, so
that an access and an eviction take O(1).

`H` is float64, so that a recorded delta_mem can be recomputed exactly from the recorded values. A recall reads values
by slot and changes no value and no count. Slots come from a write or a lookup; gate and incentive read the values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

NODE = np.dtype(
    [
        ("h", "f8"),  # highest discounted return, learner's unit
        ("uid", "i8"),
        ("next", "i8"),  # slot of the successor, -1: none
        ("next_uid", "i8"),  # uid of the successor; if the slot has another uid now, the link is not valid (A18)
        ("episode", "i8"),  # episode of the node's state
        ("t", "i4"),  # time step of the node's state
        ("n_call", "i4"),  # visits
        ("n_xi", "i4"),  # visits in successful trajectories
        ("reward", "f4"),  # reward of the transition to `next`, learner's unit
        ("xi", "b1"),  # success flag
    ],
    align=True,
)
Int = int | np.signedinteger[Any]  # integer argument of compiled code
Slots = NDArray[np.int64]
INITIAL_ROWS = 1024
NONE = -1


class NodeTable:
    """Columns of all nodes. Rows from `size` on are not used yet."""

    def __init__(self, *, capacity: int, state_dim: int, dim: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.next_uid = 0
        rows = min(INITIAL_ROWS, capacity)
        self.nodes = np.zeros(rows, NODE)
        self.state = np.zeros((rows, state_dim), np.float32)
        self.x: NDArray[np.float32 | np.float64] = np.zeros((rows, dim), np.float32)  # embeddings
        self.z = np.zeros((rows, dim))  # scaled embeddings; delta is tested on these
        self.order = np.full((rows, 2), NONE, np.int32)  # next older slot, next newer slot
        self.ends = np.full(2, NONE, np.int64)  # oldest slot, newest slot

    def reserve(self, more: int) -> None:
        """Grow the columns for `more` further nodes, at most to the capacity."""
        needed = min(self.size + more, self.capacity)
        rows = len(self.nodes)
        if needed <= rows:
            return
        rows = min(max(needed, rows + rows // 2), self.capacity)
        self.nodes = _copy_with_rows(self.nodes, rows)
        self.state = _copy_with_rows(self.state, rows)
        self.x = _copy_with_rows(self.x, rows)
        self.z = _copy_with_rows(self.z, rows)
        self.order = _copy_with_rows(self.order, rows)

    def set_embeddings(self, x: NDArray[np.float32 | np.float64]) -> None:
        """Replace all embeddings. Later embeddings are stored with the same dtype.

        Source: the re-projection of Algorithm 1.

        Args:
            x: [M, X] [embedding], float32 or float64.
        """
        if x.dtype != self.x.dtype:
            self.x = np.zeros(self.x.shape, x.dtype)
        self.x[: self.size] = x

    def list_order(self) -> NDArray[np.int64]:
        """List all slots, the next to be evicted first.

        Source: implementation detail.

        Returns:
            [M], slot indices.
        """
        return _walk_order(self.order, self.ends, self.size)

    def set_order(self, slots: NDArray[np.int64]) -> None:
        """Restore the eviction order from the result of `list_order`.

        Source: implementation detail.

        Args:
            slots: [M], slot indices.
        """
        self.ends[:] = NONE
        _append_all(self.order, self.ends, slots)

    def list_successors(self) -> NDArray[np.int64]:
        """List the successor of every node (idx_next of Algorithm 2).

        Returns:
            [M], slot indices; NONE if there is no successor or it was evicted.
        """
        return self.follow(np.arange(self.size))

    def follow(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Follow idx_next of Algorithm 2.

        Args:
            slots: Slot indices, any shape.

        Returns:
            Slot indices, same shape; NONE for NONE, and if there is no valid link.
        """
        link = np.where(slots >= 0, self.nodes["next"][slots], NONE)
        is_valid = (link >= 0) & (self.nodes["uid"][link] == self.nodes["next_uid"][slots])
        return np.where(is_valid, link, NONE)


def _copy_with_rows(column: NDArray[np.generic], rows: int) -> NDArray[Any]:
    copy = np.zeros((rows, *column.shape[1:]), column.dtype)
    copy[: len(column)] = column
    return copy


@njit(cache=True, nogil=True)
def append_newest(order: NDArray[Any], ends: NDArray[Any], slot: Int) -> None:  # pragma: no cover  # compiled
    """Append a slot that is not in the list to the newest end.

    Source: a doubly linked list.

    Args:
        order: [C, 2], C allocated rows: next older and next newer slot index of each slot.
        ends: [2], oldest and newest slot index.
        slot: The slot to append.
    """
    newest = ends[1]
    order[slot, 0] = newest
    order[slot, 1] = NONE
    if newest >= 0:
        order[newest, 1] = slot
    else:
        ends[0] = slot
    ends[1] = slot


@njit(cache=True, nogil=True)
def remove_slot(order: NDArray[Any], ends: NDArray[Any], slot: Int) -> None:  # pragma: no cover  # compiled
    """Remove a slot from the list.

    Source: a doubly linked list.

    Args:
        order: [C, 2], C allocated rows: next older and next newer slot index of each slot.
        ends: [2], oldest and newest slot index.
        slot: The slot to remove.
    """
    older, newer = order[slot, 0], order[slot, 1]
    if older >= 0:
        order[older, 1] = newer
    else:
        ends[0] = newer
    if newer >= 0:
        order[newer, 0] = older
    else:
        ends[1] = older


@njit(cache=True, nogil=True)
def move_to_newest(
    order: NDArray[Any], ends: NDArray[Any], slots: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Move slots to the newest end, one after the other; negative slots are skipped.

    Source: a doubly linked list.

    Args:
        order: [C, 2], C allocated rows: next older and next newer slot index of each slot.
        ends: [2], oldest and newest slot index.
        slots: [K], slot indices.
    """
    for slot in slots:
        if slot >= 0 and ends[1] != slot:
            remove_slot(order, ends, slot)
            append_newest(order, ends, slot)


@njit(cache=True, nogil=True)
def _append_all(order: NDArray[Any], ends: NDArray[Any], slots: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    for slot in slots:
        append_newest(order, ends, slot)


@njit(cache=True, nogil=True)
def _walk_order(order: NDArray[Any], ends: NDArray[Any], size: Int) -> NDArray[Any]:  # pragma: no cover  # compiled
    slots = np.empty(size, np.int64)
    slot = ends[0]
    for i in range(size):
        slots[i] = slot
        slot = order[slot, 1]
    return slots


@dataclass(frozen=True)
class Recall:
    """Values of nodes, arrays of one shape. At a miss h is NaN, the counts are 0, xi and hit are False.

    Source: H, N_call, N_xi and xi of Algorithm 2.
    """

    h: NDArray[np.float64]  # [return], in the learner's unit
    n_call: NDArray[np.int32]  # [visits]
    n_xi: NDArray[np.int32]  # [visits] in successful trajectories
    xi: NDArray[np.bool_]  # boolean, success flag
    hit: NDArray[np.bool_]  # boolean, whether the slot has a node with the given uid


def recall(table: NodeTable, slots: Slots, uids: Slots | None = None) -> Recall:
    """Read nodes by slot.

    Source: H, N_call, N_xi and xi of Algorithm 2.

    Args:
        table: The nodes.
        slots: Slot indices, any shape; -1 is a miss.
        uids: Expected uids, same shape, dimensionless; a slot whose node has another uid is a miss. None: no check.
    """
    flat = np.ascontiguousarray(slots, np.int64).ravel()
    expected = flat if uids is None else np.ascontiguousarray(uids, np.int64).ravel()
    columns = _read_nodes(table.nodes, flat, expected, uids is not None)
    h, n_call, n_xi, xi, hit = (column.reshape(slots.shape) for column in columns)
    return Recall(h, n_call, n_xi, xi, hit)


@njit(cache=True, nogil=True)
def _read_nodes(
    nodes: Any, slots: NDArray[Any], uids: NDArray[Any], checks_uids: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:  # pragma: no cover  # compiled
    """Read h, n_call, n_xi, xi and hit of nodes [K] in one pass."""
    h = np.full(len(slots), np.nan)
    n_call, n_xi = np.zeros(len(slots), np.int32), np.zeros(len(slots), np.int32)
    xi, hit = np.zeros(len(slots), np.bool_), np.zeros(len(slots), np.bool_)
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0 or (checks_uids and nodes[slot].uid != uids[i]):
            continue
        node = nodes[slot]
        h[i], n_call[i], n_xi[i], xi[i], hit[i] = node.h, node.n_call, node.n_xi, node.xi, True
    return h, n_call, n_xi, xi, hit


@njit(cache=True, nogil=True)
def keep_unchanged(
    nodes: Any, slots: NDArray[Any], uids: NDArray[Any], length: NDArray[Any], episode: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:  # pragma: no cover  # compiled
    """Keep the slots whose nodes still have the state of the step for which the slot was stored.

    Source: implementation detail.

    Args:
        nodes: [C] array of NODE.
        slots: [K, T+1], slot indices of the states of K episodes; -1 for none.
        uids: [K, T+1], uids of the nodes when the slots were stored, dimensionless.
        length: [K], transitions of the episodes [steps].
        episode: [K], episode numbers, dimensionless.

    Returns:
        Slot indices [K, T+1], -1 where the node has another state; and a boolean [K, T+1], True for the states of the
        episodes without an unchanged node.
    """
    unchanged, is_missing = np.full(slots.shape, NONE), np.zeros(slots.shape, np.bool_)
    for row in range(slots.shape[0]):
        for t in range(length[row] + 1):
            slot = slots[row, t]
            is_missing[row, t] = True
            if slot < 0 or nodes[slot].uid != uids[row, t]:
                continue
            if nodes[slot].t == t and nodes[slot].episode == episode[row]:
                unchanged[row, t], is_missing[row, t] = slot, False
    return unchanged, is_missing


@dataclass(frozen=True)
class NodeColumns:
    """Every stored node, one row each [M], in slot order.

    Source: the nodes of Algorithm 2.
    """

    slot: Slots  # [M] slot indices
    uid: Slots  # [M] uids, dimensionless
    embedding: NDArray[np.float32]  # [M, X] [embedding], not scaled; rounded if the memory has float64 embeddings
    h: NDArray[np.float64]  # [M] [return], in the learner's unit
    xi: NDArray[np.bool_]  # [M] boolean, success flag
    n_call: NDArray[np.int32]  # [M] [visits]
    n_xi: NDArray[np.int32]  # [M] [visits] in successful trajectories
    t: NDArray[np.int32]  # [M] time step of the state [steps]
    reward: NDArray[np.float32]  # [M] [reward] of the transition to idx_next; 0 at a terminal state
    idx_next: Slots  # [M] slot index of the successor; -1 without one
    episode: NDArray[np.int64]  # [M] episode of the node's state, dimensionless


def copy_columns(table: NodeTable) -> NodeColumns:
    """Copy all columns except the states, which need the most memory. Another thread may use the copy."""
    node = table.nodes[: table.size]
    columns = {name: np.ascontiguousarray(node[name]) for name in ("uid", "h", "xi", "n_call", "n_xi", "t", "reward")}
    return NodeColumns(
        slot=np.arange(table.size),
        embedding=table.x[: table.size].astype(np.float32),
        idx_next=table.list_successors(),
        episode=np.ascontiguousarray(node["episode"]),
        **columns,
    )


def delta_along_links(table: NodeTable, gamma: float) -> NDArray[np.float64]:
    """Compute |reward + gamma H(next) - H| of every node [M] (Eq. 7) [return]; NaN without a successor."""
    reward, h, h_next = values_along_links(table)
    return np.abs(reward + gamma * h_next - h)


def values_along_links(table: NodeTable) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Read the three terms of the consistency error of every node (Eq. 7).

    Returns:
        Reward [M] [reward], H [M] [return] and H of the successor [M] [return]; the last is NaN without a successor.
    """
    node = table.nodes[: table.size]
    link = table.list_successors()
    return node["reward"].astype(np.float64), node["h"].copy(), np.where(link >= 0, node["h"][link], np.nan)
