"""The hand-written GRU against nn.GRU: values and gradients."""

import numpy as np
import pytest
import torch

from emtc_core.learner.recurrence import GruSequence, run_gru


@pytest.mark.parametrize("steps", [1, 2, 17])
def test_values_and_gradients_are_those_of_the_library(steps):
    torch.manual_seed(0)
    rnn = torch.nn.GRU(5, 7).double()
    x = torch.randn(steps, 6, 5, dtype=torch.float64)
    weight = torch.randn(steps, 6, 7, dtype=torch.float64)
    results = []
    for run in (lambda v: rnn(v)[0], lambda v: run_gru(rnn, v)):
        leaf = x.clone().requires_grad_()
        rnn.zero_grad()
        out = run(leaf)
        (out * weight).sum().backward()
        results.append([out.detach(), leaf.grad, *[p.grad.clone() for p in rnn.parameters()]])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 8, 17])
def test_unrolling_without_gradients_gives_the_same_values(steps):
    rnn = torch.nn.GRU(5, 7)
    x = torch.randn(steps, 6, 5)
    with torch.no_grad():
        np.testing.assert_array_equal(run_gru(rnn, x), GruSequence.apply(x, *rnn.all_weights[0]))


def test_the_gradient_is_the_slope_of_the_function():
    torch.manual_seed(0)
    rnn = torch.nn.GRU(2, 3).double()
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(GruSequence.apply, (x, *rnn.all_weights[0]))


def test_an_input_without_gradient_still_trains_the_weights():
    rnn = torch.nn.GRU(2, 3)
    run_gru(rnn, torch.randn(4, 2, 2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in rnn.parameters())
