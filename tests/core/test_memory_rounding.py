"""Rounding of embeddings does not decide whether states merge."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder, hidden_layers
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.scaling import EPS, TOLERANCE, measure_scaling

S, T_LIM, M = 6, 50, 20
DELTA = 1.8e-5
Wide = np.ndarray[Any, np.dtype[np.longdouble]]


def _memory(spread: float = 1.0, **options: Any) -> EpisodicMemory:
    """A memory whose embedder's first dimension has about this spread for a mean of one."""
    embedder = Embedder(EmbedConfig(hidden=8), state_dim=S, episode_limit=T_LIM, device="cpu", seed=3)
    out = embedder.encoder.out
    with torch.no_grad():
        out.weight[0] *= spread / embedder.embed(_episode(0), np.arange(M))[:, 0].std()
        out.bias[0] = 1.0
    embedder.on_new_weights()
    values: dict[str, Any] = {"delta": DELTA, "capacity": 1000, **options}
    config = MemoryConfig(**values)
    return EpisodicMemory(config, state_dim=S, gamma=0.99, embedder=embedder, seed=1)


def _episode(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(M, S)).astype(np.float32)


def _close_to(state: np.ndarray, seed: int) -> np.ndarray:
    """An episode whose states are as near to those of another as float32 lets them be, up to far beyond delta."""
    rng = np.random.default_rng(seed)
    return (state + 10 ** rng.uniform(-6, -3, (M, 1)) * rng.normal(size=(M, S))).astype(np.float32)


def _write(memory: EpisodicMemory, state: np.ndarray, episode: int = 1) -> list[int]:
    reward = np.zeros(len(state) - 1, np.float32)
    return memory.write(state=state, reward=reward, won=False, episode=episode, episode_return=0.0).tolist()


def _exact_embedding(embedder: Embedder, state: np.ndarray) -> Wide:
    """Embed an episode in extended precision."""
    x = np.concatenate([state, (np.arange(M, dtype=np.float32) / np.float32(T_LIM))[:, None]], axis=1)
    x = x.astype(np.longdouble)
    layers = [*hidden_layers(embedder.encoder), embedder.encoder.out]
    for layer in layers:
        weight, bias = (part.detach().numpy().astype(np.longdouble) for part in (layer.weight, layer.bias))
        x = x @ weight.T + bias
        x = x if layer is layers[-1] else np.maximum(x, 0)
    return x


def _write_twice(memory: EpisodicMemory, seed: int) -> tuple[Wide, list[int]]:
    """Write an episode and one close to it.

    Returns:
        [M, M] exact distances between the second's states and the first's; the row of the first that each state of
        the second merged with, -1 where it became a node.
    """
    first = _episode(seed)
    second = _close_to(first, seed)
    one, two = (_exact_embedding(memory.embedder, state) for state in (first, second))
    nodes = _write(memory, first)
    assert sorted(nodes) == list(range(M))
    slots = _write(memory, second, episode=2)
    distance = np.sqrt((((two[:, None] - one[None]) / (one.std(axis=0) + 1e-8)) ** 2).sum(axis=2))
    return distance, [nodes.index(slot) if slot < M else -1 for slot in slots]


powers = st.floats(-5, 0).map(lambda power: 10**power)
seeds = st.integers(0, 10_000)


@settings(max_examples=40, deadline=None)
@given(spread=st.floats(-5, -3).map(lambda power: 10**power), seed=seeds)
def test_merges_in_a_dimension_of_small_spread_are_those_of_exact_arithmetic(spread: float, seed: int) -> None:
    distance, merged = _write_twice(_memory(spread), seed)
    assume(not (np.abs(distance / DELTA - 1) < 1e-6).any())
    assert merged == [int(row.argmin()) if row.min() < DELTA else -1 for row in distance]


@settings(max_examples=40, deadline=None)
@given(spread=powers, seed=seeds)
def test_rounding_changes_merges_only_near_delta_at_any_spread(spread: float, seed: int) -> None:
    distance, merged = _write_twice(_memory(spread), seed)
    for row, into in zip(distance / DELTA, merged, strict=True):
        assert into >= 0 or row.min() > 1 - 2 * TOLERANCE
        assert into < 0 or row[into] < 1 + 2 * TOLERANCE


@pytest.mark.parametrize(
    ("spread", "delta", "dtype"),
    [(1.0, DELTA, torch.float32), (1e-3, DELTA, torch.float64), (1.0, 1e-7, torch.float64)],
)
def test_embeddings_are_float64_only_if_rounding_could_change_merges(
    spread: float, delta: float, dtype: torch.dtype
) -> None:
    memory = _memory(spread, delta=delta)
    _write(memory, _episode(0))
    memory.reproject()
    assert memory.get_state()["table"]["x"].dtype == dtype


@pytest.mark.parametrize(("index", "time_norm"), [("live", "write_T_lim+1"), ("stale_target_update", "T_lim")])
def test_states_written_in_float64_are_found_also_after_a_checkpoint(index: str, time_norm: str) -> None:
    memory, same = (_memory(1e-3, index=index) for _ in range(2))
    for each in (memory, same):
        each.embedder.config = each.embedder.config.model_copy(update={"time_norm": time_norm})
    _write(memory, _episode(1))
    memory.reproject()
    memory.on_target_update()
    slots = memory.find(_episode(1), np.arange(M))
    assert (slots >= 0).all()
    same.set_state(memory.get_state())
    assert same.find(_episode(1), np.arange(M)).tolist() == slots.tolist()
    assert same.list_faults() == memory.list_faults() == []
    assert memory.columns().embedding.dtype == np.float32


def _set_first_bias(memory: EpisodicMemory, value: float) -> None:
    memory.embedder.encoder.out.bias.detach()[0] = value
    memory.embedder.on_new_weights()


def test_a_stale_index_of_float32_is_searched_in_float32_after_the_memory_changed_to_float64() -> None:
    memory, state = _memory(index="stale_target_update"), _episode(1)
    _write(memory, state)
    memory.on_target_update()
    seen = memory.find(state, np.arange(M))
    _set_first_bias(memory, 1e4)  # for one re-projection rounding is far beyond delta
    memory.reproject()
    _set_first_bias(memory, 1.0)
    space = memory.get_state()["space"]
    assert (space["stale"]["scaling"]["is_float64"], space["scaling"]["is_float64"]) == (False, True)
    assert memory.find(state, np.arange(M)).tolist() == seen.tolist()


@pytest.mark.parametrize(("rows", "kind"), [(1, np.float32), (3, np.float64), (8193, np.float32), (8193, np.float64)])
def test_scaling_has_the_bits_of_whole_arrays_and_does_not_divide_a_constant_dimension(rows: int, kind: type):
    x = (3 * np.random.default_rng(rows).standard_normal((rows, 4)) + 1).astype(kind)
    x[:, 3] = 0.3
    mean = x.mean(axis=0, dtype=np.float64)
    std = np.sqrt(((x - mean) ** 2).mean(axis=0))
    is_constant = [rows == 1] * 3 + [True]
    scaling, room = measure_scaling(x), np.empty((rows, 4))
    np.testing.assert_array_equal(scaling.mean, mean)
    np.testing.assert_array_equal(scaling.divisor, np.where(is_constant, 1.0, std + EPS))
    scaling.apply(x, out=room)
    np.testing.assert_array_equal(room, (x - scaling.mean) / scaling.divisor)
