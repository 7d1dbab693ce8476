"""The replay buffer: ragged pages, padding, slots, checkpoint."""

import io

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emtc_core.devices import fetch
from emtc_core.envs.base import EnvInfo
from emtc_core.replay_buffer.buffer import PAGE_ROWS, ReplayBuffer
from emtc_core.rollout.episode import Episode

INFO = EnvInfo("test", "tiny", 2, 3, 4, 5, 40, (-1.0, 1.0))


def make_episode(length: int, seed: int, *, terminated: bool = True) -> Episode:
    rng = np.random.default_rng(seed)
    n, a = INFO.n_agents, INFO.n_actions
    return Episode(
        obs=rng.normal(size=(length + 1, n, INFO.obs_dim)).astype(np.float32),
        state=rng.normal(size=(length + 1, INFO.state_dim)).astype(np.float32),
        avail=rng.random((length + 1, n, a)) < 0.7,
        action=rng.integers(0, a, (length, n)),
        reward=rng.normal(size=length).astype(np.float32),
        terminated=terminated,
        truncated=not terminated,
        won=False,
        episode_return=0.0,
    )


def filled_buffer(lengths: list[int], capacity: int = 50, **kwargs) -> tuple[ReplayBuffer, list[Episode]]:
    buffer = ReplayBuffer(capacity, INFO, **kwargs)
    episodes = [make_episode(length, i) for i, length in enumerate(lengths)]
    for i, e in enumerate(episodes):
        slots = np.arange(e.length + 1) + 1000 * i
        buffer.add(e, slots=slots, uids=slots + 7, generation=i, beta=np.full(e.length, 0.5))
    return buffer, episodes


def test_a_batch_returns_what_was_stored_and_pads_the_rest():
    buffer, episodes = filled_buffer([3, 17, 1, 40])
    batch = buffer.take(np.array([1, 2, 0]))
    assert batch.obs.shape == (3, 18, 2, 4)
    for row, place in enumerate([1, 2, 0]):
        e, T = episodes[place], episodes[place].length
        np.testing.assert_array_equal(batch.obs[row, : T + 1], e.obs)
        np.testing.assert_array_equal(batch.state[row, : T + 1], e.state)
        np.testing.assert_array_equal(batch.avail[row, : T + 1], e.avail)
        np.testing.assert_array_equal(batch.action[row, :T], e.action)
        np.testing.assert_array_equal(batch.reward[row, :T], e.reward)
        np.testing.assert_array_equal(batch.slots[row, : T + 1], np.arange(T + 1) + 1000 * place)
        assert batch.filled[row].tolist() == [t < T for t in range(17)]
        assert batch.terminated[row].tolist() == [t >= T - 1 for t in range(17)]
        assert not batch.obs[row, T + 1 :].any()
        assert not batch.reward[row, T:].any()
        assert not batch.action[row, T:].any()
        assert batch.avail[row, T + 1 :, :, 0].all()
        assert not batch.avail[row, T + 1 :, :, 1:].any()
        assert (batch.beta[row, :T] == 0.5).all()
        assert (batch.beta[row, T:] == 1).all()
        assert (batch.slots[row, T + 1 :] == -1).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 7))
def test_the_last_episodes_are_stored_unchanged_after_any_sequence_of_lengths(lengths: list[int], capacity: int):
    buffer, episodes = filled_buffer(lengths, capacity)
    assert len(buffer) == min(capacity, len(lengths))
    for number in range(max(0, len(lengths) - capacity), len(lengths)):
        batch = buffer.take(np.array([number % capacity]))
        np.testing.assert_array_equal(batch.obs[0], episodes[number].obs)
        np.testing.assert_array_equal(batch.reward[0], episodes[number].reward)
        assert batch.generation.tolist() == [number]


def test_the_size_follows_the_stored_steps_and_not_the_episode_limit():
    buffer, _ = filled_buffer([3] * 300, capacity=300)
    rows = len(buffer._slots)
    assert rows <= 1.6 * (300 + 65) * PAGE_ROWS
    for i in range(900):
        buffer.add(make_episode(3, i))
    assert len(buffer._slots) == rows


def test_a_sample_has_different_episodes_and_is_determined_by_the_seed():
    buffer, _ = filled_buffer([5] * 20)
    first = buffer.sample(20, np.random.default_rng(3)).indices
    assert sorted(first) == list(range(20))
    np.testing.assert_array_equal(first, buffer.sample(20, np.random.default_rng(3)).indices)


def test_an_episode_with_a_high_priority_is_sampled():
    buffer, _ = filled_buffer([5] * 10, priority_alpha=1.0)
    buffer.set_priorities(np.arange(10), fetch(torch.tensor([1e-6] * 9 + [1.0])))
    rng = np.random.default_rng(0)
    assert all(9 in buffer.sample(1, rng).indices for _ in range(50))


def test_resolved_slots_replace_stored_ones():
    buffer, episodes = filled_buffer([3, 9, 2])
    slots = np.arange(20).reshape(2, 10)
    buffer.set_slots(np.array([1, 2]), slots, slots + 1, 77)
    batch = buffer.take(np.array([0, 1, 2]))
    assert batch.slots[1].tolist() == list(range(10))
    assert batch.slots[2].tolist() == [10, 11, 12] + [-1] * 7
    assert batch.uids[2, :3].tolist() == [11, 12, 13]
    assert batch.generation.tolist() == [0, 77, 77]
    assert batch.slots[0, :4].tolist() == [0, 1, 2, 3]
    assert episodes[0].length == 3


def test_a_checkpoint_restores_the_same_samples():
    buffer, _ = filled_buffer([3, 17, 1, 40, 22, 8, 9], capacity=5)
    stream = io.BytesIO()
    torch.save(buffer.get_state(), stream)
    stream.seek(0)
    other, _ = filled_buffer([9, 9, 9], capacity=5)
    other.set_state(torch.load(stream, weights_only=True))
    for copy in (buffer, other):
        copy.add(make_episode(12, 99))
    a, b = (x.sample(4, np.random.default_rng(1)) for x in (buffer, other))
    one, other = (vars(x) | vars(x.steps.tensors) for x in (a, b))
    for name in one.keys() - {"steps"}:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=name)
