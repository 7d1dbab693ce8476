"""t-SNE and UMAP of 20,000 nodes, and 1,000,000 nodes placed by 20,000, each in a fresh process: cold starts count.

UMAP is measured once more with its kernels compiled, as it starts on a machine that was warmed up.

Placing has the budget of a UMAP times two: whoever waits for a layout shall not wait longer for the points around it.
"""

import os
import subprocess
import sys
import tempfile
from time import perf_counter

from app.bench import BenchResult, make_result
from app.jobs.launch import ROOT

POINTS = 20_000
PLACED = 1_000_000
_BUDGETS_S = {"tsne": 60.0, "umap": 30.0, "umap_compiled": 12.0, "place": 30.0}
_REFERENCES = {
    "tsne": "openTSNE with its defaults 75 s, scikit-learn 87 s on 2 cores",
    "umap": "umap-learn 5 s after a first call that spends 50 s compiling, on 2 cores",
}
_PROGRAM = """
import os, sys
import numpy as np
from app.analysis.projections.snapshots import compute
from app.analysis.projections.placing import place
method, points, landmarks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
centres = rng.normal(size=(10, 4)) * 4
cloud = centres[rng.integers(0, 10, points)] + rng.normal(size=(points, 4)) * rng.uniform(0.2, 1, 4)
cloud, n_jobs = cloud.astype(np.float32), os.cpu_count() or 1
if method == "place":
    place(cloud[:landmarks], cloud[:landmarks, :2], cloud, n_jobs=n_jobs)
else:
    compute(method, cloud, seed=0, n_jobs=n_jobs)
"""


def run() -> list[BenchResult]:
    """Measure both methods and the placing, each from the start of a process to its end."""
    [tsne], [umap, compiled] = _time("tsne", POINTS), _time("umap", POINTS, times=2)
    [place] = _time("place", PLACED)
    reference = "openTSNE's transform: 5.4 s of CPU for 15,000 points, that is 6 minutes; and less trustworthy"
    return [
        _figure(f"tsne_seconds.{POINTS}", tsne, _BUDGETS_S["tsne"], _REFERENCES["tsne"]),
        _figure(f"umap_seconds.{POINTS}", umap, _BUDGETS_S["umap"], _REFERENCES["umap"]),
        _figure(f"umap_compiled_seconds.{POINTS}", compiled, _BUDGETS_S["umap_compiled"], _REFERENCES["umap"]),
        _figure(f"place_seconds.{PLACED}", place, _BUDGETS_S["place"], reference),
    ]


def _time(method: str, points: int, *, times: int = 1) -> list[float]:
    with tempfile.TemporaryDirectory() as cache:
        return [time_process(method, points, cache) for _ in range(times)]


def time_process(method: str, points: int, cache: str) -> float:
    """Project or place a made-up memory in a new process that keeps what it compiles in `cache`; return its seconds."""
    started = perf_counter()
    subprocess.run(
        [sys.executable, "-c", _PROGRAM, method, str(points), str(POINTS)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    return perf_counter() - started


def _figure(name: str, seconds: float, budget_s: float, reference: str) -> BenchResult:
    return make_result(f"projection.{name}", seconds, "s", budget_s, reference, digits=2)
