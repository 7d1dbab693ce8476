"""One update of each value system against a slow reading of its equations: loss and gradients."""

import numpy as np
import pytest
import torch

from emtc_core.envs.base import EnvInfo
from tests.core.learner_cases import (
    BLOCKS,
    FOOTBALL,
    hard_episodes,
    leaves,
    make_batch,
    make_config,
    make_double_learner,
    make_inputs,
    make_memory,
    to_double,
)
from tests.reference import learner as twin

UNCLIPPED = {"grad_clip": 1e9}
CASES = {
    "vdn": ("vdn", {}),
    "qmix": ("qmix", {}),
    "qplex": ("qplex", {}),
    "qplex, weighted and nonlinear": ("qplex", {"qplex": {"weighted_head": True, "nonlinear": True}}),
    "qplex, two kernel layers": ("qplex", {"qplex": {"adv_hypernet_layers": 2}}),
    "qplex, three kernel layers": ("qplex", {"qplex": {"adv_hypernet_layers": 3}}),
    "dmaq": ("qplex", {"qplex": {"mixer": "dmaq"}}),
    "dmaq, weighted": ("qplex", {"qplex": {"mixer": "dmaq", "weighted_head": True, "num_kernel": 10}}),
    "cds": ("cds", {}),
    "cds over qmix": ("cds", {"cds": {"mixer": "qmix"}}),
    "single Q": ("qplex", {"train": UNCLIPPED | {"double_q": False}}),
    "emtc-vdn": ("emtc-vdn", {}),
    "emtc-qmix": ("emtc-qmix", {}),
    "emtc-qplex": ("emtc-qplex", {}),
    "emtc-qplex, timeouts bootstrapped": ("emtc-qplex", {"train": UNCLIPPED | {"bootstrap_on_timeout": True}}),
    "emtc-qplex, terminal incentive": ("emtc-qplex", {"incentive": {"mask_terminal": False}}),
    "emtc-cds": ("emtc-cds", {}),
    "emu-qplex": ("emu-qplex", {"incentive": {"clamp": "positive"}}),
    "emc": ("emc", {"ec": {"enabled": True, "weight": 0.1}, "incentive": {"enabled": False}}),
}


WITHOUT_BLOCKS = ("qmix", "qplex, weighted and nonlinear", "emtc-cds")
"""These are also compared in an environment whose state has no block of each agent: attention then reads obs."""


@pytest.mark.parametrize(
    ("name", "info"),
    [*((name, BLOCKS) for name in CASES), *((name, FOOTBALL) for name in WITHOUT_BLOCKS)],
    ids=lambda value: value.map if isinstance(value, EnvInfo) else value,
)
def test_loss_and_gradient_of_an_update_equal_those_of_the_slow_reference(name, info):
    """The reference has no padding, so equality also shows that padding and the order of episodes do not matter."""
    algo, sections = CASES[name]
    config = make_config(algo, **({"train": UNCLIPPED} | sections))
    episodes = hard_episodes(info)
    memory = make_memory(episodes) if config.uses_memory else None
    learner = make_double_learner(config, info)
    online, target = leaves(learner.online), leaves(learner.target)
    batch = to_double(make_batch(episodes, info, memory, bootstrap_on_timeout=config.train.bootstrap_on_timeout))
    inputs = None if memory is None else make_inputs(memory, batch.reward.shape[1])
    stats = learner.update(batch, inputs, env_step=0)
    wanted = twin.loss(online, target, episodes, config, info, memory)
    wanted.backward()
    assert stats["train/loss"].item() == pytest.approx(wanted.item(), rel=1e-6)
    for key, parameter in learner.online.named_parameters():
        expected = online[key].grad if online[key].grad is not None else torch.zeros_like(parameter)
        actual = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7, err_msg=key)
