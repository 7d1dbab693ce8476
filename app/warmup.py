"""`python -m app.warmup`: fill numba's on-disk caches, and the system's file cache, before somebody waits.

It trains the demo's configuration for two rounds in a throw-away database, lays out a small projection and merges a few
nodes anew, so whatever a first run, a first UMAP or a first "What if" would compile is compiled here, at low priority.
The example study is unpacked, so that its first picture stands there at once.
"""

import os
import tempfile

import numpy as np

from app.analysis.projections.placing import place
from app.analysis.projections.snapshots import compute
from app.jobs.launch import EXAMPLE_STUDY
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.memory.remerge import StoredNodes, remerge
from storage.address import sqlite_address
from storage.bundles.read import open_bundle
from storage.engine import open_database
from storage.runs.changes import create_run

STEPS = 200
SOONER = {
    "eval.episodes": 8,
    "train.burn_in": 4,
    "train.batch": 4,
    "embed.interval": 100,
    "embed.min_entries": 32,
    "embed.min_episodes": 4,
    "embed.batch": 32,
}
"""A run of so few steps learns, and fits its embedder."""


def main() -> None:
    """Walk the path of a first run once."""
    if hasattr(os, "nice"):
        os.nice(10)
    open_bundle(EXAMPLE_STUDY, is_ours=True)
    config = resolve(preset="demo", steps=STEPS, overrides=SOONER)
    with tempfile.TemporaryDirectory() as folder:
        db = open_database(sqlite_address(f"{folder}/warm-up.db"))
        run_id = create_run(db, config.model_dump(mode="json"), target_steps=STEPS, versions={})
        train_run(db, run_id, resume=False)
        db.dispose()
    points = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    layout = compute("umap", points, seed=0)
    place(points, layout, points)
    whole, real = np.arange(64), np.zeros(64)
    nodes = StoredNodes(points, whole, whole.astype(np.int32), real, whole > 32, whole, whole, whole)
    remerge(nodes, delta=1.0, config=config.memory)


if __name__ == "__main__":
    main()
