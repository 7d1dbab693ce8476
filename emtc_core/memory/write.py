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
from emtc_core.memory.nodes import Int, append_newest
from emtc_core.memory.nodes import remove as remove_from_order

NONE = -1


class Columns(NamedTuple):
    """The node table's arrays with C allocated rows, of which the first ones are occupied.

    Source: the nodes of Algorithm 2.
    """

    nodes: Any  # [C] array of NODE; compiled code reads fields as attributes
    state: NDArray[Any]  # [C, S] [state features]
    x: NDArray[Any]  # [C, X] [embedding]
    z: NDArray[Any]  # [C, X] [normalized embedding]
    order: NDArray[Any]  # [C, 2] next older and next newer slot index
    ends: NDArray[Any]  # [2] oldest and newest slot index


class Index(NamedTuple):
    """The grid for lookups: the live one, or the frozen one of `index = "stale_target_update"`.

    Source: the nearest node of Algorithm 2.
    """

    cells: grid.Cells
    uid: NDArray[Any]  # [M] uids of the frozen nodes, dimensionless; empty for the live grid
    is_live: bool


class Path(NamedTuple):
    """The R states of an episode to write, in time order: T + 1 with the terminal state, else T.

    Source: the input of Algorithm 2.
    """

    state: NDArray[Any]  # [R, S] [state features]
    x: NDArray[Any]  # [R, X] [embedding]
    z: NDArray[Any]  # [R, X] [normalized embedding]
    q: NDArray[Any]  # [R, X] [normalized embedding] in the scaling of the index; equal to z for a live index
    reward: NDArray[Any]  # [R] [reward], float64; 0 for a terminal state
    xi: NDArray[Any]  # [R] boolean, success flag of the state


class Rules(NamedTuple):
    """Options of Algorithm 2; documented in MemoryConfig."""

    gamma: float
    backprop_desirability: bool
    init_desirability: bool
    reset_counts_on_shift: bool
    shift_keep_max: bool
    link_on_improve: bool
    is_lru: bool


def make_rules(config: MemoryConfig, gamma: float) -> Rules:
    """Make the options of Algorithm 2 from the configuration."""
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
    """Write the states of an episode (Algorithm 2).

    A slot is -1 if the state's node was evicted before the end of the write. This needs a memory smaller than the
    episode.

    Args:
        columns: The node table's arrays. They are changed.
        index: The grid for lookups. A live one is changed.
        path: The R states of the episode.
        rules: Options of Algorithm 2.
        size: Number of nodes.
        next_uid: Uid of the next new node.
        episode: Number of the episode.

    Returns:
        Slot indices [R], new size, next uid, number of merged states.
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
                is_desirable = True  # for earlier states; this state's flag does not change (A4)
            _merge(columns, index, path, rules, slot, row, value, xi, episode, successor, successor_uid)
        else:
            slot = _allocate_slot(columns, index, size)
            size += slot == size
            _create_node(columns, index, path, rules, slot, row, value, xi, episode, next_uid)
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
        _set_state(columns, path, slot, row, episode)
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
def _allocate_slot(columns: Columns, index: Index, size: Int) -> Int:  # pragma: no cover  # compiled
    """Return the next free slot, or evict the oldest node and return its slot."""
    if size < len(columns.nodes):
        return size
    slot = columns.ends[0]
    remove_from_order(columns.order, columns.ends, slot)
    if index.is_live:
        grid.remove(index.cells, slot)
    return slot


@njit(cache=True, nogil=True, forceinline=True)
def _create_node(
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
    _set_state(columns, path, slot, row, episode)
    if index.is_live:
        grid.insert(index.cells, slot)
    append_newest(columns.order, columns.ends, slot)


@njit(cache=True, nogil=True, forceinline=True)
def _set_state(columns: Columns, path: Path, slot: Int, row: Int, episode: Int) -> None:  # pragma: no cover  # compiled
    """Store a state of the episode in a node."""
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
