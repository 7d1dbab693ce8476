"""Texts about samples: how many nodes of a memory a snapshot contains, and what is known about the whole memory.

A snapshot is the episodic memory of a run at one env step; a node is one stored state. The snapshots in a bundle, a
file of exported runs, may be samples of the nodes. `Snapshot.whole` then has the recorded numbers of the whole memory.
"""

from math import isfinite

import numpy as np

from app.analysis.format import format_count, format_number, format_percent
from storage.queries.memory import Snapshot

NEEDS_WHOLE = "a whole snapshot, but this one is a sample of the memory"
"""End of an error message "… needs": for a computation that is not possible with a sample."""


def count_nodes(n: int, snapshot: Snapshot) -> str:
    """Write a number of nodes with the size of the whole memory: "5,989 of 970,657 nodes".

    The size is a lower bound if it was counted before the snapshot, see `storage.queries.memory.WholeMemory`.
    """
    whole = snapshot.whole
    if whole is None:
        return f"{format_count(n)} of {format_count(snapshot.size)} nodes"
    at_least = "" if whole.env_step == snapshot.env_step else "at least "
    return f"{format_count(n)} of {at_least}{format_count(whole.size)} nodes"


def describe_sample(snapshot: Snapshot) -> str:
    """Write from how many episodes the sample is: "a sample from 37 of 8,612 episodes"; empty for a whole snapshot."""
    if snapshot.whole is None:
        return ""
    n_episodes = len(np.unique(snapshot.episode))
    return f"a sample from {format_count(n_episodes)} of {format_count(snapshot.whole.n_episodes)} episodes"


def describe_nodes(n: int, snapshot: Snapshot) -> str:
    """Write a number of nodes and what they are a sample of: "5,989 of 970,657 nodes, a sample from …"."""
    return ", ".join(filter(None, (count_nodes(n, snapshot), describe_sample(snapshot))))


def explain_sample(snapshot: Snapshot) -> str:
    """Write the sentence about the sample for a caption; empty for a whole snapshot."""
    if snapshot.whole is None:
        return ""
    return f"The snapshot contains {describe_nodes(snapshot.size, snapshot)}."


def describe_whole(snapshot: Snapshot) -> str:
    """Write the recorded numbers of the whole memory of which a snapshot is a sample; empty for a whole snapshot."""
    whole = snapshot.whole
    if whole is None:
        return ""
    numbers = [f"{format_count(whole.size)} nodes"]
    if whole.desirable_fraction is not None:
        numbers.append(f"{format_percent(whole.desirable_fraction, 1)} desirable")
    for name, value in (("Δ̄_mem", whole.delta_mem_mean), ("β̄", whole.beta_mean)):
        if value is not None and isfinite(value):
            numbers.append(f"{name} {format_number(value, 4)}")
    return f"The whole memory at env step {format_count(whole.env_step)}: {', '.join(numbers)}."
