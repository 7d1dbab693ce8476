"""Cached action values of the target network against a fresh pass of the target network."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.networks import make_sequence_batch
from emtc_core.learner.target_values import TargetValues, can_cache
from emtc_core.replay_buffer.buffer import ReplayBuffer
from tests.core.learner_cases import BLOCKS, make_config, make_episode
from tests.core.test_learner import SYSTEMS
from tests.core.test_trainer import (
    MOMENTS,
    StopWhen,
    assert_same_records,
    assert_same_state,
    make_trainer,
    run_in_parts,
    short_config,
)


def make(name: str, values: TargetValues | None, *, double_q: bool = True) -> ValueLearner:
    algo, sections = SYSTEMS[name]
    train = {"train": {"double_q": double_q, "target_interval": 4, "lr": 0.01}}
    config = make_config(algo, **{**sections, **train})
    learner = make_learner(config, BLOCKS, device="cpu", seed=1, target_values=values)
    assert isinstance(learner, ValueLearner)
    return learner


@torch.no_grad()
def assert_fresh(values: TargetValues, learner: ValueLearner, buffer: ReplayBuffer) -> None:
    """Compare all stored values with those of the target network for the episodes that are in the buffer now."""
    for index, q in values._q.items():
        seq = make_sequence_batch(buffer.take(np.array([index])), agent_id=learner.online.agent_id)
        expected = learner.target.unroll(seq, torch.Generator()).q
        np.testing.assert_allclose(q, expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "double_q"), [("qplex", True), ("qplex", False), ("emtc-cds", True)])
def test_updates_with_and_without_the_cache_are_equal_to_rounding(name: str, double_q: bool):
    buffer = ReplayBuffer(8, BLOCKS)
    for i, length in enumerate((3, 12, 1, 7, 12, 12, 11, 12)):
        buffer.add(make_episode(BLOCKS, length, i))
    cached, plain = make(name, TargetValues(), double_q=double_q), make(name, None, double_q=double_q)
    for indices in ([0, 1, 2, 3], [2, 1, 6, 0], [4, 5, 1, 7], [0, 1, 2, 3]):
        batch = buffer.take(np.array(indices))
        expected = plain.update(batch, None, env_step=0).read()
        assert cached.update(batch, None, env_step=0).read() == pytest.approx(expected, rel=1e-4, abs=1e-6)


class PluginBackbone(ValueBackbone):
    """Could draw random numbers in `unroll`."""


def test_only_values_that_depend_on_nothing_but_the_weights_are_cached():
    targets = {name: make(name, None).target for name in ("qplex", "emtc-cds", "dmix")}
    qplex = targets["qplex"]
    assert isinstance(qplex, ValueBackbone)
    targets["plug-in"] = PluginBackbone(qplex.agent, qplex.mixer)
    is_cached = {name: can_cache(target) for name, target in targets.items()}
    assert is_cached == {"qplex": True, "emtc-cds": True, "dmix": False, "plug-in": False}


def test_a_saved_state_has_all_values_and_is_not_changed_by_later_updates():
    values, restored, buffer = TargetValues(), TargetValues(), ReplayBuffer(6, BLOCKS)
    learner = make("qplex", values)
    for i in range(6):
        buffer.add(make_episode(BLOCKS, 2 + i, i))
    learner.update(buffer.take(np.array([4, 1, 3])), None, env_step=0)
    state = values.get_state()
    learner.update(buffer.take(np.array([5, 1, 0])), None, env_step=0)
    restored.set_state(state)
    assert sorted(restored._q) == [1, 3, 4]
    assert all(np.array_equal(q, values._q[index]) for index, q in restored._q.items())
    restored.set_state(TargetValues().get_state())
    assert not len(restored)


def test_a_run_that_is_resumed_between_two_copies_equals_an_uninterrupted_one(tmp_path: Path):
    few = ("train.target_interval=12", "train.replay=16", "train.updates_per_episode=2")
    config = short_config(*few, "checkpoint.interval=150", steps=600, algo="qplex")
    whole, recorder = make_trainer(config, tmp_path / "whole")
    whole.run()
    stops = [StopWhen(MOMENTS["between two updates"], polls=polls) for polls in (6, 5)]
    parts, records = run_in_parts(config, tmp_path / "parts", stops)
    assert len(parts._target_values)
    assert_same_state(whole.get_state(), parts.get_state())
    assert_same_records(records, recorder)


@pytest.mark.parametrize("algo", ["qplex", "emtc-cds"])
def test_a_trainer_caches_the_values_of_the_current_target_network_for_the_episodes_in_its_buffer(
    tmp_path: Path, algo: str
):
    """Episodes are replaced in the buffer after 12 episodes, and the target network is copied after 25."""
    config = short_config("train.target_interval=25", "train.replay=12", steps=400, algo=algo)
    trainer, _ = make_trainer(config, tmp_path)
    learner, values = trainer._learner, trainer._target_values
    assert isinstance(learner, ValueLearner)
    n_stored, n_copies = [0], 0
    while trainer.env_step < 400:
        trainer.step()
        assert_fresh(values, learner, trainer._replay_buffer)
        n_copies += len(values) < n_stored[-1] - 1
        n_stored.append(len(values))
    assert max(n_stored) > 6
    assert n_copies > 0
