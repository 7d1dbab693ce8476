"""The check of a device on a GPU that is imitated (`tests.core.imitated_gpu`); run as a program it prints the results.

The imitation replaces PyTorch's driver in the whole process, so this is a process that does nothing else. The checks
with long trainings are left out: `tests.core.fake_cuda` trains.
"""

import json
import sys
import warnings
from typing import Any

import torch

from tests.app.test_device_check import LEFT_OUT, TINY
from tests.core.imitated_gpu import GPU, imitate, set_sync_debug_mode
from tests.gpu import checks
from tests.gpu.target import Target


def main() -> None:
    warnings.simplefilter("ignore")
    cuda: Any = torch.cuda
    cuda.synchronize = cuda.reset_peak_memory_stats = cuda.empty_cache = lambda *args: None
    cuda.memory_allocated = cuda.max_memory_allocated = lambda device=None: 0
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_arch_list = lambda: ["sm_90"]
    cuda.set_sync_debug_mode = set_sync_debug_mode
    for name in LEFT_OUT:
        del checks.CHECKS[name]
    with imitate():
        report = checks.run_checks(Target(GPU), sizes=TINY)
    json.dump(report.to_json(), sys.stdout)


if __name__ == "__main__":
    main()
