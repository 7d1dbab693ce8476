"""Projection of a stored memory snapshot: compute the layout of landmarks, place all other nodes, store the result.

A node is one stored state of the episodic memory. The landmarks are a sample of the nodes, stratified by return and
time. The layout is initialized with the stored projection of the nearest earlier snapshot of the run with the same
parameters, or with PCA if there is none. The initial projection is also stored, as the parameter `start`. Equal
snapshot, method, n, seed, `start` and library versions give bit-identical coordinates.

PCA is fast. t-SNE and UMAP run in a background process. Their libraries are imported in the functions that use them,
because pages must not load them.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.alignment import MIN_SHARED_NODES, make_initial_layout, move_rigidly, transfer_coordinates
from app.analysis.projections.linear import compute_pca
from app.analysis.projections.neighbors import find_distinct_points
from app.analysis.projections.sampling import sample_stratified_rows
from app.analysis.projections.types import Coordinates, Progress, ignore_progress
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.projections import save_projection
from storage.queries.memory import Snapshot, get_snapshot
from storage.queries.projections import (
    Projection,
    find_earlier_projection,
    find_embedding,
    find_projection,
    get_projection,
)

BACKGROUND: frozenset[str] = frozenset({"tsne", "umap"})
"""Methods that need a background process."""
MIN_POINTS = 12
"""Minimum number of distinct points for t-SNE and UMAP, which need a neighbor graph. Fewer points get a PCA.

