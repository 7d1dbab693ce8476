"""The step of a refit on a GPU, here on the CPU: the numbers of autograd, of the CPU's own step, and of its replays."""

from typing import Any

import pytest
import torch

from emtc_core.embedder.device_step import DeviceStep
from emtc_core.embedder.linear_stack import group_layers, list_parameters, split_vector
from emtc_core.embedder.networks import Embedder
from tests.core.test_embedder import STEP_OPTIONS, _embedder, _sample
from tests.reference.embedder import compute_losses


def parameters_of(embedder: Embedder) -> list[torch.nn.Parameter]:
    encoding, decoding = group_layers(embedder)
    return list_parameters([*encoding, *decoding])


@pytest.mark.parametrize("options", STEP_OPTIONS)
def test_its_gradient_is_that_of_autograd(options: dict[str, Any]) -> None:
    own, by_autograd = _embedder(**options), _embedder(**options)
    sample = _sample(64)
    batch = (*own.to_inputs(sample.state, sample.t), torch.as_tensor(sample.h).float())
    step = DeviceStep(own, rows=64, batches=1)
    step._load_rows(own, *batch, 64)
    step._weights.load(own, parameters_of(own))
    step._next.copy_(step._first_rows)
    terms = step.compute_gradient()
    expected = compute_losses(by_autograd, *batch)
    expected[0].backward()
    is_real = torch.isfinite(expected)
    torch.testing.assert_close(terms[is_real], expected[is_real].detach().double(), rtol=1e-5, atol=1e-5)
    parameters = parameters_of(by_autograd)
    for written, parameter in zip(split_vector(step._weights.gradient, parameters), parameters, strict=True):
        assert parameter.grad is not None
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(written, parameter.grad, rtol=1e-3, atol=2e-5 * largest)
