"""What runs on a GPU runs on an imitated one, with the results of the CPU; no update and no recall waits for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.repeated_step import WARM_UP
from tests.core.imitated_gpu_cases import LONG, SECTIONS, list_cases, list_refused, make_updates
from tests.core.learner_cases import BLOCKS, make_config
from tests.require import require

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ci
def test_each_case_runs_on_an_imitated_gpu_as_on_the_cpu_and_each_refused_operation_raises() -> None:
    """One test, because another process imports PyTorch and runs all cases, whose messages it prints."""
    command = [sys.executable, "-m", "tests.core.imitated_gpu_cases"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    if "undefined symbol" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("this build of PyTorch keeps its device guards elsewhere")
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert {name: errors[name] for name in list_cases() if errors[name]} == {}
    assert [name for name in list_refused() if not errors[name]] == []


def test_a_learner_on_the_cpu_leaves_precision_and_determinism_of_the_process_as_they_are():
    def state() -> list[object]:
        backends = torch.backends
        return [
            *(kind.fp32_precision for kind in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)),
            torch.are_deterministic_algorithms_enabled(),
            backends.cudnn.deterministic,
            os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        ]

    before = state()
    settings = {"matmul_precision": "high", "deterministic": True}
    make_learner(make_config("qplex", train=settings), BLOCKS, device="cpu", seed=1)
    assert state() == before


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["vdn", "qmix", "emtc-qplex"])
def test_captured_updates_equal_updates_launched_one_by_one_on_a_gpu(algo, caplog):
    require("gpu", torch.cuda.is_available(), "torch sees no CUDA device here")
    lengths = [20, 60, 70] * (WARM_UP + 2)
    config, weights, results = make_config(algo), [], []
    for is_captured in (True, False):
        learner = make_learner(config, LONG, device="cuda", seed=1)
        assert isinstance(learner, ValueLearner)
        if not is_captured:
            learner._captured = None
        results.append(make_updates(learner, config, lengths))
        weights.append(torch.cat([x.detach().flatten() for x in learner.online.parameters()]))
    assert caplog.records == [], "a capture failed"
    captured, plain = results
    np.testing.assert_allclose([[*x.values()] for x in captured], [[*x.values()] for x in plain], rtol=1e-3, atol=1e-5)
    assert torch.linalg.vector_norm(weights[0] - weights[1]) <= 1e-4 * torch.linalg.vector_norm(weights[1])


@pytest.mark.parametrize("algo", ["qplex", "emc", "cds"])
def test_weights_of_copied_recurrent_layers_are_put_into_one_block_of_memory(monkeypatch, algo):
    flattened = []
    monkeypatch.setattr(torch.nn.GRU, "flatten_parameters", lambda self: flattened.append(self))
    learner = make_learner(make_config(algo, **SECTIONS.get(algo, {})), BLOCKS, device="cpu", seed=1)
    parts = [vars(learner), *(vars(part) for part in learner._intrinsic)]
    networks = [x for part in parts for x in part.values() if isinstance(x, torch.nn.Module)]
    layers = [x for network in networks for x in network.modules() if isinstance(x, torch.nn.RNNBase)]
    assert len(layers) >= 2
    assert [layer for layer in layers if not any(layer is each for each in flattened)] == []
