"""Methods by name: axis pairs and PCA answer at once, t-SNE and UMAP need a background process.

The same sample, method, parameters and library versions give bit-identical coordinates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Method = Literal["axes", "pca", "tsne", "umap"]
Progress = Callable[[float], None]
Coordinates = NDArray[np.float32]

AXIS_PAIRS: tuple[tuple[int, int], ...] = tuple(combinations(range(4), 2))
BACKGROUND: frozenset[str] = frozenset({"tsne", "umap"})
SMALLEST = 12  # points that a neighbor graph needs


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


def compute(
    method: str, embedding: Coordinates, *, seed: int, n_jobs: int = 1, progress: Progress = ignore_progress
) -> Coordinates:
    """Compute a projection of distinct or repeated 4-D points [n, 4] → [n, 2].

    Args:
        method: "pca", "tsne" or "umap".
        embedding: Points, finite.
        seed: Decides everything that is random.
        n_jobs: Threads; the result depends on the method's arithmetic only, not on timing.
        progress: Receives the finished part in [0, 1]; may raise to cancel.

    Raises:
        ValueError: If the method is unknown or there are too few points.
    """
    if method == "pca":
        return draw_pca(embedding).coordinates
    if method not in BACKGROUND:
        raise ValueError(f"method must be pca, tsne or umap, got {method!r}")
    if len(embedding) < SMALLEST:
        raise ValueError(f"{method} needs at least {SMALLEST} points, got {len(embedding)}")
    if method == "tsne":
        from app.projections.tsne import compute_tsne

        return compute_tsne(embedding, seed=seed, n_jobs=n_jobs, progress=progress)
    from app.projections.umap import compute_umap

    return compute_umap(embedding, seed=seed, progress=progress)
