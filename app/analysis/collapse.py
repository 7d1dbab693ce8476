"""Quality of an embedding: tests whether it has collapsed, with a confidence interval over episodes for each number.

A snapshot is the episodic memory of a run at one env step. Its nodes are stored states with an embedding, the highest
return that was reached from them (H), and whether they are desirable, that is part of a successful episode (ξ). The
memory merges states whose embeddings are within the radius delta.

An embedding is useful if nearby states have similar returns; it has collapsed if not. Neighbors from the same episode
are similar in any embedding, because consecutive states are similar. Only neighbors from other episodes are therefore
counted.

The intervals are 95 % percentile bootstraps that resample whole episodes, because the nodes of an episode are not
independent. Neighbors are searched among all nodes. The query nodes of large memories are a sample, stratified by
return and time, and each number contains its sample size.

If the snapshot is a sample of the memory, its nodes are farther apart than those of the memory. The numbers within
delta (those with δ in their meaning) are then not computed, and there is no verdict.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.analysis.bootstrap import compute_percentile_interval, resample_sums
from app.analysis.neighborhoods import (
    MAX_QUERY_NODES,
    NEIGHBORS,
    Floats,
    Rows,
    compute_layout_quality,
    find_neighbors_in_other_episodes,
)
from app.analysis.projections.sampling import sample_stratified_rows
from app.analysis.samples import explain_sample
from storage.queries.memory import Snapshot

COLUMNS = ("name", "value", "low", "high", "n", "unit")
COLLAPSED_BELOW = 0.1
"""The embedding has collapsed if the R² of H, predicted by the neighbors, is below this value."""
USEFUL_ABOVE = 0.3
"""The embedding has not collapsed if the R² of H is above this value."""
MAX_NEIGHBORS_WITHIN_DELTA = 50
"""Maximum number of counted neighbors within delta. In a collapsed embedding all nodes are within delta."""
MAX_LAYOUT_NODES = 4000
"""Maximum number of nodes in `measure_layout`, whose cost grows with the square of this number."""
_MAX_PURITY_BY_CHANCE = 0.999
"""Purity is the fraction of neighbors with the same ξ. If it is above this value for random neighbors, all nodes are
desirable or none is, and it is not reported."""


@dataclass(frozen=True)
class EmbeddingNumber:
    """One number of an embedding; NaN if it is undefined."""

    name: str
    value: float
    low: float  # edges of its confidence interval over episodes
    high: float
    n: int  # number of nodes from which it is computed
    unit: str
    meaning: str = ""


@dataclass(frozen=True)
class CollapseResult:
    """All numbers of one snapshot with one embedding."""

    numbers: tuple[EmbeddingNumber, ...]
    sample: str = ""
    """Sentence about the sample; empty for a whole snapshot."""

    @property
    def verdict(self) -> str:
        """Whether the embedding has collapsed, with the numbers of the decision.

        It has collapsed if the whole interval of R² is below `COLLAPSED_BELOW`, and it has not if the whole interval is
        above `USEFUL_ABOVE`. For a sample only the numbers are given.
        """
        r2 = self["h_r2_knn"]
        if not np.isfinite(r2.value):
            return "Cannot tell: no node has neighbors of other episodes with different H."
        r2_by_chance = self["h_r2_by_chance"].value
        numbers = f"R² {_format_interval(r2)} ({_format(r2_by_chance)} expected by chance)"
        purity = self._describe_purity()
        if self.sample:
            return f"In this sample, neighbors predict H with {numbers}.{purity}"
        if r2.high < COLLAPSED_BELOW:
            return f"Yes: neighbors do not predict H, {numbers}.{purity}"
        if r2.low > USEFUL_ABOVE:
            return f"No: neighbors predict H with {numbers}.{purity}"
        return f"Partly, or too few episodes to decide: neighbors predict H with {numbers}.{purity}"

    def _describe_purity(self) -> str:
        """Write the fraction of neighbors with the same ξ; empty if all nodes are desirable, or none is."""
        purity, by_chance = self["xi_purity"], self["xi_purity_by_chance"].value
        if not np.isfinite(purity.value) or by_chance > _MAX_PURITY_BY_CHANCE:
            return ""
        return (
            f" {_format_interval(purity)} of a node's neighbors have the same ξ "
            f"({_format(by_chance)} expected by chance)."
        )

    def __getitem__(self, name: str) -> EmbeddingNumber:
        return next(number for number in self.numbers if number.name == name)

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers as a table: name, value, low, high, n, unit."""
        return pd.DataFrame([astuple(number)[: len(COLUMNS)] for number in self.numbers], columns=list(COLUMNS))


