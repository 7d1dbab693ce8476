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
from emtc_core.errors import NonFiniteLossError, ShapeError
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


def test_losses_agree_with_the_looped_ones() -> None:
    rng = torch.Generator().manual_seed(0)
    h, h_hat = torch.randn(2, 12, generator=rng).double()
    state, state_hat = torch.randn(2, 12, 5, generator=rng).double()
    on_return, on_state = looped_reconstruction(h.tolist(), h_hat.tolist(), state.tolist(), state_hat.tolist())
    assert return_loss(h, h_hat, reduction="mean").item() == pytest.approx(on_return)
    assert state_loss(state, state_hat, reduction="mean").item() == pytest.approx(on_state)
    assert state_loss(state, state_hat, reduction="sum").item() == pytest.approx(12 * on_state)
    anchor, view = torch.randn(2, 12, 4, generator=rng).double()
    loss, _ = info_nce(anchor, view, tau_cl=0.3)
    assert loss.item() == pytest.approx(looped_info_nce(anchor.tolist(), view.tolist(), 0.3))


def test_two_rows_worked_out_by_hand() -> None:
    # H = (1, 3) against (0, 1): (1 + 4)/2; states (1, 0), (0, 0) against zeros: 1/2; orthogonal rows at tau 1:
    # -log(e / (e + 1)).
    h, h_hat = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])
    assert return_loss(h, h_hat, reduction="mean").item() == 2.5
    assert state_loss(torch.tensor([[1.0, 0], [0, 0]]), torch.zeros(2, 2), reduction="mean").item() == 0.5
    loss, accuracy = info_nce(torch.eye(2), 7 * torch.eye(2), tau_cl=1.0)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + 1)))
    assert accuracy.item() == 1.0


def test_info_nce_of_identical_rows_is_log_b() -> None:
    x = torch.ones(1024, 4)
    assert info_nce(x, x, tau_cl=0.1)[0].item() == pytest.approx(math.log(1024), rel=1e-6)


def test_info_nce_of_unrelated_views_at_a_high_temperature_is_about_log_b() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 1024, 4, generator=generator)
    loss = info_nce(x, y, tau_cl=10.0)[0].item()
    assert loss == pytest.approx(math.log(1024), rel=0.01)


def test_info_nce_of_aligned_well_separated_rows_is_near_zero() -> None:
    x = torch.eye(16)
    loss, accuracy = info_nce(x, x, tau_cl=0.05)
    assert loss.item() < 1e-4
    assert accuracy.item() == 1.0


def test_symmetric_info_nce_averages_both_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 32, 4, generator=generator)
    forth, back = info_nce(x, y, tau_cl=0.1)[0], info_nce(y, x, tau_cl=0.1)[0]
    both = info_nce(x, y, tau_cl=0.1, symmetric=True)[0]
    assert both.item() == pytest.approx(0.5 * (forth + back).item())
    assert both.item() != pytest.approx(forth.item(), rel=1e-3)


@pytest.mark.parametrize(("rows", "dim", "tau_cl"), [(100, 4, 0.1), (33, 1, 0.1), (70, 7, 0.01), (5, 16, 2.0)])
@pytest.mark.parametrize("symmetric", [False, True])
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


def test_a_collapsed_embedding_hits_by_chance_alone() -> None:
    x, room = np.ones((64, 4), np.float32), np.empty((2, 64, 4), np.float32)
    loss, accuracy = info_nce_gradient(x, x, tau_cl=0.1, symmetric=False, d_anchor=room[0], d_candidate=room[1])
    assert loss == pytest.approx(math.log(64), rel=1e-6)
    assert accuracy == 1 / 64


def test_gradients_pass_through_both_views() -> None:
    x, y = torch.randn(2, 8, 4).unbind()
    x.requires_grad_()
    y.requires_grad_()
    info_nce(x, y, tau_cl=0.1)[0].backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.abs().sum() > 0
    assert y.grad.abs().sum() > 0


# ---- augmentation ----


def _view(state: torch.Tensor, seed: int = 0, **options: Any) -> torch.Tensor:
    return augment(state, EmbedConfig(**options), torch.Generator().manual_seed(seed))


def test_masks_come_at_the_configured_rate_and_nothing_is_rescaled() -> None:
    view = _view(torch.ones(2000, 100), sigma=0.0)
    assert set(view.unique().tolist()) == {0.0, 1.0}
    assert (view == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)


def test_noise_has_the_configured_spread_and_falls_on_masked_coordinates_too() -> None:
    noise = _view(torch.zeros(2000, 100), p_mask=0.5)
    assert noise.std().item() == pytest.approx(0.05, rel=0.02)
    assert (noise != 0).all()


