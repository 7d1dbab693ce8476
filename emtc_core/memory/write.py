"""Algorithm 2: write one episode to nodes and index, from its last state to its first.

The loop is sequential, because a state may merge into the node that its successor has just created or moved. So it is
one compiled loop, and every lookup uses the current nodes. Stage before: rollout and embedder; after: gate.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.config.memory import MemoryConfig
from emtc_core.memory.index import grid
from emtc_core.memory.nodes import Int, append_newest, remove_slot

NONE = -1


class TableArrays(NamedTuple):
    """The node table's arrays with C allocated rows, of which the first ones are occupied.

    Source: the nodes of Algorithm 2.
    """

    nodes: Any  # [C] array of NODE; compiled code reads fields as attributes
    state: NDArray[Any]  # [C, S] [state features]
    x: NDArray[Any]  # [C, X] [embedding]
    z: NDArray[Any]  # [C, X] [normalized embedding]
    order: NDArray[Any]  # [C, 2] next older and next newer slot index
    ends: NDArray[Any]  # [2] oldest and newest slot index


class LookupIndex(NamedTuple):
    """The grid for lookups: the live one, or the stale one of `index = "stale_target_update"`.

    Source: the nearest node of Algorithm 2.
    """

    cells: grid.Cells
    uid: NDArray[Any]  # [M] uids of the stale nodes, dimensionless; empty for the live grid
    is_live: bool


class StatesToWrite(NamedTuple):
    """The R states of an episode to write, in time order: T + 1 with the terminal state, else T.

    Source: the input of Algorithm 2.
    """

    state: NDArray[Any]  # [R, S] [state features]
    x: NDArray[Any]  # [R, X] [embedding]
    z: NDArray[Any]  # [R, X] [normalized embedding]
    q: NDArray[Any]  # [R, X] [normalized embedding] in the scaling of the index; equal to z for a live index
    reward: NDArray[Any]  # [R] [reward], float64; 0 for a terminal state
    xi: NDArray[Any]  # [R] boolean, success flag of the state


class WriteOptions(NamedTuple):
    """Options of Algorithm 2; documented in MemoryConfig."""

    gamma: float
    backprop_desirability: bool
    init_desirability: bool
    shift_on_success: bool
    reset_counts_on_shift: bool
    shift_keep_max: bool
    link_on_improve: bool
    is_lru: bool


def make_write_options(config: MemoryConfig, gamma: float) -> WriteOptions:
    """Make the options of Algorithm 2 from the configuration."""
    return WriteOptions(
        gamma=float(gamma),
        backprop_desirability=config.backprop_desirability,
        init_desirability=config.init_desirability,
        shift_on_success=config.shift_on_success,
        reset_counts_on_shift=config.reset_counts_on_shift,
        shift_keep_max=config.shift_keep_max,
        link_on_improve=config.link_update == "on_improve",
        is_lru=config.evict == "lru",
    )


@njit(cache=True, nogil=True)
def write_backwards(
    table: TableArrays,
    index: LookupIndex,
    states: StatesToWrite,
    options: WriteOptions,
    size: int,
    next_uid: int,
    episode: int,
) -> tuple[NDArray[Any], int, int, int]:  # pragma: no cover  # compiled
    """Write the states of an episode (Algorithm 2).

    A slot is -1 if the state's node was evicted before the end of the write. This needs a memory smaller than the
    episode.

    Args:
        table: The node table's arrays. They are changed.
        index: The grid for lookups. A live one is changed.
        states: The R states of the episode.
        options: Options of Algorithm 2.
        size: Number of nodes.
        next_uid: Uid of the next new node.
        episode: Number of the episode.

    Returns:
        Slot indices [R], new size, next uid, number of merged states.
    """
    rows = len(states.reward)
    slots = np.empty(rows, np.int64)
    uids = np.empty(rows, np.int64)
    value, merged = 0.0, 0
    successor = successor_uid = np.int64(NONE)
    is_desirable = False
    for row in range(rows - 1, -1, -1):
        value = states.reward[row] + options.gamma * value
        xi = states.xi[row] or is_desirable
        slot = _find(table, index, states.q[row])
        if slot >= 0:
            merged += 1
            if options.backprop_desirability and table.nodes[slot].xi:
                is_desirable = True  # for earlier states; this state's flag does not change (A4)
            _merge(table, index, states, options, slot, row, value, xi, episode, successor, successor_uid)
        else:
            slot = _allocate_slot(table, index, size)
            size += slot == size
            _create_node(table, index, states, options, slot, row, value, xi, episode, next_uid)
            _link(table, slot, successor, successor_uid, states.reward[row])
            next_uid += 1
        slots[row], uids[row] = slot, table.nodes[slot].uid
        successor, successor_uid = slot, uids[row]
    for row in range(rows):
        if table.nodes[slots[row]].uid != uids[row]:
            slots[row] = NONE
    return slots, size, next_uid, merged


@njit(cache=True, nogil=True, forceinline=True)
def _find(table: TableArrays, index: LookupIndex, point: NDArray[Any]) -> Int:  # pragma: no cover  # compiled
    slot, _ = grid.nearest(index.cells, point)
    if slot >= 0 and not index.is_live and table.nodes[slot].uid != index.uid[slot]:
        return NONE
    return slot


@njit(cache=True, nogil=True, forceinline=True)
def _merge(
    table: TableArrays,
    index: LookupIndex,
    states: StatesToWrite,
    options: WriteOptions,
    slot: Int,
    row: Int,
    value: float,
    xi: bool,
    episode: Int,
    successor: Int,
    successor_uid: Int,
) -> None:  # pragma: no cover  # compiled
    node = table.nodes[slot]
    node.n_call += 1
    node.n_xi += xi
    shifts = xi and not node.xi and options.shift_on_success
    improves = shifts or node.h < value
    node.xi |= xi
    if shifts:
        node.h = max(node.h, value) if options.shift_keep_max else value
        if options.reset_counts_on_shift:
            node.n_call, node.n_xi = 1, 1
        if index.is_live:
            grid.remove(index.cells, slot)
        _set_state(table, states, slot, row, episode)
        if index.is_live:
            grid.insert(index.cells, slot)
    elif improves:
        node.h = value
    if improves or not options.link_on_improve:
        _link(table, slot, successor, successor_uid, states.reward[row])
    if options.is_lru:
        remove_slot(table.order, table.ends, slot)
        append_newest(table.order, table.ends, slot)


@njit(cache=True, nogil=True, forceinline=True)
def _allocate_slot(table: TableArrays, index: LookupIndex, size: Int) -> Int:  # pragma: no cover  # compiled
    """Return the next free slot, or evict the oldest node and return its slot."""
    if size < len(table.nodes):
        return size
    slot = table.ends[0]
    remove_slot(table.order, table.ends, slot)
    if index.is_live:
        grid.remove(index.cells, slot)
    return slot


@njit(cache=True, nogil=True, forceinline=True)
def _create_node(
    table: TableArrays,
    index: LookupIndex,
    states: StatesToWrite,
    options: WriteOptions,
    slot: Int,
    row: Int,
    value: float,
    xi: bool,
    episode: Int,
    uid: Int,
) -> None:  # pragma: no cover  # compiled
    node = table.nodes[slot]
    node.h = value
    node.uid = uid
    node.xi = xi
    node.n_call = 1
    node.n_xi = xi and options.init_desirability
    _set_state(table, states, slot, row, episode)
    if index.is_live:
        grid.insert(index.cells, slot)
    append_newest(table.order, table.ends, slot)


@njit(cache=True, nogil=True, forceinline=True)
def _set_state(
    table: TableArrays, states: StatesToWrite, slot: Int, row: Int, episode: Int
) -> None:  # pragma: no cover  # compiled
    """Store a state of the episode in a node."""
    table.nodes[slot].episode = episode
    table.nodes[slot].t = row
    for i in range(states.state.shape[1]):  # loops: a slice assignment compiles for seconds
        table.state[slot, i] = states.state[row, i]
    for i in range(states.x.shape[1]):
        table.x[slot, i] = states.x[row, i]
        table.z[slot, i] = states.z[row, i]


@njit(cache=True, nogil=True, forceinline=True)
def _link(
    table: TableArrays, slot: Int, successor: Int, successor_uid: Int, reward: float
) -> None:  # pragma: no cover  # compiled
    table.nodes[slot].next = successor
    table.nodes[slot].next_uid = successor_uid
    table.nodes[slot].reward = reward
