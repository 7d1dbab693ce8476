"""What every mixer promises: monotonicity, the greedy joint action, weights and advantages of the right sign."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emtc_core.config.backbones import QmixConfig, QplexConfig
from emtc_core.learner.mixers.base import Mixer, MixInputs
from emtc_core.learner.mixers.qmix import DmixMixer, QmixMixer, VdnMixer
from emtc_core.learner.mixers.qplex import Importance, QplexMixer

N, A, S, O = 3, 4, 10, 5
SIZES = {"n_agents": N, "n_actions": A, "state_dim": S, "obs_dim": O, "agent_block": 2}
NAMES = ("vdn", "qmix", "qatten", "qatten-weighted", "dmaq", "dmaq-weighted")
seeds = st.integers(0, 2**31 - 1)


def make_mixer(name: str, seed: int) -> Mixer:
    torch.manual_seed(seed)
    if name == "vdn":
        return VdnMixer()
    if name == "qmix":
        return QmixMixer(QmixConfig(), n_agents=N, state_dim=S).double()
    mixer = "dmaq" if name.startswith("dmaq") else "dmaq_qatten"
    return QplexMixer(QplexConfig(mixer=mixer, weighted_head=name.endswith("weighted")), **SIZES).double()


def draw(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, state, obs = (torch.randn(rows, *s, generator=g, dtype=torch.float64) for s in ((N, A), (S,), (N, O)))
    return 3.0 * q, state, obs


def joint_value(mixer: Mixer, q_NA: torch.Tensor, action: tuple[int, ...], state, obs) -> float:
    a = torch.tensor([action])
    taken = q_NA.gather(1, a.T).T
    inputs = MixInputs(taken, q_NA.max(1).values[None], a, state, obs)
    return mixer(inputs).q_tot.item()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_the_greedy_joint_action_is_each_agents_own_greedy_action(name, seed):
    mixer = make_mixer(name, seed)
    q, state, obs = draw(seed, 1)
    joint = {a: joint_value(mixer, q[0], a, state, obs) for a in itertools.product(range(A), repeat=N)}
    assert max(joint, key=lambda a: joint[a]) == tuple(q[0].argmax(1).tolist())


@pytest.mark.parametrize("name", ["vdn", "qmix"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_q_tot_never_falls_when_an_agents_value_rises(name, seed):
    mixer = make_mixer(name, seed)
    q, state, obs = draw(seed, 16)
    taken = q[..., 0].requires_grad_()
    mixer(MixInputs(taken, taken.detach(), torch.zeros(16, N, dtype=torch.int64), state, obs)).q_tot.sum().backward()
    assert (taken.grad >= 0).all()


@pytest.mark.parametrize("name", ["qatten", "qatten-weighted", "dmaq", "dmaq-weighted"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_qplex_never_values_a_joint_action_above_the_greedy_one(name, seed):
    mixer = make_mixer(name, seed)
    q, state, obs = draw(seed, 1)
    best = joint_value(mixer, q[0], tuple(q[0].argmax(1).tolist()), state, obs)
    rng = np.random.default_rng(seed)
    for action in rng.integers(0, A, (8, N)).tolist():
        assert joint_value(mixer, q[0], tuple(action), state, obs) <= best


@settings(max_examples=25, deadline=None)
@given(seed=seeds, layers=st.integers(1, 3))
def test_importance_weights_are_positive(seed, layers):
    torch.manual_seed(seed)
    importance = Importance(QplexConfig(adv_hypernet_layers=layers), n_agents=N, n_actions=A, state_dim=S).double()
    _, state, _ = draw(seed, 16)
    action = torch.randint(0, A, (16, N))
    assert (importance(state, action) > 0).all()


def test_unweighted_attention_gives_the_agents_as_much_weight_as_there_are_heads():
    mixer = make_mixer("qatten", 0)
    q, state, obs = draw(0, 16)
    transform = mixer.transform(MixInputs(q[..., 0], q[..., 0], torch.zeros(16, N, dtype=torch.int64), state, obs))
    np.testing.assert_allclose(transform.weight.sum(0).detach(), 4.0, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_the_mean_of_dmix_samples_is_qmix_of_the_mean_utilities(seed):
    torch.manual_seed(seed)
    mixer = DmixMixer(QmixConfig(), n_agents=N, state_dim=S).double()
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(6, N, 8, generator=g, dtype=torch.float64)
    state = torch.randn(6, S, generator=g, dtype=torch.float64)
    z_tot, q_tot = mixer(z, state)
    np.testing.assert_allclose(z_tot.mean(-1).detach(), q_tot.detach(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(q_tot.detach(), mixer.mean_mixer.mix(z.mean(-1), state).detach())
