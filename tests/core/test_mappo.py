"""MAPPO: advantages, clipping, masks and normalisation against slow readings; the learner's promises."""

import io

import numpy as np
import pytest
import torch

from emtc_core.learner.learner import MappoLearner, make_learner
from emtc_core.learner.ppo import (
    ValueNorm,
    generalized_advantages,
    masked_log_softmax,
    mean_entropy,
    normalize_advantages,
    policy_loss,
    value_loss,
)
from emtc_core.metrics import METRICS
from tests.core.learner_cases import BLOCKS, hard_episodes, leaves, make_config, make_episode
from tests.reference import mappo as twin


def make(seed: int = 1, lr: float = 1e-3, **mappo) -> MappoLearner:
    config = make_config("mappo", train={"lr": lr}, mappo=mappo)
    learner = make_learner(config, BLOCKS, device="cpu", seed=seed)
    assert isinstance(learner, MappoLearner)
    return learner


def advantages(reward, value, *, bootstrap, gamma, gae_lambda, padding=0):
    """One episode [T] and [T+1, N] through the padded form."""
    following = value[1:].copy()
    following[-1] *= bootstrap
    padded = [np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for x in (reward, value[:-1], following)]
    got = generalized_advantages(*(torch.from_numpy(x)[None] for x in padded), gamma=gamma, gae_lambda=gae_lambda)
    return got[0, : len(reward)].numpy()


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_advantages_equal_the_sum_of_discounted_errors(bootstrap, padding):
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=7), rng.normal(size=(8, 2))
    got = advantages(reward, value, bootstrap=bootstrap, gamma=0.99, gae_lambda=0.95, padding=padding)
    for i in range(2):
        following = 0.0
        for t in range(6, -1, -1):
            next_value = value[t + 1, i] if t < 6 or bootstrap else 0.0
            following = reward[t] + 0.99 * next_value - value[t, i] + 0.99 * 0.95 * following
            assert got[t, i] == pytest.approx(following)


def test_lambda_one_gives_returns_minus_values():
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=5), rng.normal(size=(6, 1))
    got = advantages(reward, value, bootstrap=False, gamma=0.9, gae_lambda=1.0)
    returns = [sum(0.9 ** (k - t) * reward[k] for k in range(t, 5)) for t in range(5)]
    np.testing.assert_allclose(got[:, 0], returns - value[:5, 0])


def test_the_policy_loss_clips_each_ratio_and_ignores_the_dead():
    log_prob = torch.tensor([0.5, -0.5, 0.1, 3.0]).log_softmax(0)
    old = log_prob - torch.tensor([0.5, -0.4, 0.01, 2.0])
    advantage = torch.tensor([1.0, -2.0, 0.5, 9.0])
    alive = torch.tensor([1.0, 1.0, 1.0, 0.0])
    total = 0.0
    for k in range(3):
        ratio = float(torch.exp(log_prob[k] - old[k]))
        total += min(ratio * float(advantage[k]), min(max(ratio, 0.8), 1.2) * float(advantage[k]))
    assert policy_loss(log_prob, old, advantage, alive, clip=0.2).item() == pytest.approx(-total / 3, rel=1e-5)


def test_the_value_loss_is_the_larger_of_plain_and_clipped():
    value, old, target = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.1]), torch.tensor([0.6, -20.0])
    wanted = []
    for v, o, y in zip(value.tolist(), old.tolist(), target.tolist(), strict=True):
        clipped = o + min(max(v - o, -0.2), 0.2)
        errors = [abs(y - v), abs(y - clipped)]
        wanted.append(max(0.5 * e * e if e <= 10 else 10 * (e - 5) for e in errors))
    assert value_loss(value, old, target, clip=0.2, delta=10.0).item() == pytest.approx(sum(wanted) / 2)
    at_the_corner = value_loss(torch.zeros(1), torch.zeros(1), torch.full((1,), 10.0), clip=0.2, delta=10.0)
    assert at_the_corner.item() == 50.0


def test_unavailable_actions_have_no_probability_and_no_gradient():
    logits = torch.randn(5, 4, requires_grad=True)
    avail = torch.tensor([[True, False, True, True]] * 4 + [[True, False, False, False]])
    log_probs = masked_log_softmax(logits, avail)
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(5))
    assert (log_probs.exp()[~avail] == 0).all()
    (mean_entropy(log_probs, torch.ones(5)) + log_probs[:, 0].sum()).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[~avail] == 0).all()
    assert mean_entropy(masked_log_softmax(torch.zeros(1, 4), avail[:1]), torch.ones(1)).item() == pytest.approx(
        np.log(3), rel=1e-6
    )