def test_noise_can_spare_the_masked_coordinates() -> None:
    view = _view(torch.ones(500, 50), noise_on_masked=False)
    assert (view == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)


def test_no_mask_and_no_noise_is_the_identity() -> None:
    state = torch.randn(10, 7)
    assert torch.equal(_view(state, p_mask=0.0, sigma=0.0), state)


def test_by_default_no_coordinate_changes_place_and_a_shift_rotates_each_row() -> None:
    state = torch.arange(1.0, 9.0).repeat(400, 1)
    still = _view(state, p_mask=0.2, sigma=0.0)
    assert ((still == 0) | (still == state)).all()
    shifted = _view(state, p_mask=0.0, sigma=0.0, aug_shift=2)
    offsets = {int(row[0].item()) for row in shifted}
    assert offsets == {1, 2, 3, 8, 7}
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


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize(("hidden", "dim"), [(64, 4), (64, 1), (8, 1), (8, 4), (17, 3), (33, 2)])
def test_a_row_is_embedded_the_same_in_any_batch_whatever_the_widths(hidden: int, dim: int, fine: bool) -> None:
    rng = np.random.default_rng(0)
    for kind in ("tcse", "random"):
        config = EmbedConfig(type=kind, hidden=hidden, dim=dim)
        embedder = Embedder(config, state_dim=26, episode_limit=100, device="cpu", seed=0)
        state, t = rng.normal(size=(700, 26)).astype(np.float32), rng.integers(0, 100, 700)
        embed = embedder.embed_float64 if fine else embedder.embed
        together = np.asarray(embed(state, t))
        for n in (1, 2, 63, 64, 65, 151, 400):
            part = np.asarray(embed(state[13 : 13 + n], t[13 : 13 + n]))
            np.testing.assert_array_equal(part, together[13 : 13 + n])


def test_embedding_is_what_the_encoder_computes() -> None:
    embedder = Embedder(EmbedConfig(hidden=10, dim=3), state_dim=5, episode_limit=9, device="cpu", seed=1)
    state, t = np.random.default_rng(1).normal(size=(70, 5)).astype(np.float32), np.arange(70) % 10
    expected = embedder.encoder(*embedder.to_inputs(state, t)).detach()
    np.testing.assert_allclose(embedder.embed(state, t), expected, rtol=1e-5, atol=1e-6)
    doubled = copy.deepcopy(embedder.encoder).double()
    expected = doubled(*(part.double() for part in embedder.to_inputs(state, t))).detach()
    np.testing.assert_allclose(embedder.embed_float64(state, t), expected, rtol=1e-12, atol=1e-14)


def test_a_row_is_embedded_the_same_in_any_batch() -> None:
    embedder = Embedder(EmbedConfig(), state_dim=S, episode_limit=T_LIM, device="cpu", seed=1)
    rng = np.random.default_rng(0)
    state, t = rng.normal(size=(70_000, S)).astype(np.float32), rng.integers(0, T_LIM, 70_000)
    together = embedder.embed(state, t)
    for rows in (slice(3, 4), slice(65_530, 65_545), slice(17, 168)):
        assert torch.equal(embedder.embed(state[rows], t[rows]), together[rows])


def test_time_moves_the_embedding_except_for_the_random_projection() -> None:
    state = np.ones((1, S), np.float32)
    for kind, moves in (("tcse", True), ("dcae", True), ("random", False)):
        embedder = _embedder(type=kind)
        early, late = (embedder.embed(state, np.array([t])) for t in (0, T_LIM))
        assert torch.equal(early, late) != moves


def test_the_random_projection_is_the_published_one() -> None:
    embedder = _embedder(type="random")
    W = np.random.RandomState(123456).normal(0, 0.5, (4, S))
    state = np.random.default_rng(0).normal(size=(9, S)).astype(np.float32)
    np.testing.assert_allclose(embedder.embed(state, np.zeros(9, int)).numpy(), state @ W.T, rtol=1e-5, atol=1e-5)
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


def test_a_transposed_state_is_refused() -> None:
    with pytest.raises(ShapeError, match="state"):
        _embedder().embed(np.zeros((S, 3), np.float32), np.zeros(3, int))


def test_embedding_dimensions_and_width_are_options() -> None:
    embedder = _embedder(dim=7, hidden=5)
    assert embedder.embed(np.zeros((2, S), np.float32), np.zeros(2, int)).shape == (2, 7)
    assert embedder.encoder.out.in_features == 5


