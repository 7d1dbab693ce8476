"""Linear projections of the embedding: two of its axes, or the two principal components (PCA).

The embedding has one 4-D point for each node of the episodic memory. A node is one stored state.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.types import Coordinates

AxisSigns = tuple[int, int]
"""Signs, 1 or -1, of the two directions of a PCA."""
DEFAULT_SIGNS: AxisSigns = (1, 1)

AXIS_PAIRS: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))
"""All pairs of the four axes of the embedding."""


@dataclass(frozen=True)
class LabeledPoints:
    """Coordinates [n, 2] with the labels of the axes."""

    coordinates: Coordinates
    x_label: str
    y_label: str


def select_axes(embedding: Coordinates, pair: tuple[int, int]) -> LabeledPoints:
    """Select two dimensions of the embedding."""
    first, second = pair
    names = [f"embedding x{axis + 1} [1]" for axis in pair]
    return LabeledPoints(np.ascontiguousarray(embedding[:, [first, second]], dtype=np.float32), *names)


def compute_pca(
    embedding: Coordinates,
    *,
    fit_on: NDArray[np.int64] | None = None,
    earlier_coordinates: Coordinates | None = None,
    signs: AxisSigns = DEFAULT_SIGNS,
) -> LabeledPoints:
    """Project on the two principal components; the axis labels contain their fractions of the variance.

    The sign of a component is arbitrary. Here the largest loading of each component is positive, unless `signs` flips
    the component.

    Args:
        embedding: Points [n, 4].
        fit_on: Rows from which the components are computed; default: all.
        earlier_coordinates: Coordinates [n, 2] of the same points in an earlier map; NaN for new points. The signs and
            one common scale of both axes are chosen to match them. The axes are not rotated.
        signs: 1 or -1 for each component; -1 flips it.
    """
    fitted = embedding if fit_on is None else embedding[fit_on]
    center = fitted.mean(axis=0, dtype=np.float64)
    centered = fitted.astype(np.float64) - center
    variance, axes = np.linalg.eigh(centered.T @ centered / max(1, len(fitted)))  # ascending variance
    axes = axes[:, ::-1][:, :2]
    largest_loadings = axes[np.argmax(np.abs(axes), axis=0), [0, 1]]
    axes *= np.sign(largest_loadings) * signs
    fractions = variance[::-1][:2] / max(variance.sum(), 1e-30)
    percents = 100 * fractions
    labels = [f"principal component {i + 1} ({percent:.0f} % of variance)" for i, percent in enumerate(percents)]
    coordinates = (embedding.astype(np.float64) - center) @ axes
    if earlier_coordinates is not None:
        coordinates = _flip_and_scale(coordinates, earlier_coordinates)
    return LabeledPoints(coordinates.astype(np.float32), *labels)


def _flip_and_scale(coordinates: NDArray[np.float64], earlier: Coordinates) -> NDArray[np.float64]:
    """Flip and scale coordinates [n, 2] to match the finite earlier ones [n, 2]."""
    has_earlier = np.isfinite(earlier).all(axis=1)
    if has_earlier.sum() < 2:
        return coordinates
    new = coordinates[has_earlier]
    old = earlier[has_earlier].astype(np.float64)
    new = new - new.mean(axis=0)
    old = old - old.mean(axis=0)
    signs = np.where((new * old).sum(axis=0) < 0, -1.0, 1.0)
    new_rms = float(np.sqrt((new**2).mean()))
    old_rms = float(np.sqrt((old**2).mean()))
    has_extent = new_rms > 0 and old_rms > 0
    scale = old_rms / new_rms if has_extent else 1.0
    return coordinates * signs * scale
