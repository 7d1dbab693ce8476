"""The node table in a checkpoint, and what must be true of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from emtc_core.errors import CheckpointError
from emtc_core.memory.nodes import NODE, NodeTable

FIELDS = NODE.names or ()


def table_state(table: NodeTable) -> dict[str, Any]:
    """Copy all nodes and their order of eviction as tensors and primitives."""
    node = table.nodes[: table.size]
    return {
        "nodes": {name: torch.from_numpy(np.ascontiguousarray(node[name])) for name in FIELDS},
        "state": torch.from_numpy(table.state[: table.size].copy()),
        "x": torch.from_numpy(table.x[: table.size].copy()),
        "order": torch.from_numpy(table.list_order()),
        "next_uid": table.next_uid,
    }


def fill_table(table: NodeTable, state: Mapping[str, Any]) -> None:
    """Restore what `table_state` copied.

    Raises:
        CheckpointError: If the nodes do not fit the table's capacity or dimensions.
    """
    size, state_dim = state["state"].shape
    dim = state["x"].shape[1]
    if size > table.capacity or state_dim != table.state.shape[1] or dim != table.x.shape[1]:
        raise CheckpointError(
            f"The checkpoint's memory has {size} nodes of {state_dim} state and {dim} embedding dimensions; this "
            f"run holds {table.capacity} of {table.state.shape[1]} and {table.x.shape[1]}. Resume with its own run.",
            reason="other_sizes",
            subject=f"{size} x {state_dim} x {dim}",
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
    """List what is wrong with the nodes, in words."""
    node, order = table.nodes[: table.size], table.list_order()
    claims = {
        f"size {table.size} exceeds capacity {table.capacity}": table.size > table.capacity,
        "a node's H is not finite": not np.isfinite(node["h"]).all(),
        "two nodes share a uid": len(np.unique(node["uid"])) != table.size,
        "a uid was never given out": bool((node["uid"] >= table.next_uid).any() or (node["uid"] < 0).any()),
        "a node was never visited": bool((node["n_call"] < 1).any()),
        "a node has more successful visits than visits": bool((node["n_xi"] > node["n_call"]).any()),
        "a node has successful visits but is undesirable": bool((~node["xi"] & (node["n_xi"] > 0)).any()),
        "a link points outside the table": bool((node["next"] >= table.size).any()),
        "the order of eviction does not list each slot once": not np.array_equal(np.sort(order), np.arange(len(node))),
    }
    return [claim for claim, is_so in claims.items() if is_so]
