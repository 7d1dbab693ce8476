"""Each option of the memory, flipped: the difference it should make, and no other test's."""

import numpy as np
import pytest

from emtc_core.memory.memory import EpisodicMemory
from tests.core.test_memory import NEAR, S, make_memory, states, write


def _columns_at(memory: EpisodicMemory, slot: int) -> tuple[float, bool, int, int]:
    columns = memory.columns()
    return (float(columns.h[slot]), bool(columns.xi[slot]), int(columns.n_call[slot]), int(columns.n_xi[slot]))


def test_capacity_bounds_the_nodes() -> None:
    for capacity in (3, 5):
        memory = make_memory(capacity=capacity)
        write(memory, [0, 1, 2, 3, 4, 5], [0.0] * 5)
        assert memory.size == memory.capacity == capacity


def test_delta_decides_what_is_the_same_memory() -> None:
    for delta, size in ((1e-6, 4), (1e-2, 2)):
        memory = make_memory(delta=delta)
        write(memory, [0, 1], [0.0])
        write(memory, [NEAR, 1 + NEAR], [0.0])
        assert memory.size == size


def test_delta_space_raw_measures_in_the_unit_of_the_embedding() -> None:
    """States a thousand apart: a step of 1 is far in the raw unit, near in units of the spread."""
    for space, size in (("raw", 4), ("normalized", 2)):
        memory = make_memory(delta_space=space, delta=0.05)
        write(memory, [0, 1000], [0.0])
        write(memory, [1, 1001], [0.0])
        assert memory.size == size


def test_delta_metric_linf_takes_the_largest_coordinate() -> None:
    memory = make_memory()
    step = memory._embed(states(NEAR), np.array([0])) - memory._embed(states(0), np.array([0]))
    largest, length = float(np.abs(step).max()), float(np.linalg.norm(step))
    for metric, merged in (("l2", 0), ("linf", 2)):
        memory = make_memory(delta_metric=metric, delta=(largest + length) / 2)
        write(memory, [0, 1], [0.0])
        write(memory, [NEAR, 1 + NEAR], [0.0])
        assert memory.take_stats().merged == merged


def test_a_stale_index_sees_a_node_only_after_the_next_target_update() -> None:
    live, stale = make_memory(), make_memory(index="stale_target_update")
    for memory, size in ((live, 2), (stale, 4)):
        write(memory, [0, 1], [1.0])
        slots = write(memory, [0, 1], [1.0])
        assert memory.size == size
    assert stale.find(states(0), np.array([0])).tolist() == [-1]
    assert stale.resolve(np.array(slots), states(0, 1)).tolist() == [-1, -1]
    generation = stale.generation
    stale.on_target_update()
    assert stale.generation == generation + 1
    assert stale.find(states(0), np.array([0])).tolist() == [1]  # the older of the two duplicates
    assert stale.resolve(np.array(slots), states(0, 1)).tolist() == [1, 0]
    live.on_target_update()
    assert live.generation == 0
    assert live.resolve(np.array([0, 1]), states(0, 1)).tolist() == [0, 1]


def test_a_stale_index_can_give_the_nearest_old_memory_instead_of_the_state_itself() -> None:
    """How the published dynamics come about: the gate compares values of other states (C19)."""
    memory = make_memory(index="stale_target_update")
    old = write(memory, [0, 10], [1.0])
    memory.on_target_update()
    slots = np.array(write(memory, [1, 11], [5.0]))
    assert memory.resolve(slots, states(1, 11)).tolist() == [-1, -1]
    assert memory.resolve(slots, states(1, 11), nearest=True).tolist() == old


def test_nearest_fills_only_what_is_missing() -> None:
    memory = make_memory(store_terminal=False)
    slots = np.array(write(memory, [0, 1, 2], [1.0, 1.0]))
    assert slots[2] == -1
    assert memory.resolve(slots, states(0, 1, 2)).tolist() == slots.tolist()
    assert memory.resolve(slots, states(0, 1, 2), nearest=True).tolist() == [slots[0], slots[1], slots[1]]


