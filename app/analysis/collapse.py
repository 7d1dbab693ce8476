"""Has an embedding collapsed? Numbers of one snapshot and one embedding, each with an interval over episodes.

An embedding is useful to the memory when states that it puts side by side are worth the same. Neighbors from the same
episode are alike without its help, step follows step, so only neighbors in other episodes count here. Intervals are
95 % percentile bootstraps that draw whole episodes, because the nodes of one episode are no independent witnesses.
Neighbors are looked for among all nodes; large memories are asked at a sample, stratified by return and time, and
every number says of how many nodes it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.analysis.neighborhoods import ASKED, NEIGHBORS, Floats, Rows, find_elsewhere, rank_layout
from app.analysis.projections.linear import stratified_rows
from storage.queries.memory import Snapshot

MOST_WITHIN_DELTA = 50  # nearest of them: a collapsed embedding has the whole memory within delta
RANKED = 4000  # nodes among which the ranks of a layout are compared: the work grows with their square
DRAWS = 1000
LEVEL = 0.95
_DRAWS_AT_ONCE = 50
USELESS, USEFUL = 0.1, 0.3  # R² of H: what neighbors tell of a return that is next to nothing, and what helps

COLUMNS = ("name", "value", "low", "high", "n", "unit")


@dataclass(frozen=True)
class Number:
    """One number of an embedding; NaN where nothing can be said."""

    name: str
    value: float
    low: float  # of its interval over episodes
    high: float
    n: int  # nodes that it is the number of
    unit: str
    meaning: str = ""


@dataclass(frozen=True)
class Collapse:
    """All numbers of one snapshot under one embedding."""

    numbers: tuple[Number, ...]

    @property
    def verdict(self) -> str:
        """The answer in words, with the numbers that it rests on."""
        return say_verdict(self)

    def __getitem__(self, name: str) -> Number:
        return next(number for number in self.numbers if number.name == name)

    def to_frame(self) -> pd.DataFrame:
        """List them, one row each: name, value, low, high, n, unit."""
        return pd.DataFrame([astuple(number)[: len(COLUMNS)] for number in self.numbers], columns=list(COLUMNS))


def say_verdict(found: Collapse) -> str:
    """Say whether an embedding has collapsed: whether its neighbors tell what a state is worth.

    It has where the whole interval of R² lies below `USELESS`, and has not where it lies above `USEFUL`.
    """
    told, chance = found["h_r2_knn"], found["h_r2_by_chance"]
    if not np.isfinite(told.value):
        return "Cannot tell: no node has neighbors in other episodes whose H differ."
    said = f"R² {_quote(told)}; {_short(chance.value)} by chance"
    if told.high < USELESS:
        return f"Yes: neighbors say next to nothing of H, {said}.{_say_desirability(found)}"
    if told.low > USEFUL:
        return f"No: neighbors predict H with {said}.{_say_desirability(found)}"
    return f"In part, or too few episodes to tell: neighbors predict H with {said}.{_say_desirability(found)}"


def _say_desirability(found: Collapse) -> str:
    purity, chance = found["xi_purity"], found["xi_purity_by_chance"]
    if not np.isfinite(purity.value) or chance.value > 0.999:  # all are desirable, or none is
        return ""
    return f" {_quote(purity)} of them share its ξ; {_short(chance.value)} by chance."


def _quote(number: Number) -> str:
    return f"{_short(number.value)} [{_short(number.low)}, {_short(number.high)}]"


def _short(value: float) -> str:
    """Write a share or an R² with two digits and no leading zero: .80, −.07."""
    return (
        f"{value:.2f}".replace("0.", ".", 1).replace("-", "−") if abs(value) < 1 else f"{value:.2f}".replace("-", "−")
    )


@dataclass(frozen=True)
class _Measure:
    """A number as a function of sums over nodes, so that a resample is a weighted sum."""

    name: str
    unit: str
    meaning: str
    parts: Floats  # [Q, P] of each node asked; a node that has nothing to say has zeros
    says: NDArray[np.bool_]  # [Q]
    combine: Callable[[Floats], Floats]  # [..., P] → [...]


def measure_collapse(
    snapshot: Snapshot,
    *,
    delta: float,
    delta_space: Literal["normalized", "raw"] = "normalized",
    embedding: NDArray[np.float32] | None = None,
    layout: NDArray[np.float32] | None = None,
    threshold: float | None = None,
    most: int = ASKED,
    seed: int = 0,
    n_jobs: int = 1,
) -> Collapse:
    """Measure how well an embedding tells returns and success apart, and how well a layout shows it.

    Args:
        snapshot: The memory: returns, desirability and episodes.
        delta: Merge radius of the memory, `memory.delta` of the run.
        delta_space: Where delta and neighbors are measured, `memory.delta_space` of the run: in the embedding scaled
            per dimension as the memory scales it, or as it is. The layout is always compared with it as it is.
        embedding: Embedding of the snapshot's nodes [M, 4]; the stored one unless another is given.
        layout: Places of the nodes [M, 2], NaN where unknown; without it nothing is said of a layout.
        threshold: Difference of returns above which two nodes within delta of each other should not have been
            merged [return]; the standard deviation of H when missing.
        most: Nodes that are asked for their neighbors.
        seed: Of the sample, the order among twins, and the resamples.
        n_jobs: Threads; they change nothing but the time.
    """
    rows, space = _choose_space(snapshot, delta_space, embedding, most=most, seed=seed)
    index, distance = find_elsewhere(space, snapshot.episode, rows, k=MOST_WITHIN_DELTA, seed=seed, n_jobs=n_jobs)
    wide = float(snapshot.h.astype(np.float64).std()) if threshold is None else threshold
    measures = [
        *_measure_returns(snapshot, rows, index, distance, delta=delta, threshold=wide),
        *_measure_desirability(snapshot, rows, index),
        _measure_chance(snapshot, rows, seed),
    ]
    numbers = _with_intervals(measures, snapshot.episode[rows], seed)
    if layout is not None:
        drawn = snapshot if embedding is None else replace(snapshot, embedding=embedding)
        numbers += measure_layout(drawn, layout, seed=seed)
    return Collapse(tuple(numbers))


def predict_returns(
    snapshot: Snapshot,
    *,
    delta_space: Literal["normalized", "raw"] = "normalized",
    embedding: NDArray[np.float32] | None = None,
    most: int = ASKED,
    seed: int = 0,
) -> float:
    """Compute the R² of H predicted by the nearest nodes of other episodes: "h_r2_knn" of `measure_collapse` alone.

    It takes less than half the time of all numbers.

    Args:
        snapshot: The memory: returns and episodes.
        delta_space: As in `measure_collapse`.
        embedding: As in `measure_collapse`.
        most: Nodes for which neighbors are searched.
        seed: Of the sample and of the order among nodes at the same place.
    """
    rows, space = _choose_space(snapshot, delta_space, embedding, most=most, seed=seed)
    index, _ = find_elsewhere(space, snapshot.episode, rows, k=NEIGHBORS, seed=seed)
    measure = _predict_by_nearest(snapshot, rows, index)
    return float(measure.combine(measure.parts.sum(axis=0)))


def measure_layout(snapshot: Snapshot, layout: NDArray[np.float32], *, seed: int = 0) -> list[Number]:
    """Measure how well a layout [M, 2] shows a snapshot's embedding; nothing of too few nodes."""
    ranked, ranks = _measure_layout(snapshot, snapshot.embedding, layout, seed)
    return _with_intervals(ranks, snapshot.episode[ranked], seed)