@dataclass(frozen=True)
class _Statistic:
    """A number that is computed from sums over the query nodes. A resample of episodes is then a weighted sum."""

    name: str
    unit: str
    meaning: str
    terms: Floats  # [Q, P], terms of the sums for each query node; zeros for a node that is not counted
    is_counted: NDArray[np.bool_]  # [Q]
    combine: Callable[[Floats], Floats]  # sums [..., P] → numbers [...]


def measure_collapse(
    snapshot: Snapshot,
    *,
    delta: float,
    delta_space: Literal["normalized", "raw"] = "normalized",
    embedding: NDArray[np.float32] | None = None,
    layout: NDArray[np.float32] | None = None,
    threshold: float | None = None,
    max_nodes: int = MAX_QUERY_NODES,
    seed: int = 0,
    n_jobs: int = 1,
) -> CollapseResult:
    """Measure how well an embedding separates returns and success, and how well a layout shows the embedding.

    Args:
        snapshot: The memory: returns, desirability and episodes.
        delta: Merge radius of the memory, `memory.delta` of the run.
        delta_space: Space in which delta and neighbors are measured, `memory.delta_space` of the run: "normalized" per
            dimension as in the memory, or "raw". The layout is always compared with the raw embedding.
        embedding: Embedding [M, 4] of the nodes; default: the stored one.
        layout: Coordinates [M, 2] of the nodes, NaN if unknown; without it the numbers of the layout are left out.
        threshold: Two nodes within delta should not have been merged if their returns differ by more [return];
            default: the standard deviation of H.
        max_nodes: Maximum number of query nodes.
        seed: Random seed for the sample, the order of nodes with equal coordinates and the bootstrap.
        n_jobs: Number of threads; the numbers do not depend on it.
    """
    rows, points = _select_nodes(snapshot, delta_space, embedding, max_nodes=max_nodes, seed=seed)
    index, distance = find_neighbors_in_other_episodes(
        points, snapshot.episode, rows, k=MAX_NEIGHBORS_WITHIN_DELTA, seed=seed, n_jobs=n_jobs
    )
    if threshold is None:
        threshold = float(snapshot.h.astype(np.float64).std())
    statistics = [
        *_make_return_statistics(snapshot, rows, index, distance, delta=delta, threshold=threshold),
        *_make_desirability_statistics(snapshot, rows, index),
        _make_chance_statistic(snapshot, rows, seed),
    ]
    numbers = _compute_numbers(statistics, snapshot.episode[rows], seed)
    if layout is not None:
        embedded = snapshot if embedding is None else replace(snapshot, embedding=embedding)
        numbers += measure_layout(embedded, layout, seed=seed)
    return CollapseResult(tuple(numbers), explain_sample(snapshot))


def compute_return_r2(
    snapshot: Snapshot,
    *,
    delta_space: Literal["normalized", "raw"] = "normalized",
    embedding: NDArray[np.float32] | None = None,
    max_nodes: int = MAX_QUERY_NODES,
    seed: int = 0,
) -> float:
    """Compute only the R² of H predicted by the nearest nodes of other episodes: "h_r2_knn" of `measure_collapse`.

    It takes less than half the time of all numbers.

    Args:
        snapshot: The memory: returns and episodes.
        delta_space: As in `measure_collapse`.
        embedding: As in `measure_collapse`.
        max_nodes: Maximum number of query nodes.
        seed: Random seed for the sample and the order of nodes with equal coordinates.
    """
    rows, points = _select_nodes(snapshot, delta_space, embedding, max_nodes=max_nodes, seed=seed)
    index, _ = find_neighbors_in_other_episodes(points, snapshot.episode, rows, k=NEIGHBORS, seed=seed)
    statistic = _make_knn_statistic(snapshot, rows, index)
    return float(statistic.combine(statistic.terms.sum(axis=0)))