def test_norm_interval_200_steps_refreshes_while_nothing_new_comes() -> None:
    """The same states again and again: no appended node would ever refresh the statistics."""
    scalings = {}
    for interval in ("rebuild", "200_steps"):
        memory = make_memory(delta_space="normalized", delta=1e-3, norm_interval=interval)
        write(memory, [0, 1, 2, 3, 4, 5, 6, 7], [0.0] * 7)
        write(memory, [0, 20], [0.0])  # one more node, less than a quarter
        before = memory._positions.scaling.mean
        for _ in range(70):
            write(memory, [0, 1, 2, 3], [0.0] * 3)
        scalings[interval] = np.array_equal(before, memory._positions.scaling.mean)
        assert memory.list_faults() == []
    assert scalings == {"rebuild": True, "200_steps": False}


def test_store_terminal_off_leaves_the_last_state_out() -> None:
    memory = make_memory(store_terminal=False)
    slots = write(memory, [0, 1, 2], [1.0, 2.0])
    assert slots[2] == -1
    assert memory.size == 2
    assert memory.recall(np.array(slots[:2])).h.tolist() == [1 + 0.9 * 2, 2.0]
    assert np.isnan(memory.delta_mem()[slots[1]])


def test_terminal_xi_zero_leaves_a_won_episode_an_undesirable_last_node() -> None:
    for option, last in (("trajectory", (0.0, True, 1, 1)), ("zero", (0.0, False, 1, 0))):
        memory = make_memory(terminal_xi=option)
        slots = write(memory, [0, 1], [1.0], won=True)
        assert _columns_at(memory, slots[1]) == last
        assert _columns_at(memory, slots[0]) == (1.0, True, 1, 1)


def test_success_can_be_a_return_threshold() -> None:
    for option, xi in (("flag", [True, False]), ("return_threshold", [False, True])):
        memory = make_memory(success=option, success_threshold=3.0)
        low = write(memory, [0, 1], [2.9], won=True)
        high = write(memory, [2, 3], [3.0], won=False)
        assert [memory.columns().xi[s] for s in (low[0], high[0])] == xi


def test_backprop_desirability_reaches_the_earlier_states_only() -> None:
    for option, want in ((False, [False, False]), (True, [True, False])):
        memory = make_memory(backprop_desirability=option)
        write(memory, [5, 6], [1.0], won=True)
        before, met, after, _ = write(memory, [0, 5, 1, 2], [0.0] * 3)
        columns = memory.columns()
        assert [bool(columns.xi[s]) for s in (before, after)] == want
        assert columns.n_xi[met] == 1  # the met node itself was not visited by a success


def test_init_desirability_off_starts_n_xi_at_zero() -> None:
    for option, n_xi in ((True, 1), (False, 0)):
        memory = make_memory(init_desirability=option)
        slots = write(memory, [0, 1], [1.0], won=True)
        assert _columns_at(memory, slots[0]) == (1.0, True, 1, n_xi)
        write(memory, [0, 1], [1.0], won=True)
        assert _columns_at(memory, slots[0]) == (1.0, True, 2, n_xi + 1)


def test_reset_counts_on_shift_starts_both_counts_at_one() -> None:
    for option, counts in ((False, (4, 1)), (True, (1, 1))):
        memory = make_memory(reset_counts_on_shift=option)
        for _ in range(3):
            slots = write(memory, [0, 1], [1.0])
        write(memory, [0, 1], [1.0], won=True)
        assert _columns_at(memory, slots[0])[2:] == counts


