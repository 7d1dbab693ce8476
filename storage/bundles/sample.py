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


def choose_nodes(row: Mapping[Any, Any], most: int, first: frozenset[int] = frozenset()) -> NDArray[np.int64]:
    """Ascending places of at most `most` nodes in a row of `snapshots`, of as many whole episodes as fit.

    Args:
        row: A row of the table, its columns packed.
        most: Nodes to keep.
        first: Episodes that are kept before others are drawn.
    """
    return _choose_rows(unpack_one(row["episode"], SNAPSHOT_FORMS["episode"]), most, first)


def sample_nodes(row: Mapping[Any, Any], kept: NDArray[np.int64]) -> dict[str, Any]:
    """A row of `snapshots`, its columns packed, with these of its nodes alone."""
    states = unpack_as(row["state"], {"state_rows": "i1", "state": "f2"})
    here = np.isin(states["state_rows"], kept)
    state_rows = np.searchsorted(kept, states["state_rows"][here])
    packed: dict[str, Any] = {
        name: pack({name: unpack_one(row[name], form)[kept]}) for name, form in SNAPSHOT_FORMS.items()
    }
    packed["state"] = pack({"state_rows": state_rows, "state": states["state"][here]})
    return {**row, **packed, "size": len(kept)}


def sample_coordinates(row: Mapping[Any, Any], kept: NDArray[np.int64]) -> dict[str, Any]:
    """A row of `projections`, its coordinates packed, of these nodes alone."""
    coordinates = unpack_one(row["coordinates"], "f2")[kept]
    return {**row, "coordinates": pack({"coordinates": coordinates})}


def _choose_rows(episode: NDArray[np.int64], most: int, first: frozenset[int]) -> NDArray[np.int64]:
    """Ascending rows of whole episodes, the wanted ones and then drawn ones, until the next would be too many."""
    known, counts = np.unique(episode, return_counts=True)
    drawn = np.random.default_rng(_SEED).permutation(len(known))
    order = np.concatenate([drawn[np.isin(known[drawn], list(first))], drawn[~np.isin(known[drawn], list(first))]])
    chosen = order[np.cumsum(counts[order]) <= most]
    return np.flatnonzero(np.isin(episode, known[chosen]))
