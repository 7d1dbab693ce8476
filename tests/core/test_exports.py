"""Skirmish in the hands of other libraries: gymnasium as EPyMARL asks it, and TorchRL's own PettingZoo wrapper."""

import warnings
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from emtc_core.envs import epymarl_export
from emtc_core.envs.pettingzoo_export import parallel_env
from tests.require import require

KEY = "emtc_core.envs.epymarl_export:skirmish-{}-v0"


def make(map: str) -> gymnasium.Env:
    return gymnasium.make(KEY.format(map))


@pytest.mark.parametrize(("map", "n_agents", "obs_dim"), [("3m", 3, 30), ("3s_vs_5z", 3, 48), ("MMM2", 10, 176)])
def test_an_id_gives_tuples_with_an_entry_for_each_agent(map: str, n_agents: int, obs_dim: int):
    env = make(map)
    assert env.unwrapped.n_agents == len(env.action_space) == len(env.observation_space) == n_agents
    observations, info = env.reset(seed=1)
    assert env.observation_space.contains(observations)
    assert observations[0].shape == (obs_dim,)
    assert info == {"battle_won": 0}
    env.close()


def test_every_map_is_registered_once():
    assert set(epymarl_export.register()) == set(epymarl_export.register()) <= set(gymnasium.registry)


def test_it_plays_as_the_pettingzoo_export_does_and_says_who_won():
    env, twin = make("8m"), parallel_env("8m")
    rng = np.random.default_rng(0)
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        other, _ = twin.reset(seed=seed)
        over = False
        while not over:
            for mine, agent in zip(seen, twin.possible_agents, strict=True):
                np.testing.assert_array_equal(mine, other[agent]["observation"])
            action = [int(rng.choice(np.flatnonzero(other[agent]["action_mask"]))) for agent in twin.agents]
            seen, rewards, terminated, truncated, info = env.step(action)
            other, expected, *_, infos = twin.step(dict(zip(twin.agents, action, strict=True)))
            over = terminated or truncated
            assert rewards == list(expected.values())
            assert info == {"battle_won": int(any(each["won"] for each in infos.values()))}
    env.close()


def test_without_a_seed_the_next_episode_is_another_one_and_an_equal_seed_the_same():
    env = make("3m")

    def rewards(seed: int | None) -> list[float]:
        env.reset(seed=seed)
        rng, found, over = np.random.default_rng(5), [], False
        while not over:
            _, reward, terminated, truncated, _ = env.step(rng.integers(0, 9, 3))
            over = terminated or truncated
            found.append(reward[0])
        return found

    first = rewards(4)
    assert rewards(4) == first
    assert rewards(None) != first
    env.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchrl_checks_it_plays_it_legally_and_learns_from_it():
    found = find_spec("torchrl") is not None and find_spec("tensordict") is not None
    require("torchrl", found, "torchrl and tensordict are not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from tensordict.nn import TensorDictModule
        from torchrl.envs.libs.pettingzoo import PettingZooWrapper
        from torchrl.envs.utils import check_env_specs
        from torchrl.modules import QValueModule, VDNMixer
        from torchrl.objectives.multiagent import QMixerLoss

    env = PettingZooWrapper(parallel_env("3m"), return_state=True)
    check_env_specs(env)
    assert env.group_map == {"agent": ["agent_0", "agent_1", "agent_2"]}
    assert env.full_action_spec["agent", "action"].space.n == 9
    assert env.observation_spec["state"].shape[-1] == 48
    played = env.rollout(60, break_when_any_done=False)
    chosen = played["agent", "action_mask"].gather(-1, played["agent", "action"].unsqueeze(-1))
    assert chosen.all()  # TorchRL reads the mask of the observation
    assert played["next", "done"].any()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(30, 32), torch.nn.ReLU(), torch.nn.Linear(32, 9))
    keys = ("agent", "observation", "observation"), ("agent", "action_value")
    values = TensorDictModule(net, in_keys=[keys[0]], out_keys=[keys[1]])
    choose = QValueModule(
        action_value_key=keys[1], action_mask_key=("agent", "action_mask"), action_space="categorical",
        out_keys=[("agent", "action"), keys[1], ("agent", "chosen_action_value")],
    )  # fmt: skip
    team = TensorDictModule(
        VDNMixer(n_agents=3, device="cpu"), in_keys=[("agent", "chosen_action_value")], out_keys=["chosen_action_value"]
    )
    from tensordict.nn import TensorDictSequential

    loss = QMixerLoss(TensorDictSequential(values, choose), team, delay_value=True, action_space="categorical")
    loss.set_keys(
        action=("agent", "action"), action_value=keys[1], local_value=("agent", "chosen_action_value"),
        global_value="chosen_action_value", reward="reward", done="done", terminated="terminated",
    )  # fmt: skip
    loss.make_value_estimator()
    played["next", "reward"] = played["next", "agent", "reward"].mean(-2)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        error = loss(played.clone())["loss"]
        error.backward()
        optimizer.step()
        losses.append(float(error))
    assert losses[-1] < losses[0] / 2
    env.close()
