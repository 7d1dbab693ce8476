"""Checks of the episodic memory on a device."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.device_check.cases import MAP, make_episode, map_info
from app.device_check.target import CPU, CheckSizes, Target
from app.jobs.device_check import CheckResult, Measurement
from emtc_core.config.resolve import resolve
from emtc_core.embedder.networks import Embedder
from emtc_core.install import find_faiss
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex
from emtc_core.memory.index.device import BruteIndex, make_nearest_index
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.scaling import measure_scaling

SMALL_BATCH = 151
"""Number of states of an episode of 150 steps. They are embedded in one batch when the episode is written."""
EMBEDDING_LIMIT = 1 / 3
"""Maximum distance of two embeddings of a state [delta]."""
RADIUS = 0.05
"""Radius of the grid index. Most queries have a node within it."""
METRICS: tuple[Metric, ...] = ("l2", "linf")


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
    if target.is_gpu and find_faiss().is_usable:
        indexes["faiss"] = lambda: make_nearest_index(metric, device=device)
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
