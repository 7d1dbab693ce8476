"""Rules of the episodic memory that matter when it is full, or when nodes move."""

from typing import Final

import streamlit as st

from app.ui.widgets.result_table import write_table

RULES: Final = (
    (
        "Use of a node",
        "`memory.evict = lru` evicts the node whose last use is the oldest. A node is used when it is created, when a "
        "state merges into it, and with `memory.lru_touch_on_read` when it is read. Reads are the gate's lookup of the "
        "states of each collected episode (also without a gate) and the read of the next states of each sampled "
        "batch. An episode is written from its last state to its first, so after a write its first state is the most "
        "recently used. Statistics, snapshots and a recomputed gate (`gate.mode = recompute`) use no node.",
    ),
    (
        "Age of a node",
        "`memory.evict = fifo` evicts the node that was created first. Merges and reads do not change the age, and a "
        "node that is moved to the state of a successful episode keeps it.",
    ),
    (
        "Links of a moved node",
        "With `memory.link_update = on_improve` the link is also replaced when a successful episode moves the node, "
        "even if H falls.",
    ),
    (
        "Normalization",
        "Mean and standard deviation are measured at the first write (over this episode), at each refit, and before a "
        "write if the nodes created since the last measurement are at least a quarter of the nodes at that time. "
        "Nodes that replaced evicted ones count, so a full memory is measured again after each quarter of its "
        "capacity. All nodes are then scaled together. In between, new nodes are scaled with the earlier values.",
    ),
    (
        "Ties",
        "Of several nodes at the same distance, a lookup returns the one with the lowest slot. An eviction has no "
        "ties: two uses are never at the same time.",
    ),
    (
        "Stale index",
        "With `memory.index = stale_target_update` a lookup is a miss if the node that it finds was evicted since the "
        "index was built, also with `gate.on_miss = nearest` and `incentive.on_miss = nearest`: then β = 0 and "
        "r_p = 0.",
    ),
    (
        "Evicted nodes in the replay buffer",
        "The buffer stores the node of each state. Once this node is evicted, the incentive of the state is 0 until "
        "the next refit, when it is searched again; with `embed.type = random` there is no refit. "
        "`memory.on_evicted = search` searches these states at each update that reads them. In runs with a full memory "
        "4 to 12 % of the reads would have found another node within δ. With 100,000 nodes, the search of a tenth of a "
        "batch took no longer than the read of the batch (`python -m tests.bench memory` measures it as "
        "`memory.search_evicted_ms`). The default is `miss`, with which both example studies were trained. A stale "
        "index is searched again at each target update; between two of them a search finds the same evicted node, so "
        "the setting has no effect there.",
    ),
    (
        "Runs without a gate",
        "With `gate.enabled = false` no β is recorded: not for transitions, links or snapshots.",
    ),
)


def show() -> None:
    """Draw the rules."""
    st.markdown("##### A full memory")
    st.markdown(write_table(("Topic", "Rule"), RULES))