def _choose_space(
    snapshot: Snapshot,
    delta_space: Literal["normalized", "raw"],
    embedding: NDArray[np.float32] | None,
    *,
    most: int,
    seed: int,
) -> tuple[Rows, NDArray[np.floating]]:
    """Choose the nodes for which neighbors are searched [Q], and the points of all nodes [M, d]."""
    points = snapshot.embedding if embedding is None else embedding
    rows = stratified_rows(snapshot.h, snapshot.t, n=most, seed=seed)
    return rows, scale_like_memory(points) if delta_space == "normalized" else points


def _predict_by_nearest(snapshot: Snapshot, rows: Rows, index: Rows) -> _Measure:
    h = _center(snapshot.h)
    near = index[:, :NEIGHBORS]
    text = f"R² of H predicted by the {NEIGHBORS} nearest nodes of other episodes"
    return _r2("h_r2_knn", text, h[rows], h[near], near >= 0)


def _center(h: NDArray[np.float32]) -> Floats:
    """Subtract the mean, so that sums of squares are exact enough for a large mean too."""
    exact = h.astype(np.float64)
    return exact - exact.mean()


def _measure_returns(
    snapshot: Snapshot, rows: Rows, index: Rows, distance: Floats, *, delta: float, threshold: float
) -> Iterator[_Measure]:
    h, merged = _center(snapshot.h), distance <= delta
    yield _predict_by_nearest(snapshot, rows, index)
    yield _r2("h_r2_delta", "R² of H predicted by the nodes of other episodes within δ", h[rows], h[index], merged)
    apart = (np.abs(h[index] - h[rows][:, None]) > threshold) & merged
    yield _share(
        "delta_far_share", "pairs", f"pairs of nodes within δ whose H differ by more than {threshold:.4g}",
        apart.sum(axis=1), merged.sum(axis=1),
    )  # fmt: skip
    yield _share(
        "delta_reached", "nodes", "nodes with a node of another episode within δ",
        merged.sum(axis=1) > 0, np.ones(len(rows)),
    )  # fmt: skip


