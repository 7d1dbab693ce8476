"""Algorithm 2 by hand, lookups, samples and growth. `test_memory_twin` compares with a looped memory."""

from typing import Any

import numpy as np
import pytest

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.errors import NonFiniteLossError, ShapeError
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.rollout.episode import discounted_returns

S, T_LIM, GAMMA = 4, 30, 0.9


def make_memory(embed: dict[str, Any] | None = None, **options: Any) -> EpisodicMemory:
    """A memory over the random projection in its raw unit, where distances are easy to arrange."""
    embedder = Embedder(
        EmbedConfig(**(embed or {"type": "random"})), state_dim=S, episode_limit=T_LIM, device="cpu", seed=1
    )
    config = MemoryConfig(**{"delta": 0.01, "delta_space": "raw", "capacity": 100, **options})
    return EpisodicMemory(config, state_dim=S, gamma=GAMMA, embedder=embedder, seed=1)


def states(*places: float) -> np.ndarray:
    """One state per place; different integers are far apart."""
    return np.array([[p, -p, 0.5 * p, 1.0] for p in places], np.float32)


def write(
    memory: EpisodicMemory, places: list[float], reward: list[float], *, won: bool = False, episode: int = 1
) -> list[int]:
    """Write an episode; return its slots."""
    return memory.write(
        state=states(*places),
        reward=np.array(reward, np.float32),
        won=won,
        episode=episode,
        episode_return=float(sum(reward)),
    ).tolist()


def test_a_new_episode_stores_its_discounted_returns_without_an_error_along_its_links() -> None:
    memory = make_memory()
    reward = np.array([1.0, -0.5, 2.0], np.float32)
    slots = write(memory, [0, 1, 2, 3], reward.tolist())
    assert len(set(slots)) == 4
    np.testing.assert_allclose(memory.recall(np.array(slots)).h, discounted_returns(reward, GAMMA), rtol=1e-15)
    assert memory.successors(np.array(slots)).tolist() == [*slots[1:], -1]
    np.testing.assert_allclose(memory.delta_mem()[slots], [0.0, 0.0, 0.0, np.nan], atol=1e-15)


def test_an_episode_with_a_missing_state_is_refused() -> None:
    with pytest.raises(ShapeError, match="state"):
        make_memory().write(
            state=states(0, 1, 2, 3), reward=np.zeros(2, np.float32), won=False, episode=1, episode_return=0
        )


def test_written_states_are_found_at_distance_zero_also_after_a_refit_and_a_reprojection() -> None:
    memory = make_memory({"type": "tcse"}, delta=1e-12, delta_space="normalized")
    embedder: Embedder = memory.embedder
    rng = np.random.default_rng(0)
    state = rng.normal(size=(21, S)).astype(np.float32)
    slots = memory.write(state=state, reward=np.zeros(20, np.float32), won=False, episode=1, episode_return=0.0)
    assert memory.find(state, np.arange(21)).tolist() == slots.tolist()
    fit(embedder, memory.sample(100))
    assert (memory.find(state, np.arange(21)) == -1).any()
    memory.reproject()
    assert memory.generation == 1
    assert memory.find(state, np.arange(21)).tolist() == slots.tolist()


def test_a_recall_keeps_the_shape_of_the_slots_and_marks_misses_and_evicted_nodes() -> None:
    memory = make_memory(capacity=2, evict="fifo")
    first, last = write(memory, [0, 1], [4.0])
    slots = np.array([[first, -1], [-1, last]])
    recall, uids = memory.recall(slots), memory.uids(slots)
    assert recall.hit.tolist() == [[True, False], [False, True]]
    np.testing.assert_array_equal(recall.h, [[4.0, np.nan], [np.nan, 0.0]])
    assert recall.n_call.tolist() == [[1, 0], [0, 1]]
    write(memory, [0, 2], [5.0])  # evicts the terminal node, which was created first
    recall = memory.recall(slots, uids)
    assert recall.hit.tolist() == [[True, False], [False, False]]
    np.testing.assert_array_equal(recall.h, [[5.0, np.nan], [np.nan, np.nan]])


def test_statistics_count_since_the_last_call() -> None:
    memory = make_memory()
    write(memory, [0, 1], [1.0])
    write(memory, [0, 2], [1.0])
    memory.find(states(0, 50), np.arange(2))
    stats = memory.take_stats()
    assert (stats.written, stats.merged, stats.queried, stats.hits, stats.evicted_total) == (4, 1, 2, 1, 0)
    assert memory.take_stats().written == 0


def test_a_sample_has_no_repeats_and_is_determined_by_the_seed() -> None:
    one, two = make_memory(), make_memory()
    for memory in (one, two):
        write(memory, [float(i) for i in range(12)], [1.0] * 11)
    a, b = one.sample(5), two.sample(5)
    np.testing.assert_array_equal(a.state, b.state)
    assert len(np.unique(a.state[:, 0])) == 5
    assert len(one.sample(100).h) == 12
    assert not np.array_equal(one.sample(5).state, a.state)


def test_arrays_grow_with_the_nodes_and_not_to_the_capacity() -> None:
    memory = make_memory(capacity=1_000_000)
    assert len(memory._table.state) < 2000
    rng = np.random.default_rng(0)
    for _ in range(30):
        memory.write(
            state=rng.normal(size=(101, S)).astype(np.float32) * 10,
            reward=np.zeros(100, np.float32),
            won=False,
            episode=1,
            episode_return=0.0,
        )
    assert memory.size > 2500
    assert memory.size <= len(memory._table.state) < 2 * memory.size + 1024
    assert memory.list_faults() == []


def test_embeddings_that_are_not_finite_are_refused() -> None:
    memory = make_memory({"type": "tcse"})
    memory.embedder.encoder.out.bias.data.fill_(np.nan)
    with pytest.raises(NonFiniteLossError, match=r"embed\.lr"):
        write(memory, [0, 1], [1.0])
    assert memory.size == 0
