"""Diversity (CDS) against slow references, and schedules. `test_published_learners` tests updates and curiosity."""

import copy

import numpy as np
import pytest
import torch

from emtc_core.config.backbones import CuriosityConfig
from emtc_core.learner.curiosity import curiosity_scale
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.diversity_predictors import PredictorRows, Predictors
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.networks import DiverseAgent, SequenceBatch, make_sequence_batch
from tests.core.learner_cases import BLOCKS, hard_episodes, make_batch, make_config
from tests.reference import diversity as twin
from tests.reference.learner import sub, trace


def make_cds(**cds) -> tuple[ValueLearner, Diversity]:
    learner = make_learner(make_config("cds", cds={"beta": 0.3} | cds), BLOCKS, device="cpu", seed=2)
    assert isinstance(learner, ValueLearner)
    (part,) = learner._intrinsic
    assert isinstance(part, Diversity)
    return learner, part


def unroll(learner: ValueLearner, *, agent_id: bool):
    seq: SequenceBatch = make_sequence_batch(make_batch(hard_episodes(BLOCKS), BLOCKS), agent_id=agent_id)
    return seq, learner.online.unroll(seq, torch.Generator())


@pytest.mark.parametrize("mixture", ["agents", "heads", "histories"])
def test_the_diversity_reward_equals_the_slow_reference(mixture):
    learner, part = make_cds(policy_mixture=mixture, b1=0.5, b2=2.0)
    seq, online = unroll(learner, agent_id=False)
    reward = part.reward(seq, online, env_step=0)
    agent = learner.online.agent
    assert isinstance(agent, DiverseAgent)
    params = {k: v.detach().double() for k, v in learner.online.state_dict().items()}
    predictors = {k: v.double() for k, v in part.get_state()["target"].items()}
    for e, episode in enumerate(hard_episodes(BLOCKS)):
        traces = [trace(sub(params, "agent"), episode, i, BLOCKS, with_id=False) for i in range(3)]
        for t in range(episode.length):
            hidden = [traces[i].hidden[t] for i in range(3)]
            before = [traces[i].hidden[t - 1] if t else torch.zeros_like(hidden[0]) for i in range(3)]
            head, bias = params["agent.head.weight"], params["agent.head.bias"]
            shared = [params["agent.fc2.weight"] @ h + params["agent.fc2.bias"] for h in hidden]
            q = torch.stack(
                [torch.stack([shared[j] + hidden[j] @ head[k] + bias[k] for k in range(3)]) for j in range(3)]
            )
            wanted = twin.reward(
                predictors,
                learner._config.cds,
                hidden_before=torch.stack(before),
                obs=torch.from_numpy(episode.obs[t]).double(),
                action=episode.action[t].tolist(),
                obs_next=torch.from_numpy(episode.obs[t + 1]).double(),
                q_by_identity=q,
            )
            assert reward[t, e].item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_periodic_predictors_are_trained_after_sixteen_episodes():
    learner, part = make_cds(predictor_schedule="periodic")
    seq, online = unroll(learner, agent_id=False)
    generator = torch.Generator().manual_seed(0)
    start = [x.clone() for x in part.get_state()["online"].values()]

    def moved() -> bool:
        return any(not torch.equal(a, b) for a, b in zip(start, part.get_state()["online"].values(), strict=True))

    part.on_episodes(15)
    part.train(seq, online, env_step=0, generator=generator)
    assert not moved()
    part.on_episodes(16)
    part.train(seq, online, env_step=0, generator=generator)
    assert moved()


def test_the_curiosity_scale_decays_to_its_minimum_and_rises_to_it_only_with_the_published_bug():
    config = CuriosityConfig(scale=0.1, decay_rate=0.8, decay_cycle=200_000, decay_stop=0.01)
    assert curiosity_scale(config, 199_999) == 0.1
    assert curiosity_scale(config, 200_000) == pytest.approx(0.08)
    assert curiosity_scale(config, 10_000_000) == 0.01
    off = CuriosityConfig(scale=0.001, decay_stop=0.01, decay_cycle=100)
    assert curiosity_scale(off, 1000) == 0.001
    raised = CuriosityConfig(scale=0.0, decay_stop=0.01, decay_cycle=100, emulate_floor_bug=True)
    assert [curiosity_scale(raised, s) for s in (0, 99, 100, 5000)] == [0.0, 0.0, 0.01, 0.01]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_predictors_take_the_clipped_steps_of_autograd_chunk_by_chunk(kind: torch.dtype):
    """In float64 by a recorded graph, in float32 by compiled gradients."""
    torch.manual_seed(0)
    predictors = Predictors(7, 3, 5)
    plain = copy.deepcopy(predictors).double()
    z, agent = torch.randn(40, 7, dtype=torch.float64), torch.eye(3, dtype=torch.float64)[torch.arange(40) % 3]
    rows = PredictorRows(torch.cat([z, agent], -1), 20.0 * torch.randn(40, 5, dtype=torch.float64))
    chunks = list(torch.randperm(40).split(16))
    optimizer = torch.optim.SGD(predictors.to(kind).parameters(), lr=1e-2)
    predictors.fit(PredictorRows(*(x.to(kind) for x in rows)), iter(chunks), optimizer)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)
    q = [plain.q_first, plain.q_second, plain.q_last]
    for chunk in chunks:
        hidden = torch.relu(q[0](rows.z_id[chunk]))
        hidden = torch.relu(q[1](torch.cat([hidden, agent[chunk]], -1)))
        errors = [(out - rows.obs_next[chunk]).square().sum(-1) for out in (plain.p(z[chunk]), q[2](hidden))]
        optimizer.zero_grad()
        (errors[0].mean() + errors[1].mean()).backward()
        torch.nn.utils.clip_grad_norm_(plain.p.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_([p for layer in q for p in layer.parameters()], 1.0)
        optimizer.step()
    for key, value in plain.state_dict().items():
        tolerance = {"rtol": 1e-9, "atol": 1e-12} if kind == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(predictors.state_dict()[key], value, err_msg=key, **tolerance)
