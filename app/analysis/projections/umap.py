"""UMAP of the memory: exact neighbors, the published fuzzy graph, seeded single-threaded layout.

The library umap-learn computes the same graph (a test compares the two) but compiles for most of a minute
before its first answer; this layout kernel compiles in seconds and is cached on disk.
Source: McInnes, Healy, Melville 2018, "UMAP", sections 3 and 4.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import curve_fit
from scipy.sparse import coo_matrix, csr_matrix

from app.analysis.projections.linear import Coordinates, Progress, draw_pca
from app.analysis.projections.neighbors import find_neighbors

N_NEIGHBORS = 15  # with the point itself, as umap-learn counts
MIN_DIST = 0.1
NEGATIVE_RATE = 5
EXTENT = 10.0  # of the first layout
CHUNK = 10  # epochs between two reports
BEGUN_RATE = 0.25
"""First step of a layout that begins from given places; from PCA it is 1. On two snapshots of a 3m run (37K, 71K nodes,
5K landmarks) the quality stayed that of a cold start, and nodes moved half as far."""
SETTLED = 0.1  # part of the work done before the first epoch, for the progress bar


def compute_umap(
    embedding: Coordinates, *, seed: int, progress: Progress, begin: Coordinates | None = None
) -> Coordinates:
    """Project [n, 4] → [n, 2], from the principal plane or from given places [n, 2]."""
    graph = make_graph(embedding, n_neighbors=min(N_NEIGHBORS, len(embedding) - 1))
    progress(SETTLED)
    epochs = 200 if len(embedding) > 10_000 else 500
    head, tail, period = _edges(graph, epochs)
    layout = _first_layout(embedding, seed) if begin is None else begin.astype(np.float64)
    first_rate = 1.0 if begin is None else BEGUN_RATE
    a, b = find_curve(MIN_DIST)
    state = np.random.default_rng(seed).integers(1, 2**63, size=len(embedding), dtype=np.uint64)
    due, due_negative = period.copy(), period / NEGATIVE_RATE
    for start in range(0, epochs, CHUNK):
        stop = min(epochs, start + CHUNK)
        _optimize(layout, head, tail, period, due, due_negative, state, a, b, first_rate, start, stop, epochs)
        progress(SETTLED + (1 - SETTLED) * stop / epochs)
    return layout.astype(np.float32)


def make_graph(points: NDArray[np.floating], *, n_neighbors: int) -> csr_matrix:
    """Build the symmetric fuzzy graph [n, n] whose weights are probabilities of being neighbors."""
    index, distance = find_neighbors(points, n_neighbors - 1)
    rho, sigma = _smooth(distance, target=float(np.log2(n_neighbors)))
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.exp(-np.maximum(distance - rho[:, None], 0.0) / sigma[:, None])
    weight[(distance <= rho[:, None]) | (sigma[:, None] == 0)] = 1.0
    n, k = index.shape
    rows = np.repeat(np.arange(n), k)
    directed = coo_matrix((weight.ravel(), (rows, index.ravel())), shape=(n, n)).tocsr()
    product = directed.multiply(directed.T)
    graph = (directed + directed.T - product).tocsr()
    graph.sort_indices()
    return graph


def _smooth(distance: NDArray[np.float64], *, target: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Find for each point the offset and scale at which its memberships sum to `target` (bisection)."""
    positive = np.where(distance > 0, distance, np.inf)
    rho = np.where(np.isfinite(nearest := positive.min(axis=1)), nearest, 0.0)
    low, high, sigma = np.zeros(len(distance)), np.full(len(distance), np.inf), np.ones(len(distance))
    shifted = distance - rho[:, None]
    for _ in range(64):
        member = np.where(shifted > 0, np.exp(-np.maximum(shifted, 0) / sigma[:, None]), 1.0).sum(axis=1)
        too_wide = member > target
        settled = np.abs(member - target) < 1e-5
        high = np.where(too_wide & ~settled, sigma, high)
        low = np.where(~too_wide & ~settled, sigma, low)
        middle = np.where(np.isinf(high), sigma * 2, (low + high) / 2)
        sigma = np.where(settled, sigma, middle)
    floor = 1e-3 * np.where(rho > 0, distance.mean(axis=1), distance.mean())
    return rho, np.maximum(sigma, floor)


