"""DMIX against a slow reference with the same fractions; greedy acting without randomness."""

import numpy as np
import pytest
import torch

from emtc_core.learner.backbones import dmix
from emtc_core.learner.backbones.dmix import DmixBackbone
from emtc_core.learner.learner import make_learner
from tests.core.learner_cases import (
    BLOCKS,
    hard_episodes,
    leaves,
    make_batch,
    make_config,
    make_double_learner,
    make_inputs,
    make_memory,
    to_double,
)
from tests.reference import dmix as twin
from tests.reference.learner import best_action, ends, gated_incentive, real, sub, trace


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("algo", ["dmix", "emtc-dmix"])
def test_an_update_descends_the_quantile_loss_of_the_equations(monkeypatch, algo, double_q):
    for name, value in {"N_FRACTIONS": 3, "N_TARGET_FRACTIONS": 4, "N_COS": 5}.items():
        monkeypatch.setattr(dmix, name, value)
    config = make_config(algo, train={"grad_clip": 1e9, "double_q": double_q})
    episodes = hard_episodes(BLOCKS)
    memory = make_memory(episodes) if config.uses_memory else None
    learner = make_double_learner(config, BLOCKS)
    online, target = leaves(learner.online), leaves(learner.target)
    batch = to_double(make_batch(episodes, BLOCKS, memory))
    fractions = torch.Generator()
    fractions.set_state(learner.get_state()["generator"])
    steps = batch.obs.shape[1]
    online_w = torch.rand(steps, len(episodes), 3, generator=fractions)
    target_w = torch.rand(steps, len(episodes), 4, generator=fractions)
    inputs = None if memory is None else make_inputs(memory, steps - 1)
    stats = learner.update(batch, inputs, env_step=0)
    losses = []
    agents = range(BLOCKS.n_agents)
    for e, episode in enumerate(episodes):
        now = [trace(sub(online, "agent"), episode, i, BLOCKS, with_id=True).hidden for i in agents]
        with torch.no_grad():
            then = [trace(sub(target, "agent"), episode, i, BLOCKS, with_id=True).hidden for i in agents]
        for t in range(episode.length):
            w, v = online_w[t, e].tolist(), target_w[t + 1, e].tolist()
            row = [now[i][t] for i in agents]
            z = twin.z_tot(
                sub(online, "agent"),
                sub(online, "mixer.mean_mixer"),
                row,
                episode.action[t].tolist(),
                real(episode.state[t]),
                w,
            )
            with torch.no_grad():
                params, trail, ws = (online, now, online_w[t + 1, e].tolist()) if double_q else (target, then, v)
                chosen = [
                    best_action(twin.mean_values(sub(params, "agent"), trail[i][t + 1], ws), episode.avail[t + 1, i])
                    for i in agents
                ]
                z_next = twin.z_tot(
                    sub(target, "agent"),
                    sub(target, "mixer.mean_mixer"),
                    [then[i][t + 1] for i in agents],
                    chosen,
                    real(episode.state[t + 1]),
                    v,
                )
                last = t == episode.length - 1 and ends(episode, config)
                gained = gated_incentive(config, memory, e, t, sum(z_next) / len(z_next), last=last)
                bootstrap = 0.0 if last else config.train.gamma
                targets = [float(episode.reward[t] + gained + bootstrap * x) for x in z_next]
            losses.append(twin.huber_loss(z, w, targets))
    wanted = sum(losses) / len(losses)
    wanted.backward()
    assert stats["train/loss"].item() == pytest.approx(wanted.item(), rel=1e-6)
    for key, parameter in learner.online.named_parameters():
        np.testing.assert_allclose(parameter.grad, online[key].grad, rtol=1e-5, atol=1e-7, err_msg=key)


def test_greedy_acting_draws_nothing_and_uses_the_mean_of_the_distribution():
    learner = make_learner(make_config("dmix"), BLOCKS, device="cpu", seed=0)
    backbone = learner.online
    assert isinstance(backbone, DmixBackbone)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    obs = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float32)
    avail = np.ones((2, 3, 4), bool)
    actions = []
    for _ in range(2):
        learner.start_episodes(2)
        actions.append(learner.act(obs, avail, epsilon=0.0, rng=rng))
    np.testing.assert_array_equal(*actions)
    assert rng.bit_generator.state == before
    hidden = torch.randn(2, 3, 8)
    many = torch.stack([backbone.act_values(hidden, rng) for _ in range(400)]).mean(0)
    np.testing.assert_allclose(backbone.act_values(hidden, None).detach(), many.detach(), atol=0.06)
