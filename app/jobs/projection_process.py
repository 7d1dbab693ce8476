"""Background process of one projection (2-D layout): `EMTC_DB=URL python -m app.jobs.projection_process --job ID`."""

import argparse
import os

from app.analysis.projections.types import Progress
from app.jobs.projections import run_job
from storage.engine import Database, open_database


def main() -> None:
    """Compute the projection of the job on the command line."""
    parser = argparse.ArgumentParser(prog="app.jobs.projection_process")
    parser.add_argument("--job", required=True, type=int)
    arguments = parser.parse_args()
    run_job(open_database(os.environ["EMTC_DB"]), arguments.job, fit_embedder=fit_embedder)


def fit_embedder(db: Database, snapshot_id: int, *, kind: str, seed: int, progress: Progress) -> None:
    """Fit an embedder on a snapshot and store the embedding of its nodes.

    Torch is imported here, because most jobs do not need it.
    """
    from app.analysis.projections.embedders import embed_snapshot

    embed_snapshot(db, snapshot_id, kind=kind, seed=seed, progress=progress)


if __name__ == "__main__":
    main()
