"""The duration of t-SNE and UMAP of 20,000 nodes, and of placing 1,000,000 nodes in a layout of 20,000.

Each is measured in a new process, including its start and compilation. UMAP is measured again with compiled kernels, as
after `python -m app.warmup`. The budget of placing is that of UMAP, so that placing takes no longer than a layout.
"""

import os
import subprocess
import sys
import tempfile
from time import perf_counter

from app.jobs.launch import ROOT
from tests.report import BenchResult, make_result

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
centers = rng.normal(size=(10, 4)) * 4
cloud = centers[rng.integers(0, 10, points)] + rng.normal(size=(points, 4)) * rng.uniform(0.2, 1, 4)
cloud, n_jobs = cloud.astype(np.float32), os.cpu_count() or 1
if method == "place":
    place(cloud[:landmarks], cloud[:landmarks, :2], cloud, n_jobs=n_jobs)
else:
    compute(method, cloud, seed=0, n_jobs=n_jobs)
"""


def run() -> list[BenchResult]:
    """Measure both methods and the placing, each from the start to the end of a process."""
    [tsne], [umap, compiled] = _time_processes("tsne", POINTS), _time_processes("umap", POINTS, times=2)
    [place] = _time_processes("place", PLACED)
    reference = "openTSNE's transform: 5.4 s of CPU for 15,000 points, that is 6 minutes; and less accurate"
    return [
        _make_result(f"tsne_seconds.{POINTS}", tsne, _BUDGETS_S["tsne"], _REFERENCES["tsne"]),
        _make_result(f"umap_seconds.{POINTS}", umap, _BUDGETS_S["umap"], _REFERENCES["umap"]),
        _make_result(f"umap_compiled_seconds.{POINTS}", compiled, _BUDGETS_S["umap_compiled"], _REFERENCES["umap"]),
        _make_result(f"place_seconds.{PLACED}", place, _BUDGETS_S["place"], reference),
    ]


def _time_processes(method: str, points: int, *, times: int = 1) -> list[float]:
    with tempfile.TemporaryDirectory() as cache:
        return [time_process(method, points, cache) for _ in range(times)]


def time_process(method: str, points: int, cache: str) -> float:
    """Project or place a synthetic memory in a new process. Return its duration [s].

    Args:
        method: `tsne`, `umap` or `place`.
        points: Number of nodes.
        cache: Folder for compiled kernels.
    """
    started = perf_counter()
    subprocess.run(
        [sys.executable, "-c", _PROGRAM, method, str(points), str(POINTS)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    return perf_counter() - started


def _make_result(name: str, seconds: float, budget_s: float, reference: str) -> BenchResult:
    return make_result(f"projection.{name}", seconds, "s", budget_s, reference, digits=2)
