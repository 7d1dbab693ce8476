"""The hand-written trunk against Linear, ReLU and nn.GRU: values and gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from emtc_core.learner.recurrence import TrunkSequence, run_trunk


def make_layers(n_in: int = 4, width: int = 7) -> tuple[nn.Linear, nn.GRU]:
    torch.manual_seed(0)
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
            run_trunk(first, rnn, inputs), TrunkSequence.apply(inputs, *weights_of(first, rnn))
        )


def test_the_gradient_is_the_slope_of_the_function():
    first, rnn = make_layers(2, 3)
    inputs = torch.randn(4, 2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(TrunkSequence.apply, (inputs, *weights_of(first, rnn)))
