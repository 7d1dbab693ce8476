"""Sampling weights: without lag from the host, with a lag of one update from a GPU."""

import numpy as np
import pytest
import torch

from emtc_core.devices import AsyncCopy, fetch
from emtc_core.replay_buffer.priorities import Priorities


def drawn(priorities: Priorities, n: int = 200) -> set[int]:
    rng = np.random.default_rng(0)
    return {int(priorities.draw(1, 5, 1.0, rng)[0]) for _ in range(n)}


def only(place: int, weight: float = 1.0) -> AsyncCopy:
    return fetch(weight * torch.eye(5)[place])


@pytest.mark.parametrize(("lag", "first", "second"), [(0, {3}, {1}), (1, {0, 1, 2, 3, 4}, {3})])
def test_a_weight_counts_after_as_many_further_updates_as_the_lag(lag: int, first: set[int], second: set[int]):
    priorities = Priorities(5, lag=lag)
    priorities.set(np.arange(5), only(3))
    assert drawn(priorities) == first
    priorities.set(np.arange(5), only(1))
    assert drawn(priorities) == second


def test_a_late_weight_is_not_given_to_an_episode_that_replaced_its_own():
    priorities = Priorities(5, lag=1)
    priorities.set(np.arange(5), only(3, 1e6))
    priorities.reset(3)
    priorities.set(np.array([0]), fetch(torch.tensor([1.0])))
    assert drawn(priorities) == {3}  # the others have the smallest weight, it has that of a new episode
    assert priorities.get_state(5)["priority"].tolist() == pytest.approx([1e-8, 1e-8, 1e-8, 1.0, 1e-8])


@pytest.mark.parametrize(("lag", "after"), [(1, {3}), (0, {1})])
def test_pending_weights_are_saved_and_count_at_once_after_a_resume_without_lag(lag: int, after: set[int]):
    saved = Priorities(5, lag=1)
    saved.set(np.arange(5), only(3))
    saved.set(np.arange(5), only(1))
    restored = Priorities(5, lag=lag)
    restored.set_state(saved.get_state(5))
    assert drawn(restored) == after
