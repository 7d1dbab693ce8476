"""The quantities of a memory's nodes: what a map can be coloured by and a choice can be made by."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.queries.memory import Snapshot


@dataclass(frozen=True)
class Quantity:
    """What a point's colour can mean."""

    key: str
    name: str
    unit: str
    meaning: str
    binary: bool = False
    whole: bool = False


QUANTITIES: dict[str, Quantity] = {
    q.key: q
    for q in (
        Quantity("h", "H", "return", "highest return-to-go ever seen from the state"),
        Quantity("xi", "ξ", "yes or no", "desirable: part of a successful episode", binary=True),
        Quantity("delta_mem", "Δ_mem", "return", "consistency error along the stored successor"),
        Quantity("beta", "β", "fraction", "gate coefficient of that error at the snapshot's τ"),
        Quantity("t", "t", "steps", "step of the episode at which the state was met", whole=True),
        Quantity("success", "N_ξ ÷ N_call", "fraction", "share of the visits that belong to successes"),
        Quantity("n_call", "N_call", "visits", "how often the state was met", whole=True),
        Quantity("age", "age", "env steps", "since the state that stands in the node was met", whole=True),
        Quantity("episode", "episode", "number", "the training episode whose state stands in the node", whole=True),
    )
}


def values_of(snapshot: Snapshot, color: str) -> NDArray[np.float32]:
    """Compute the coloured quantity of every node [M].

    Raises:
        KeyError: If there is no such quantity.
    """
    if color == "success":
        share = snapshot.n_xi / np.maximum(snapshot.n_call, 1)
        return np.where(snapshot.n_call > 0, share, np.nan).astype(np.float32)
    return getattr(snapshot, QUANTITIES[color].key).astype(np.float32)
