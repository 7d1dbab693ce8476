"""Program that `emtc_core.faiss_probe` runs in a separate process: check that faiss finds the correct neighbors.

It imports torch first, as a trainer does, then faiss, and builds and queries an index with each metric. It prints two
JSON objects: one with the version, which is printed even if the process aborts later, and one with the result.
"""

import importlib
import json
import sys
from typing import Any

import numpy as np
import torch

from emtc_core.memory.index.base import Metric
from emtc_core.memory.index.incremental import BruteIndex, FaissGpuIndex

NODES, QUERIES = 5000, 500
METRICS: tuple[Metric, ...] = ("l2", "linf")


def check_faiss(device: str) -> dict[str, Any]:
    """Import faiss and compare its neighbours with those of an exact search.

    Args:
        device: "cuda" or "cuda:1"; tests pass "cpu" and replace faiss by a CPU version.

    Returns:
        The fields of `FaissProbe`.
    """
    try:
        faiss: Any = importlib.import_module("faiss")
    except Exception as exc:  # the import of a native library may raise anything
        return {"state": "not loadable", "detail": f"{type(exc).__name__}: {exc}"}
    print(json.dumps({"version": str(faiss.__version__)}), flush=True)  # noqa: T201
    if not hasattr(faiss, "GpuIndexFlat"):
        return {"state": "no GPU support"}
    if not faiss.get_num_gpus() or (device.startswith("cuda") and not torch.cuda.is_available()):
        return {"state": "no GPU"}
    try:
        wrong = [metric for metric in METRICS if not _finds_nearest(metric, device)]
    except Exception as exc:  # faiss does not document its errors on an unsupported GPU
        return {"state": "fails", "detail": f"{type(exc).__name__}: {exc}".partition("\n")[0]}
    if wrong:
        return {"state": "fails", "detail": f"wrong neighbors with {', '.join(wrong)}"}
    return {"state": "usable"}


def _finds_nearest(metric: Metric, device: str) -> bool:
    """Compare faiss with the exact search. A tenth of the nodes are at one position, to test equal distances."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(NODES, 4))
    z[: NODES // 10] = z[0]
    q = np.concatenate([z[: QUERIES // 2], rng.normal(size=(QUERIES // 2, 4))])
    index, exact = FaissGpuIndex(metric, device=device), BruteIndex(metric, device="cpu")
    index.build(z)
    exact.build(z)
    return bool((index.query(q)[0] == exact.query(q)[0]).all())


if __name__ == "__main__":
    print(json.dumps(check_faiss(sys.argv[1])), flush=True)  # noqa: T201
