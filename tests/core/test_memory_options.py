"""Each option of the memory against the looped memory, and the lookups of a stale index."""

from typing import Any

import numpy as np
import pytest

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from tests.core.test_memory import S, make_memory, states, write
from tests.core.test_memory_twin import MemoryPair

BASE: dict[str, Any] = {"capacity": 30, "delta": 0.3}
OPTIONS: list[dict[str, Any]] = [
    {"capacity": 50},
    {"delta": 0.05},
    {"delta_space": "raw"},
    {"delta_metric": "linf"},
    {"index": "stale_target_update"},
    {"store_terminal": False},
    {"terminal_xi": "zero"},
    {"success": "return_threshold", "success_threshold": 1.0},
    {"backprop_desirability": True},
    {"init_desirability": False},
    {"shift_on_success": False},
    {"reset_counts_on_shift": True},
    {"shift_keep_max": True},
    {"link_update": "on_improve"},
    {"evict": "fifo"},
    {"lru_touch_on_read": False},
]


def _run(options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Write and read 40 episodes with both memories, compare them, and return the nodes."""
    pair = MemoryPair(MemoryConfig(**BASE | options), EmbedConfig(hidden=8), seed=5)
    for i in range(40):
        pair.do("write")
        pair.do("read")
        if i % 9 == 8:
            pair.do("embed again")
        if i % 5 == 4:
            pair.do("target")
            pair.compare()
    columns = pair.fast.columns()
    fields = (columns.uid, columns.h, columns.xi, columns.n_call, columns.n_xi, columns.t, columns.idx_next)
    assert pair.fast.take_stats().evicted_total == pair.slow.next_uid - pair.fast.size
    return list(zip(*(field.tolist() for field in fields), strict=True))


@pytest.fixture(scope="module")
def default_nodes() -> list[tuple[Any, ...]]:
    nodes = _run({})
    assert max(uid for uid, *_ in nodes) >= BASE["capacity"], "nodes were evicted"
    return nodes


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_each_option_changes_the_nodes_as_in_the_looped_memory(
    options: dict[str, Any], default_nodes: list[tuple[Any, ...]]
) -> None:
    assert _run(options) != default_nodes


@pytest.mark.parametrize(("interval", "is_measured_again"), [("rebuild", False), ("200_steps", True)])
def test_the_scaling_is_measured_again_after_200_steps_without_new_nodes(
    interval: str, is_measured_again: bool
) -> None:
    memory = make_memory(delta_space="normalized", delta=1e-3, norm_interval=interval)
    write(memory, [0, 1, 2, 3, 4, 5, 6, 7], [0.0] * 7)
    write(memory, [0, 20], [0.0])  # one more node, less than a quarter
    before = memory._positions.scaling.mean
    for _ in range(66):
        write(memory, [0, 1, 2, 3], [0.0] * 3)
    write(memory, [0, 1], [0.0])
    assert np.array_equal(before, memory._positions.scaling.mean), "200 steps are written, the next write measures"
    write(memory, [0, 1], [0.0])
    assert np.array_equal(before, memory._positions.scaling.mean) != is_measured_again
    assert memory.list_faults() == []


def test_a_stale_index_finds_only_nodes_of_the_last_target_update() -> None:
    memory = make_memory(index="stale_target_update")
    write(memory, [0, 10], [1.0])
    slots = np.array(write(memory, [0, 10], [1.0]))
    assert memory.size == 4
    assert memory.resolve(slots, states(0, 10)).tolist() == [-1, -1]
    generation = memory.generation
    memory.on_target_update()
    assert memory.generation == generation + 1
    assert memory.resolve(slots, states(0, 10)).tolist() == [1, 0]  # the older one of each two duplicates
    new = np.array(write(memory, [1, 11], [5.0]))
    assert memory.resolve(new, states(1, 11)).tolist() == [-1, -1]
    assert memory.resolve(new, states(1, 11), nearest=True).tolist() == [1, 0]


def test_a_live_index_keeps_slots_and_replaces_only_misses_by_the_nearest_node() -> None:
    memory = make_memory(store_terminal=False)
    slots = np.array(write(memory, [0, 1, 2], [1.0, 1.0]))
    memory.on_target_update()
    assert memory.generation == 0
    assert slots[2] == -1
    assert memory.resolve(slots, states(0, 1, 2)).tolist() == slots.tolist()
    assert memory.resolve(slots, states(0, 1, 2), nearest=True).tolist() == [slots[0], slots[1], slots[1]]


def test_with_the_time_input_of_the_published_code_new_nodes_are_found_only_after_a_reprojection() -> None:
    memory = make_memory({"type": "tcse", "time_norm": "write_T_lim+1"}, delta=1e-6, delta_space="normalized")
    state, steps = np.random.default_rng(0).normal(size=(6, S)).astype(np.float32), np.arange(6)
    memory.write(state=state, reward=np.zeros(5, np.float32), won=False, episode=1, episode_return=0.0)
    assert (memory.find(state, steps)[1:] == -1).all()  # t = 0 has the same input in both
    memory.reproject()
    assert (memory.find(state, steps) >= 0).all()
