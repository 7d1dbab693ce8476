"""Types that all projections of the embedding use.

The embedding has one 4-D point for each node of the episodic memory. A node is one stored state. A projection computes
a position in the plane for each of these points.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[float], None]
"""Callback with the finished fraction of a computation, 0 to 1. It can raise to cancel the computation."""
Coordinates = NDArray[np.float32]
"""Points [n, d]: the embedding (d = 4), or positions in the plane (d = 2)."""


def ignore_progress(fraction: float) -> None:
    """Do nothing. The default callback for progress."""
