"""The second thread of a run changes the speed only."""

from collections.abc import Generator

import numpy as np
import pytest
import torch

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.memory.memory import NodeSample
from emtc_core.threads import MAX_THREADS, choose_threads, configure_threads, run_together, start_task
from tests.core.learner_cases import BLOCKS, make_config
from tests.core.test_learner import SYSTEMS, every_system, make_update


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Generator[None]:
    yield
    configure_threads(1)


def train(name: str, threads: int) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
    configure_threads(threads)
    algo, sections = SYSTEMS[name]
    learner, (batch, inputs) = make_learner(make_config(algo, **sections), BLOCKS, device="cpu", seed=1), make_update()
    assert isinstance(learner, ValueLearner)
    if name == "cds, periodic":
        learner.on_episodes(16)
    values = [learner.update(batch, inputs, env_step=0).read() for _ in range(4)]
    return values, [parameter.detach().clone() for parameter in learner.online.parameters()]


@every_system
def test_updates_have_the_same_bits_with_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emtc_core.learner.step_rows.MIN_PART_SEQUENCES", 4)  # the batch has 12 sequences
    first, *others = (train(name, threads) for threads in (1, 2, 3))
    for values, weights in others:
        assert values == first[0]
        assert all(torch.equal(a, b) for a, b in zip(weights, first[1], strict=True))


@pytest.mark.parametrize("name", ["emtc-qplex", "emc"])
def test_a_batch_in_two_parts_gives_the_same_update_except_for_rounding(name: str, monkeypatch: pytest.MonkeyPatch):
    in_one = train(name, 1)
    monkeypatch.setattr("emtc_core.learner.step_rows.MIN_PART_SEQUENCES", 4)
    in_two = train(name, 1)
    for expected, actual in zip(in_one[0], in_two[0], strict=True):
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for expected, actual in zip(in_one[1], in_two[1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_refit_has_the_same_bits_with_any_number_of_threads():
    weights = []
    for threads in (1, 2):
        configure_threads(threads)
        embedder = Embedder(EmbedConfig(batch=16, samples=96), state_dim=5, episode_limit=9, device="cpu", seed=3)
        rng = np.random.default_rng(0)
        for _ in range(2):
            state, t = rng.random((96, 5), np.float32), rng.integers(0, 9, 96).astype(np.int32)
            fit(embedder, NodeSample(state, t, rng.random(96)))
        weights.append([*(p.detach().clone() for p in embedder.parameters), embedder.generator.get_state()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def fail() -> None:
    raise ArithmeticError("no")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_exception_of_a_task_is_raised(threads: int):
    configure_threads(threads)
    with pytest.raises(ArithmeticError, match="no"):
        run_together([lambda: None, fail])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_task_may_start_tasks(threads: int):
    configure_threads(threads)

    def count(depth: int) -> int:
        return 1 if depth == 0 else sum(run_together([lambda: count(depth - 1)] * 3))

    waits = [start_task(lambda: count(4)) for _ in range(3)]
    assert [wait() for wait in waits] == [81, 81, 81]


def test_a_run_has_two_threads_if_a_core_is_idle_and_one_in_a_sweep(monkeypatch: pytest.MonkeyPatch):
    for idle, expected in ((1, 1), (2, 2), (64, MAX_THREADS)):
        monkeypatch.setattr("emtc_core.threads.count_idle_cores", lambda idle=idle: idle)
        assert choose_threads(0) == expected
        assert choose_threads(0, is_alone=False) == 1
    assert [choose_threads(n) for n in (1, 3)] == [1, 3]