def test_a_zero_initialised_encoder_has_no_gradient_in_its_hidden_layers() -> None:
    embedder = _embedder()
    for parameter in embedder.parameters:
        parameter.data.zero_()
    state, time_B1 = embedder.to_inputs(_sample(64).state, _sample(64).t)
    compute_losses(embedder, state, time_B1, torch.ones(64))[0].backward()
    for parameter in [*embedder.encoder.parameters(), *embedder.decoder.trunk.parameters()]:
        assert parameter.grad is None or parameter.grad.abs().sum() == 0
    assert embedder.decoder.h.bias.grad is not None
    assert embedder.decoder.h.bias.grad.abs().sum() > 0


# ---- refit ----


def test_a_refit_makes_floor_n_over_b_updates_and_lowers_the_loss() -> None:
    embedder = _embedder(lr=5e-3)
    first = fit(embedder, _sample(650))
    assert first.updates == 10
    for _ in range(10):
        last = fit(embedder, _sample(650))
    assert last.return_loss < first.return_loss / 2
    assert last.state_loss < first.state_loss


def test_a_refit_does_what_the_looped_algorithm_does() -> None:
    options = {"batch": 8, "p_mask": 0.0, "sigma": 0.0, "grad_clip": 5.0, "lr": 1e-2, "return_scale": "none"}
    fast, slow = _embedder(**options), _embedder(**options)
    before, sample = _weights(fast), _sample(28)
    fit(fast, sample)
    looped_refit(slow, *(torch.as_tensor(a).float() for a in (sample.state, sample.t, sample.h)))
    torch.testing.assert_close(_weights(fast), _weights(slow), rtol=1e-3, atol=1e-4)
    assert (_weights(fast) - before).abs().max() > 1e-2


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
def test_the_written_out_gradient_is_that_of_autograd(options: dict[str, Any]) -> None:
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


def test_a_step_clips_and_moves_the_weights_as_the_optimiser_alone_would() -> None:
    options = {"grad_clip": 0.5, "lr": 1e-2}
    written, by_hand = _embedder(**options), _embedder(**options)
    sample = _sample(64)
    batch = (*written.to_inputs(sample.state, sample.t), torch.as_tensor(sample.h).float())
    for _ in range(3):
        step = GradientStep(written, 64)
        step.take(batch[0], step.make_views(batch[0]), *batch[1:])
        by_hand.optimizer.zero_grad()
        compute_losses(by_hand, *batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters, 0.5)
        by_hand.optimizer.step()
    torch.testing.assert_close(_weights(written), _weights(by_hand), rtol=1e-3, atol=1e-5)


# ---- the unit of returns ----


def test_the_unit_of_returns_is_their_running_standard_deviation() -> None:
    rng = np.random.default_rng(0)
    scale, refits = ReturnScale("std"), [20 * rng.random(50) for _ in range(3)]
    for so_far, h in enumerate(refits, 1):
        unit = scale.update(h)
        assert unit == scale.divisor == pytest.approx(looped_return_unit([r.tolist() for r in refits[:so_far]]))


def test_returns_all_alike_have_no_unit_and_none_keeps_theirs() -> None:
    scale = ReturnScale("std")
    assert scale.update(np.full(9, 20.0)) == 1.0
    assert scale.update(np.full(9, 1e6) + 1e-3 * np.arange(9)) == 1.0
    assert scale.update(np.array([1.0, 5.0])) == 2.0
    assert scale.update(np.full(9, 20.0)) == 2.0
    assert ReturnScale("none").update(np.array([1.0, 5.0])) == 1.0


def test_a_scaled_refit_does_what_the_looped_algorithm_does_to_scaled_returns() -> None:
    options = {"batch": 8, "p_mask": 0.0, "sigma": 0.0, "grad_clip": 5.0, "lr": 1e-2, "return_scale": "std"}
    fast, slow = _embedder(**options), _embedder(**options)
    sample = _sample(24)
    stats = fit(fast, sample)
    unit = looped_return_unit([sample.h.tolist()])
    looped_refit(slow, *(torch.as_tensor(a).float() for a in (sample.state, sample.t, sample.h / unit)))
    torch.testing.assert_close(_weights(fast), _weights(slow), rtol=1e-3, atol=1e-4)
    assert stats.return_unit == pytest.approx(unit)


def test_the_return_loss_is_reported_in_returns_whatever_the_unit() -> None:
    sample = _sample(64)
    embedder = _embedder(return_scale="std")
    state_MS, time_M1 = embedder.to_inputs(sample.state, sample.t)
    with torch.no_grad():
        h_hat = embedder.decoder(embedder.encoder(state_MS, time_M1), time_M1)[1].numpy()
    stats = fit(embedder, sample)
    assert stats.return_loss == pytest.approx(np.mean((sample.h - h_hat * stats.return_unit) ** 2), rel=1e-4)


