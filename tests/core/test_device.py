"""Nothing in an update waits for the device or mixes devices.

Tensors on PyTorch's meta device have a place and a shape but no values, so whatever reads a value, moves a tensor to
the host or joins tensors of two devices raises, as on a GPU it would wait or raise.
"""

import numpy as np
import pytest
import torch

from emtc_core.config.run import RunConfig
from emtc_core.learner.learner import make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.ppo import ValueNorm
from emtc_core.learner.targets import make_incentive_inputs
from emtc_core.replay_buffer.buffer import ReplayBuffer
from tests.core.learner_cases import BLOCKS, hard_episodes, make_config, make_memory
from tests.core.test_learner import SYSTEMS

NOWHERE = torch.device("meta")


class UnfusedAdam(torch.optim.Adam):
    """The fused kernel exists for real devices only."""

    def __init__(self, parameters, *, fused: bool = False, **options) -> None:
        super().__init__(parameters, **options)


@pytest.fixture(autouse=True)
def what_the_meta_device_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "Adam", UnfusedAdam)


def update(config: RunConfig) -> dict[str, torch.Tensor]:
    episodes = hard_episodes(BLOCKS)
    learner = make_learner(config, BLOCKS, device=NOWHERE, seed=1)
    if isinstance(learner, MappoLearner):
        return dict(learner.update_rollout(episodes, env_step=0))
    memory = make_memory(episodes)
    buffer = ReplayBuffer(len(episodes), BLOCKS, device=NOWHERE)
    for i, episode in enumerate(episodes):
        buffer.add(episode, beta=np.array(memory.beta[i]))
    batch = buffer.take(np.arange(len(episodes)))
    shape = batch.ends.shape
    recalled = make_incentive_inputs(np.zeros(shape), np.zeros(shape), np.ones(shape, np.bool_))
    return dict(learner.update(batch, recalled if config.uses_memory else None, env_step=0))


@pytest.mark.parametrize("name", [*SYSTEMS, "mappo"])
def test_an_update_neither_waits_for_the_device_nor_mixes_devices(name: str) -> None:
    algo, sections = SYSTEMS.get(name, (name, {}))
    values = update(make_config(algo, **sections))
    assert {value.device for value in values.values()} == {NOWHERE}


def test_a_value_normalisation_goes_on_where_its_learner_computes() -> None:
    saved = ValueNorm(0.9, torch.device("cpu")).get_state()
    restored = ValueNorm(0.9, NOWHERE)
    restored.set_state(saved)
    assert restored.normalize(torch.zeros(3, device=NOWHERE)).device == NOWHERE


def test_reading_a_value_would_be_noticed() -> None:
    values = update(make_config("vdn"))
    with pytest.raises(RuntimeError, match="meta"):
        values["train/loss"].item()
    with pytest.raises(NotImplementedError, match="meta"):
        values["train/loss"].cpu()
