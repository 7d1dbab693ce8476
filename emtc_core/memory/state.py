"""State of the node table for a checkpoint, and the check of its invariants."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from emtc_core.errors import CheckpointError
from emtc_core.memory.nodes import NODE, NodeTable

FIELDS = NODE.names or ()


def table_state(table: NodeTable) -> dict[str, Any]:
    """Copy all nodes and the eviction order, as tensors and plain values."""
    node = table.nodes[: table.size]
    return {
        "nodes": {name: torch.from_numpy(np.ascontiguousarray(node[name])) for name in FIELDS},
        "state": torch.from_numpy(table.state[: table.size].copy()),
        "x": torch.from_numpy(table.x[: table.size].copy()),
        "order": torch.from_numpy(table.list_order()),
        "next_uid": table.next_uid,
    }


def fill_table(table: NodeTable, state: Mapping[str, Any]) -> None:
    """Restore the result of `table_state`.

    Raises:
        CheckpointError: If the nodes do not fit the table's capacity or dimensions.
    """
    size, state_dim = state["state"].shape
    dim = state["x"].shape[1]
    if size > table.capacity or state_dim != table.state.shape[1] or dim != table.x.shape[1]:
        raise CheckpointError(
            f"The checkpoint's memory has {size} nodes of {state_dim} state and {dim} embedding dimensions; this "
            f"run has {table.capacity} of {table.state.shape[1]} and {table.x.shape[1]}. Resume the checkpoint's run."
        )
    table.size = 0
    table.reserve(size)
    table.size, table.next_uid = size, state["next_uid"]
    for name in FIELDS:
        table.nodes[name][:size] = state["nodes"][name].numpy()
    table.state[:size] = state["state"].numpy()
    table.set_embeddings(state["x"].numpy())
    table.set_order(state["order"].numpy())


def list_table_faults(table: NodeTable) -> list[str]:
    """List the broken invariants of the nodes, as sentences."""
    node, order = table.nodes[: table.size], table.list_order()
    faults = {
        f"size {table.size} exceeds capacity {table.capacity}": table.size > table.capacity,
        "a node's H is not finite": not np.isfinite(node["h"]).all(),
        "two nodes share a uid": len(np.unique(node["uid"])) != table.size,
        "a uid was never assigned": bool((node["uid"] >= table.next_uid).any() or (node["uid"] < 0).any()),
        "a node was never visited": bool((node["n_call"] < 1).any()),
        "a node has more successful visits than visits": bool((node["n_xi"] > node["n_call"]).any()),
        "a node has successful visits but is undesirable": bool((~node["xi"] & (node["n_xi"] > 0)).any()),
        "a link points outside the table": bool((node["next"] >= table.size).any()),
        "the eviction order does not contain each slot once": not np.array_equal(np.sort(order), np.arange(len(node))),
    }
    return [fault for fault, is_broken in faults.items() if is_broken]
