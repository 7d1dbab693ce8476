"""What runs on a GPU runs on an imitated one, with the results of the CPU; no update and no recall waits for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from emtc_core.learner import learner as learner_module
from emtc_core.learner import mappo, networks
from emtc_core.learner.learner import Background, IncentiveInputs, ValueLearner, make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.recurrence import run_torch_layers
from emtc_core.repeated_step import WARM_UP
from tests.core.fake_cuda import LONG, SECTIONS, list_cases, list_faults, list_permitted, make_updates
from tests.core.learner_cases import BLOCKS, hard_episodes, make_batch, make_config, make_inputs, make_memory
from tests.require import require

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """Ask a process of its own what each case raised."""
    command = [sys.executable, "-m", "tests.core.fake_cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    if "undefined symbol" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("this build of PyTorch keeps its device guards elsewhere")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.ci
@pytest.mark.parametrize("name", [*list_cases(), *list_permitted()])
def test_it_runs_on_a_gpu_as_on_the_cpu(answers, name):
    assert answers[name] == ""


@pytest.mark.ci
@pytest.mark.parametrize("name", list_faults())
def test_what_a_gpu_refuses_or_waits_for_would_be_noticed(answers, name):
    assert answers[name]


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


def test_tests_and_the_processes_that_they_start_see_no_gpu():
    asked = [sys.executable, "-c", "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() == "''"
    assert not torch.cuda.is_available()


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


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the library's layers and no second thread, as on CUDA, and bfloat16 as the CPU computes it."""

    def mixed(device, *, enabled):
        return torch.autocast("cpu", torch.bfloat16, enabled=enabled)

    monkeypatch.setattr(
        networks, "run_linear_gru", lambda first, rnn, inputs, lengths=None: run_torch_layers(first, rnn, inputs)
    )
    monkeypatch.setattr(Background, "__init__", lambda self, device: setattr(self, "_pool", None))
    monkeypatch.setattr(learner_module, "autocast", mixed)
    monkeypatch.setattr(mappo, "autocast", mixed)


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


@pytest.mark.parametrize("algo", ["qplex", "emc", "cds"])
def test_the_recurrent_layer_computes_in_float32_under_mixed_precision(monkeypatch, algo):
    as_on_a_gpu(monkeypatch)
    seen: set[torch.dtype] = set()
    run = torch.nn.GRU.forward

    def watch(self, x):
        outputs, last = run(self, x)
        seen.update((x.dtype, outputs.dtype))
        return outputs, last

    monkeypatch.setattr(torch.nn.GRU, "forward", watch)
    gradients(algo, mixed=True)
    assert seen == {torch.float32}


def gradients(algo: str, *, mixed: bool, device: str = "cpu") -> dict[str, torch.Tensor]:
    sections = dict(SECTIONS.get(algo, {}))
    sections["train"] = {**sections.get("train", {}), "mixed_precision": mixed}
    learner = make_learner(make_config(algo, **sections), BLOCKS, device=device, seed=1)
    episodes = hard_episodes(BLOCKS)
    if isinstance(learner, MappoLearner):
        stats = learner.update_rollout(episodes)
        named = {**dict(learner.actor.named_parameters()), **dict(learner.critic.named_parameters())}
    else:
        memory = make_memory(episodes)
        batch = make_batch(episodes, BLOCKS, memory, device=device)
        inputs = make_inputs(memory, batch.reward.shape[1])
        inputs = IncentiveInputs(*(x.to(device) for x in (inputs.h_next.float(), inputs.rho_next.float(), inputs.hit)))
        stats = learner.update(batch, inputs if learner._config.uses_memory else None, env_step=0)
        named = dict(learner.online.named_parameters())
    assert np.isfinite(list(stats.read().values())).all()
    return {name: p.grad for name, p in named.items() if p.grad is not None}


@pytest.mark.parametrize("algo", ["vdn", "qmix", "emtc-qplex", "emc", "emu-cds", "dmix", "mappo"])
def test_bfloat16_changes_the_gradient_of_no_weight_beyond_its_rounding(monkeypatch, algo):
    as_on_a_gpu(monkeypatch)
    exact, rounded = (gradients(algo, mixed=mixed) for mixed in (False, True))
    assert rounded.keys() == exact.keys()
    whole, other = (torch.cat([g.flatten() for g in grads.values()]) for grads in (exact, rounded))
    assert not torch.equal(whole, other)
    assert torch.linalg.vector_norm(other - whole) < 0.1 * torch.linalg.vector_norm(whole)
    assert [name for name, g in exact.items() if g.any() and not rounded[name].any()] == []