An embedding has few distinct points if it has collapsed.
"""
METHODS = ("pca", *sorted(BACKGROUND))
EMBEDDERS = ("tcse", "dcae", "random")
LANDMARKS = 20_000
"""Default number of landmarks."""
MAX_LANDMARKS = 50_000
"""Maximum number of landmarks on pages, because the time of t-SNE and UMAP is proportional to it."""
EMBED_PROGRESS = 0.4
"""Fraction of the progress bar used for fitting the embedder, if another embedder is fitted first."""
LAYOUT_PROGRESS = 0.85
"""Fraction of the progress of a projection used for the layout; the rest is used for placing the other nodes."""
InitialLayout = int | Literal["earlier"] | None
"""Initial layout: the id of a projection; "earlier" for that of the nearest earlier snapshot; None for PCA."""
_PLACING_LIBRARIES = ("numba", "numpy", "scipy")
_LIBRARIES = {
    "pca": ("numpy",),
    "tsne": ("openTSNE", *_PLACING_LIBRARIES),
    "umap": ("umap-learn", *_PLACING_LIBRARIES),
}
_REVISION = 3
"""Part of the stored parameters. Increase it if a change in this package changes projections."""


@dataclass(frozen=True)
class Phase:
    """Current phase of the computation of a projection."""

    name: Literal["embedder", "layout", "placing"]
    """The phase "embedder" exists only if another embedder is fitted first."""
    fraction: float
    """Finished fraction of the phase."""


@dataclass(frozen=True)
class InitialProjection:
    """The projection with which a layout was initialized. Its fields are stored as the parameter `start`."""

    projection: int
    """Id of the projection."""
    snapshot: int
    """Id of its snapshot."""
    env_step: int
    sha256: str
    """First 16 digits of the hash of its coordinates. It identifies them in a copied database, where ids change."""


def compute_projection(
    method: str,
    embedding: Coordinates,
    *,
    seed: int,
    n_jobs: int = 1,
    progress: Progress = ignore_progress,
    init: Coordinates | None = None,
) -> Coordinates:
    """Compute a projection [n, 4] → [n, 2]. Equal points have equal coordinates.

    Args:
        method: "pca", "tsne" or "umap".
        embedding: Points, finite.
        seed: Random seed.
        n_jobs: Number of threads.
        progress: Called with the finished fraction in [0, 1]; can raise to cancel.
        init: Initial layout [n, 2] of t-SNE or UMAP; the result remains similar to it. Default: PCA.

    Raises:
        ValueError: If the method is unknown or there are too few points.
    """
    if method == "pca":
        return compute_pca(embedding).coordinates
    if method not in BACKGROUND:
        raise ValueError(f"method must be pca, tsne or umap, got {method!r}")
    if len(embedding) < MIN_POINTS:
        raise ValueError(f"{method} needs at least {MIN_POINTS} points, got {len(embedding)}")
    rows, point_of_row = find_distinct_points(embedding)
    points = embedding[rows]
    if init is not None:
        init = init[rows]
    if len(points) < MIN_POINTS:
        return compute_pca(points).coordinates[point_of_row]
    if method == "tsne":
        from app.analysis.projections.tsne import compute_tsne

        return compute_tsne(points, seed=seed, n_jobs=n_jobs, progress=progress, init=init)[point_of_row]
    from app.analysis.projections.umap import compute_umap

    return compute_umap(points, seed=seed, progress=progress, init=init)[point_of_row]


def count_distinct_embeddings(embedding: Coordinates) -> int:
    """Count the distinct embeddings of nodes. A result of `MIN_POINTS` or more can be smaller than the real number."""
    n_among_first_rows = len(np.unique(embedding[:1000], axis=0))  # fast, also for a million nodes
    if n_among_first_rows >= MIN_POINTS:
        return n_among_first_rows
    return len(np.unique(embedding, axis=0))


def describe_equal_embeddings(embedding: Coordinates) -> str:
    """Write a sentence if fewer than `MIN_POINTS` embeddings are distinct; empty otherwise, or if all are distinct."""
    n = count_distinct_embeddings(embedding)
    if n >= min(MIN_POINTS, len(embedding)):
        return ""
    if n == 1:
        return "All nodes have the same embedding."
    return f"The nodes have only {n} different embeddings."


def make_projection_params(method: str, *, n: int, seed: int, embedder: str | None = None) -> dict[str, Any]:
    """Return the parameters of a projection; with the snapshot and the initial layout they determine the result.

    Args:
        method: "pca", "tsne" or "umap".
        n: Number of landmarks, at most the number of nodes of the snapshot.
        seed: Random seed of the landmarks, the layout and the newly fitted embedder.
        embedder: Type of the newly fitted embedder; None for the embedding of the run.

    Raises:
        ConfigError: If the method or the embedder is unknown.
    """
    if method not in METHODS:
        raise ConfigError(f"must be one of {', '.join(METHODS)}", key="method", value=method)
    if embedder not in (None, *EMBEDDERS):
        raise ConfigError(f"must be one of {', '.join(EMBEDDERS)}", key="embedder", value=embedder)
    versions = {name: version(name) for name in _LIBRARIES[method]}
    params = {"n": n, "seed": seed, "sample": "return x time", "revision": _REVISION, "versions": versions}
    return params if embedder is None else params | {"embedder": embedder}


def sample_rows(snapshot: Snapshot, *, n: int, seed: int) -> NDArray[np.int64]:
    """Sample rows of a snapshot, stratified by return and time."""
    return sample_stratified_rows(snapshot.h, snapshot.t, n=n, seed=seed)


def get_phase(progress: float, *, embedder: str | None = None) -> Phase:
    """Convert the progress in [0, 1] of a projection to its phase. `embedder`: as in `make_projection_params`."""
    if embedder is not None:
        if progress < EMBED_PROGRESS:
            return Phase("embedder", progress / EMBED_PROGRESS)
        progress = (progress - EMBED_PROGRESS) / (1 - EMBED_PROGRESS)
    if progress < LAYOUT_PROGRESS:
        return Phase("layout", progress / LAYOUT_PROGRESS)
    return Phase("placing", (progress - LAYOUT_PROGRESS) / (1 - LAYOUT_PROGRESS))


def read_initial_projection(params: Mapping[str, Any]) -> InitialProjection | None:
    """Read the initial projection from the parameters of a stored projection; None for PCA or if it is unknown."""
    start = params.get("start")
    return InitialProjection(**start) if start else None


def project_snapshot(
    db: Database,
    snapshot_id: int,
    *,
    method: str,
    n: int = LANDMARKS,
    seed: int = 0,
    embedder: str | None = None,
    init: InitialLayout = "earlier",
    progress: Progress = ignore_progress,
) -> Projection:
    """Return the stored projection of a snapshot, or compute and store it. Every node has coordinates.

    In a read-only database nothing is stored, and the id of the result is 0.

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        method: "pca", "tsne" or "umap".
        n: Number of landmarks; all nodes if the snapshot has fewer.
        seed: Random seed of the landmarks and the layout.
        embedder: None: project the embedding of the run. Otherwise project the embedding that
            `app.analysis.projections.embedders.embed_snapshot` has stored for this type and seed.
        init: Initial layout of a new projection. "earlier": the stored projection of the nearest earlier snapshot with
            the same parameters, or PCA if there is none. A number: the id of a projection. None: PCA. With "earlier", a
            stored projection is returned even if it has another initial layout.
        progress: Called with the finished fraction in [0, 1], see `get_phase`; can raise to cancel.

    Raises:
        ConfigError: If the method is unknown, there are too few nodes, or the embedder was not fitted to the snapshot.
        StorageError: If the snapshot or the initial projection does not exist.
    """
    snapshot = get_snapshot(db, snapshot_id)
    n = min(n, snapshot.size)  # every n above the size gives the same projection
    params = make_projection_params(method, n=n, seed=seed, embedder=embedder)
    if init == "earlier":
        stored = find_projection(db, snapshot_id, method, params)
        if stored is not None:
            return stored
        initial = find_earlier_projection(db, snapshot_id, method, params)
    elif init is None:
        initial = None
    else:
        initial = get_projection(db, init)
    mapped: Coordinates | None = None
    start: InitialProjection | None = None
    if initial is not None:
        mapped, start = _map_initial(db, snapshot, initial)
    params["start"] = None if start is None else asdict(start)
    stored = find_projection(db, snapshot_id, method, params)
    if stored is not None:
        return stored
    if embedder is not None:
        fitted = find_embedding(db, snapshot.id, embedder, seed=seed)
        if fitted is None:
            rule = f"must be fitted to snapshot {snapshot.id} with seed {seed} first, which a background job does"
            raise ConfigError(rule, key="embedder", value=embedder)
        snapshot = replace(snapshot, embedding=fitted.coordinates)
    _check_size(snapshot, method, n)
    started = time.monotonic()
    coordinates = _compute_coordinates(snapshot, method, params, mapped, progress)
    seconds = time.monotonic() - started
    new_id = 0
    if db.writer is not None:
        new_id = save_projection(
            db, snapshot_id, method=method, params=params, coordinates=coordinates, seconds=seconds
        )
    return Projection(new_id, snapshot_id, method, params, seconds, coordinates)


def _check_size(snapshot: Snapshot, method: str, n: int) -> None:
    """Raise if there are too few landmarks for a neighbor graph.

    Raises:
        ConfigError: If the snapshot is too small or n is too small.
    """
    if method not in BACKGROUND or n >= MIN_POINTS:
        return
    if snapshot.size < MIN_POINTS:
        rule = f"needs at least {MIN_POINTS} nodes, but snapshot {snapshot.id} has {snapshot.size}"
        raise ConfigError(rule, key=method, hint="Choose a later snapshot.")
    raise ConfigError(f"must be >= {MIN_POINTS} landmarks for {method}", key="n", value=n)


def _map_initial(
    db: Database, snapshot: Snapshot, initial: Projection
) -> tuple[Coordinates, InitialProjection] | tuple[None, None]:
    """Return the coordinates [M, 2] of the nodes in the initial projection, NaN for new nodes, and its description.

    (None, None) if too few nodes are in both snapshots, or if the initial projection has too few distinct points.
    """
    earlier = get_snapshot(db, initial.snapshot_id)
    mapped = transfer_coordinates(earlier, initial.coordinates, snapshot)
    shared = mapped[np.isfinite(mapped).all(axis=1)]
    if len(shared) < MIN_SHARED_NODES or len(np.unique(shared, axis=0)) < MIN_POINTS:
        return None, None
    little_endian = np.ascontiguousarray(initial.coordinates, "<f4")
    digest = hashlib.sha256(little_endian.tobytes()).hexdigest()[:16]
    return mapped, InitialProjection(initial.id, initial.snapshot_id, earlier.env_step, digest)


def _compute_coordinates(
    snapshot: Snapshot, method: str, params: Mapping[str, Any], mapped: Coordinates | None, progress: Progress
) -> Coordinates:
    """Compute the coordinates [M, 2] of all nodes. `mapped`: their coordinates in the initial projection."""
    rows = sample_rows(snapshot, n=params["n"], seed=params["seed"])
    if method == "pca":
        return compute_pca(snapshot.embedding, fit_on=rows, earlier_coordinates=mapped).coordinates
    if count_distinct_embeddings(snapshot.embedding) < MIN_POINTS:
        rows = np.arange(snapshot.size)  # a sample could miss some of the few distinct points
    n_jobs = os.cpu_count() or 1
    init = None if mapped is None else make_initial_layout(snapshot.embedding, mapped, rows, n_jobs=n_jobs)
    layout = compute_projection(
        method,
        snapshot.embedding[rows],
        seed=params["seed"],
        n_jobs=n_jobs,
        progress=lambda fraction: progress(LAYOUT_PROGRESS * fraction),
        init=init,
    )
    if mapped is not None:
        layout = move_rigidly(layout, mapped[rows])

    from app.analysis.projections.placing import place_points  # imported here because pages must not load the compiler

    others = np.ones(snapshot.size, bool)
    others[rows] = False
    coordinates = np.empty((snapshot.size, 2), np.float32)
    coordinates[rows] = layout
    coordinates[others] = place_points(
        snapshot.embedding[rows],
        layout,
        snapshot.embedding[others],
        n_jobs=n_jobs,
        progress=lambda fraction: progress(LAYOUT_PROGRESS + (1 - LAYOUT_PROGRESS) * fraction),
    )
    return coordinates
