"""Algorithm 2 by hand, lookups, re-projection, eviction, and the memory's other promises."""

from typing import Any

import numpy as np
import pytest

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.errors import NonFiniteLossError, ShapeError
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.scaling import measure_scaling
from emtc_core.rollout.episode import discounted_returns

S, T_LIM, GAMMA = 4, 30, 0.9
NEAR = 1e-4  # moves a state by less than delta below


def make_memory(embed: dict[str, Any] | None = None, **options: Any) -> EpisodicMemory:
    """A memory over the random projection in its raw unit, where distances are easy to arrange."""
    embedder = Embedder(
        EmbedConfig(**(embed or {"type": "random"})), state_dim=S, episode_limit=T_LIM, device="cpu", seed=1
    )
    config = MemoryConfig(**{"delta": 0.01, "delta_space": "raw", "capacity": 100, **options})
    return EpisodicMemory(config, state_dim=S, gamma=GAMMA, embedder=embedder, seed=1)


def states(*places: float) -> np.ndarray:
    """One state per place; different integers are far apart, a difference of NEAR is within delta."""
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


# ---- Algorithm 2 ----


def test_a_fresh_episode_stores_its_discounted_returns_and_contradicts_itself_nowhere() -> None:
    memory = make_memory()
    reward = np.array([1.0, -0.5, 2.0], np.float32)
    slots = write(memory, [0, 1, 2, 3], reward.tolist())
    assert len(set(slots)) == 4
    recall = memory.recall(np.array(slots))
    np.testing.assert_allclose(recall.h, discounted_returns(reward, GAMMA), rtol=1e-15)
    np.testing.assert_allclose(memory.delta_mem()[slots[:3]], 0.0, atol=1e-15)
    assert np.isnan(memory.delta_mem()[slots[3]])


def test_the_first_success_overwrites_an_undesirable_node_even_with_a_lower_return() -> None:
    memory = make_memory()
    (slot, _) = write(memory, [0, 1], [7.0], episode=1)
    write(memory, [5, NEAR, 2], [0.5, 1.0], won=True, episode=2)
    columns = memory.columns()
    np.testing.assert_array_equal(memory.states(columns.slot)[slot], states(NEAR)[0])
    assert (columns.h[slot], columns.t[slot], columns.episode[slot], columns.xi[slot]) == (1.0, 1, 2, True)
    assert memory.find(states(NEAR), np.array([1])).tolist() == [slot]
    np.testing.assert_array_equal(columns.embedding[slot], memory._embed(states(NEAR), np.array([1]))[0])


def test_the_error_along_a_link_is_the_one_worked_out_by_hand() -> None:
    # H(0) = 5 from the first episode; the second leads from 0 with reward 1 to a node with H = 0.5:
    # delta = |1 + 0.9 · 0.5 - 5| = 3.55.
    memory = make_memory()
    slot = write(memory, [0, 1], [5.0])[0]
    write(memory, [0, 2, 3], [1.0, 0.5])
    assert memory.delta_mem()[slot] == pytest.approx(3.55)


def test_a_link_to_an_evicted_node_does_not_lead_to_the_new_node_in_its_slot() -> None:
    memory = make_memory(capacity=4, evict="fifo")
    slots = write(memory, [0, 1, 2], [1.0, 1.0])  # appended backwards: 2, 1, 0
    write(memory, [10, 11], [1.0])  # fills the table, then evicts place 2
    evicted = slots[2]
    assert memory.columns().episode[evicted] == 1
    assert memory.find(states(2), np.array([2])).tolist() == [-1]
    assert memory.successors(np.array([slots[1]])).tolist() == [-1]
    assert np.isnan(memory.delta_mem()[slots[1]])
    assert memory.recall(np.array(slots), np.array([2, 1, 0])).hit.tolist() == [True, True, False]
    assert memory.list_faults() == []


def test_nothing_but_the_given_steps_is_stored() -> None:
    memory = make_memory()
    write(memory, [0, 1, 2], [1.0, 1.0])
    assert memory.size == 3
    with pytest.raises(ShapeError, match="state"):
        memory.write(state=states(0, 1, 2, 3), reward=np.zeros(2, np.float32), won=False, episode=1, episode_return=0)


# ---- lookups ----


def test_what_was_written_is_found_at_distance_exactly_zero() -> None:
    memory = make_memory({"type": "tcse"}, delta=1e-12, delta_space="normalized")
    rng = np.random.default_rng(0)
    state = rng.normal(size=(21, S)).astype(np.float32)
    slots = memory.write(state=state, reward=np.zeros(20, np.float32), won=False, episode=1, episode_return=0.0)
    assert memory.find(state, np.arange(21)).tolist() == slots.tolist()
    memory.reproject()
    assert memory.find(state, np.arange(21)).tolist() == slots.tolist()