def test_without_a_shift_on_success_a_node_stays_and_its_h_only_rises() -> None:
    for shifts, h in ((True, 2.0), (False, 7.0)):
        memory = make_memory(shift_on_success=shifts, delta=1e-2)
        slot = write(memory, [0, 1], [7.0])[0]
        place = memory.columns().embedding[slot]
        write(memory, [NEAR, 1], [2.0], won=True)
        assert _columns_at(memory, slot) == (h, True, 2, 1)
        assert np.array_equal(memory.columns().embedding[slot], place) != shifts
        write(memory, [NEAR, 1], [9.0], won=True)
        assert memory.columns().h[slot] == 9.0


def test_shift_keep_max_keeps_the_larger_return() -> None:
    for option, h in ((False, 2.0), (True, 7.0)):
        memory = make_memory(shift_keep_max=option)
        slots = write(memory, [0, 1], [7.0])
        write(memory, [0, 1], [2.0], won=True)
        assert memory.columns().h[slots[0]] == h


def test_link_update_on_improve_keeps_the_link_of_the_best_trajectory() -> None:
    for option, follows_worse in (("always", True), ("on_improve", False)):
        memory = make_memory(link_update=option)
        slot, best, _ = write(memory, [0, 1, 9], [5.0, 0.0])
        _, worse, _ = write(memory, [0, 2, 9], [1.0, 0.0])
        assert memory.successors(np.array([slot]))[0] == (worse if follows_worse else best)
        assert memory.columns().reward[slot] == (1.0 if follows_worse else 5.0)
        _, better, _ = write(memory, [0, 3, 9], [6.0, 0.0])
        assert memory.successors(np.array([slot]))[0] == better


def test_lru_keeps_what_was_written_again_and_fifo_does_not() -> None:
    for option, kept in (("lru", True), ("fifo", False)):
        memory = make_memory(capacity=4, evict=option)
        write(memory, [0, 1], [1.0])
        write(memory, [2, 3], [1.0])
        write(memory, [0, 1], [1.0])
        write(memory, [4, 5], [1.0])
        assert (memory.find(states(0), np.array([0]))[0] >= 0) == kept
        assert memory.size == 4


def test_reads_refresh_recency_only_when_told() -> None:
    for option, kept in ((True, True), (False, False)):
        memory = make_memory(capacity=4, lru_touch_on_read=option)
        slots = np.array(write(memory, [0, 1], [1.0]))
        write(memory, [2, 3], [1.0])
        memory.recall(slots)
        write(memory, [4, 5], [1.0])
        assert (memory.find(states(0), np.array([0]))[0] >= 0) == kept


@pytest.mark.parametrize("nodes", [40, 400])
def test_eviction_follows_the_order_of_use_exactly(nodes: int) -> None:
    """A list of last uses in Python against the linked list."""
    memory = make_memory(capacity=nodes, delta=1e-4)
    rng = np.random.default_rng(0)
    used: dict[int, int] = {}
    for clock in range(1, 600):
        slots = write(memory, [2.0 * clock, 2.0 * clock + 1], [0.0])
        for slot in slots[::-1]:
            if len(used) == nodes:
                assert slot == min(used, key=lambda s: used[s])
            used[slot] = 1 + max(used.values(), default=0)
        read = rng.choice(list(used), size=3)
        memory.recall(read)
        for slot in read.tolist():
            used[slot] = 1 + max(used.values())
    assert memory.take_stats().evicted_total > 0


def test_time_norm_of_the_published_code_makes_fresh_nodes_miss() -> None:
    for option, hits in (("T_lim", 6), ("write_T_lim+1", 0)):
        memory = make_memory({"type": "tcse", "time_norm": option}, delta=1e-6, delta_space="normalized")
        state = np.random.default_rng(0).normal(size=(6, S)).astype(np.float32)
        state[0] += 5
        memory.write(state=state, reward=np.zeros(5, np.float32), won=False, episode=1, episode_return=0.0)
        steps = np.arange(6)
        found = (memory.find(state, steps) >= 0).sum()
        assert found == hits or (option != "T_lim" and found <= 1)  # t = 0 is the same in both
        memory.reproject()
        assert (memory.find(state, steps) >= 0).all()
