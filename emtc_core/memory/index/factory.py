"""Which index to take for "nearest at any distance"; the grid is made by the space that knows the radius."""

import logging

import numpy as np

from emtc_core.memory.index.base import Metric, NeighborIndex
from emtc_core.memory.index.brute import BruteIndex
from emtc_core.memory.index.ckdtree import CKDTreeIndex
from emtc_core.memory.index.faiss_gpu import FaissGpuIndex, is_available

_LOG = logging.getLogger(__name__)


def make_nearest_index(metric: Metric, *, device: str) -> NeighborIndex:
    """Make the best index for unlimited distance on a device: "cpu" or "cuda…"."""
    if not device.startswith("cuda"):
        return CKDTreeIndex(metric)
    return _make_faiss(metric, device) if is_available() else BruteIndex(metric, device=device)


def _make_faiss(metric: Metric, device: str) -> NeighborIndex:
    """Take faiss if it answers a first question: wheels for another GPU or driver load and then fail."""
    try:
        index = FaissGpuIndex(metric, device=device)
        index.build(np.zeros((2, 4)))
        index.query(np.zeros((1, 4)))
    except Exception as exc:  # what a foreign library raises on a GPU it was not made for is not documented
        reason = str(exc).strip().partition("\n")[0]
        _LOG.warning("faiss does not search on this GPU (%s). Every node is compared instead: same answers.", reason)
        return BruteIndex(metric, device=device)
    return index
