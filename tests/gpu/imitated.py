"""Run some tests of the GPU on an imitated one: `python -m tests.gpu.imitated [--wrong]`.

The imitation replaces PyTorch's driver in the whole process. With --wrong, every second column of a product or distance
on the GPU is one hundredth too large, and the tests must fail.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.imitated_gpu import GpuTensor, imitate

SELECTED = "vdn or dmix or doctor or recurrent or embeddings or index or resumes"
"""Not selected are trainings that take long; `tests.core.imitated_gpu_cases` updates with every algorithm."""
PRODUCTS = ("mm", "addmm", "_cdist_forward")


class WrongProducts(TorchDispatchMode):
    """Adds an error of one hundredth to products and distances on the GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS and isinstance(out, GpuTensor):
            out.host[..., ::2] *= 1.01
        return out


def main() -> int:
    """Run the tests and return the exit code of pytest."""
    cuda: Any = torch.cuda
    cuda.synchronize = lambda *args: None
    plain = ["-m", "gpu", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore", "-q"]
    options = [*plain, "-k", SELECTED, str(Path(__file__).parent)]
    with imitate():
        if "--wrong" not in sys.argv:
            return pytest.main(options)
        with WrongProducts():
            return pytest.main(options)


if __name__ == "__main__":
    sys.exit(main())