def _measure_chance(snapshot: Snapshot, rows: Rows, seed: int) -> _Measure:
    """What h_r2_knn would be of an embedding that knows nothing: its neighbors are drawn at random."""
    h = _center(snapshot.h)
    drawn = np.random.default_rng(seed).integers(snapshot.size, size=(len(rows), NEIGHBORS))
    elsewhere = snapshot.episode[drawn] != snapshot.episode[rows][:, None]
    text = f"R² of H predicted by {NEIGHBORS} nodes of other episodes drawn at random"
    return _r2("h_r2_by_chance", text, h[rows], h[drawn], elsewhere)


def _measure_desirability(snapshot: Snapshot, rows: Rows, index: Rows) -> Iterator[_Measure]:
    near = index[:, :NEIGHBORS]
    known, xi = near >= 0, snapshot.xi.astype(bool)
    alike = (xi[near] == xi[rows][:, None]) & known
    purity = alike.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    says = known.sum(axis=1) > 0
    text = f"nodes with the same ξ among the {NEIGHBORS} nearest of other episodes"
    yield _share("xi_purity", "neighbors", text, purity * says, says)
    yield _Measure(
        "xi_purity_by_chance", "share of neighbors", "the same if neighbors were drawn at random",
        np.stack([xi[rows], np.ones(len(rows))], axis=1).astype(np.float64), np.ones(len(rows), bool),
        lambda sums: (sums[..., 0] / sums[..., 1]) ** 2 + (1 - sums[..., 0] / sums[..., 1]) ** 2,
    )  # fmt: skip