def measure_layout(snapshot: Snapshot, layout: NDArray[np.float32], *, seed: int = 0) -> list[EmbeddingNumber]:
    """Measure how well a layout [M, 2] shows the embedding of a snapshot; empty for too few nodes."""
    in_layout = np.flatnonzero(np.isfinite(layout).all(axis=1))
    if len(in_layout) <= 2 * NEIGHBORS + 1:
        return []
    rows = in_layout[
        sample_stratified_rows(snapshot.h[in_layout], snapshot.t[in_layout], n=MAX_LAYOUT_NODES, seed=seed)
    ]
    per_node = compute_layout_quality(snapshot.embedding[rows], layout[rows])
    against = f"of the layout against the embedding at k = {NEIGHBORS} among {len(rows)} nodes"
    meanings = {
        "trustworthiness": f"trustworthiness {against}: 1 if it shows no false neighbors",
        "continuity": f"continuity {against}: 1 if no true neighbors are separated",
    }
    ones = np.ones(len(rows))
    statistics = [
        _make_fraction(name, "1", meaning, values, ones)
        for (name, meaning), values in zip(meanings.items(), per_node.T, strict=True)
    ]
    return _compute_numbers(statistics, snapshot.episode[rows], seed)


def scale_like_memory(embedding: NDArray[np.float32]) -> Floats:
    """Normalize embeddings [M, X] per dimension by mean and standard deviation, as the memory does.

    A dimension that is constant except for rounding errors is centered only, so that the errors are not amplified.
    """
    mean = embedding.mean(axis=0, dtype=np.float64)
    centered = embedding - mean
    std = np.sqrt((centered**2).mean(axis=0))
    return centered / np.where(std <= 1e-6 * np.abs(mean), 1.0, std + 1e-8)


def _select_nodes(
    snapshot: Snapshot,
    delta_space: Literal["normalized", "raw"],
    embedding: NDArray[np.float32] | None,
    *,
    max_nodes: int,
    seed: int,
) -> tuple[Rows, NDArray[np.floating]]:
    """Return the rows of the query nodes [Q] and the embeddings of all nodes [M, X] in the space of delta."""
    rows = sample_stratified_rows(snapshot.h, snapshot.t, n=max_nodes, seed=seed)
    points = snapshot.embedding if embedding is None else embedding
    if delta_space == "normalized":
        return rows, scale_like_memory(points)
    return rows, points


def _center(h: NDArray[np.float32]) -> Floats:
    """Subtract the mean, so that sums of squares are accurate also for a large mean."""
    exact = h.astype(np.float64)
    return exact - exact.mean()


def _make_return_statistics(
    snapshot: Snapshot, rows: Rows, index: Rows, distance: Floats, *, delta: float, threshold: float
) -> list[_Statistic]:
    """Make the statistics of H. For a sample of the memory, only that of the nearest nodes is made.

    Args:
        snapshot: The memory.
        rows: Rows [Q] of the query nodes.
        index: Rows [Q, K] of their neighbors.
        distance: Distances [Q, K] to the neighbors.
        delta: Merge radius of the memory.
        threshold: Two nodes differ if their H differ by more.
    """
    knn_statistic = _make_knn_statistic(snapshot, rows, index)
    if snapshot.whole is not None:
        return [knn_statistic]
    h = _center(snapshot.h)
    is_within_delta = distance <= delta
    is_different = np.abs(h[index] - h[rows][:, None]) > threshold
    n_within_delta = is_within_delta.sum(axis=1)
    n_different = (is_different & is_within_delta).sum(axis=1)
    return [
        knn_statistic,
        _make_r2(
            "h_r2_delta",
            "R² of H predicted by the nodes of other episodes within δ",
            h[rows],
            h[index],
            is_within_delta,
        ),
        _make_fraction(
            "delta_far_share",
            "share of pairs",
            f"pairs of nodes within δ whose H differ by more than {threshold:.4g}",
            n_different,
            n_within_delta,
        ),
        _make_fraction(
            "delta_reached",
            "share of nodes",
            "nodes with a node of another episode within δ",
            n_within_delta > 0,
            np.ones(len(rows)),
        ),
    ]


def _make_knn_statistic(snapshot: Snapshot, rows: Rows, index: Rows) -> _Statistic:
    h = _center(snapshot.h)
    neighbors = index[:, :NEIGHBORS]
    meaning = f"R² of H predicted by the {NEIGHBORS} nearest nodes of other episodes"
    return _make_r2("h_r2_knn", meaning, h[rows], h[neighbors], neighbors >= 0)


def _make_chance_statistic(snapshot: Snapshot, rows: Rows, seed: int) -> _Statistic:
    """Make h_r2_knn of an embedding without information: its neighbors are random nodes."""
    h = _center(snapshot.h)
    random_nodes = np.random.default_rng(seed).integers(snapshot.size, size=(len(rows), NEIGHBORS))
    is_other = snapshot.episode[random_nodes] != snapshot.episode[rows][:, None]
    meaning = f"R² of H predicted by {NEIGHBORS} random nodes of other episodes"
    return _make_r2("h_r2_by_chance", meaning, h[rows], h[random_nodes], is_other)


