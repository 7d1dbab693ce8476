"""Value learners: seeds, checkpoints, acting, copies of the target network. `test_learner_twin` tests the updates."""

import io
import itertools

import numpy as np
import pytest
import torch

from emtc_core.envs.base import EnvInfo
from emtc_core.learner.captured_update import LENGTH_STEP, MAX_GRAPHS, list_lengths
from emtc_core.learner.controller import epsilon_greedy
from emtc_core.learner.learner import IncentiveInputs, ValueLearner, make_learner
from emtc_core.learner.networks import make_sequence_batch
from tests.core.learner_cases import (
    BLOCKS,
    FOOTBALL,
    hard_episodes,
    make_batch,
    make_config,
    make_episode,
    make_inputs,
    make_memory,
)

SYSTEMS = {
    "vdn": ("vdn", {}),
    "qmix": ("qmix", {}),
    "qplex": ("qplex", {}),
    "emtc-qplex": ("emtc-qplex", {}),
    "emtc-cds": ("emtc-cds", {"cds": {"beta": 0.1, "policy_mixture": "heads"}}),
    "cds, periodic": ("cds", {"cds": {"beta": 0.1, "predictor_schedule": "periodic"}}),
    "dmix": ("dmix", {"train": {"optimizer": "adam", "double_q": False}}),
    "emtc-dmix": ("emtc-dmix", {}),
    "emu-qplex": ("emu-qplex", {"incentive": {"clamp": "positive"}, "curiosity": {"scale": 0.1}}),
    "emc": ("emc", {"ec": {"enabled": True}, "incentive": {"enabled": False}, "curiosity": {"scale": 0.1}}),
}
every_system = pytest.mark.parametrize("name", SYSTEMS)


def make(name: str, info: EnvInfo = BLOCKS, seed: int = 1) -> ValueLearner:
    algo, sections = SYSTEMS[name]
    learner = make_learner(make_config(algo, **sections), info, device="cpu", seed=seed)
    assert isinstance(learner, ValueLearner)
    return learner


def make_update(info: EnvInfo = BLOCKS):
    episodes = hard_episodes(info)
    memory = make_memory(episodes)
    batch = make_batch(episodes, info, memory)
    inputs = make_inputs(memory, batch.reward.shape[1])
    return batch, IncentiveInputs(inputs.h_next.float(), inputs.rho_next.float(), inputs.hit)


@pytest.mark.parametrize("limit", [1, 31, 1000, 1_000_000])
def test_batches_on_a_gpu_have_few_lengths_up_to_the_limit(limit):
    lengths = list_lengths(limit)
    assert len(lengths) <= MAX_GRAPHS
    assert lengths[-1] == limit
    assert all(one < other <= max(2 * one, one + LENGTH_STEP) for one, other in itertools.pairwise([0, *lengths]))


@pytest.mark.parametrize("name", ["qplex", "emtc-cds", "emtc-dmix", "emu-qplex"])
def test_updates_depend_on_the_seed_and_not_on_global_randomness(name):
    batch, inputs = make_update()
    reads = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        learner = make(name, seed=5)
        reads.append([learner.update(batch, inputs, env_step=i).read() for i in range(3)])
    assert reads[0] == reads[1]
    other = make(name, seed=6).update(batch, inputs, env_step=0).read()
    assert other["train/loss"] != reads[0][0]["train/loss"]


@pytest.mark.parametrize("name", ["cds, periodic", "emtc-dmix", "emu-qplex"])
def test_a_restored_learner_continues_exactly(name):
    batch, inputs = make_update()
    learner = make(name)
    for i in range(3):
        learner.update(batch, inputs, env_step=i)
        learner.on_episodes(100 * (i + 1))
    stream = io.BytesIO()
    torch.save(learner.get_state(), stream)
    stream.seek(0)
    restored = make(name, seed=99)
    restored.set_state(torch.load(stream, weights_only=True))
    for i in range(3, 6):
        expected = learner.update(batch, inputs, env_step=i).read()
        assert restored.update(batch, inputs, env_step=i).read() == expected
        assert learner.on_episodes(100 * (i + 1)) == restored.on_episodes(100 * (i + 1))
    for key, value in learner.online.state_dict().items():
        assert torch.equal(value, restored.online.state_dict()[key]), key


@pytest.mark.parametrize("name", ["qplex", "cds, periodic"])
def test_acting_step_by_step_equals_unrolling_the_sequence(name):
    learner = make(name)
    played = make_episode(BLOCKS, 9, 0)
    rng = np.random.default_rng(0)
    learner.start_episodes(1)
    for t in range(played.length):
        played.action[t] = learner.act(played.obs[None, t], played.avail[None, t], epsilon=0.0, rng=rng)[0]
    sequence = make_sequence_batch(make_batch([played], BLOCKS), agent_id="cds" not in name)
    greedy = learner.online.unroll(sequence, torch.Generator()).greedy
    np.testing.assert_array_equal(sequence.rows.select_before(greedy), played.action)


def test_the_target_network_is_copied_every_200_episodes():
    learner = make("qplex")
    batch, _ = make_update()
    learner.update(batch, None, env_step=0)
    assert not learner.on_episodes(199)
    assert learner.on_episodes(200)
    for a, b in zip(learner.online.parameters(), learner.target.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not learner.on_episodes(399)
    assert learner.on_episodes(405)


def test_the_priority_of_an_episode_is_its_mean_squared_error():
    learner = make("qplex")
    batch, _ = make_update()
    stats = learner.update(batch, None, env_step=0)
    weighted = (stats.episode_error.numpy() * batch.length).sum() / batch.length.sum()
    assert weighted == pytest.approx(stats["train/td_loss"].item(), rel=1e-5)


def test_greedy_start_values_are_the_mixed_best_values():
    learner = make("vdn", FOOTBALL)
    batch, _ = make_update(FOOTBALL)
    start = learner.q_start(*(x[:, 0].numpy() for x in (batch.obs, batch.state, batch.avail)))
    best = learner.online.unroll(make_sequence_batch(batch, agent_id=True), torch.Generator()).best[: len(batch.length)]
    np.testing.assert_allclose(start, best.sum(-1), rtol=1e-5)


def test_exploration_takes_available_actions_evenly():
    rng = np.random.default_rng(0)
    avail = np.zeros((4000, 1, 5), bool)
    avail[..., [1, 3, 4]] = True
    q = np.zeros(avail.shape, np.float32)
    q[..., 0] = 9.0
    q[..., 4] = 1.0
    drawn = np.bincount(epsilon_greedy(q, avail, epsilon=1.0, rng=rng).ravel(), minlength=5) / 4000
    np.testing.assert_allclose(drawn, [0, 1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)
    assert (epsilon_greedy(q, avail, epsilon=0.0, rng=rng) == 4).all()
    share = (epsilon_greedy(q, avail, epsilon=0.3, rng=rng) == 4).mean()
    assert share == pytest.approx(0.8, abs=0.03)
