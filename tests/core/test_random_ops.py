"""A run's random numbers are the host's, so that it goes on wherever it is resumed."""

import pytest
import torch

from emtc_core import random_tensors
from emtc_core.learner.learner import make_learner
from emtc_core.training.checkpoint import CheckpointStore
from tests.core.learner_cases import BLOCKS, make_config
from tests.core.test_trainer import make_trainer, short_config

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


def test_what_is_drawn_for_the_cpu_is_what_its_generator_says():
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    assert torch.equal(random_tensors.rand((4, 5), generator=one, device=CPU), torch.rand(4, 5, generator=other))
    assert torch.equal(random_tensors.permutation(9, generator=one, device=CPU), torch.randperm(9, generator=other))


def test_a_generator_moves_on_alike_whatever_device_it_draws_for():
    here, there = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for generator, device in ((here, CPU), (there, ELSEWHERE)):
        assert random_tensors.rand((4, 5), generator=generator, device=device).device == device
        assert random_tensors.permutation(9, generator=generator, device=device).device == device
    assert torch.equal(here.get_state(), there.get_state())


@pytest.mark.parametrize("algo", ["qplex", "dmix", "mappo"])
def test_a_state_from_another_device_has_the_shape_of_ones_own(algo):
    config = make_config(algo)
    here, there = (make_learner(config, BLOCKS, device=device, seed=1).get_state() for device in (CPU, ELSEWHERE))
    assert here["generator"].device == there["generator"].device == CPU
    assert torch.equal(here["generator"], there["generator"])


def test_on_the_cpu_a_refit_draws_from_the_embedders_own_generator():
    generator = torch.Generator().manual_seed(3)
    assert random_tensors.make_device_generator(generator, CPU) is generator


def test_a_run_with_the_late_priorities_of_a_gpu_continues_on_the_cpu(tmp_path):
    config = short_config("cds.replay=episode_per", steps=500, algo="emtc-cds")
    trainer, _ = make_trainer(config, tmp_path)
    while not trainer._updates:
        trainer.step()
    state = trainer.get_state()
    late = {"indices": torch.tensor([0, -1]), "weights": torch.tensor([5.0, 7.0])}  # a GPU's priorities come later
    state["replay_buffer"]["pending_priorities"] = [late]
    trainer.checkpoints.save(trainer.env_step, state)
    ends = []
    for _ in range(2):
        resumed, _ = make_trainer(config, tmp_path)
        loaded = CheckpointStore(tmp_path, keep=2).load_latest()
        assert loaded is not None
        resumed.set_state(loaded.state)
        assert resumed._replay_buffer.get_state()["priority"][0] == 5.0
        while resumed.env_step < config.train.t_max:
            resumed.step()
        ends.append(resumed.get_state()["learner"]["online"])
    assert all(torch.equal(weight, ends[1][name]) for name, weight in ends[0].items())