def test_an_empty_memory_finds_nothing_even_nearest() -> None:
    memory = make_memory()
    assert memory.find(states(0), np.array([0]), nearest=True).tolist() == [-1]
    assert memory.desirable_fraction == 0.0
    memory.reproject()
    assert memory.generation == 0


def test_a_recall_keeps_the_shape_of_the_slots_and_marks_misses() -> None:
    memory = make_memory()
    slots = np.array(write(memory, [0, 1], [4.0]))
    recall = memory.recall(np.array([[slots[0], -1], [-1, slots[1]]]))
    assert recall.hit.tolist() == [[True, False], [False, True]]
    np.testing.assert_array_equal(recall.h, [[4.0, np.nan], [np.nan, 0.0]])
    assert recall.n_call.tolist() == [[1, 0], [0, 1]]
    assert memory.uids(np.array([-1, slots[1]])).tolist() == [-1, 0]


def test_statistics_count_since_the_last_read() -> None:
    memory = make_memory()
    write(memory, [0, 1], [1.0])
    write(memory, [0, 2], [1.0])
    memory.find(states(0, 50), np.arange(2))
    stats = memory.take_stats()
    assert (stats.written, stats.merged, stats.queried, stats.hits, stats.evicted_total) == (4, 1, 2, 1, 0)
    assert memory.take_stats().written == 0


def test_a_sample_has_no_repeats_and_follows_the_seed() -> None:
    one, two = make_memory(), make_memory()
    for memory in (one, two):
        write(memory, [float(i) for i in range(12)], [1.0] * 11)
    a, b = one.sample(5), two.sample(5)
    np.testing.assert_array_equal(a.state, b.state)
    assert len(np.unique(a.state[:, 0])) == 5
    assert len(one.sample(100).h) == 12
    assert not np.array_equal(one.sample(5).state, a.state)


# ---- scaling and re-projection ----


def test_a_re_projection_moves_every_node_to_its_new_embedding_at_once() -> None:
    memory = make_memory({"type": "tcse"}, delta=1e-4, delta_space="normalized")
    embedder: Embedder = memory.embedder
    rng = np.random.default_rng(0)
    state = rng.normal(size=(21, S)).astype(np.float32)
    slots = memory.write(state=state, reward=np.ones(20, np.float32), won=False, episode=1, episode_return=0.0)
    h = memory.columns().h
    fit(embedder, memory.sample(100))
    assert (memory.find(state, np.arange(21)) == -1).any()
    memory.reproject()
    assert memory.generation == 1
    np.testing.assert_array_equal(memory.columns().embedding[slots], embedder.embed(state, np.arange(21)).numpy())
    assert memory.find(state, np.arange(21)).tolist() == slots.tolist()
    np.testing.assert_array_equal(memory.columns().h, h)
    assert memory.list_faults() == []


def test_scaling_gives_unit_variance_and_survives_constant_dimensions() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 4)).astype(np.float32) * np.array([100, 1, 1e-3, 0], np.float32) + 0.1
    z = measure_scaling(x).apply(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=0), [1, 1, 1, 0], rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 50])
def test_identical_rows_stay_together_and_others_stay_at_their_raw_distance(rows: int) -> None:
    x = np.full((rows, 4), 0.3, np.float32)
    scaling = measure_scaling(x)
    z = scaling.apply(np.concatenate([x, x[:1] + np.float32(0.25)]))
    assert np.isfinite(z).all()
    assert (z[:-1] == z[0]).all()
    assert z[-1, 0] - z[0, 0] == pytest.approx(0.25)


def test_all_nodes_change_scale_together_when_a_quarter_more_have_come() -> None:
    memory = make_memory({"type": "random"}, delta_space="normalized", delta=1e-6, capacity=1000)
    rng = np.random.default_rng(0)
    refreshes, last = [], None
    for _ in range(30):
        memory.write(
            state=rng.normal(size=(11, S)).astype(np.float32),
            reward=np.zeros(10, np.float32),
            won=False,
            episode=1,
            episode_return=0.0,
        )
        mean = memory._positions.scaling.mean
        if last is None or not np.array_equal(mean, last):
            refreshes.append(memory.size)
        last = mean
        assert memory.list_faults() == []
    ratios = np.array(refreshes[4:]) / np.array(refreshes[3:-1])
    assert (ratios >= 1.2).all()
    assert len(refreshes) > 8


def test_columns_grow_with_the_nodes_and_never_past_the_capacity() -> None:
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
