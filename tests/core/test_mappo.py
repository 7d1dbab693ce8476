"""MAPPO against slow references. `test_published_learners` tests clipping, normalization and further passes."""

import numpy as np
import pytest
import torch

from emtc_core.learner.learner import MappoLearner, make_learner
from emtc_core.learner.ppo import generalized_advantages, value_loss
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


def test_the_value_loss_is_the_larger_one_of_the_huber_losses_of_the_value_and_the_clipped_value():
    """The published updates have no error above the threshold of the Huber loss."""
    value, old, target = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.5, 1.1, 0.0]), torch.tensor([0.6, -20.0, 10.0])
    wanted = []
    for v, o, y in zip(value.tolist(), old.tolist(), target.tolist(), strict=True):
        clipped = o + min(max(v - o, -0.2), 0.2)
        errors = [abs(y - v), abs(y - clipped)]
        wanted.append(max(0.5 * e * e if e <= 10 else 10 * (e - 5) for e in errors))
    assert value_loss(value, old, target, clip=0.2, delta=10.0).item() == pytest.approx(sum(wanted) / 3)


def test_an_update_has_finite_values_also_if_all_agents_are_dead():
    dead = make().update_rollout([make_episode(BLOCKS, 3, 0, dead=True)]).read()
    assert all(np.isfinite(list(dead.values())))
    assert dead["train/policy_loss"] == 0.0


def test_the_minibatches_of_an_epoch_contain_each_action_once():
    learner = make(epochs=2, minibatches=3)
    inputs = []
    learner.actor.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    learner.update_rollout(hard_episodes(BLOCKS))
    whole, *minibatches = inputs  # the first pass computes the old log probabilities
    assert len(minibatches) == 6
    for epoch in (minibatches[:3], minibatches[3:]):
        assert sorted(torch.cat(epoch).tolist()) == sorted(whole.flatten(0, 1).tolist())


def test_acting_and_learning_stack_the_same_frames():
    learner = make(stacked_frames=3)
    episode = make_episode(BLOCKS, 6, 3)
    learner.start_episodes(1)
    rng = np.random.default_rng(0)
    for t in range(episode.length):
        episode.action[t] = learner.act(episode.obs[None, t], episode.avail[None, t], epsilon=0.0, rng=rng)[0]
    samples = learner._samples([episode])
    logits = learner.actor(samples.actor_in).masked_fill(~samples.avail, -torch.inf)
    np.testing.assert_array_equal(logits.argmax(-1).numpy(), episode.action.ravel())


def test_losses_and_gradients_of_an_update_equal_those_of_the_slow_reference():
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