def _measure_layout(
    snapshot: Snapshot, points: NDArray[np.float32], layout: NDArray[np.float32], seed: int
) -> tuple[Rows, list[_Measure]]:
    shown = np.flatnonzero(np.isfinite(layout).all(axis=1))
    rows = shown[stratified_rows(snapshot.h[shown], snapshot.t[shown], n=RANKED, seed=seed)] if len(shown) else shown
    if len(rows) <= 2 * NEIGHBORS + 1:
        return rows, []
    parts = rank_layout(points[rows], layout[rows])
    among = f"at k = {NEIGHBORS} among {len(rows)} nodes"
    names = {
        "trustworthiness": f"of the layout against the embedding {among}: 1 if no false neighbors are drawn",
        "continuity": f"of the layout against the embedding {among}: 1 if no true neighbors are torn apart",
    }
    ones = np.ones(len(rows))
    return rows, [
        _share(name, "1", meaning, part, ones) for (name, meaning), part in zip(names.items(), parts.T, strict=True)
    ]


def _r2(name: str, meaning: str, h: Floats, h_near: Floats, known: NDArray[np.bool_]) -> _Measure:
    says = known.sum(axis=1) > 0
    predicted = np.where(known, h_near, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    parts = np.stack([(h - predicted) ** 2, h, h**2, np.ones(len(h))], axis=1) * says[:, None]
    return _Measure(name, "R²", meaning, parts, says, _combine_r2)


def _combine_r2(sums: Floats) -> Floats:
    missed, total, squares, count = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = squares - total**2 / count
        return np.where(spread > 1e-12 * squares, 1 - missed / spread, np.nan)


def _share(name: str, unit: str, meaning: str, part: NDArray[np.generic], whole: NDArray[np.generic]) -> _Measure:
    parts = np.stack([part, whole], axis=1).astype(np.float64)
    shown_unit = unit if unit == "1" else f"share of {unit}"
    return _Measure(name, shown_unit, meaning, parts, parts[:, 1] > 0, _combine_share)


def _combine_share(sums: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def _with_intervals(measures: list[_Measure], episode: NDArray[np.int64], seed: int) -> list[Number]:
    """Combine each measure's sums, and those of resamples of whole episodes that all measures share."""
    if not measures:
        return []
    widths = np.cumsum([measure.parts.shape[1] for measure in measures])[:-1]
    parts = np.concatenate([measure.parts for measure in measures], axis=1)
    drawn = np.split(resample_sums(parts, episode, seed=seed), widths, axis=1)
    numbers = []
    for measure, sums in zip(measures, drawn, strict=True):
        low, high = interval_of(measure.combine(sums))
        value = float(measure.combine(measure.parts.sum(axis=0)))
        asked = int(measure.says.sum())
        numbers.append(Number(measure.name, value, low, high, asked, measure.unit, measure.meaning))
    return numbers


def scale_like_memory(embedding: NDArray[np.float32]) -> Floats:
    """Scale embeddings [M, X] per dimension by mean and spread, as the memory does before it compares them.

    A dimension that is constant but for rounding is centred and not blown up.
    """
    mean = embedding.mean(axis=0, dtype=np.float64)
    centred = embedding - mean
    spread = np.sqrt((centred**2).mean(axis=0))
    return centred / np.where(spread <= 1e-6 * np.abs(mean), 1.0, spread + 1e-8)


def resample_sums(parts: Floats, episode: NDArray[np.int64], *, seed: int, draws: int = DRAWS) -> Floats:
    """Sum the parts [Q, P] of nodes over resamples of their episodes [draws, P]; an episode brings all its nodes."""
    _, member = np.unique(episode, return_inverse=True)
    count = int(member.max(initial=-1)) + 1
    sums = np.stack([np.bincount(member, weights=column, minlength=count) for column in parts.T], axis=1)
    rng = np.random.default_rng(seed)
    drawn = []
    for start in range(0, draws, _DRAWS_AT_ONCE):
        some = min(_DRAWS_AT_ONCE, draws - start)
        place = rng.integers(count, size=(some, count)) + count * np.arange(some)[:, None]
        times = np.bincount(place.ravel(), minlength=some * count).reshape(some, count)
        drawn.append(times @ sums)
    return np.concatenate(drawn)


def interval_of(values: Floats) -> tuple[float, float]:
    """Take the middle 95 % of resampled values; NaN where none of them is a number."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
