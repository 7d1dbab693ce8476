"""Checks of the episodic memory on a device, and of the memory that a run allocates there."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.config.resolve import resolve
from emtc_core.embedder.networks import Embedder
from emtc_core.install import memory_bytes
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.index.incremental import BruteIndex, FaissGpuIndex, can_use_faiss
from emtc_core.memory.scaling import measure_scaling
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.training.checkpoint import CheckpointStore, load
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.memory_plan import MemoryPlan, count_networks, free_bytes, plan_memory
from tests.bench.learner import store_episode
from tests.gpu.cases import MAP, count_differences, make_episode, map_info
from tests.gpu.report import CheckResult, Measurement
from tests.gpu.target import CPU, CheckSizes, Target

SMALL_BATCH = 151
"""Number of states of an episode of 150 steps. They are embedded in one batch when the episode is written."""
EMBEDDING_LIMIT = 1 / 3
"""Maximum distance of two embeddings of a state [delta]."""
RADIUS = 0.05
"""Radius of the grid index. Most queries have a node within it."""
METRICS: tuple[Metric, ...] = ("l2", "linf")
FULL_PAGES_LENGTH = 159
"""Length of an episode that fills exactly ten pages of the replay buffer [env steps]."""


def check_embedding(target: Target, sizes: CheckSizes) -> CheckResult:
    """Compare embeddings from small batches, one large batch and the CPU. Distances are in units of delta."""
    config, info = resolve(map=MAP), map_info()
    rng = np.random.default_rng(0)
    episodes = [make_episode(info, SMALL_BATCH - 1, rng) for _ in range(-(-sizes.rows // SMALL_BATCH))]
    state = np.concatenate([episode.state for episode in episodes])[: sizes.rows]
    t = np.tile(np.arange(SMALL_BATCH), len(episodes))[: sizes.rows]
    cpu_embedder, embedder = (_make_embedder(config.embed, device) for device in (CPU, target.device))
    reference = cpu_embedder.embed(state, t).numpy()
    with target.computing():
        large = embedder.embed(state, t).cpu().numpy()
        batches = [slice(start, start + SMALL_BATCH) for start in range(0, len(state), SMALL_BATCH)]
        small = torch.cat([embedder.embed(state[rows], t[rows]) for rows in batches]).cpu().numpy()
    divisor = measure_scaling(reference).divisor * config.memory.delta
    measurements = tuple(
        Measurement(name, float(np.linalg.norm((a - b) / divisor, axis=1).max()), EMBEDDING_LIMIT, "delta")
        for name, a, b in (
            (f"batches of {SMALL_BATCH} against {len(state):,}", small, large),
            ("device against CPU", large, reference),
        )
    )
    return CheckResult(
        "embedding", measurements, f"largest distance of {len(state):,} states, delta = {config.memory.delta:g}"
    )


def _make_embedder(config: Any, device: torch.device) -> Embedder:
    info = map_info()
    return Embedder(config, state_dim=info.state_dim, episode_limit=info.episode_limit, device=device, seed=1)


def check_index(target: Target, sizes: CheckSizes) -> CheckResult:
    """Search the same nodes with every index. All must return the same slots, also for nodes at the same position."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(sizes.nodes, 4))
    tenth, hundredth = sizes.nodes // 10, sizes.nodes // 100
    z[-tenth:] = z[:tenth]  # pairs of nodes at the same position
    z[tenth : tenth + hundredth] = z[-1]  # many nodes at one position
    half = sizes.queries // 2
    q = np.concatenate([z[rng.integers(0, len(z), half)], rng.normal(size=(sizes.queries - half, 4))])
    differing, times = dict[str, int](), dict[str, float]()
    for metric in METRICS:
        slots, distances, times[f"ckdtree {metric}"] = _search(CKDTreeIndex(metric), z, q)
        for name, make in _list_indexes(metric, target).items():
            with target.computing():
                result, _, times[f"{name} {metric}"] = _search(make(), z, q)
            differing[f"{name} {metric}"] = int((result != slots).sum())
        result, _, times[f"grid {metric}"] = _search(GridIndex(RADIUS, metric), z, q)
        is_near = distances <= RADIUS if metric == "linf" else distances < RADIUS
        differing[f"grid {metric}"] = int((result != np.where(is_near, slots, -1)).sum())
    measurements = [Measurement("slots that differ", sum(differing.values()), 0)]
    measurements += [Measurement(name, ms, unit="ms") for name, ms in times.items()]
    faiss = "" if any("faiss" in name for name in times) else "; faiss is not used here"
    wrong = "".join(f"; {name} differs" for name, count in differing.items() if count)
    note = f"{len(q):,} queries among {len(z):,} nodes{faiss}{wrong}"
    return CheckResult("index", tuple(measurements), note)


