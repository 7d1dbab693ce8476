"""A sample of a snapshot: whole episodes of its nodes, so that a small bundle can show a big memory.

What a sample cannot say, the manifest does: how many nodes of each snapshot were kept at most. A link to a node that
was left out stays as it was recorded, and its Δ_mem and β with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.blobs import pack, unpack_as, unpack_one
from storage.queries.memory import SNAPSHOT_FORMS

_SEED: Final = 0


def spread_over(steps: Sequence[int], n: int) -> list[int]:
    """At most `n` places among ascending env steps, the last one always, the others evenly spaced in env steps."""
    if len(steps) <= n:
        return list(range(len(steps)))
    wanted = np.linspace(0, steps[-1], n + 1)[1:]
    return sorted({int(np.abs(np.asarray(steps) - step).argmin()) for step in wanted})


def sample_nodes(row: Mapping[Any, Any], most: int, first: frozenset[int] = frozenset()) -> dict[str, Any]:
    """A row of `snapshots` with at most `most` nodes, of as many whole episodes as fit.

    Args:
        row: A row of the table, its columns packed.
        most: Nodes to keep.
        first: Episodes that are kept before others are drawn.
    """
    columns = {name: unpack_one(row[name], form) for name, form in SNAPSHOT_FORMS.items()}
    kept = _choose_rows(columns["episode"], most, first)
    states = unpack_as(row["state"], {"state_rows": "i1", "state": "f2"})
    here = np.isin(states["state_rows"], kept)
    state_rows = np.searchsorted(kept, states["state_rows"][here])
    packed: dict[str, Any] = {name: pack({name: column[kept]}) for name, column in columns.items()}
    packed["state"] = pack({"state_rows": state_rows, "state": states["state"][here]})
    return {**row, **packed, "size": len(kept)}


def _choose_rows(episode: NDArray[np.int64], most: int, first: frozenset[int]) -> NDArray[np.int64]:
    """Ascending rows of whole episodes, the wanted ones and then drawn ones, until the next would be too many."""
    known, counts = np.unique(episode, return_counts=True)
    drawn = np.random.default_rng(_SEED).permutation(len(known))
    order = np.concatenate([drawn[np.isin(known[drawn], list(first))], drawn[~np.isin(known[drawn], list(first))]])
    chosen = order[np.cumsum(counts[order]) <= most]
    return np.flatnonzero(np.isin(episode, known[chosen]))
