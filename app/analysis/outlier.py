"""The memory that is least like its neighbors: where a look at the map begins."""

from dataclasses import dataclass

import numpy as np

from app.analysis.projections.neighbors import find_neighbors
from app.analysis.projections.snapshots import sample_rows
from storage.queries.memory import Snapshot

NEIGHBORS = 10
LOOKED_AT = 20_000


@dataclass(frozen=True)
class Outlier:
    """A node whose return stands out from its neighborhood."""

    row: int
    slot: int
    h: float
    around: float  # mean H of its nearest neighbors


def find_outlier(snapshot: Snapshot) -> Outlier | None:
    """Find the node whose H lies highest above the mean of its nearest neighbors; None in a tiny memory.

    Of a large memory a sample is looked at, stratified by return and time.
    """
    rows = sample_rows(snapshot, n=LOOKED_AT, seed=0)
    if len(rows) <= NEIGHBORS:
        return None
    near, _ = find_neighbors(snapshot.embedding[rows], NEIGHBORS)
    h = snapshot.h[rows].astype(np.float64)
    around = h[near].mean(axis=1)
    odd = int(np.argmax(h - around))
    return Outlier(int(rows[odd]), int(snapshot.slot[rows[odd]]), float(h[odd]), float(around[odd]))
