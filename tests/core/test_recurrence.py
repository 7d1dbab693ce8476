"""The hand-written trunk against Linear, ReLU and nn.GRU: values and gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from emtc_core.learner.recurrence import TrunkSequence, pack, run_trunk, run_trunks


def make_layers(n_in: int = 4, width: int = 7, seed: int = 0) -> tuple[nn.Linear, nn.GRU]:
    torch.manual_seed(seed)
    return nn.Linear(n_in, width).double(), nn.GRU(width, width).double()


def weights_of(first: nn.Linear, rnn: nn.GRU) -> list[nn.Parameter]:
    return [*first.parameters(), *rnn.all_weights[0]]


@pytest.mark.parametrize("steps", [1, 2, 8, 17])
def test_values_and_gradients_are_those_of_the_library(steps):
    first, rnn = make_layers()
    inputs = torch.randn(steps, 6, 4, dtype=torch.float64)
    weight = torch.randn(steps, 6, 7, dtype=torch.float64)
    results = []
    for run in (lambda v: rnn(first(v).relu())[0], lambda v: run_trunk(first, rnn, v)):
        out = run(inputs)
        results.append([out.detach(), *torch.autograd.grad((out * weight).sum(), weights_of(first, rnn))])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 8, 17])
def test_unrolling_without_gradients_gives_the_same_values(steps):
    first, rnn = (layer.float() for layer in make_layers())
    inputs = torch.randn(steps, 6, 4)
    with torch.no_grad():
        np.testing.assert_array_equal(
            run_trunk(first, rnn, inputs),
            TrunkSequence.apply(inputs, pack(None, *inputs.shape[:2]), *weights_of(first, rnn)),
        )


def test_the_gradient_is_the_slope_of_the_function():
    first, rnn = make_layers(2, 3)
    inputs = torch.randn(4, 2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        TrunkSequence.apply, (inputs, pack(None, *inputs.shape[:2]), *weights_of(first, rnn))
    )


@pytest.mark.parametrize("steps", [1, 8, 17, 40])
def test_rows_that_end_early_have_the_same_values_and_gradients(steps):
    first, rnn = make_layers()
    rng = np.random.default_rng(steps)
    lengths = rng.integers(1, steps + 1, size=9)
    inputs = torch.randn(steps, 9, 4, dtype=torch.float64)
    real = torch.from_numpy(np.arange(steps)[:, None] < lengths)
    weight = torch.randn(steps, 9, 7, dtype=torch.float64) * real.unsqueeze(-1)
    results = []
    for run in (lambda v: rnn(first(v).relu())[0], lambda v: run_trunk(first, rnn, v, lengths)):
        out = run(inputs)
        results.append([out.detach()[real], *torch.autograd.grad((out * weight).sum(), weights_of(first, rnn))])
    with torch.no_grad():
        results.append([run_trunk(first, rnn, inputs, lengths)[real], *results[0][1:]])
    for expected, actual, unrolled in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(unrolled, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 17])
def test_several_trunks_together_give_what_each_gives_alone(steps):
    trunks = [make_layers(seed=seed) for seed in range(3)]
    lengths = np.random.default_rng(steps).integers(1, steps + 1, size=9)
    inputs = torch.randn(steps, 9, 4, dtype=torch.float64)
    real = torch.from_numpy(np.arange(steps)[:, None] < lengths)
    weight = torch.randn(3, steps, 9, 7, dtype=torch.float64) * real.unsqueeze(-1)
    together = run_trunks(trunks, inputs, lengths)
    with torch.no_grad():
        unrolled = run_trunks(trunks, inputs, lengths)
    weights = [weights_of(*trunk) for trunk in trunks]
    every = torch.autograd.grad((torch.stack(together) * weight).sum(), [w for each in weights for w in each])
    for i, trunk in enumerate(trunks):
        alone = run_trunk(*trunk, inputs, lengths)
        np.testing.assert_allclose(together[i][real].detach(), alone[real].detach(), rtol=1e-12)
        np.testing.assert_allclose(unrolled[i][real], alone[real].detach(), rtol=1e-12)
        gradients = torch.autograd.grad((alone * weight[i]).sum(), weights[i])
        for expected, actual in zip(gradients, every[6 * i : 6 * i + 6], strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_no_row_is_computed_after_its_chunk():
    packing = pack(np.array([3, 20, 9, 1]), 20, 4)
    assert packing.active == (4, 2, 1)
    assert packing.order is not None
    assert packing.order.tolist() == [1, 2, 0, 3]
