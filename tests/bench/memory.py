"""The time of Algorithm 2, lookups and recalls with N entries. The memory is full, so every new node evicts one."""

import statistics
import time

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import EpisodicMemory
from tests.bench.timing import median_s
from tests.report import BenchResult, make_result

SIZES = (10_000, 100_000, 1_000_000)
STATE_DIM, LENGTH = 26, 150  # football, 3 against 1 with keeper
BATCH = 32
EVICTED = 0.1  # fraction of replayed states whose node was evicted
EPISODES = 100
REPEATS = 7


def run(sizes: tuple[int, ...] = SIZES) -> list[BenchResult]:
    """Measure writes, lookups, recalls and the search of evicted nodes for each size."""
    return [result for size in sizes for result in _measure(size)]


def _measure(size: int) -> list[BenchResult]:
    memory, filling_ms = fill_memory(size)
    rng = np.random.default_rng(1)
    writes = [write_random_episode(memory, rng, size + i) for i in range(EPISODES)]
    state = np.concatenate([random_walk(rng) for _ in range(BATCH)])
    t = np.tile(np.arange(LENGTH + 1), BATCH)
    slots = rng.integers(0, memory.size, (BATCH, LENGTH))
    find_s = median_s(lambda: memory.find(state, t), REPEATS, warm_up=1)
    recall_s = median_s(lambda: memory.recall(slots), REPEATS, warm_up=1)
    evicted = rng.choice(len(state), int(EVICTED * len(state)), replace=False)
    search_s = median_s(lambda: memory.find(state[evicted], t[evicted]), REPEATS, warm_up=1)
    emu_write = "EMU's public code: 84 ms at 7K entries"
    recall_load = f"successors of {BATCH} episodes, one update"
    search_load = f"{100 * EVICTED:.0f} % of these states, one update with memory.on_evicted = search"
    emu_find = "one k-d tree query at a time: 5K per second"
    return [
        make_sized_result("memory.write_episode_ms", size, 1e3 * statistics.fmean(writes), "ms", 20.0, emu_write),
        make_sized_result("memory.fill_episode_ms", size, filling_ms, "ms", 20.0, "mean from empty to full"),
        make_sized_result("memory.lookup_per_second", size, len(state) / find_s, "states/s", 200_000.0, emu_find),
        make_sized_result("memory.recall_ms", size, 1e3 * recall_s, "ms", 7.5, recall_load),
        make_sized_result("memory.search_evicted_ms", size, 1e3 * search_s, "ms", 7.5, search_load),
    ]


def fill_memory(size: int, *, device: str = "cpu") -> tuple[EpisodicMemory, float]:
    """Fill a memory of capacity `size` with random walks. Return it and the mean time of a write [ms]."""
    embedder = Embedder(EmbedConfig(), state_dim=STATE_DIM, episode_limit=LENGTH, device=device, seed=1)
    config = MemoryConfig(capacity=size, delta=1.8e-3)
    memory = EpisodicMemory(config, state_dim=STATE_DIM, gamma=0.99, embedder=embedder, device=device, seed=1)
    rng = np.random.default_rng(0)
    write_random_episode(memory, rng, 0)  # compile the kernels
    times = []
    while memory.size < size:
        times.append(write_random_episode(memory, rng, len(times) + 1))
    return memory, 1e3 * statistics.fmean(times)


def write_random_episode(memory: EpisodicMemory, rng: np.random.Generator, episode: int) -> float:
    """Write one random episode. Return the duration of the write [s]."""
    state, reward = random_walk(rng), rng.random(LENGTH).astype(np.float32)
    started = time.perf_counter()
    memory.write(state=state, reward=reward, won=episode % 3 == 0, episode=episode, episode_return=0.0)
    return time.perf_counter() - started


def random_walk(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the states of one episode [T+1, S] as a random walk with small steps."""
    return np.cumsum(0.1 * rng.standard_normal((LENGTH + 1, STATE_DIM), np.float32), axis=0)


def make_sized_result(name: str, size: int, value: float, unit: str, budget: float, reference: str) -> BenchResult:
    """Make the result of a memory with `size` nodes."""
    return make_result(f"{name}.{size}", value, unit, budget, reference, digits=4)
