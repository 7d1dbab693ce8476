"""Mixers: monotonicity and the greedy joint action. `test_learner_twin` and `test_dmix` compare their values."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emtc_core.config.backbones import QmixConfig, QplexConfig
from emtc_core.learner.mixers.base import Mixer, MixInputs
from emtc_core.learner.mixers.qmix import QmixMixer, VdnMixer
from emtc_core.learner.mixers.qplex import QplexMixer

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
def test_the_greedy_joint_action_consists_of_the_greedy_actions_of_the_agents(name, seed):
    mixer = make_mixer(name, seed)
    q, state, obs = draw(seed, 1)
    joint = {a: joint_value(mixer, q[0], a, state, obs) for a in itertools.product(range(A), repeat=N)}
    assert max(joint, key=lambda a: joint[a]) == tuple(q[0].argmax(1).tolist())


@pytest.mark.parametrize("name", ["vdn", "qmix"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_q_tot_does_not_fall_when_the_value_of_an_agent_rises(name, seed):
    mixer = make_mixer(name, seed)
    q, state, obs = draw(seed, 16)
    taken = q[..., 0].requires_grad_()
    mixer(MixInputs(taken, taken.detach(), torch.zeros(16, N, dtype=torch.int64), state, obs)).q_tot.sum().backward()
    assert (taken.grad >= 0).all()
