"""The learner's benchmark, run small: the names of the contract and plausible numbers."""

import pytest

from tests.bench.learner import run


@pytest.mark.ci
def test_the_benchmark_reports_updates_and_the_share_of_the_memory():
    figures = {f["name"]: f for f in run(("emtc-qplex", "mappo"), entries=5000)}
    assert set(figures) == {
        "learner.update_seconds.emtc-qplex",
        "learner.speedup_of_two_threads.emtc-qplex",
        "learner.update_seconds.mappo",
        "learner.memory_share",
        "learner.memory_share.settled",
    }
    assert all(f["value"] > 0 for f in figures.values())
    shares = [figures[name]["value"] for name in ("learner.memory_share", "learner.memory_share.settled")]
    assert max(shares) < 1