def _list_indexes(metric: Metric, target: Target) -> dict[str, Callable[[], NeighborIndex]]:
    """List the indexes of the device by name."""
    device = str(target.device)
    indexes: dict[str, Callable[[], NeighborIndex]] = {"brute": lambda: BruteIndex(metric, device=device)}
    if target.is_gpu and can_use_faiss(device):
        indexes["faiss"] = lambda: FaissGpuIndex(metric, device=device)
    return indexes


def _search(
    index: NeighborIndex, z: NDArray[np.float64], q: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return slots, distances and the duration of the search [ms]. A first search is not timed."""
    index.build(z)
    index.query(q[:16])
    started = time.perf_counter()
    slots, distances = index.query(q)
    return slots, distances, 1e3 * (time.perf_counter() - started)


def check_memory_plan(target: Target, sizes: CheckSizes) -> CheckResult:
    """Fill a replay buffer and a memory, write a checkpoint, and compare the used bytes with the run's memory plan.

    On a GPU, the peak of torch's allocated memory is used. On the host, the sizes of the stored tensors are used. The
    checkpoint must be read with the same bits as it was written.
    """
    settings = {"train.replay": sizes.replay, "memory.capacity": sizes.capacity, "train.batch": 2}
    config, info = resolve(map=MAP, overrides=settings), map_info(FULL_PAGES_LENGTH)
    rng = np.random.default_rng(0)
    if target.is_gpu:
        torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(target.device) if target.is_gpu else 0
    learner = make_learner(config, info, device=target.device, seed=1)
    assert isinstance(learner, ValueLearner), "QPLEX learns from replay"
    plan = plan_memory(
        config,
        info,
        device=target.device,
        networks=count_networks(learner.get_state()),
        free_bytes=free_bytes(target.device),
        host_bytes=memory_bytes(),
    )
    part = EpisodicPart(config, info, device=target.device)
    buffer = ReplayBuffer(sizes.replay, info, device=target.device, storage_device=plan.replay_device)
    for number in range(1, 3):
        store_episode(part, buffer, make_episode(info, FULL_PAGES_LENGTH, rng), number)
    batch, recalled = part.recall(buffer.sample(2, rng), buffer, tau=1.0)
    learner.update(batch, recalled, env_step=0)  # allocates gradients and moments
    del batch, recalled
    if target.is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with target.computing(), tempfile.TemporaryDirectory(prefix="emtc-check-") as folder:
        for number in range(3, sizes.replay + 1):
            store_episode(part, buffer, make_episode(info, FULL_PAGES_LENGTH, rng), number)
        state = {"learner": learner.get_state(), "episodic": part.get_state(), "replay_buffer": buffer.get_state()}
        path = CheckpointStore(Path(folder), keep=1).save(0, state)
        read, size = load(path)[1], path.stat().st_size
    if target.is_gpu:
        shares = {"GPU memory": (torch.cuda.max_memory_allocated() - before) / sum(plan.on_device.values())}
    else:
        shares = _compare_on_host(plan, state)
    return CheckResult(
        "memory plan",
        (
            *(Measurement(f"{name} of its plan", share, 1.0) for name, share in shares.items()),
            Measurement("values that differ in the checkpoint", count_differences(state, read), 0),
        ),
        f"{len(buffer):,} episodes of {FULL_PAGES_LENGTH} steps, {part.memory.size:,} nodes, "
        f"a checkpoint of {size / 1e6:,.0f} MB",
    )


def _compare_on_host(plan: MemoryPlan, state: dict[str, Any]) -> dict[str, float]:
    """Return the sizes of the stored tensors, relative to the plan."""
    sizes = {
        "replay": _count_bytes(state["replay_buffer"]["rows"]),
        "networks": _count_bytes(state["learner"]),
        "nodes": _count_bytes(state["episodic"]["memory"]),
    }
    return {name: size / plan.on_host[name] for name, size in sizes.items()}


def _count_bytes(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(_count_bytes, parts))
