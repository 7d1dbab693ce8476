"""Projections that answer at once, axis pairs and PCA, and the types that all projections share."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[float], None]
Coordinates = NDArray[np.float32]
Turn = tuple[int, int]
"""The signs, 1 or -1, by which the two directions of a PCA are shown."""
NO_TURN: Turn = (1, 1)

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


def draw_pca(
    embedding: Coordinates,
    *,
    fit_on: NDArray[np.int64] | None = None,
    like: Coordinates | None = None,
    turn: Turn = NO_TURN,
) -> Drawn:
    """Show the two directions of largest variance, each with its share of it.

    A direction's sign is chosen so that its largest loading is positive; otherwise it would be arbitrary.

    Args:
        embedding: Points [n, 4].
        fit_on: Rows that decide the directions; all of them when missing.
        like: Earlier places [n, 2] of the same points, NaN where there was none: signs and the one scale of both
            axes are chosen so that the picture comes closest to them. Directions are never mixed.
        turn: Signs by which the directions are shown instead.
    """
    fitted = embedding if fit_on is None else embedding[fit_on]
    centre = fitted.mean(axis=0, dtype=np.float64)
    spread = fitted.astype(np.float64) - centre
    variance, axes = np.linalg.eigh(spread.T @ spread / max(1, len(fitted)))
    axes = axes[:, ::-1][:, :2]
    axes *= np.sign(axes[np.argmax(np.abs(axes), axis=0), [0, 1]]) * turn
    share = variance[::-1][:2] / max(variance.sum(), 1e-30)
    labels = [f"principal component {i + 1} ({100 * s:.0f} % of variance)" for i, s in enumerate(share)]
    drawn = (embedding.astype(np.float64) - centre) @ axes
    return Drawn((drawn if like is None else _flip_and_scale(drawn, like)).astype(np.float32), *labels)


def _flip_and_scale(drawn: NDArray[np.float64], like: Coordinates) -> NDArray[np.float64]:
    known = np.isfinite(like).all(axis=1)
    if known.sum() < 2:
        return drawn
    now, before = drawn[known] - drawn[known].mean(axis=0), like[known].astype(np.float64)
    before = before - before.mean(axis=0)
    signs = np.where((now * before).sum(axis=0) < 0, -1.0, 1.0)
    size_now, size_before = (float(np.sqrt((part**2).mean())) for part in (now, before))
    return drawn * signs * (size_before / size_now if size_now and size_before else 1.0)
