"""Checks of what the episodic memory computes on a device, and of what a run holds there."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.bench.learner import store_episode
from app.device_check.cases import MAP, count_differences, game, make_episode
from app.device_check.target import CPU, Sizes, Target
from app.jobs.device_check import CheckResult, Measurement
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

SMALL_BATCH = 151
"""States of an episode of 150 steps, which are embedded together when it is written."""
EMBEDDING_LIMIT = 1 / 3
"""Of delta."""
REACH = 0.05
"""Radius of the grid index, in which most queries find a node."""
METRICS: tuple[Metric, ...] = ("l2", "linf")
LONG = 159
"""Steps of an episode whose rows fill ten pages of the replay buffer."""


def check_embedding(target: Target, sizes: Sizes) -> CheckResult:
    """Embed the same states in small and in large batches, and on the CPU; distances are in units of delta."""
    config, info = resolve(map=MAP), game()
    rng = np.random.default_rng(0)
    episodes = [make_episode(info, SMALL_BATCH - 1, rng) for _ in range(-(-sizes.rows // SMALL_BATCH))]
    state = np.concatenate([episode.state for episode in episodes])[: sizes.rows]
    t = np.tile(np.arange(SMALL_BATCH), len(episodes))[: sizes.rows]
    own, other = (_make_embedder(config.embed, device) for device in (CPU, target.device))
    wanted = own.embed(state, t).numpy()
    with target.computing():
        together = other.embed(state, t).cpu().numpy()
        parts = [slice(start, start + SMALL_BATCH) for start in range(0, len(state), SMALL_BATCH)]
        apart = torch.cat([other.embed(state[rows], t[rows]) for rows in parts]).cpu().numpy()
    divisor = measure_scaling(wanted).divisor * config.memory.delta
    measurements = tuple(
        Measurement(name, float(np.linalg.norm((one - another) / divisor, axis=1).max()), EMBEDDING_LIMIT, "delta")
        for name, one, another in (
            (f"batches of {SMALL_BATCH} against {len(state):,}", apart, together),
            ("device against CPU", together, wanted),
        )
    )
    return CheckResult(
        "embedding", measurements, f"largest distance of {len(state):,} states, delta = {config.memory.delta:g}"
    )


def _make_embedder(config: Any, device: torch.device) -> Embedder:
    info = game()
    return Embedder(config, state_dim=info.state_dim, episode_limit=info.episode_limit, device=device, seed=1)


def check_index(target: Target, sizes: Sizes) -> CheckResult:
    """Search nodes, some of which are in one place, by every index: each must return the same slots."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(sizes.nodes, 4))
    tenth, hundredth = sizes.nodes // 10, sizes.nodes // 100
    z[-tenth:] = z[:tenth]  # pairs in one place
    z[tenth : tenth + hundredth] = z[-1]  # and many in one
    half = sizes.queries // 2
    q = np.concatenate([z[rng.integers(0, len(z), half)], rng.normal(size=(sizes.queries - half, 4))])
    differing, times = dict[str, int](), dict[str, float]()
    for metric in METRICS:
        slots, distances, times[f"ckdtree {metric}"] = _search(CKDTreeIndex(metric), z, q)
        for name, make in _list_indexes(metric, target).items():
            with target.computing():
                found, _, times[f"{name} {metric}"] = _search(make(), z, q)
            differing[f"{name} {metric}"] = int((found != slots).sum())
        found, _, times[f"grid {metric}"] = _search(GridIndex(REACH, metric), z, q)
        is_near = distances <= REACH if metric == "linf" else distances < REACH
        differing[f"grid {metric}"] = int((found != np.where(is_near, slots, -1)).sum())
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
    """Return slots, distances and the milliseconds of the search, which begins with a first one that is not timed."""
    index.build(z)
    index.query(q[:16])
    started = time.perf_counter()
    slots, distances = index.query(q)
    return slots, distances, 1e3 * (time.perf_counter() - started)


def check_memory_plan(target: Target, sizes: Sizes) -> CheckResult:
    """Fill a replay buffer and a memory, write a checkpoint, and compare the bytes with the run's memory plan.

    On a GPU they are the most that torch had allocated there meanwhile; on the host the sizes of what is kept. The
    checkpoint must have the bits that were written.
    """
    settings = {"train.replay": sizes.replay, "memory.capacity": sizes.capacity, "train.batch": 2}
    config, info = resolve(map=MAP, overrides=settings), game(LONG)
    rng = np.random.default_rng(0)
    if target.is_gpu:
        torch.cuda.empty_cache()
    before = _allocated(target)
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
    buffer = ReplayBuffer(sizes.replay, info, device=target.device, home=plan.replay_device)
    for number in range(1, 3):
        store_episode(part, buffer, make_episode(info, LONG, rng), number)
    batch, recalled = part.recall(buffer.sample(2, rng), buffer, tau=1.0)
    learner.update(batch, recalled, env_step=0)  # makes gradients and moments
    del batch, recalled
    if target.is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with target.computing(), tempfile.TemporaryDirectory(prefix="emtc-check-") as folder:
        for number in range(3, sizes.replay + 1):
            store_episode(part, buffer, make_episode(info, LONG, rng), number)
        state = {"learner": learner.get_state(), "episodic": part.get_state(), "replay_buffer": buffer.get_state()}
        path = CheckpointStore(Path(folder), keep=1).save(0, state)
        read, size = load(path)[1], path.stat().st_size
    shares = _compare_on_gpu(plan, before) if target.is_gpu else _compare_on_host(plan, state)
    return CheckResult(
        "memory plan",
        (
            *(Measurement(f"{name} of its plan", share, 1.0) for name, share in shares.items()),
            Measurement("values that differ in the checkpoint", count_differences(state, read), 0),
        ),
        f"{len(buffer):,} episodes of {LONG} steps, {part.memory.size:,} nodes, a checkpoint of {size / 1e6:,.0f} MB",
    )


def _allocated(target: Target) -> int:
    return torch.cuda.memory_allocated(target.device) if target.is_gpu else 0


def _compare_on_gpu(plan: MemoryPlan, before: int) -> dict[str, float]:
    return {"GPU memory": (torch.cuda.max_memory_allocated() - before) / sum(plan.on_device.values())}


def _compare_on_host(plan: MemoryPlan, state: dict[str, Any]) -> dict[str, float]:
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