def test_advantages_are_normalised_over_the_living():
    advantage = torch.tensor([1.0, 2.0, 3.0, 1000.0])
    normal = normalize_advantages(advantage, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    np.testing.assert_allclose(normal[:3], [-1.2247, 0.0, 1.2247], atol=1e-3)


def test_value_normalisation_is_debiased_and_inverts():
    norm = ValueNorm(0.99999, torch.device("cpu"))
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 7.0 + 3.0
    norm.update(values)
    standard = norm.normalize(values)
    assert standard.mean().item() == pytest.approx(0.0, abs=2e-2)
    assert standard.std().item() == pytest.approx(1.0, abs=2e-2)
    np.testing.assert_allclose(norm.denormalize(standard), values, rtol=1e-4, atol=1e-4)


def test_an_update_reads_registered_finite_numbers_even_with_all_agents_dead():
    learner = make()
    read = learner.update_rollout(hard_episodes(BLOCKS)).read()
    assert set(read) <= set(METRICS)
    assert all(np.isfinite(list(read.values())))
    dead = learner.update_rollout([make_episode(BLOCKS, 3, 0, dead=True)]).read()
    assert all(np.isfinite(list(dead.values())))
    assert dead["train/policy_loss"] == 0.0


def test_rewarded_actions_become_likelier():
    learner = make(lr=5e-3, epochs=5)
    rng = np.random.default_rng(0)
    episodes = []
    for seed in range(40):
        e = make_episode(BLOCKS, 8, seed)
        e.avail[:] = True
        e.action[:] = rng.integers(0, 4, e.action.shape)
        e.reward[:] = (e.action == 2).mean(-1)
        episodes.append(e)
    obs, avail = episodes[0].obs[None, 0], np.ones((1, 3, 4), bool)

    def share() -> float:
        learner.start_episodes(200)
        many = np.repeat(obs, 200, 0), np.repeat(avail, 200, 0)
        return float((learner.act(*many, epsilon=1.0, rng=np.random.default_rng(5)) == 2).mean())

    before = share()
    first = learner.update_rollout(episodes).read()
    for _ in range(15):
        last = learner.update_rollout(episodes).read()
    assert share() > before + 0.1
    assert last["train/value_loss"] < first["train/value_loss"]


def test_stacked_frames_in_acting_are_those_of_learning():
    learner = make(stacked_frames=3)
    episode = make_episode(BLOCKS, 6, 3)
    learner.start_episodes(1)
    rng = np.random.default_rng(0)
    for t in range(episode.length):
        episode.action[t] = learner.act(episode.obs[None, t], episode.avail[None, t], epsilon=0.0, rng=rng)[0]
    samples = learner._samples([episode])
    logits = learner.actor(samples.actor_in).masked_fill(~samples.avail, -torch.inf)
    np.testing.assert_array_equal(logits.argmax(-1).numpy(), episode.action.ravel())


def test_a_restored_checkpoint_continues_exactly():
    learner = make(minibatches=2)
    learner.update_rollout(hard_episodes(BLOCKS))
    stream = io.BytesIO()
    torch.save(learner.get_state(), stream)
    stream.seek(0)
    restored = make(seed=77, minibatches=2)
    restored.set_state(torch.load(stream, weights_only=True))
    expected = learner.update_rollout(hard_episodes(BLOCKS)).read()
    assert restored.update_rollout(hard_episodes(BLOCKS)).read() == expected


def test_greedy_acting_is_the_mode_and_draws_nothing():
    learner = make()
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    learner.start_episodes(2)
    episode = make_episode(BLOCKS, 1, 0)
    action = learner.act(np.repeat(episode.obs[:1], 2, 0), np.repeat(episode.avail[:1], 2, 0), epsilon=0.0, rng=rng)
    assert rng.bit_generator.state == before
    assert np.take_along_axis(np.repeat(episode.avail[:1], 2, 0), action[..., None], -1).all()


def test_an_update_descends_the_losses_of_the_equations():
    episodes = hard_episodes(BLOCKS)
    learner = make(epochs=1)
    learner._config = make_config("mappo", train={"lr": 1e-3, "grad_clip": 1e9}, mappo={"epochs": 1})
    actor, critic = leaves(learner.actor), leaves(learner.critic)
    stats = learner.update_rollout(episodes)
    policy, value, entropy = twin.losses(actor, critic, episodes, learner._config, BLOCKS)
    (policy - 0.01 * entropy + value).backward()
    # The surrogate of a policy that has not moved is zero on average, so it is compared by its size, not relatively.
    assert stats["train/policy_loss"].item() == pytest.approx(policy.item(), abs=1e-6)
    assert stats["train/value_loss"].item() == pytest.approx(value.item(), rel=1e-5)
    assert stats["train/entropy"].item() == pytest.approx(entropy.item(), rel=1e-5)
    for network, wanted in ((learner.actor, actor), (learner.critic, critic)):
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            scale = wanted[name].grad.abs().max().item()
            np.testing.assert_allclose(parameter.grad, wanted[name].grad, atol=1e-5 * max(scale, 1e-3), err_msg=name)
