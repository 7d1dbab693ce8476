"""Random numbers are drawn on the host, so that a run can be resumed on another device."""

import pytest
import torch

from emtc_core import random_tensors
from emtc_core.learner.learner import make_learner
from tests.core.learner_cases import BLOCKS, make_config

CPU, META = torch.device("cpu"), torch.device("meta")


def test_a_generator_has_the_same_state_after_draws_for_any_device():
    here, there = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for generator, device in ((here, CPU), (there, META)):
        assert random_tensors.rand((4, 5), generator=generator, device=device).device == device
        assert random_tensors.permutation(9, generator=generator, device=device).device == device
    assert torch.equal(here.get_state(), there.get_state())


@pytest.mark.parametrize("algo", ["qplex", "dmix", "mappo"])
def test_learners_on_different_devices_have_the_same_generator(algo):
    config = make_config(algo)
    here, there = (make_learner(config, BLOCKS, device=device, seed=1).get_state() for device in (CPU, META))
    assert here["generator"].device == there["generator"].device == CPU
    assert torch.equal(here["generator"], there["generator"])
