"""A policy by itself acts as the learner that it came from, and so does the TorchScript file made of it."""

import io
import json

import numpy as np
import pytest
import torch

from emtc_core.errors import CheckpointError, ShapeError
from emtc_core.learner.learner import make_learner
from emtc_core.learner.policy import DESCRIPTION_FILE, Policy, ScriptedPolicy, write_script
from tests.core.learner_cases import BLOCKS, FOOTBALL, make_config, make_episode

ALGOS = ["emtc-qplex", "cds", "dmix", "vdn", "mappo"]
SECTIONS = {"mappo": {"mappo": {"stacked_frames": 3}}}


def make(algo: str) -> tuple:
    config = make_config(algo, **SECTIONS.get(algo, {}))
    learner = make_learner(config, BLOCKS, device="cpu", seed=5)
    return config, learner, Policy(config, BLOCKS, learner.get_state(), env_step=30, device="cpu")


def play(n_envs: int, steps: int = 6) -> list[tuple]:
    episodes = [make_episode(BLOCKS, steps, seed) for seed in range(n_envs)]
    return [(np.stack([e.obs[t] for e in episodes]), np.stack([e.avail[t] for e in episodes])) for t in range(steps)]


@pytest.mark.parametrize("algo", ALGOS)
def test_it_acts_as_the_learner_did_in_one_game_and_in_several(algo: str) -> None:
    _, learner, policy = make(algo)
    learner.start_episodes(4)
    rng = np.random.default_rng(0)
    wanted = [learner.act(obs, avail, epsilon=0.0, rng=rng) for obs, avail in play(4)]
    assert len({each.tobytes() for each in wanted}) > 1, "or this shows nothing"
    for _ in range(2):
        policy.reset()
        for (obs, avail), action in zip(play(4), wanted, strict=True):
            np.testing.assert_array_equal(policy.act(obs, avail), action)
    policy.reset()
    for (obs, avail), action in zip(play(4), wanted, strict=True):
        alone = policy.act(obs[2], avail[2])
        assert alone.shape == (3,)
        np.testing.assert_array_equal(alone, action[2])


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("n_envs", [1, 5])
def test_its_torchscript_acts_as_the_learner_in_any_number_of_games(algo: str, n_envs: int) -> None:
    config, learner, policy = make(algo)
    file = io.BytesIO()
    write_script(policy, config, file, description={"run": "k3f9"})
    file.seek(0)
    script = ScriptedPolicy(file)
    learner.start_episodes(n_envs)
    script.start_episodes(n_envs)
    for obs, avail in play(n_envs):
        wanted = learner.act(obs, avail, epsilon=0.0, rng=np.random.default_rng(0))
        np.testing.assert_array_equal(script.act(obs, avail), wanted)
    file.seek(0)
    told = {DESCRIPTION_FILE: ""}
    torch.jit.load(file, _extra_files=told)
    assert json.loads(told[DESCRIPTION_FILE]) == {"run": "k3f9"}


def test_other_arrays_and_other_weights_are_refused() -> None:
    config, learner, policy = make("vdn")
    (obs, avail), *_ = play(2)
    with pytest.raises(ShapeError, match="obs"):
        policy.act(obs[..., :-1], avail)
    with pytest.raises(ShapeError, match="avail"):
        policy.act(obs, avail[:1])
    policy.act(obs, avail)
    with pytest.raises(ShapeError, match="obs"):
        policy.act(obs[:1], avail[:1])
    with pytest.raises(CheckpointError, match="vdn"):
        Policy(config, FOOTBALL, learner.get_state(), env_step=30, device="cpu")
    with pytest.raises(CheckpointError, match="vdn"):
        Policy(config, BLOCKS, {}, env_step=30, device="cpu")
