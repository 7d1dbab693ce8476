"""Fast lookups of the memory against slow ones: positions of the write, and compiled reads by slot."""

import numpy as np
import pytest

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.nodes import NodeTable, Recall, Slots, recall

S, T = 6, 20


def make_memory(**options: object) -> EpisodicMemory:
    embedder = Embedder(EmbedConfig(hidden=8), state_dim=S, episode_limit=T, device="cpu", seed=3)
    config = MemoryConfig.model_validate({"delta": 0.3, "capacity": 150, **options})
    return EpisodicMemory(config, state_dim=S, gamma=0.9, embedder=embedder)


def write(memory: EpisodicMemory, number: int) -> tuple[np.ndarray, Slots]:
    """Write an episode of which many states are near those of other episodes."""
    rng = np.random.default_rng(number)
    places = np.random.default_rng(0).normal(size=(30, S))
    state = (places[rng.integers(0, 30, T + 1)] + 0.05 * rng.normal(size=(T + 1, S))).astype(np.float32)
    reward = rng.normal(size=T).astype(np.float32)
    return state, memory.write(state=state, reward=reward, won=number % 3 == 0, episode=number, episode_return=0.0)


@pytest.mark.parametrize(
    ("nearest", "index", "delta", "store_terminal"),
    [
        (False, "live", 0.3, True),
        (True, "live", 0.3, False),
        (False, "live", 1e-8, False),  # such a small delta needs embeddings in float64
        (False, "stale_target_update", 0.3, False),
        (True, "stale_target_update", 1e-8, True),
    ],
)
def test_a_lookup_with_the_positions_of_the_write_finds_the_same_nodes(
    nearest: bool, index: str, delta: float, store_terminal: bool
) -> None:
    memory = make_memory(index=index, delta=delta, store_terminal=store_terminal)
    for number in range(20):
        state, _ = write(memory, number)
        found = memory.find_last_written(nearest=nearest)
        np.testing.assert_array_equal(found, memory.find(state, np.arange(T + 1), nearest=nearest))
        if number % 5 == 2:
            memory.reproject()
            memory.on_target_update()


def read_with_arrays(table: NodeTable, slots: Slots, uids: Slots | None) -> Recall:
    """Read nodes by slot with operations on whole arrays."""
    hit, nodes = slots >= 0, table.nodes
    index = np.where(hit, slots, 0)
    if uids is not None:
        hit &= nodes["uid"][index] == uids
    return Recall(
        h=np.where(hit, nodes["h"][index], np.nan),
        n_call=np.where(hit, nodes["n_call"][index], 0).astype(np.int32),
        n_xi=np.where(hit, nodes["n_xi"][index], 0).astype(np.int32),
        xi=nodes["xi"][index] & hit,
        hit=hit,
    )


def test_compiled_reads_equal_those_with_whole_arrays() -> None:
    memory = make_memory()
    written = [write(memory, number)[1] for number in range(12)]
    uids = np.stack([memory.uids(slots) for slots in written])
    slots = np.stack(written)
    uids[::2, ::3] += 1  # other nodes
    for part, expected in ((slots[:, 1:], uids[:, 1:]), (slots, None), (slots[0], uids[0]), (slots[:, :0], None)):
        fast, slow = recall(memory._table, part, expected), read_with_arrays(memory._table, part, expected)
        for name, values in vars(slow).items():
            np.testing.assert_array_equal(getattr(fast, name), values)
            assert getattr(fast, name).dtype == values.dtype


@pytest.mark.parametrize("index", ["live", "stale_target_update"])
def test_the_compiled_check_of_unchanged_nodes_equals_that_with_whole_arrays(index: str) -> None:
    memory = make_memory(index=index)
    written, uids = [], []
    for number in range(12):
        written.append(write(memory, number)[1])
        uids.append(memory.uids(written[-1]))
    slots, expected_uids, episode = np.stack(written), np.stack(uids), np.arange(12)
    length, steps = np.random.default_rng(0).integers(1, T + 1, 12), np.arange(T + 1)
    nodes, place = memory._table.nodes, np.maximum(slots, 0)
    is_own = (slots >= 0) & (nodes["uid"][place] == expected_uids) & (nodes["t"][place] == steps)
    is_own &= (nodes["episode"][place] == episode[:, None]) & (steps <= length[:, None]) & (index == "live")
    unchanged, is_missing = memory.keep_unchanged(slots, expected_uids, length=length, episode=episode)
    assert is_own.any() == (index == "live")
    np.testing.assert_array_equal(unchanged, np.where(is_own, slots, -1))
    np.testing.assert_array_equal(is_missing, (steps <= length[:, None]) & ~is_own)
