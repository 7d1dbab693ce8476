"""Algorithm 1: losses, augmentation, networks, refit, and every option of the embedder."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.augmentation import augment
from emtc_core.embedder.fit import GradientStep, fit
from emtc_core.embedder.info_nce_gradient import info_nce_gradient
from emtc_core.embedder.losses import info_nce, return_loss, state_loss
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.return_scale import ReturnScale
from emtc_core.errors import NonFiniteLossError
from emtc_core.memory.memory import NodeSample
from tests.reference.embedder import (
    compute_losses,
    looped_info_nce,
    looped_reconstruction,
    looped_refit,
    looped_return_unit,
)

S, T_LIM = 10, 20


def _embedder(seed: int = 1, **options: Any) -> Embedder:
    config = EmbedConfig(**{"hidden": 16, "batch": 64, **options})
    return Embedder(config, state_dim=S, episode_limit=T_LIM, device="cpu", seed=seed)


def _sample(n: int = 640, seed: int = 0) -> NodeSample:
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(n, S)).astype(np.float32)
    return NodeSample(state, rng.integers(0, T_LIM, n).astype(np.int32), state[:, 0].astype(np.float64) * 3)


def _weights(embedder: Embedder) -> torch.Tensor:
    return torch.cat([p.detach().ravel() for p in embedder.parameters])


# ---- losses ----


def test_reconstruction_losses_equal_the_looped_ones() -> None:
    rng = torch.Generator().manual_seed(0)
    h, h_hat = torch.randn(2, 12, generator=rng).double()
    state, state_hat = torch.randn(2, 12, 5, generator=rng).double()
    on_return, on_state = looped_reconstruction(h.tolist(), h_hat.tolist(), state.tolist(), state_hat.tolist())
    assert return_loss(h, h_hat, reduction="mean").item() == pytest.approx(on_return)
    assert return_loss(h, h_hat, reduction="sum").item() == pytest.approx(12 * on_return)
    assert state_loss(state, state_hat, reduction="mean").item() == pytest.approx(on_state)
    assert state_loss(state, state_hat, reduction="sum").item() == pytest.approx(12 * on_state)


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce_equals_the_looped_one(symmetric: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    anchor, view = torch.randn(2, 12, 4, generator=rng).double()
    view = anchor + view
    loss, accuracy = info_nce(anchor, view, tau_cl=0.3, symmetric=symmetric)
    expected, hits = looped_info_nce(anchor.tolist(), view.tolist(), 0.3)
    if symmetric:
        expected = 0.5 * (expected + looped_info_nce(view.tolist(), anchor.tolist(), 0.3)[0])
    assert loss.item() == pytest.approx(expected)
    assert accuracy.item() == pytest.approx(hits)
    assert 0 < hits < 1


@pytest.mark.parametrize(
    ("rows", "dim", "tau_cl", "symmetric"),
    [(100, 4, 0.1, False), (33, 1, 0.1, True), (70, 7, 0.01, True), (5, 16, 2.0, False)],
)
def test_the_compiled_info_nce_and_its_gradient_agree_with_autograd(
    rows: int, dim: int, tau_cl: float, symmetric: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, rows, dim, generator=generator)
    y = x + 0.3 * y
    x64, y64 = x.double().requires_grad_(), y.double().requires_grad_()
    expected, hits = info_nce(x64, y64, tau_cl=tau_cl, symmetric=symmetric)
    expected.backward()
    dx, dy = torch.full((2, rows, dim), 7.0).numpy()
    loss, accuracy = info_nce_gradient(
        x.numpy(), y.numpy(), tau_cl=tau_cl, symmetric=symmetric, d_anchor=dx, d_candidate=dy
    )
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy == pytest.approx(hits.item())
    for own, by_autograd in ((dx, x64.grad), (dy, y64.grad)):
        assert by_autograd is not None
        np.testing.assert_allclose(own, by_autograd, atol=1e-5 * max(1.0, by_autograd.abs().max().item()))


@pytest.mark.ci
def test_the_compiled_info_nce_has_the_same_bits_when_it_is_compiled_and_when_it_is_loaded(tmp_path: Path) -> None:
    program = """if True:
        import hashlib, numpy as np
        from emtc_core.embedder.info_nce_gradient import info_nce_gradient
        x, y = np.random.default_rng(0).normal(size=(2, 1024, 4)).astype(np.float32)
        dx, dy = np.empty((2, 1024, 4), np.float32)
        loss, _ = info_nce_gradient(x, y, tau_cl=0.1, symmetric=False, d_anchor=dx, d_candidate=dy)
        print(loss, hashlib.sha256(dx.tobytes() + dy.tobytes()).hexdigest())
    """
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiled, loaded = (subprocess.check_output([sys.executable, "-c", program], env=env) for _ in range(2))
    assert compiled == loaded


def test_the_accuracy_of_a_collapsed_embedding_is_that_of_chance() -> None:
    x, room = np.ones((64, 4), np.float32), np.empty((2, 64, 4), np.float32)
    loss, accuracy = info_nce_gradient(x, x, tau_cl=0.1, symmetric=False, d_anchor=room[0], d_candidate=room[1])
    assert loss == pytest.approx(math.log(64), rel=1e-6)
    assert accuracy == 1 / 64


# ---- augmentation ----


def test_a_shift_rotates_each_row_by_at_most_its_limit() -> None:
    state = torch.arange(1.0, 9.0).repeat(400, 1)
    options = EmbedConfig(p_mask=0.0, sigma=0.0, aug_shift=2)
    shifted = augment(state, options, torch.Generator().manual_seed(0))
    rolled = {tuple(torch.roll(state[0], k).tolist()) for k in range(-2, 3)}
    assert {tuple(row.tolist()) for row in shifted} == rolled


# ---- networks ----


def test_the_sizes_are_those_of_the_published_code() -> None:
    embedder = Embedder(EmbedConfig(), state_dim=S, episode_limit=T_LIM, device="cpu", seed=1)
    shapes = [tuple(p.shape) for p in embedder.encoder.parameters()]
    assert shapes == [(64, S + 1), (64,), (64, 64), (64,), (4, 64), (4,)]
    shapes = [tuple(p.shape) for p in embedder.decoder.parameters()]
    assert shapes == [(64, 5), (64,), (64, 64), (64,), (S, 64), (S,), (1, 64), (1,)]


def test_weights_follow_the_seed_alone_and_leave_global_randomness_untouched() -> None:
    before = torch.random.get_rng_state()
    one, same, other = _embedder(1), _embedder(1), _embedder(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(_weights(one), _weights(same))
    assert not torch.equal(_weights(one), _weights(other))


@pytest.mark.parametrize("embed", ["embed", "embed_float64"])
@pytest.mark.parametrize(
    ("kind", "hidden", "dim"), [("tcse", 64, 4), ("tcse", 8, 1), ("tcse", 17, 3), ("random", 64, 4), ("random", 64, 1)]
)
def test_a_row_has_the_same_embedding_in_any_batch(embed: str, kind: str, hidden: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    config = EmbedConfig(type=kind, hidden=hidden, dim=dim)
    embedder = Embedder(config, state_dim=26, episode_limit=100, device="cpu", seed=0)
    state, t = rng.normal(size=(700, 26)).astype(np.float32), rng.integers(0, 100, 700)
    together = np.asarray(getattr(embedder, embed)(state, t))
    for n in (1, 2, 63, 64, 65, 151, 400):
        part = np.asarray(getattr(embedder, embed)(state[13 : 13 + n], t[13 : 13 + n]))
        np.testing.assert_array_equal(part, together[13 : 13 + n], err_msg=f"{n} rows")


def test_an_embedding_equals_the_output_of_the_encoder() -> None:
    embedder = Embedder(EmbedConfig(hidden=10, dim=3), state_dim=5, episode_limit=9, device="cpu", seed=1)
    state, t = np.random.default_rng(1).normal(size=(70, 5)).astype(np.float32), np.arange(70) % 10
    expected = embedder.encoder(*embedder.to_inputs(state, t)).detach()
    np.testing.assert_allclose(embedder.embed(state, t), expected, rtol=1e-5, atol=1e-6)
    doubled = copy.deepcopy(embedder.encoder).double()
    expected = doubled(*(part.double() for part in embedder.to_inputs(state, t))).detach()
    np.testing.assert_allclose(embedder.embed_float64(state, t), expected, rtol=1e-12, atol=1e-14)


def test_the_random_projection_is_the_published_one_without_time_and_without_refits() -> None:
    embedder = _embedder(type="random")
    W = np.random.RandomState(123456).normal(0, 0.5, (4, S))
    state = np.random.default_rng(0).normal(size=(9, S)).astype(np.float32)
    np.testing.assert_allclose(embedder.embed(state, np.arange(9)).numpy(), state @ W.T, rtol=1e-5, atol=1e-5)
    assert math.isnan(fit(embedder, _sample()).loss)
    assert fit(embedder, _sample()).updates == 0


def test_the_published_time_input_differs_when_writing() -> None:
    state, t = np.ones((1, S), np.float32), np.array([T_LIM])
    same, published = _embedder(), _embedder(time_norm="write_T_lim+1")
    assert torch.equal(same.embed(state, t, for_write=True), same.embed(state, t))
    written, read = published.embed(state, t, for_write=True), published.embed(state, t)
    assert not torch.equal(written, read)
    assert torch.equal(read, same.embed(state, t))
    _, time_M1 = published.to_inputs(state, t, for_write=True)
    assert time_M1.item() == pytest.approx(T_LIM / (T_LIM + 1))


# ---- refit ----


@pytest.mark.parametrize("n_nodes", [28, 5])
@pytest.mark.parametrize("return_scale", ["none", "std"])
def test_a_refit_equals_the_looped_algorithm(return_scale: str, n_nodes: int) -> None:
    """28 nodes are three batches of 8; 5 nodes are one smaller batch. Gradients are clipped."""
    options = {"batch": 8, "p_mask": 0.0, "sigma": 0.0, "grad_clip": 1.0, "lr": 1e-2, "return_scale": return_scale}
    fast, slow = _embedder(**options), _embedder(**options)
    before, sample = _weights(fast), _sample(n_nodes)
    stats = fit(fast, sample)
    unit = looped_return_unit([sample.h.tolist()]) if return_scale == "std" else 1.0
    updates = looped_refit(slow, *(torch.as_tensor(a).float() for a in (sample.state, sample.t, sample.h / unit)))
    torch.testing.assert_close(_weights(fast), _weights(slow), rtol=1e-3, atol=1e-4)
    assert (_weights(fast) - before).abs().max() > 5e-3
    assert stats.updates == updates
    assert stats.return_unit == pytest.approx(unit)


STEP_OPTIONS: list[dict[str, Any]] = [
    {},
    {"cl_views": "aug_aug"},
    {"cl_symmetric": True},
    {"reduction": "sum"},
    {"type": "dcae"},
    {"lambda_cl": 0.0},
    {"lambda_rcon": 0.0, "lambda_cl": 5.0, "tau_cl": 0.01},
    {"dim": 1},
    {"dim": 7, "hidden": 33, "noise_on_masked": False, "aug_shift": 2},
]


@pytest.mark.parametrize("options", STEP_OPTIONS)
def test_the_gradient_of_a_step_equals_that_of_autograd(options: dict[str, Any]) -> None:
    written, by_autograd = _embedder(**options), _embedder(**options)
    sample = _sample(64)
    batch = (*written.to_inputs(sample.state, sample.t), torch.as_tensor(sample.h).float())
    step = GradientStep(written, 64)
    terms = step.compute_gradient(batch[0], step.make_views(batch[0]), *batch[1:])
    expected = compute_losses(by_autograd, *batch)
    expected[0].backward()
    torch.testing.assert_close(terms, expected.detach().double(), rtol=1e-5, atol=1e-5, equal_nan=True)
    for own, other in zip(written.parameters, by_autograd.parameters, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=2e-5 * float(other.grad.abs().max()))


# ---- the unit of returns ----


def test_the_unit_of_returns_is_their_running_standard_deviation() -> None:
    rng = np.random.default_rng(0)
    scale, refits = ReturnScale("std"), [20 * rng.random(50) for _ in range(3)]
    for so_far, h in enumerate(refits, 1):
        unit = scale.update(h)
        assert unit == scale.divisor == pytest.approx(looped_return_unit([r.tolist() for r in refits[:so_far]]))


def test_equal_returns_do_not_change_the_unit() -> None:
    scale = ReturnScale("std")
    assert scale.update(np.full(9, 20.0)) == 1.0
    assert scale.update(np.full(9, 1e6) + 1e-3 * np.arange(9)) == 1.0
    assert scale.update(np.array([1.0, 5.0])) == 2.0
    assert scale.update(np.full(9, 20.0)) == 2.0
    assert ReturnScale("none").update(np.array([1.0, 5.0])) == 1.0


def test_the_return_loss_is_reported_in_the_unit_of_returns() -> None:
    sample = _sample(64)
    embedder = _embedder(return_scale="std")
    state_MS, time_M1 = embedder.to_inputs(sample.state, sample.t)
    with torch.no_grad():
        h_hat = embedder.decoder(embedder.encoder(state_MS, time_M1), time_M1)[1].numpy()
    stats = fit(embedder, sample)
    assert stats.return_loss == pytest.approx(np.mean((sample.h - h_hat * stats.return_unit) ** 2), rel=1e-4)


def test_a_reset_at_each_refit_removes_what_earlier_refits_learned() -> None:
    embedder = _embedder(reset_each_update=True, lambda_cl=0.0, lr=1e-2)
    losses = [fit(embedder, _sample(128)).return_loss for _ in range(6)]
    kept = _embedder(lambda_cl=0.0, lr=1e-2)
    assert min(losses) > 1.1 * [fit(kept, _sample(128)).return_loss for _ in range(6)][-1]
    assert max(losses) < 1.1 * min(losses)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    sample = _sample()
    broken = NodeSample(sample.state, sample.t, np.full_like(sample.h, np.inf))
    with pytest.raises(NonFiniteLossError, match=r"embed\.lr"):
        fit(_embedder(), broken)
