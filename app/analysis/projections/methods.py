"""Methods by name: axis pairs and PCA answer at once, t-SNE and UMAP need a background process.

The same sample, method, parameters and library versions give bit-identical coordinates. The two slow methods
are imported where they are called: no page needs their libraries.
"""

from app.analysis.projections.linear import Coordinates, Progress, draw_pca, ignore_progress

BACKGROUND: frozenset[str] = frozenset({"tsne", "umap"})
SMALLEST = 12  # points that a neighbor graph needs


def compute(
    method: str,
    embedding: Coordinates,
    *,
    seed: int,
    n_jobs: int = 1,
    progress: Progress = ignore_progress,
    begin: Coordinates | None = None,
) -> Coordinates:
    """Compute a projection of distinct or repeated 4-D points [n, 4] → [n, 2].

    Args:
        method: "pca", "tsne" or "umap".
        embedding: Points, finite.
        seed: Decides everything that is random.
        n_jobs: Threads; the result depends on the method's arithmetic only, not on timing.
        progress: Receives the finished part in [0, 1]; may raise to cancel.
        begin: Places [n, 2] from which a slow method starts, so that its layout stays near them; without them it
            starts from PCA.

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
        from app.analysis.projections.tsne import compute_tsne

        return compute_tsne(embedding, seed=seed, n_jobs=n_jobs, progress=progress, begin=begin)
    from app.analysis.projections.umap import compute_umap

    return compute_umap(embedding, seed=seed, progress=progress, begin=begin)
