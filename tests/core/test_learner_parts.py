"""An update shared out among threads against the same update on one."""

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.learner.batch_parts import join, split
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.workers import WorkerPool
from emtc_core.threads import MAX_AUTO_THREADS, choose_threads
from tests.core.learner_cases import BLOCKS, make_config
from tests.core.test_learner import SYSTEMS, every_scalar_system, every_system, make_update


def make(name: str, threads: int) -> ValueLearner:
    algo, sections = SYSTEMS[name]
    learner = make_learner(make_config(algo, **sections), BLOCKS, device="cpu", seed=1, threads=threads)
    assert isinstance(learner, ValueLearner)
    return learner


def train(name: str, threads: int, updates: int = 4) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
    learner, (batch, inputs) = make(name, threads), make_update()
    if name == "cds, periodic":
        learner.on_episodes(16)
    told = [learner.update(batch, inputs, env_step=0).read() for _ in range(updates)]
    return told, [parameter.detach().clone() for parameter in learner.online.parameters()]


@every_scalar_system
@pytest.mark.parametrize("threads", [2, 3])
def test_shared_out_an_update_is_the_same_to_rounding(name: str, threads: int):
    alone, shared = train(name, 1), train(name, threads)
    for expected, actual in zip(alone[0], shared[0], strict=True):
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for expected, actual in zip(alone[1], shared[1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@every_system
def test_the_same_number_of_threads_gives_the_same_bits(name: str):
    first, second = train(name, 2), train(name, 2)
    assert first[0] == second[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_shared_out_updates_go_on_from_a_saved_state_as_if_they_had_never_stopped():
    batch, inputs = make_update()
    for name in ("dmix", "emc", "emtc-cds"):
        learner, resumed = make(name, 2), make(name, 2)
        learner.update(batch, inputs, env_step=0)
        resumed.set_state(learner.get_state())
        assert resumed.update(batch, inputs, env_step=1).read() == learner.update(batch, inputs, env_step=1).read()


def test_a_batch_of_fewer_episodes_than_threads_is_not_shared_out():
    batch, inputs = make_update()
    alone, many = (make("emtc-qplex", threads).update(batch, inputs, env_step=0).read() for threads in (1, 9))
    assert many == pytest.approx(alone, rel=1e-5)


def test_parts_hold_every_episode_once_and_about_as_many_steps():
    batch, inputs = make_update()
    parts = split(batch, inputs, 2)
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(len(batch.length)))
    assert [part.batch.length.sum() for part in parts] == [11, 6]
    torch.testing.assert_close(join(parts, [part.batch.reward.T for part in parts]), batch.reward.T)
    assert parts[0].recalled is not None
    torch.testing.assert_close(parts[0].recalled.h_next, inputs.h_next[torch.from_numpy(parts[0].rows)])


def test_what_a_part_raises_is_raised():
    def fail() -> None:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        WorkerPool(2).run([lambda: None, fail])


def test_a_batch_that_is_shared_out_is_left_as_it_was():
    batch, inputs = make_update()
    obs, reward = batch.obs.clone(), batch.reward.clone()
    make("emtc-qplex", 2).update(batch, inputs, env_step=0)
    assert torch.equal(batch.obs, obs)
    assert torch.equal(batch.reward, reward)


def test_auto_takes_idle_cores_and_one_in_a_sweep(monkeypatch: pytest.MonkeyPatch):
    config = resolve(map="3m", overrides=["train.threads=auto"])
    assert config.train.threads == "auto"
    for idle, expected in ((1, 1), (2, 2), (64, MAX_AUTO_THREADS)):
        monkeypatch.setattr("emtc_core.threads.count_idle_cores", lambda idle=idle: idle)
        assert choose_threads("auto") == expected
        assert choose_threads("auto", may_use_all=False) == 1
        assert choose_threads("auto", n_other_threads=1) == max(1, min(idle - 1, MAX_AUTO_THREADS))
    assert [choose_threads(n) for n in (0, 1, 3)] == [1, 1, 3]
