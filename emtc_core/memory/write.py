"""Algorithm 2: one episode, walked backwards into nodes and index.

The walk is sequential by nature (a state may merge into the node its successor has just made or moved), so it
is one compiled loop; every lookup in it is live. Stage before: rollout and embedder; after: gate.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.config.memory import MemoryConfig
from emtc_core.memory.index import grid
from emtc_core.memory.nodes import Int, append_newest
from emtc_core.memory.nodes import remove as remove_from_order

NONE = -1


class Columns(NamedTuple):
    """The node table's arrays."""

    nodes: Any  # NDArray of NODE; compiled code reads fields as attributes
    state: NDArray[Any]
    x: NDArray[Any]
    z: NDArray[Any]
    order: NDArray[Any]
    ends: NDArray[Any]


class Index(NamedTuple):
    """The grid that lookups see: the live one, or the frozen one of `index = "stale_target_update"`."""

    cells: grid.Cells
    uid: NDArray[Any]  # of the frozen nodes; empty for the live grid
    is_live: bool


class Path(NamedTuple):
    """The states to store, in time order; `reward` and `xi` hold one value per state."""

    state: NDArray[Any]
    x: NDArray[Any]
    z: NDArray[Any]
    q: NDArray[Any]  # z in the scaling of the index, which a frozen index keeps
    reward: NDArray[Any]
    xi: NDArray[Any]


class Rules(NamedTuple):
    """Options of Algorithm 2; see MemoryConfig."""

    gamma: float
    backprop_desirability: bool
    init_desirability: bool
    reset_counts_on_shift: bool
    shift_keep_max: bool
    link_on_improve: bool
    is_lru: bool


def make_rules(config: MemoryConfig, gamma: float) -> Rules:
    """Pick the options that the walk reads."""
    return Rules(
        gamma=float(gamma),
        backprop_desirability=config.backprop_desirability,
        init_desirability=config.init_desirability,
        reset_counts_on_shift=config.reset_counts_on_shift,
        shift_keep_max=config.shift_keep_max,
        link_on_improve=config.link_update == "on_improve",
        is_lru=config.evict == "lru",
    )


@njit(cache=True, nogil=True)
def write_backwards(
    columns: Columns, index: Index, path: Path, rules: Rules, size: int, next_uid: int, episode: int
) -> tuple[NDArray[Any], int, int, int]:  # pragma: no cover  # compiled
    """Write a path; return (slots, new size, next uid, merged states).

    A slot is -1 where the node of that state was evicted again before the walk ended, which takes a memory
    smaller than the episode.
    """
    rows = len(path.reward)
    slots = np.empty(rows, np.int64)
    uids = np.empty(rows, np.int64)
    value, merged = 0.0, 0
    successor = successor_uid = np.int64(NONE)
    is_desirable = False
    for row in range(rows - 1, -1, -1):
        value = path.reward[row] + rules.gamma * value
        xi = path.xi[row] or is_desirable
        slot = _find(columns, index, path.q[row])
        if slot >= 0:
            merged += 1
            if rules.backprop_desirability and columns.nodes[slot].xi:
                is_desirable = True  # for the earlier states; this one keeps its own flag (A4)
            _merge(columns, index, path, rules, slot, row, value, xi, episode, successor, successor_uid)
        else:
            slot = _claim(columns, index, size)
            size += slot == size
            _fill(columns, index, path, rules, slot, row, value, xi, episode, next_uid)
            _link(columns, slot, successor, successor_uid, path.reward[row])
            next_uid += 1
        slots[row], uids[row] = slot, columns.nodes[slot].uid
        successor, successor_uid = slot, uids[row]
    for row in range(rows):
        if columns.nodes[slots[row]].uid != uids[row]:
            slots[row] = NONE
    return slots, size, next_uid, merged


@njit(cache=True, nogil=True, forceinline=True)
def _find(columns: Columns, index: Index, point: NDArray[Any]) -> Int:  # pragma: no cover  # compiled
    slot, _ = grid.nearest(index.cells, point)
    if slot >= 0 and not index.is_live and columns.nodes[slot].uid != index.uid[slot]:
        return NONE
    return slot


@njit(cache=True, nogil=True, forceinline=True)
def _merge(
    columns: Columns,
    index: Index,
    path: Path,
    rules: Rules,
    slot: Int,
    row: Int,
    value: float,
    xi: bool,
    episode: Int,
    successor: Int,
    successor_uid: Int,
) -> None:  # pragma: no cover  # compiled
    node = columns.nodes[slot]
    node.n_call += 1
    node.n_xi += xi
    shifts = xi and not node.xi
    improves = shifts or node.h < value
    if shifts:
        node.xi = True
        node.h = max(node.h, value) if rules.shift_keep_max else value
        if rules.reset_counts_on_shift:
            node.n_call, node.n_xi = 1, 1
        if index.is_live:
            grid.remove(index.cells, slot)
        _stand(columns, path, slot, row, episode)
        if index.is_live:
            grid.insert(index.cells, slot)
    elif improves:
        node.h = value
    if improves or not rules.link_on_improve:
        _link(columns, slot, successor, successor_uid, path.reward[row])
    if rules.is_lru:
        remove_from_order(columns.order, columns.ends, slot)
        append_newest(columns.order, columns.ends, slot)


@njit(cache=True, nogil=True, forceinline=True)
def _claim(columns: Columns, index: Index, size: Int) -> Int:  # pragma: no cover  # compiled
    """Take the next free slot, or the one that is first to leave."""
    if size < len(columns.nodes):
        return size
    slot = columns.ends[0]
    remove_from_order(columns.order, columns.ends, slot)
    if index.is_live:
        grid.remove(index.cells, slot)
    return slot


@njit(cache=True, nogil=True, forceinline=True)
def _fill(
    columns: Columns,
    index: Index,
    path: Path,
    rules: Rules,
    slot: Int,
    row: Int,
    value: float,
    xi: bool,
    episode: Int,
    uid: Int,
) -> None:  # pragma: no cover  # compiled
    node = columns.nodes[slot]
    node.h = value
    node.uid = uid
    node.xi = xi
    node.n_call = 1
    node.n_xi = xi and rules.init_desirability
    _stand(columns, path, slot, row, episode)
    if index.is_live:
        grid.insert(index.cells, slot)
    append_newest(columns.order, columns.ends, slot)


@njit(cache=True, nogil=True, forceinline=True)
def _stand(columns: Columns, path: Path, slot: Int, row: Int, episode: Int) -> None:  # pragma: no cover  # compiled
    """Let the path's state stand in the node."""
    columns.nodes[slot].episode = episode
    columns.nodes[slot].t = row
    for i in range(path.state.shape[1]):  # loops: a slice assignment compiles for seconds
        columns.state[slot, i] = path.state[row, i]
    for i in range(path.x.shape[1]):
        columns.x[slot, i] = path.x[row, i]
        columns.z[slot, i] = path.z[row, i]


@njit(cache=True, nogil=True, forceinline=True)
def _link(
    columns: Columns, slot: Int, successor: Int, successor_uid: Int, reward: float
) -> None:  # pragma: no cover  # compiled
    columns.nodes[slot].next = successor
    columns.nodes[slot].next_uid = successor_uid
    columns.nodes[slot].reward = reward
