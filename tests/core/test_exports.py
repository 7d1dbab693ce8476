"""Skirmish in another library: TorchRL's own PettingZoo wrapper."""

import warnings
from importlib.util import find_spec

import pytest

from emtc_core.envs.pettingzoo_export import parallel_env
from tests.require import require


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
