"""Sampling weights: at once from the host, one draw late and always so from a GPU."""

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


def test_without_lag_a_weight_counts_at_once():
    priorities = Priorities(5, lag=0)
    priorities.set(np.arange(5), only(3))
    assert drawn(priorities) == {3}


def test_with_lag_a_weight_counts_when_the_next_ones_come():
    priorities = Priorities(5, lag=1)
    priorities.set(np.arange(5), only(3))
    assert drawn(priorities) == {0, 1, 2, 3, 4}
    priorities.set(np.arange(5), only(1))
    assert drawn(priorities) == {3}


def test_a_weight_that_comes_late_is_not_given_to_the_episode_that_came_meanwhile():
    priorities = Priorities(5, lag=1)
    priorities.set(np.arange(5), only(3, 1e6))
    priorities.reset(3)
    priorities.set(np.array([0]), fetch(torch.tensor([1.0])))
    assert drawn(priorities) == {3}  # the others have the smallest weight, it has that of a new episode
    assert priorities.get_state(5)["priority"].tolist() == pytest.approx([1e-8, 1e-8, 1e-8, 1.0, 1e-8])


@pytest.mark.parametrize(("lag", "after"), [(1, {3}), (0, {1})])
def test_weights_on_their_way_are_saved_and_count_at_once_where_nothing_is_late(lag, after):
    saved = Priorities(5, lag=1)
    saved.set(np.arange(5), only(3))
    saved.set(np.arange(5), only(1))
    restored = Priorities(5, lag=lag)
    restored.set_state(saved.get_state(5))
    assert drawn(restored) == drawn(saved) if lag else after
    assert drawn(restored) == after
