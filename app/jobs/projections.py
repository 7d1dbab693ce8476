"""Run a projection in a background process that reports its progress and can be cancelled.

A projection is a 2-D layout of a snapshot: the nodes (stored states) of a run's episodic memory at one env step.
`app.analysis.projections.snapshots` computes the projection and can be called directly.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

from app.analysis.projections.snapshots import EMBED_PROGRESS, make_projection_params, project_snapshot
from app.analysis.projections.types import Progress
from app.jobs.launch import spawn
from emtc_core.errors import ConfigError
from emtc_core.kernel_cache import check_kernel_cache
from storage.engine import Database
from storage.files import run_folder
from storage.projections import JobRow, create_job, get_job, update_job
from storage.queries.memory import Snapshot

REPORT_EVERY_S = 0.4


class FitEmbedder(Protocol):
    """A function that fits a new embedder to the states of a snapshot and stores the embedding of its nodes."""

    def __call__(self, db: Database, snapshot_id: int, *, kind: str, seed: int, progress: Progress) -> object: ...


class CancelledError(Exception):
    """The user cancelled the background job."""


def start_job(
    db: Database, snapshot: Snapshot, *, method: str, n: int, seed: int, embedder: str | None = None
) -> JobRow:
    """Start a background projection, or return the active job with the same parameters.

    Args:
        db: An open database.
        snapshot: The snapshot. All of its nodes are projected.
        method: "tsne", "umap" or "pca".
        n: Number of landmarks: sampled nodes whose layout is computed. The other nodes are placed relative to them.
        seed: Random seed of the landmarks and the layout.
        embedder: Type of an embedder that is fitted first and then projected. None: the run's own embedder.

    Raises:
        ConfigError: If compiled kernels cannot be stored.
    """
    check_kernel_cache("emtc_core", "umap")
    params = make_projection_params(method, n=min(n, snapshot.size), seed=seed, embedder=embedder)
    job = create_job(db, snapshot.id, method=method, params=params)
    if job.status == "queued" and job.pid is None:
        log = run_folder(db, snapshot.run_id) / "projections.txt"
        process = spawn(["app.jobs.projection_process", "--job", str(job.id)], log, db=db)
        update_job(db, job.id, pid=process.pid)
    return get_job(db, job.id)


def cancel_job(db: Database, job_id: int) -> None:
    """Cancel a job. The job reads its status when it reports its progress, and ends if it is cancelled."""
    update_job(db, job_id, status="cancelled")


def run_job(db: Database, job_id: int, *, fit_embedder: FitEmbedder | None = None) -> None:
    """Run a job in this process and store its result or its error in the database.

    Args:
        db: An open database.
        job_id: The job.
        fit_embedder: Needed only by jobs that fit an embedder. It is a parameter, so that this module does not import
            torch, which pages must not load.
    """
    job = get_job(db, job_id)
    if job.status == "running" and job.pid != os.getpid():
        return  # another process runs it
    update_job(db, job_id, status="running", pid=os.getpid())
    report = _make_reporter(db, job_id)
    try:
        _project(db, job, fit_embedder, report)
    except CancelledError:
        return
    except BaseException as exc:
        update_job(db, job_id, status="failed", error=str(exc) or type(exc).__name__)
        raise
    update_job(db, job_id, status="finished", progress=1.0)


def _project(db: Database, job: JobRow, fit_embedder: FitEmbedder | None, report: Progress) -> None:
    n = job.params["n"]
    seed = job.params["seed"]
    embedder = job.params.get("embedder")
    fit_fraction = 0.0  # of the progress, the part of the fit of an embedder
    if embedder is not None:
        if fit_embedder is None:
            hint = f"Run it with: python -m app.jobs.projection_process --job {job.id}"
            raise ConfigError("needs an embedder", key=f"job {job.id}", hint=hint)
        fit_fraction = EMBED_PROGRESS
        fit_embedder(
            db, job.snapshot_id, kind=embedder, seed=seed, progress=lambda fraction: report(EMBED_PROGRESS * fraction)
        )
    project_snapshot(
        db,
        job.snapshot_id,
        method=job.method,
        n=n,
        seed=seed,
        embedder=embedder,
        progress=lambda fraction: report(fit_fraction + (1 - fit_fraction) * fraction),
    )


def _make_reporter(db: Database, job_id: int) -> Callable[[float], None]:
    """Make a function that stores the progress at most every REPORT_EVERY_S seconds.

    The function raises CancelledError if the job was cancelled.
    """
    reported_at = 0.0

    def report(fraction: float) -> None:
        nonlocal reported_at
        now = time.monotonic()
        if now - reported_at < REPORT_EVERY_S:
            return
        reported_at = now
        update_job(db, job_id, progress=min(1.0, fraction))
        if get_job(db, job_id).status == "cancelled":
            raise CancelledError

    return report