def _edges(graph: csr_matrix, epochs: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """List the edges that are visited at least once, with the epochs between two visits."""
    coo = graph.tocoo()
    heavy = coo.data >= coo.data.max() / epochs
    period = coo.data.max() / coo.data[heavy]
    return coo.row[heavy].astype(np.int32), coo.col[heavy].astype(np.int32), period.astype(np.float64)


def _first_layout(embedding: Coordinates, seed: int) -> NDArray[np.float64]:
    plane = draw_pca(embedding).coordinates.astype(np.float64)
    plane *= EXTENT / max(float(np.abs(plane).max()), 1e-12)
    return plane + np.random.default_rng(seed).normal(scale=1e-4 * EXTENT, size=plane.shape)


def find_curve(min_dist: float) -> tuple[float, float]:
    """Fit 1 / (1 + a d^(2b)) to a curve that stays 1 up to `min_dist` and then falls off exponentially."""
    d = np.linspace(0, 3, 300)
    target = np.where(d < min_dist, 1.0, np.exp(-(d - min_dist)))
    (a, b), _ = curve_fit(lambda x, a, b: 1.0 / (1.0 + a * x ** (2 * b)), d, target)
    return float(a), float(b)


@njit(cache=True)
def _clip(value: float) -> float:
    return min(4.0, max(-4.0, value))


@njit(cache=True)
def _draw(state: NDArray[np.uint64], i: int, n: int) -> int:
    """Draw a vertex by xorshift64 with one state per vertex."""
    x = state[i]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[i] = x
    return int(x >> np.uint64(11)) % n


@njit(cache=True)
def _optimize(
    layout: NDArray[Any], head: NDArray[Any], tail: NDArray[Any], period: NDArray[Any],
    due: NDArray[Any], due_negative: NDArray[Any], state: NDArray[Any],
    a: float, b: float, first_rate: float, start: int, stop: int, epochs: int,
) -> None:  # fmt: skip
    """Run epochs start…stop of the stochastic layout in place, edges in their fixed order."""
    n = layout.shape[0]
    for epoch in range(start, stop):
        rate = first_rate * (1.0 - epoch / epochs)
        for e in range(head.shape[0]):
            if due[e] > epoch:
                continue
            j, k = head[e], tail[e]
            dx, dy = layout[j, 0] - layout[k, 0], layout[j, 1] - layout[k, 1]
            d2 = dx * dx + dy * dy
            pull = 0.0
            if d2 > 0.0:
                pull = -2.0 * a * b * d2 ** (b - 1.0) / (a * d2**b + 1.0)
            layout[j, 0] += rate * _clip(pull * dx)
            layout[j, 1] += rate * _clip(pull * dy)
            layout[k, 0] -= rate * _clip(pull * dx)
            layout[k, 1] -= rate * _clip(pull * dy)
            due[e] += period[e]
            between = period[e] / 5.0
            repulsions = int((epoch - due_negative[e]) / between)
            due_negative[e] += repulsions * between
            for _ in range(repulsions):
                other = _draw(state, j, n)
                if other == j:
                    continue
                dx, dy = layout[j, 0] - layout[other, 0], layout[j, 1] - layout[other, 1]
                d2 = dx * dx + dy * dy
                push = 0.0
                if d2 > 0.0:
                    push = 2.0 * b / ((0.001 + d2) * (a * d2**b + 1.0))
                layout[j, 0] += rate * _clip(push * dx)
                layout[j, 1] += rate * _clip(push * dy)
