"""The recurrent layer, and updates of every algorithm."""

import numpy as np
import pytest
import torch
from torch import Tensor

from app.jobs import gpu_check
from emtc_core.config.run import list_algos
from emtc_core.devices import set_matmul_precision
from emtc_core.learner.learner import make_learner
from emtc_core.learner.networks import SharedAgent
from emtc_core.learner.step_rows import StepRows
from tests.gpu.cases import (
    CPU,
    Sizes,
    assert_same_state,
    fill_buffer,
    gradients,
    greedy_actions,
    make_case,
    make_updates,
    relative_difference,
    trained_weights,
)

pytestmark = pytest.mark.gpu

ROWS, INPUTS, HIDDEN = 32, 62, 64
FORWARD_LIMIT, BACKWARD_LIMIT = 1e-5, 1e-4
LIMITS = {"loss": 1e-5, "gradient": 1e-4, "networks": 1e-3, "predictors": 0.1, "greedy actions": 1e-3}
"""Limits of the relative differences, and of the fraction of other greedy actions.

The predictors of intrinsic rewards have a higher limit: Adam divides by the size of the gradient, so a gradient that
consists of rounding errors moves a weight as far as any other. On one CPU, the predictors of CDS differ by 0.016
between two instruction sets of PyTorch, the networks by 1e-6.
"""
BATCHES = 5
"""Number of batches whose first updates are compared. The median is used, because a ReLU unit whose input is within
rounding of zero can be active on one device only, which changes the gradient of that batch by more than rounding."""
REPEATED = ("emtc-qplex", "emu-cds", "emc", "dmix", "mappo")
"""One algorithm for each kind of learner and intrinsic reward."""


@pytest.mark.parametrize("compute", [gpu_check.multiply, gpu_check.embed])
def test_emtc_doctor_finds_the_results_of_the_cpu(device: torch.device, compute) -> None:
    assert gpu_check.compare(compute, device)[0]


def test_the_recurrent_layer_in_float32_has_the_precision_of_float32(device: torch.device, sizes: Sizes) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        agent = SharedAgent(INPUTS, 11, HIDDEN)
        inputs = torch.randn(sizes.length, ROWS, INPUTS)
    with torch.no_grad():  # keeps the inputs of the ReLU away from zero, where rounding would change its output
        agent.fc1.weight.mul_(0.2)
        agent.fc1.bias.fill_(1.0)
    exact = SharedAgent(INPUTS, 11, HIDDEN).double()
    exact.load_state_dict(agent.state_dict())
    expected_values, expected_gradients = unroll(exact, inputs.double())
    set_matmul_precision("highest")
    values, gradients = unroll(agent.to(device), inputs.to(device))
    assert relative_difference(values, expected_values) <= FORWARD_LIMIT
    assert relative_difference(gradients, expected_gradients) <= BACKWARD_LIMIT


def unroll(agent: SharedAgent, inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return outputs and gradients by name."""
    rows = StepRows(np.full(inputs.shape[1], len(inputs)), len(inputs))
    values = agent.values(agent.unroll(inputs.flatten(0, 1).unsqueeze(1), rows))
    values.square().mean().backward()
    return {"values": values.detach()}, {name: p.grad for name, p in agent.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("algo", list_algos())
def test_updates_from_equal_weights_and_batches_equal_those_of_the_cpu(
    device: torch.device, sizes: Sizes, algo: str
) -> None:
    case = make_case(algo, sizes)
    reference, learner = (make_learner(case.config, case.info, device=each, seed=1) for each in (CPU, device))
    start = reference.get_state()
    reference_buffer, buffer = fill_buffer(case, CPU), fill_buffer(case, device)
    loss_differences, gradient_differences = [], []
    for number in range(BATCHES):
        reference.set_state(start)
        learner.set_state(start)
        expected = make_updates(reference, case, reference_buffer, count=1, first=number)[0].read()["train/loss"]
        loss = make_updates(learner, case, buffer, count=1, first=number)[0].read()["train/loss"]
        loss_differences.append(abs(loss - expected) / max(abs(expected), 1e-30))
        gradient_differences.append(relative_difference(gradients(learner), gradients(reference)))
    make_updates(reference, case, reference_buffer, count=sizes.updates - 1)
    make_updates(learner, case, buffer, count=sizes.updates - 1)
    both_weights = trained_weights(learner), trained_weights(reference)
    actions, expected_actions = (
        greedy_actions(each, case.info, steps=sizes.acting_steps) for each in (learner, reference)
    )
    differences = {
        "loss": float(np.median(loss_differences)),
        "gradient": float(np.median(gradient_differences)),
        "networks": relative_difference(*(select(each, "online", "actor", "critic") for each in both_weights)),
        "predictors": relative_difference(*(select(each, "intrinsic") for each in both_weights)),
        "greedy actions": float((actions != expected_actions).mean()),
    }
    assert {name: value for name, value in differences.items() if not value <= LIMITS[name]} == {}


def select(weights: dict[str, Tensor], *parts: str) -> dict[str, Tensor]:
    return {name: x for name, x in weights.items() if name.partition(".")[0] in parts}


@pytest.mark.parametrize("algo", REPEATED)
def test_the_same_updates_twice_give_equal_bits_with_train_deterministic(
    device: torch.device, sizes: Sizes, algo: str
) -> None:
    case = make_case(algo, sizes)
    buffer, states = fill_buffer(case, device), []
    for _ in range(2):
        learner = make_learner(case.config, case.info, device=device, seed=1)
        make_updates(learner, case, buffer, count=sizes.updates)
        states.append(learner.get_state())
    assert_same_state(*states)
