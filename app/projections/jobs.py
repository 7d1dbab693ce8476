"""Projections of stored snapshots: computed here and now, or by a background process that can be cancelled."""

import os
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from app.projections.linear import Progress, ignore_progress
from app.projections.methods import BACKGROUND, compute
from app.projections.sampling import stratified_rows
from app.runs.launch import spawn
from emtc_core.errors import ConfigError
from storage.engine import Database, run_folder
from storage.projections import JobRow, create_job, get_job, save_projection, update_job
from storage.queries.memory import Projection, Snapshot, find_projection, get_snapshot

METHODS = ("pca", *sorted(BACKGROUND))
REPORT_EVERY_S = 0.4
_LIBRARIES = {"pca": ("numpy",), "tsne": ("openTSNE", "numpy"), "umap": ("numba", "numpy", "scipy")}
_REVISION = 1
"""Goes up when a change here changes pictures."""


class CancelledError(Exception):
    """Somebody asked the background job to end."""


def projection_params(method: str, *, n: int, seed: int) -> dict[str, Any]:
    """List everything that decides a picture besides the snapshot.

    Raises:
        ConfigError: If the method is unknown.
    """
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    versions = {name: version(name) for name in _LIBRARIES[method]}
    return {"n": n, "seed": seed, "sample": "return x time", "revision": _REVISION, "versions": versions}


def sample_rows(snapshot: Snapshot, *, n: int, seed: int) -> NDArray[np.int64]:
    """Choose the rows of a snapshot that are shown."""
    return stratified_rows(snapshot.h, snapshot.t, n=n, seed=seed)


def project_snapshot(
    db: Database,
    snapshot_id: int,
    *,
    method: str,
    n: int = 20_000,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Projection:
    """Return the stored projection, or compute it; rows outside the sample are NaN.

    What was computed is stored, unless the database was opened for reading only: then its id is 0.

    Raises:
        ConfigError: If the method is unknown or the snapshot has too few nodes.
        StorageError: If there is no such snapshot.
    """
    snapshot = get_snapshot(db, snapshot_id)
    n = min(n, snapshot.size)  # so that "20,000 of fewer" and "all" are one picture
    params = projection_params(method, n=n, seed=seed)
    if (known := find_projection(db, snapshot_id, method, params)) is not None:
        return known
    rows = sample_rows(snapshot, n=n, seed=seed)
    started = time.monotonic()
    try:
        drawn = compute(method, snapshot.embedding[rows], seed=seed, n_jobs=os.cpu_count() or 1, progress=progress)
    except ValueError as exc:
        raise ConfigError(f"{str(exc)[0].upper()}{str(exc)[1:]}. Take a later snapshot.") from exc
    coordinates = np.full((snapshot.size, 2), np.nan, np.float32)
    coordinates[rows] = drawn
    seconds = time.monotonic() - started
    new = 0
    if db.writer is not None:
        new = save_projection(db, snapshot_id, method=method, params=params, coordinates=coordinates, seconds=seconds)
    return Projection(new, snapshot_id, method, params, seconds, coordinates)


def start_job(db: Database, snapshot: Snapshot, *, method: str, n: int, seed: int) -> JobRow:
    """Start a background projection, or return the one that is under way with the same parameters."""
    job = create_job(db, snapshot.id, method=method, params=projection_params(method, n=n, seed=seed))
    if job.status == "queued" and job.pid is None:
        log = run_folder(db, snapshot.run_id) / "projections.txt"
        process = spawn(["app.projections", "--job", str(job.id)], log, db=db)
        _sign(db, job.id, process.pid)
    return get_job(db, job.id)


def cancel_job(db: Database, job_id: int) -> None:
    """Ask a job to end; it looks every few iterations."""
    update_job(db, job_id, status="cancelled")


def work(db: Database, job_id: int) -> None:
    """Do a job in this process and leave its outcome in the database."""
    job = get_job(db, job_id)
    if job.status == "running" and job.pid != os.getpid():
        return  # another process was faster
    update_job(db, job_id, status="running")
    _sign(db, job_id, os.getpid())
    report = _throttled(db, job_id)
    try:
        params = job.params
        project_snapshot(db, job.snapshot_id, method=job.method, n=params["n"], seed=params["seed"], progress=report)
    except CancelledError:
        return
    except BaseException as exc:
        update_job(db, job_id, status="failed", error=str(exc) or type(exc).__name__)
        raise
    update_job(db, job_id, status="finished", progress=1.0)


def _throttled(db: Database, job_id: int) -> Callable[[float], None]:
    last = 0.0

    def report(part: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < REPORT_EVERY_S:
            return
        last = now
        update_job(db, job_id, progress=min(1.0, part))
        if get_job(db, job_id).status == "cancelled":
            raise CancelledError

    return report


def _sign(db: Database, job_id: int, pid: int) -> None:
    try:
        created_at = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return
    update_job(db, job_id, pid=pid, pid_created_at=created_at, host=socket.gethostname())
