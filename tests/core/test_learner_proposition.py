"""Proposition 2 on the real learner: with H = V*, rho = 1 and beta = 1 the target network drops out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emtc_core.learner.learner import IncentiveInputs
from emtc_core.learner.networks import make_sequence_batch
from tests.core.learner_cases import (
    BLOCKS,
    leaves,
    make_batch,
    make_config,
    make_double_learner,
    make_episode,
    to_double,
)
from tests.reference import learner as twin
from tests.reference.learner import Memory

UNCLIPPED = {"grad_clip": 1e9}


def perfect_recall(shape: torch.Size, v_star: torch.Tensor) -> IncentiveInputs:
    return IncentiveInputs(v_star, torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.bool))


def gradients_with(target_noise: float, *, clamp: str, v_star: float) -> dict[str, torch.Tensor]:
    config = make_config("emtc-qplex", train=UNCLIPPED, incentive={"clamp": clamp})
    learner = make_double_learner(config, BLOCKS)
    for x in learner.target.parameters():
        x.mul_(1.0 + target_noise)
    batch = to_double(make_batch([make_episode(BLOCKS, 6, 1), make_episode(BLOCKS, 4, 2)], BLOCKS))
    inputs = perfect_recall(batch.reward.shape, torch.full(batch.reward.shape, v_star, dtype=torch.float64))
    learner.update(batch, inputs, env_step=0)
    return {k: p.grad.clone() for k, p in learner.online.named_parameters() if p.grad is not None}


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[k] - b[k]).abs().max()) for k in a)


def test_with_perfect_memory_the_gradient_is_that_of_the_optimal_target():
    optimal = 0.7
    first = gradients_with(0.0, clamp="none", v_star=optimal)
    second = gradients_with(2.0, clamp="none", v_star=optimal)
    assert largest_difference(first, second) < 1e-7
    config = make_config("emtc-qplex", train=UNCLIPPED)
    learner = make_double_learner(config, BLOCKS)
    online = leaves(learner.online)
    zero_target = {k: torch.zeros_like(v) for k, v in leaves(learner.target).items()}
    episodes = [make_episode(BLOCKS, 6, 1), make_episode(BLOCKS, 4, 2)]
    # A target network that is zero everywhere leaves r + gamma V* from the incentive alone.
    memory = Memory(*[[[x] * e.length for e in episodes] for x in (optimal, 1.0, 1.0)])
    twin.loss(online, zero_target, episodes, config, BLOCKS, memory).backward()
    for key, gradient in first.items():
        np.testing.assert_allclose(gradient, online[key].grad, rtol=1e-5, atol=1e-7, err_msg=key)


def test_the_clamp_breaks_the_identity_where_the_target_overestimates():
    low = -50.0
    plain = gradients_with(0.0, clamp="none", v_star=low)
    clamped = gradients_with(0.0, clamp="positive", v_star=low)
    assert largest_difference(plain, clamped) > 1e-2
    high = 50.0
    agree = [gradients_with(0.0, clamp=c, v_star=high) for c in ("none", "positive")]
    assert largest_difference(*agree) < 1e-7


def test_the_gated_target_is_a_convex_combination_of_bootstrap_and_memory():
    config = make_config("emtc-qplex")
    learner = make_double_learner(config, BLOCKS)
    batch = to_double(make_batch([make_episode(BLOCKS, 6, 1)], BLOCKS))
    gate = torch.rand(batch.beta.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = replace(batch, beta=gate)
    h, rho = torch.full_like(gate, 3.0), torch.full_like(gate, 0.4)
    with torch.no_grad():
        plain = learner.target
        seq = make_sequence_batch(batch, agent_id=True)
        online = learner.online.unroll(seq, torch.Generator())
        unrolled = plain.unroll(seq, torch.Generator())
        q_bar = plain.bootstrap(unrolled, seq.rows.select_after(online.greedy), seq).q_tot.T
    stats = learner.update(batch, IncentiveInputs(h, rho, torch.ones_like(gate, dtype=torch.bool)), env_step=0)
    keep = 1.0 - gate * rho
    bootstrapped = (~batch.terminated).double()
    wanted = batch.reward + 0.99 * bootstrapped * (keep * q_bar + gate * rho * h)
    assert stats["train/target"].item() == pytest.approx(wanted.mean().item(), rel=1e-6)