def _make_desirability_statistics(snapshot: Snapshot, rows: Rows, index: Rows) -> list[_Statistic]:
    neighbors = index[:, :NEIGHBORS]
    is_valid = neighbors >= 0
    xi = snapshot.xi.astype(bool)
    is_same = (xi[neighbors] == xi[rows][:, None]) & is_valid
    n_neighbors = is_valid.sum(axis=1)
    purity = is_same.sum(axis=1) / np.maximum(n_neighbors, 1)
    has_neighbors = n_neighbors > 0
    meaning = f"nodes with the same ξ among the {NEIGHBORS} nearest of other episodes"

    def combine_chance(sums: Floats) -> Floats:
        """Compute the probability that two random nodes have the same ξ."""
        desirable = sums[..., 0] / sums[..., 1]
        return desirable**2 + (1 - desirable) ** 2

    chance_terms = np.stack([xi[rows], np.ones(len(rows))], axis=1).astype(np.float64)
    return [
        _make_fraction("xi_purity", "share of neighbors", meaning, purity * has_neighbors, has_neighbors),
        _Statistic(
            "xi_purity_by_chance",
            "share of neighbors",
            "the same for random neighbors",
            chance_terms,
            np.ones(len(rows), bool),
            combine_chance,
        ),
    ]


def _make_r2(name: str, meaning: str, h: Floats, h_neighbors: Floats, is_valid: NDArray[np.bool_]) -> _Statistic:
    """Make the R² of h [Q] if h of a node is predicted by the mean h of its valid neighbors [Q, K]."""
    n_neighbors = is_valid.sum(axis=1)
    is_counted = n_neighbors > 0
    predicted = np.where(is_valid, h_neighbors, 0.0).sum(axis=1) / np.maximum(n_neighbors, 1)
    terms = np.stack([(h - predicted) ** 2, h, h**2, np.ones(len(h))], axis=1) * is_counted[:, None]

    def combine(sums: Floats) -> Floats:
        """Compute 1 − residual / variation from Σ(h − predicted)², Σh, Σh² and the count; NaN if h is constant."""
        residual, h_sum, h_squares, count = np.moveaxis(sums, -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            variation = h_squares - h_sum**2 / count
            is_constant = ~(variation > 1e-12 * h_squares)
            return np.where(is_constant, np.nan, 1 - residual / variation)

    return _Statistic(name, "R²", meaning, terms, is_counted, combine)


def _make_fraction(
    name: str, unit: str, meaning: str, part: NDArray[np.generic], whole: NDArray[np.generic]
) -> _Statistic:
    """Make the statistic sum(part) / sum(whole) of part [Q] and whole [Q]."""
    terms = np.stack([part, whole], axis=1).astype(np.float64)

    def combine(sums: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return sums[..., 0] / sums[..., 1]

    return _Statistic(name, unit, meaning, terms, terms[:, 1] > 0, combine)


def _compute_numbers(statistics: list[_Statistic], episode: NDArray[np.int64], seed: int) -> list[EmbeddingNumber]:
    """Compute the statistics and their intervals. All statistics use the same resamples of whole episodes."""
    # the terms of all statistics are resampled as one array, and its columns are then split by statistic
    splits = np.cumsum([statistic.terms.shape[1] for statistic in statistics])[:-1]
    terms = np.concatenate([statistic.terms for statistic in statistics], axis=1)
    resampled_sums = np.split(resample_sums(terms, episode, seed=seed), splits, axis=1)
    numbers = []
    for statistic, sums in zip(statistics, resampled_sums, strict=True):
        low, high = compute_percentile_interval(statistic.combine(sums))
        value = float(statistic.combine(statistic.terms.sum(axis=0)))
        n = int(statistic.is_counted.sum())
        numbers.append(EmbeddingNumber(statistic.name, value, low, high, n, statistic.unit, statistic.meaning))
    return numbers


def _format_interval(number: EmbeddingNumber) -> str:
    return f"{_format(number.value)} [{_format(number.low)}, {_format(number.high)}]"


def _format(value: float) -> str:
    """Write a fraction or an R² with two digits and without a leading zero: .80, −.07."""
    text = f"{value:.2f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