def test_large_returns_no_longer_drown_the_contrastive_term() -> None:
    sample = _sample(640)
    large = NodeSample(sample.state, sample.t, 20 * sample.h)
    last = {}
    for scale in ("none", "std"):
        embedder = _embedder(return_scale=scale, lr=2e-3)
        last[scale] = [fit(embedder, large) for _ in range(30)][-1]
    assert last["std"].info_nce < last["none"].info_nce - 0.3
    assert last["std"].info_nce_accuracy > last["none"].info_nce_accuracy > last["std"].info_nce_chance == 1 / 64


def test_a_sample_smaller_than_the_batch_is_one_update() -> None:
    assert fit(_embedder(), _sample(10)).updates == 1


def _total(**options: Any) -> torch.Tensor:
    embedder = _embedder(**options)
    sample = _sample(64)
    return compute_losses(embedder, *embedder.to_inputs(sample.state, sample.t), torch.as_tensor(sample.h).float())


def test_the_total_is_the_weighted_sum_of_its_parts() -> None:
    total, on_return, on_state, contrast, _ = _total(lambda_rcon=0.3, lambda_cl=0.7).tolist()
    assert total == pytest.approx(on_return + 0.3 * on_state + 0.7 * contrast, rel=1e-5)
    summed = _total(lambda_rcon=0.3, lambda_cl=0.7, reduction="sum").tolist()
    assert summed[0] == pytest.approx(64 * (on_return + 0.3 * on_state) + 0.7 * contrast, rel=1e-5)
    assert summed[1:4] == pytest.approx([on_return, on_state, contrast], rel=1e-5)


def test_dcae_and_a_weight_of_zero_drop_the_contrastive_term() -> None:
    for options in ({"type": "dcae"}, {"lambda_cl": 0.0}):
        total, on_return, on_state, contrast, _ = _total(**options).tolist()
        assert math.isnan(contrast)
        assert total == pytest.approx(on_return + 0.1 * on_state, rel=1e-5)


@pytest.mark.parametrize(
    "option",
    [
        {"cl_views": "aug_aug"},
        {"cl_symmetric": True},
        {"tau_cl": 0.5},
        {"p_mask": 0.5},
        {"sigma": 0.5},
        {"noise_on_masked": False},
        {"aug_shift": 3},
    ],
)
def test_each_contrastive_option_changes_info_nce_and_nothing_else(option: dict[str, Any]) -> None:
    default, changed = _total(), _total(**option)
    assert torch.equal(default[1:3], changed[1:3])
    assert abs(default[3] - changed[3]) > 1e-5


@pytest.mark.parametrize("option", [{"lr": 1e-2}, {"grad_clip": 1e-3}, {"reset_each_update": True}, {"batch": 32}])
def test_each_optimiser_option_changes_the_fitted_weights(option: dict[str, Any]) -> None:
    default, changed = _embedder(), _embedder(**option)
    for embedder in (default, changed):
        fit(embedder, _sample())
        fit(embedder, _sample())
    assert not torch.allclose(_weights(default), _weights(changed), atol=1e-5)


def test_resetting_at_each_update_forgets_the_last_refit() -> None:
    embedder = _embedder(reset_each_update=True, lambda_cl=0.0, lr=1e-2)
    losses = [fit(embedder, _sample(128)).return_loss for _ in range(6)]
    kept = _embedder(lambda_cl=0.0, lr=1e-2)
    assert min(losses) > 1.1 * [fit(kept, _sample(128)).return_loss for _ in range(6)][-1]
    assert max(losses) < 1.1 * min(losses)


@pytest.mark.parametrize("scale", ["none", "std"])
def test_same_seed_same_fit_and_a_restored_embedder_goes_on_bit_for_bit(scale: str) -> None:
    one, two = _embedder(return_scale=scale), _embedder(return_scale=scale)
    assert fit(one, _sample()).loss == fit(two, _sample()).loss
    assert torch.equal(_weights(one), _weights(two))
    saved = one.get_state()
    fit(one, _sample(seed=1))
    late = _embedder(seed=99, return_scale=scale)
    late.set_state(saved)
    fit(late, _sample(seed=1))
    assert torch.equal(_weights(one), _weights(late))
    one.initialize()
    late.initialize()
    assert torch.equal(_weights(one), _weights(late))


def test_the_state_loads_without_executing_anything(tmp_path: Any) -> None:
    embedder = _embedder()
    fit(embedder, _sample())
    torch.save(embedder.get_state(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    other = _embedder(seed=3)
    other.set_state(loaded)
    assert torch.equal(_weights(other), _weights(embedder))


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    sample = _sample()
    broken = NodeSample(sample.state, sample.t, np.full_like(sample.h, np.inf))
    with pytest.raises(NonFiniteLossError, match=r"embed\.lr"):
        fit(_embedder(), broken)
