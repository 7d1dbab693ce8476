"""Projections that answer at once, axis pairs and PCA, and the types that all projections share."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[float], None]
Coordinates = NDArray[np.float32]

AXIS_PAIRS: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))


@dataclass(frozen=True)
class Drawn:
    """Coordinates [n, 2] and what the two axes mean."""

    coordinates: Coordinates
    x_label: str
    y_label: str


def ignore_progress(part: float) -> None:
    """Receive progress and do nothing."""


def draw_axes(embedding: Coordinates, pair: tuple[int, int]) -> Drawn:
    """Show two of the embedding's own coordinates."""
    first, second = pair
    names = [f"embedding x{axis + 1} [1]" for axis in pair]
    return Drawn(np.ascontiguousarray(embedding[:, [first, second]], dtype=np.float32), *names)


def draw_pca(embedding: Coordinates, *, fit_on: NDArray[np.int64] | None = None) -> Drawn:
    """Show the two directions of largest variance, each with its share of it.

    A direction's sign is chosen so that its largest loading is positive; otherwise it would be arbitrary.

    Args:
        embedding: Points [n, 4].
        fit_on: Rows that decide the directions; all of them when missing.
    """
    fitted = embedding if fit_on is None else embedding[fit_on]
    centre = fitted.mean(axis=0, dtype=np.float64)
    spread = fitted.astype(np.float64) - centre
    variance, axes = np.linalg.eigh(spread.T @ spread / max(1, len(fitted)))
    axes = axes[:, ::-1][:, :2]
    axes *= np.sign(axes[np.argmax(np.abs(axes), axis=0), [0, 1]])
    share = variance[::-1][:2] / max(variance.sum(), 1e-30)
    labels = [f"principal component {i + 1} ({100 * s:.0f} % of variance)" for i, s in enumerate(share)]
    return Drawn(((embedding.astype(np.float64) - centre) @ axes).astype(np.float32), *labels)
