"""Columns of all nodes of the episodic memory, their identity, the order in which they leave, and how they are read.

A node lives in a slot; slots 0 … size-1 are always occupied. A uid names the node itself, so a slot that was
evicted and reused is told apart from what it was. Columns grow geometrically up to the capacity. The order
of eviction is a doubly linked list over slots: touching and evicting are O(1).

`H` is float64, so that a recorded delta_mem can be recomputed from the recorded values alone. A recall, slots →
values, changes no value and no count; before it stand write or find, which give slots, after it gate and incentive.
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
        ("next_uid", "i8"),  # uid the successor had; another one there now means no successor (A18)
        ("episode", "i8"),  # episode of the state that stands in the node
        ("t", "i4"),  # its time step
        ("n_call", "i4"),
        ("n_xi", "i4"),
        ("reward", "f4"),  # reward of the transition behind `next`
        ("xi", "b1"),
    ],
    align=True,
)
Int = int | np.signedinteger[Any]  # what compiled code takes for an integer
FIRST_ROWS = 1024
NONE = -1


class NodeTable:
    """Columns of all nodes; rows past `size` are unused room."""

    def __init__(self, *, capacity: int, state_dim: int, dim: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.next_uid = 0
        rows = min(FIRST_ROWS, capacity)
        self.nodes = np.zeros(rows, NODE)
        self.state = np.zeros((rows, state_dim), np.float32)
        self.x: NDArray[np.float32 | np.float64] = np.zeros((rows, dim), np.float32)  # as embedded
        self.z = np.zeros((rows, dim))  # in the space where delta is tested
        self.order = np.full((rows, 2), NONE, np.int32)  # neighbors towards the oldest, the newest
        self.ends = np.full(2, NONE, np.int64)  # oldest, newest

    def reserve(self, more: int) -> None:
        """Make room for `more` further nodes, or up to the capacity."""
        needed = min(self.size + more, self.capacity)
        rows = len(self.nodes)
        if needed <= rows:
            return
        rows = min(max(needed, rows + rows // 2), self.capacity)
        self.nodes = _grown(self.nodes, rows)
        self.state = _grown(self.state, rows)
        self.x = _grown(self.x, rows)
        self.z = _grown(self.z, rows)
        self.order = _grown(self.order, rows)

    def set_embeddings(self, x: NDArray[np.float32 | np.float64]) -> None:
        """Replace all embeddings [size, X]; those to come are kept in the same precision."""
        if x.dtype != self.x.dtype:
            self.x = np.zeros(self.x.shape, x.dtype)
        self.x[: self.size] = x

    def list_order(self) -> NDArray[np.int64]:
        """List all slots from the next to be evicted to the last."""
        return _walk_order(self.order, self.ends, self.size)

    def set_order(self, slots: NDArray[np.int64]) -> None:
        """Restore the order of eviction that `list_order` gave."""
        self.ends[:] = NONE
        _append_all(self.order, self.ends, slots)

    def list_successors(self) -> NDArray[np.int64]:
        """Follow every node's link [size]; NONE where there is none or its node is gone."""
        return self.follow(np.arange(self.size))

    def follow(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Follow the links of some nodes, any shape; NONE stays NONE."""
        link = np.where(slots >= 0, self.nodes["next"][slots], NONE)
        intact = (link >= 0) & (self.nodes["uid"][link] == self.nodes["next_uid"][slots])
        return np.where(intact, link, NONE)


def largest_table(nodes: int, *, capacity: int) -> int:
    """Bound the rows of a table that was grown by `reserve` for this many states, merged ones included."""
    return min(max(FIRST_ROWS, nodes + nodes // 2), capacity)


def _grown(column: NDArray[np.generic], rows: int) -> NDArray[Any]:
    grown = np.zeros((rows, *column.shape[1:]), column.dtype)
    grown[: len(column)] = column
    return grown


@njit(cache=True, nogil=True)
def append_newest(order: NDArray[Any], ends: NDArray[Any], slot: Int) -> None:  # pragma: no cover  # compiled
    """Put a slot that is not in the list at its newest end."""
    newest = ends[1]
    order[slot, 0] = newest
    order[slot, 1] = NONE
    if newest >= 0:
        order[newest, 1] = slot
    else:
        ends[0] = slot
    ends[1] = slot


@njit(cache=True, nogil=True)
def remove(order: NDArray[Any], ends: NDArray[Any], slot: Int) -> None:  # pragma: no cover  # compiled
    """Take a slot out of the list."""
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
def touch_all(order: NDArray[Any], ends: NDArray[Any], slots: NDArray[Any]) -> None:  # pragma: no cover  # compiled
    """Make slots the newest, one after the other; negative ones are skipped."""
    for slot in slots:
        if slot >= 0 and ends[1] != slot:
            remove(order, ends, slot)
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


Slots = NDArray[np.int64]


@dataclass(frozen=True)
class Recall:
    """Values of some nodes, arrays of one shape; a miss has h NaN, counts 0, xi and hit False."""

    h: NDArray[np.float64]  # learner's return unit
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    xi: NDArray[np.bool_]
    hit: NDArray[np.bool_]


def recall(table: NodeTable, slots: Slots, uids: Slots | None = None) -> Recall:
    """Read nodes by slot.

    Args:
        table: The nodes.
        slots: Any shape; -1 is a miss.
        uids: Same shape; a slot whose node has another uid by now is a miss.
    """
    hit = slots >= 0
    node = table.nodes[np.where(hit, slots, 0)]
    if uids is not None:
        hit &= node["uid"] == uids
    return Recall(
        h=np.where(hit, node["h"], np.nan),
        n_call=np.where(hit, node["n_call"], 0).astype(np.int32),
        n_xi=np.where(hit, node["n_xi"], 0).astype(np.int32),
        xi=node["xi"] & hit,
        hit=hit,
    )


@dataclass(frozen=True)
class NodeColumns:
    """Every stored node, one row each [M], in slot order."""

    slot: Slots
    uid: Slots
    embedding: NDArray[np.float32]  # [M, X] as embedded, not scaled; rounded where the memory keeps float64
    h: NDArray[np.float64]
    xi: NDArray[np.bool_]
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    t: NDArray[np.int32]
    reward: NDArray[np.float32]  # of the transition behind idx_next; 0 at a terminal state
    idx_next: Slots  # -1: none
    episode: NDArray[np.int64]


def copy_columns(table: NodeTable) -> NodeColumns:
    """Copy all nodes but their states, which are by far the largest; safe to hand to another thread."""
    node = table.nodes[: table.size]
    copied = {name: np.ascontiguousarray(node[name]) for name in ("uid", "h", "xi", "n_call", "n_xi", "t", "reward")}
    return NodeColumns(
        slot=np.arange(table.size),
        embedding=table.x[: table.size].astype(np.float32),
        idx_next=table.list_successors(),
        episode=np.ascontiguousarray(node["episode"]),
        **copied,
    )


def delta_along_links(table: NodeTable, gamma: float) -> NDArray[np.float64]:
    """|reward + gamma H(next) - H| of every node [M]; NaN where there is no successor."""
    reward, h, h_next = values_along_links(table)
    return np.abs(reward + gamma * h_next - h)


def values_along_links(table: NodeTable) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Reward, H and H(next) of every node [M]; H(next) is NaN where there is no successor."""
    node = table.nodes[: table.size]
    link = table.list_successors()
    return node["reward"].astype(np.float64), node["h"].copy(), np.where(link >= 0, node["h"][link], np.nan)
