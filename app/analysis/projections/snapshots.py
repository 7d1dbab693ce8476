"""Project a stored snapshot: lay out its landmarks, place all other nodes, store the whole with what decided it.

Landmarks are a sample stratified by return and time. The layout sets out from the stored projection of the nearest
earlier snapshot of the run that had the same parameters, if there is one, and from PCA if not. What it set out from
is a parameter of the result (`start`): the same snapshot, method, n, seed, start and library versions give
bit-identical coordinates. Axis pairs and PCA answer at once; t-SNE and UMAP need a background process and are imported
where they are called: no page needs their libraries.
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

from app.analysis.projections.alignment import FEWEST_SHARED, carry_places, complete_places, move_rigidly
from app.analysis.projections.linear import Coordinates, Progress, draw_pca, ignore_progress, stratified_rows
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.projections import save_projection
from storage.queries.memory import (
    Projection,
    Snapshot,
    find_earlier_projection,
    find_embedding,
    find_projection,
    get_projection,
    get_snapshot,
)

BACKGROUND: frozenset[str] = frozenset({"tsne", "umap"})
SMALLEST = 12  # points that a neighbor graph needs

METHODS = ("pca", *sorted(BACKGROUND))
EMBEDDERS = ("tcse", "dcae", "random")
LANDMARKS = 20_000
MOST_LANDMARKS = 50_000
"""What a screen should offer at most: twice as many landmarks take twice as long, and the rest is placed anyway."""
EMBED_SHARE = 0.4
"""Of the progress of a job that first fits another embedder."""
LAYOUT_SHARE = 0.85
"""Of the progress: up to here landmarks are laid out, from here the other nodes are placed."""
_PLACERS = ("numba", "numpy", "scipy")
_LIBRARIES = {"pca": ("numpy",), "tsne": ("openTSNE", *_PLACERS), "umap": ("umap-learn", *_PLACERS)}
_REVISION = 2
"""Goes up when a change here changes pictures."""

Begin = int | Literal["earlier"] | None


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


@dataclass(frozen=True)
class Phase:
    """Which of its phases a projection is in; only one that shows another embedder begins with its fit."""

    name: Literal["embedder", "layout", "placing"]
    part: float  # of the phase, in [0, 1]


@dataclass(frozen=True)
class Start:
    """The projection whose layout another one set out from, as its parameters tell it."""

    projection: int
    snapshot: int
    env_step: int
    sha256: str  # of the coordinates, the first 16 digits: ids change when a database is copied, this does not


def projection_params(method: str, *, n: int, seed: int, embedder: str | None = None) -> dict[str, Any]:
    """List everything that decides a picture besides the snapshot and the layout that it set out from.

    Args:
        method: "pca", "tsne" or "umap".
        n: Landmarks, at most as many as the snapshot has nodes.
        seed: Decides landmarks and layout, and the embedder that is fitted anew.
        embedder: Type of the embedder that is fitted anew; None: the embedding that the run had.

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
    """Choose the rows of a snapshot that are shown, or that are its landmarks."""
    return stratified_rows(snapshot.h, snapshot.t, n=n, seed=seed)


def phase_of(progress: float, *, embedder: str | None = None) -> Phase:
    """Which phase a projection's progress [0, 1] is in, and how far that phase is."""
    if embedder is not None:
        if progress < EMBED_SHARE:
            return Phase("embedder", progress / EMBED_SHARE)
        progress = (progress - EMBED_SHARE) / (1 - EMBED_SHARE)
    if progress < LAYOUT_SHARE:
        return Phase("layout", progress / LAYOUT_SHARE)
    return Phase("placing", (progress - LAYOUT_SHARE) / (1 - LAYOUT_SHARE))


def start_of(params: Mapping[str, Any]) -> Start | None:
    """Read from a stored projection's parameters where its layout set out; None: from PCA, or it does not say."""
    told = params.get("start")
    return Start(**told) if told else None


