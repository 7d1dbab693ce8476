"""The compiled step of the agents has the actions and values of plain NumPy; its weights are the current ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emtc_core.config.resolve import resolve
from emtc_core.devices import choose_act_device
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError
from emtc_core.learner.compiled_agents import CompiledAgents
from emtc_core.learner.controller import epsilon_greedy
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.networks import DiverseAgent
from tests.core.learner_cases import BLOCKS, make_config
from tests.errors import raises
from tests.reference import acting


def make(algo: str = "qplex", info: EnvInfo = BLOCKS, *, seed: int = 1) -> ValueLearner:
    learner = make_learner(make_config(algo), info, device="cpu", seed=seed)
    assert isinstance(learner, ValueLearner)
    return learner


def draw(info: EnvInfo, n_envs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    obs = rng.normal(size=(n_envs, info.n_agents, info.obs_dim)).astype(np.float32)
    avail = rng.random((n_envs, info.n_agents, info.n_actions)) < 0.5
    avail[..., 1] |= ~avail.any(-1)
    return obs, avail


@settings(max_examples=15, deadline=None)
@given(
    n_envs=st.integers(1, 64),
    n_agents=st.integers(1, 5),
    n_actions=st.integers(2, 9),
    obs_dim=st.integers(1, 20),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    algo=st.sampled_from(["qplex", "vdn", "cds"]),
    seed=st.integers(0, 1000),
)
def test_compiled_agents_act_as_plain_numpy(n_envs, n_agents, n_actions, obs_dim, epsilon, algo, seed):
    info = EnvInfo("test", "sizes", n_agents, n_actions, obs_dim, 2 * n_agents, 12, (-1.0, 1.0))
    learner = make(algo, info, seed=seed)
    backbone = learner.online
    weights = {name: x.detach().double().numpy() for name, x in backbone.agent.named_parameters()}
    assert isinstance(learner._controller._agents, CompiledAgents)
    assert isinstance(backbone.agent, DiverseAgent) is not backbone.agent_id
    learner.start_episodes(n_envs)
    hidden = np.zeros((n_envs, n_agents, 8))
    last: np.ndarray | None = None
    rng, reference_rng, inputs = (np.random.default_rng(seed) for _ in range(3))
    for _ in range(4):
        obs, avail = draw(info, n_envs, inputs)
        q, hidden = acting.step(weights, obs, last, hidden, has_id=backbone.agent_id)
        wanted = acting.choose(q, avail, epsilon, reference_rng)
        action = learner.act(obs, avail, epsilon=epsilon, rng=rng)
        is_tie = acting.gap(q, avail) < 1e-5
        assert ((action == wanted) | is_tie).all()
        if (action != wanted).any():
            return  # the later steps have other last actions
        last = action
    np.testing.assert_allclose(learner._controller._agents.state[1], hidden, atol=2e-6)
    assert rng.bit_generator.state == reference_rng.bit_generator.state


@pytest.mark.parametrize("n_envs", [1, 7])
def test_a_random_choice_has_the_numbers_of_the_same_generator(n_envs):
    rng, reference_rng, inputs = (np.random.default_rng(3) for _ in range(3))
    for epsilon in (0.0, 0.4, 1.0):
        _, avail = draw(BLOCKS, n_envs, inputs)
        q = inputs.integers(0, 3, avail.shape).astype(np.float32)  # with equal values
        found = epsilon_greedy(q, avail, epsilon=epsilon, rng=rng)
        np.testing.assert_array_equal(found, acting.choose(q, avail, epsilon, reference_rng))


def test_act_device_is_checked_before_a_run_exists():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_act_device("auto", device=gpu, n_rows=512) == cpu
    assert choose_act_device("auto", device=gpu, n_rows=513) == gpu
    assert choose_act_device("cpu", device=gpu, n_rows=513) == cpu
    assert choose_act_device("cuda", device=gpu, n_rows=1) == gpu
    assert choose_act_device("auto", device=cpu, n_rows=1000) == cpu
    with raises(ConfigError, key="train.act_device", value="cuda", related=()):
        choose_act_device("cuda", device=cpu, n_rows=1)
    with raises(ConfigError, key="train.act_device", value="cuda", related=("train.device",)):
        resolve(overrides={"train.act_device": "cuda", "train.device": "cpu"})
