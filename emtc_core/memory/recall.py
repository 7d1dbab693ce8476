"""Reading the episodic memory: slots → values. Nothing here changes a value or a count.

Stage before: write or find, which give slots; after: gate and incentive.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.memory.nodes import NodeTable

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
    node = table.nodes[: table.size]
    link = table.list_successors()
    delta = np.abs(node["reward"].astype(np.float64) + gamma * node["h"][link] - node["h"])
    return np.where(link >= 0, delta, np.nan)
