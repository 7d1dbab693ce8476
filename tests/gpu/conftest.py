"""The GPU of this machine and the sizes of the comparisons."""

from collections.abc import Iterator

import pytest
import torch

from emtc_core.devices import set_determinism
from emtc_core.threads import configure_threads
from tests.gpu.cases import FULL, SMALL, Sizes
from tests.require import require


@pytest.fixture
def device() -> Iterator[torch.device]:
    cuda = torch.version.cuda or "none"
    reason = f"torch {torch.__version__} (CUDA: {cuda}) sees no GPU; check the driver with: nvidia-smi"
    require("gpu", torch.cuda.is_available(), reason)
    configure_threads()
    set_determinism(True)  # before the first product, when cuBLAS reads the size of its workspace
    yield torch.device("cuda:0")
    set_determinism(False)


@pytest.fixture
def sizes(device: torch.device) -> Sizes:
    return SMALL if torch.cuda.get_device_name(device) == "imitated GPU" else FULL
