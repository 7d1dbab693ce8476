"""What a search index over embedded nodes can do.

Four indexes give the same answers (a test): the nearest node, the lowest slot among equals.

    grid       CPU   within a fixed radius only; live: nodes come, move and go one by one in O(1)
    ckdtree    CPU   any distance; built for a batch of queries
    brute      any   any distance; exact differences in float64 on the device
    faiss_gpu  CUDA  any distance; candidates by faiss, exact order among them

The memory's own lookups, which end at delta, use the grid; "nearest at any distance" uses one of the others.
Coordinates are those in which delta is tested, float64, so search and test share space and metric (A12).
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Metric = Literal["l2", "linf"]
Points = NDArray[np.float64]  # [M, X]
Slots = NDArray[np.int64]  # [Q]


class NeighborIndex(Protocol):
    """Nearest neighbours among nodes given as rows; a row's number is its slot."""

    def build(self, z: Points) -> None:
        """Forget everything and index these nodes."""
        ...

    def query(self, q: Points) -> tuple[Slots, NDArray[np.float64]]:
        """Find the nearest node of each query.

        Returns:
            (slots, distances) [Q]; slot -1 and distance inf where there is none (within the radius, for an
            index that has one). Among equally near nodes the lowest slot.
        """
        ...
