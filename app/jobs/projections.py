"""Projections of stored snapshots by a background process that tells how far it is and can be cancelled.

What it does is `app.analysis.projections.snapshots`; whoever wants a projection here and now calls that.
"""

import os
import socket
import time
from collections.abc import Callable
from typing import Protocol

import psutil

from app.analysis.projections.linear import Progress
from app.analysis.projections.snapshots import EMBED_SHARE, project_snapshot, projection_params
from app.jobs.launch import spawn
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.files.places import local_folder
from storage.projections import JobRow, create_job, get_job, update_job
from storage.queries.memory import Snapshot

REPORT_EVERY_S = 0.4


class Embed(Protocol):
    """Fits a fresh embedder to a snapshot's states and stores the embedding of its nodes."""

    def __call__(self, db: Database, snapshot_id: int, *, kind: str, seed: int, progress: Progress) -> object: ...


class CancelledError(Exception):
    """Somebody asked the background job to end."""


def start_job(
    db: Database, snapshot: Snapshot, *, method: str, n: int, seed: int, embedder: str | None = None
) -> JobRow:
    """Start a background projection, or return the one that is under way with the same parameters.

    Args:
        db: An open database.
        snapshot: The snapshot; all of its nodes get a place.
        method: "tsne", "umap" or "pca".
        n: Landmarks; all nodes if there are no more.
        seed: Decides landmarks and layout.
        embedder: Type of an embedder that is fitted anew first and whose embedding is shown; None: the run's own.
    """
    n = min(n, snapshot.size)
    job = create_job(
        db, snapshot.id, method=method, params=projection_params(method, n=n, seed=seed, embedder=embedder)
    )
    if job.status == "queued" and job.pid is None:
        log = local_folder(db, snapshot.run_id) / "projections.txt"
        process = spawn(["app.jobs.projection_process", "--job", str(job.id)], log, db=db)
        _sign(db, job.id, process.pid)
    return get_job(db, job.id)


def cancel_job(db: Database, job_id: int) -> None:
    """Ask a job to end; it looks every few iterations."""
    update_job(db, job_id, status="cancelled")


def work(db: Database, job_id: int, *, embed: Embed | None = None) -> None:
    """Do a job in this process and leave its outcome in the database.

    Args:
        db: An open database.
        job_id: The job.
        embed: Fits an embedder to a snapshot and stores what it says; only jobs that name an embedder need it. It
            comes from outside because it needs torch, which no page may load.
    """
    job = get_job(db, job_id)
    if job.status == "running" and job.pid != os.getpid():
        return  # another process was faster
    update_job(db, job_id, status="running")
    _sign(db, job_id, os.getpid())
    report = _throttled(db, job_id)
    try:
        _project(db, job, embed, report)
    except CancelledError:
        return
    except BaseException as exc:
        update_job(db, job_id, status="failed", error=str(exc) or type(exc).__name__)
        raise
    update_job(db, job_id, status="finished", progress=1.0)


def _project(db: Database, job: JobRow, embed: Embed | None, report: Progress) -> None:
    n, seed, embedder = job.params["n"], job.params["seed"], job.params.get("embedder")
    done = 0.0
    if embedder is not None:
        if embed is None:
            hint = f"Run it with: python -m app.jobs.projection_process --job {job.id}"
            raise ConfigError("fits an embedder", key=f"job {job.id}", hint=hint)
        embed(db, job.snapshot_id, kind=embedder, seed=seed, progress=lambda part: report(EMBED_SHARE * part))
        done = EMBED_SHARE
    project_snapshot(
        db,
        job.snapshot_id,
        method=job.method,
        n=n,
        seed=seed,
        embedder=embedder,
        progress=lambda part: report(done + (1 - done) * part),
    )


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
