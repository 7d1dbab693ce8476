"""Which index to take for "nearest at any distance"; the grid is made by the space that knows the radius."""

from emtc_core.memory.index.base import Metric, NeighborIndex
from emtc_core.memory.index.brute import BruteIndex
from emtc_core.memory.index.ckdtree import CKDTreeIndex
from emtc_core.memory.index.faiss_gpu import FaissGpuIndex, is_available


def make_nearest_index(metric: Metric, *, device: str) -> NeighborIndex:
    """Make the best index for unlimited distance on a device: "cpu" or "cuda…"."""
    if not device.startswith("cuda"):
        return CKDTreeIndex(metric)
    return FaissGpuIndex(metric, device=device) if is_available() else BruteIndex(metric, device=device)
