"""t-SNE and UMAP of 20,000 nodes, each in a fresh process with empty numba caches: the cold start counts."""

import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

from app.runs.launch import ROOT

POINTS = 20_000
_BUDGETS_S = {"tsne": 60.0, "umap": 15.0}
_REFERENCES = {
    "tsne": "openTSNE with its defaults 75 s, scikit-learn 87 s on 2 cores",
    "umap": "umap-learn 5 s after a first call that spends 50 s compiling, on 2 cores",
}
_PROGRAM = """
import os, sys, time
import numpy as np
from app.projections.methods import compute
method, points = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
centres = rng.normal(size=(10, 4)) * 4
cloud = centres[rng.integers(0, 10, points)] + rng.normal(size=(points, 4)) * rng.uniform(0.2, 1, 4)
compute(method, cloud.astype(np.float32), seed=0, n_jobs=os.cpu_count() or 1)
"""


def run() -> list[dict[str, Any]]:
    """Measure both methods from the start of a process to its end."""
    return [_measure(method, budget) for method, budget in _BUDGETS_S.items()]


def _measure(method: str, budget_s: float) -> dict[str, Any]:
    seconds = time_cold_start(method, POINTS)
    return {
        "name": f"projection.{method}_seconds.{POINTS}",
        "value": round(seconds, 2),
        "unit": "s",
        "budget": budget_s,
        "met": seconds <= budget_s,
        "reference": _REFERENCES[method],
    }


def time_cold_start(method: str, points: int) -> float:
    """Project a made-up memory in a new process that has compiled nothing before; return its seconds."""
    with tempfile.TemporaryDirectory() as cache:
        started = perf_counter()
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, method, str(points)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "NUMBA_CACHE_DIR": cache},
        )
        return perf_counter() - started