def project_snapshot(
    db: Database,
    snapshot_id: int,
    *,
    method: str,
    n: int = LANDMARKS,
    seed: int = 0,
    embedder: str | None = None,
    begin: Begin = "earlier",
    progress: Progress = ignore_progress,
) -> Projection:
    """Return the stored projection, or compute and store it; every node has a place.

    In a database that was opened for reading only nothing is stored: the id is then 0.

    Args:
        db: An open database.
        snapshot_id: The snapshot.
        method: "pca", "tsne" or "umap".
        n: Landmarks; all nodes if there are no more.
        seed: Decides landmarks and layout.
        embedder: Shows the stored embedding by a fresh embedder of this type and seed instead of the run's own; see
            `app.analysis.projections.embedders.embed_snapshot`.
        begin: Where a layout that is computed now sets out: "earlier" takes the stored projection of the nearest
            earlier snapshot with the same parameters, or PCA; a number takes that projection, None takes PCA. A
            stored projection is returned whatever it set out from, unless a number or None asks for another one.
        progress: Receives the finished part in [0, 1], see `phase_of`; may raise to cancel.

    Raises:
        ConfigError: If the method is unknown, the snapshot has too few nodes or the embedder was not fitted to it.
        StorageError: If there is no such snapshot, or no such projection to begin from.
    """
    snapshot = get_snapshot(db, snapshot_id)
    n = min(n, snapshot.size)  # so that "20,000 of fewer" and "all" are one picture
    params = projection_params(method, n=n, seed=seed, embedder=embedder)
    if begin == "earlier" and (known := find_projection(db, snapshot_id, method, params)) is not None:
        return known
    earlier = _find_begin(db, snapshot_id, method, params, begin)
    carried, start = _carry(db, snapshot, earlier) if earlier is not None else (None, None)
    params["start"] = asdict(start) if start is not None else None
    if (known := find_projection(db, snapshot_id, method, params)) is not None:
        return known
    if embedder is not None:
        snapshot = _with_embedding(db, snapshot, embedder, seed)
    started = time.monotonic()
    try:
        coordinates = _draw(snapshot, method, params, carried, progress)
    except ValueError as exc:
        raise ConfigError(str(exc), hint="Take a later snapshot.") from exc
    seconds = time.monotonic() - started
    new = 0
    if db.writer is not None:
        new = save_projection(db, snapshot_id, method=method, params=params, coordinates=coordinates, seconds=seconds)
    return Projection(new, snapshot_id, method, params, seconds, coordinates)


def _with_embedding(db: Database, snapshot: Snapshot, embedder: str, seed: int) -> Snapshot:
    found = find_embedding(db, snapshot.id, embedder, seed=seed)
    if found is None:
        rule = f"must be fitted to snapshot {snapshot.id} with seed {seed} first, which a background job does"
        raise ConfigError(rule, key="embedder", value=embedder)
    return replace(snapshot, embedding=found.coordinates)


def _find_begin(
    db: Database, snapshot_id: int, method: str, params: Mapping[str, Any], begin: Begin
) -> Projection | None:
    if begin == "earlier":
        return find_earlier_projection(db, snapshot_id, method, params)
    return None if begin is None else get_projection(db, begin)


def _carry(db: Database, snapshot: Snapshot, earlier: Projection) -> tuple[Coordinates | None, Start | None]:
    """Bring the places of an earlier projection along, unless the two memories share too few nodes."""
    before = get_snapshot(db, earlier.snapshot_id)
    carried = carry_places(before, earlier.coordinates, snapshot)
    if np.isfinite(carried).all(axis=1).sum() < FEWEST_SHARED:
        return None, None
    digest = hashlib.sha256(np.ascontiguousarray(earlier.coordinates, "<f4").tobytes()).hexdigest()[:16]
    return carried, Start(earlier.id, earlier.snapshot_id, before.env_step, digest)


def _draw(
    snapshot: Snapshot, method: str, params: Mapping[str, Any], carried: Coordinates | None, progress: Progress
) -> Coordinates:
    rows = sample_rows(snapshot, n=params["n"], seed=params["seed"])
    if method == "pca":
        return draw_pca(snapshot.embedding, fit_on=rows, like=carried).coordinates
    n_jobs = os.cpu_count() or 1
    begin = None if carried is None else complete_places(snapshot.embedding, carried, rows, n_jobs=n_jobs)
    drawn = compute(
        method,
        snapshot.embedding[rows],
        seed=params["seed"],
        n_jobs=n_jobs,
        progress=lambda part: progress(LAYOUT_SHARE * part),
        begin=begin,
    )
    if carried is not None:
        drawn = move_rigidly(drawn, carried[rows])
    return _place_others(snapshot, rows, drawn, n_jobs, progress)


def _place_others(
    snapshot: Snapshot, rows: NDArray[np.int64], drawn: Coordinates, n_jobs: int, progress: Progress
) -> Coordinates:
    from app.analysis.projections.placing import place  # only now: no page needs a compiler

    others = np.ones(snapshot.size, bool)
    others[rows] = False
    coordinates = np.empty((snapshot.size, 2), np.float32)
    coordinates[rows] = drawn
    coordinates[others] = place(
        snapshot.embedding[rows],
        drawn,
        snapshot.embedding[others],
        n_jobs=n_jobs,
        progress=lambda part: progress(LAYOUT_SHARE + (1 - LAYOUT_SHARE) * part),
    )
    return coordinates
