"""The step of a refit on a GPU, here on the CPU: the numbers of autograd, of the CPU's own step, and of its replays."""

from typing import Any

import numpy as np
import pytest
import torch

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.device_step import DeviceStep, count_step_bytes, get_device_step
from emtc_core.embedder.fit import fit
from emtc_core.embedder.linear_stack import group_layers, list_parameters, split_vector
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import NodeSample
from tests.core.test_embedder import STEP_OPTIONS, _embedder, _sample, _weights
from tests.reference.embedder import compute_losses


def fit_with_device_step(embedder: Embedder, sample: NodeSample) -> torch.Tensor:
    """Refit as a GPU does, on the CPU; return the mean loss terms."""
    rows = embedder.config.batch
    step = get_device_step(embedder, rows=rows, batches=len(sample.h) // rows)
    h = torch.as_tensor(sample.h / embedder.return_scale.update(sample.h)).float()
    return step.fit(embedder, *embedder.to_inputs(sample.state, sample.t), h)


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


@pytest.mark.parametrize("options", [{}, {"type": "dcae"}, {"cl_views": "aug_aug", "cl_symmetric": True}])
def test_refits_train_the_weights_and_moments_that_the_cpu_trains(options: dict[str, Any]) -> None:
    still = {"p_mask": 0.0, "sigma": 0.0, "grad_clip": 2.0, "lr": 1e-2, **options}
    on_cpu, as_on_gpu = _embedder(**still), _embedder(**still)
    for seed, n in ((0, 640), (1, 200)):  # the second one fills a part of the buffers
        stats, terms = fit(on_cpu, _sample(n, seed)), fit_with_device_step(as_on_gpu, _sample(n, seed))
        assert terms[0].item() == pytest.approx(stats.loss, rel=1e-4)
        np.testing.assert_allclose(terms[3:].numpy(), [stats.info_nce, stats.info_nce_accuracy], rtol=1e-2)
        torch.testing.assert_close(_weights(as_on_gpu), _weights(on_cpu), rtol=1e-3, atol=2e-4)
    one, other = (each.optimizer.state_dict()["state"] for each in (on_cpu, as_on_gpu))
    assert one.keys() == other.keys()
    for moments, wanted in ((other[key], one[key]) for key in one):
        assert moments["step"] == wanted["step"] == 13
        torch.testing.assert_close(moments["exp_avg"], wanted["exp_avg"], rtol=1e-2, atol=2e-3)


def test_an_embedder_that_changes_between_refits_is_trained_as_it_is_then() -> None:
    sample, options = _sample(640), {"p_mask": 0.0, "sigma": 0.0, "lr": 1e-2}
    fresh, restored = _embedder(**options), _embedder(**options)
    fit_with_device_step(restored, sample)
    restored.set_state(_embedder(**options).get_state())
    fit_with_device_step(fresh, sample)
    fit_with_device_step(restored, sample)
    assert torch.equal(_weights(fresh), _weights(restored))
    other = _embedder(seed=5, **options)
    other.set_state(restored.get_state())
    for each in (restored, other):
        fit_with_device_step(each, sample)
    assert torch.equal(_weights(other), _weights(restored))


def test_buffers_are_kept_for_later_refits_and_made_again_for_other_sizes() -> None:
    embedder = _embedder(samples=640)
    step = get_device_step(embedder, rows=64, batches=3)
    assert step.batches == 10
    assert get_device_step(embedder, rows=64, batches=10) is step
    assert get_device_step(embedder, rows=64, batches=11) is not step
    assert get_device_step(embedder, rows=32, batches=1).rows == 32


@pytest.mark.parametrize("options", [{}, {"type": "dcae"}, {"cl_views": "aug_aug"}, {"samples": 20_000, "batch": 512}])
def test_the_buffers_take_no_more_than_planned(options: dict[str, Any]) -> None:
    embedder = _embedder(**options)
    step = get_device_step(embedder, rows=embedder.config.batch, batches=1)
    tensors = [x for x in vars(step).values() if isinstance(x, torch.Tensor)]
    tensors += [x for chain in (step._encoder, step._decoder) for x in (*chain._outputs, *chain._gradients)]
    kept = sum(x.numel() * x.element_size() for x in tensors)
    assert kept <= count_step_bytes(embedder.config, embedder.state_dim)


def test_a_random_projection_needs_no_buffers() -> None:
    assert count_step_bytes(EmbedConfig(type="random"), 10) == 0
