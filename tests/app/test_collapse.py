"""Numbers of a collapsed and of a useful embedding, against slow twins in plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.manifold import trustworthiness

from app.analysis import neighborhoods
from app.analysis.bootstrap import compute_percentile_interval, resample_sums
from app.analysis.collapse import (
    COLUMNS,
    NEIGHBORS,
    compute_return_r2,
    measure_collapse,
    scale_like_memory,
)
from app.analysis.neighborhoods import (
    compute_layout_quality,
    find_neighbors_in_other_episodes,
    measure_neighbor_agreement,
)
from emtc_core.memory.scaling import measure_scaling
from storage.queries.memory import Snapshot

EPISODES, LENGTH = 12, 10
SIZE = EPISODES * LENGTH


def _snapshot(embedding: np.ndarray, h: np.ndarray, xi: np.ndarray, episode: np.ndarray | None = None) -> Snapshot:
    size = len(h)
    return Snapshot(
        id=1,
        run_id="x",
        env_step=1,
        slot=np.arange(size),
        embedding=embedding.astype(np.float32),
        h=h.astype(np.float32),
        xi=xi.astype(bool),
        n_call=np.ones(size, np.int32),
        n_xi=np.ones(size, np.int32),
        t=(np.arange(size) % LENGTH).astype(np.int32),
        reward=np.zeros(size, np.float32),
        idx_next=np.full(size, -1, np.int64),
        episode=np.arange(size) // LENGTH if episode is None else episode,
        age=np.zeros(size, np.float32),
        delta_mem=np.full(size, np.nan, np.float32),
        beta=np.ones(size, np.float32),
        state_rows=np.zeros(0, np.int64),
        state=np.zeros((0, 0), np.float16),
    )


def _random(seed: int, size: int = SIZE) -> Snapshot:
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(size, 4))
    return _snapshot(embedding, embedding[:, 0] + rng.normal(size=size), rng.random(size) < 0.3)


def _find_slowly(snapshot: Snapshot, row: int) -> list[tuple[float, int]]:
    """List all nodes of other episodes with their distances, nearest first."""
    found = []
    for other in range(snapshot.size):
        if snapshot.episode[other] != snapshot.episode[row]:
            here, there = (snapshot.embedding[i].astype(float).tolist() for i in (row, other))
            found.append((math.dist(here, there), other))
    return sorted(found)


def _measure_slowly(snapshot: Snapshot, delta: float, threshold: float) -> dict[str, tuple[float, int]]:
    h, xi = snapshot.h.astype(float), snapshot.xi
    told: dict[str, list[tuple[float, float]]] = {"h_r2_knn": [], "h_r2_delta": []}
    pairs, far, purity = 0, 0, []
    for row in range(snapshot.size):
        near = _find_slowly(snapshot, row)
        merged = [other for distance, other in near if distance <= delta][:50]
        chosen = [other for _, other in near[:NEIGHBORS]]
        for name, group in (("h_r2_knn", chosen), ("h_r2_delta", merged)):
            if group:
                told[name].append((h[row], sum(h[other] for other in group) / len(group)))
        pairs += len(merged)
        far += sum(abs(h[other] - h[row]) > threshold for other in merged)
        purity.append(sum(xi[other] == xi[row] for other in chosen) / len(chosen))
    numbers = {}
    for name, both in told.items():
        mean = sum(true for true, _ in both) / len(both)
        missed = sum((true - guess) ** 2 for true, guess in both)
        numbers[name] = (1 - missed / sum((true - mean) ** 2 for true, _ in both), len(both))
    reached = numbers["h_r2_delta"][1]
    numbers["delta_far_share"] = (far / pairs, reached)
    numbers["delta_reached"] = (reached / snapshot.size, snapshot.size)
    numbers["xi_purity"] = (sum(purity) / len(purity), snapshot.size)
    share = float(xi.mean())
    numbers["xi_purity_by_chance"] = (share**2 + (1 - share) ** 2, snapshot.size)
    return numbers


@pytest.mark.parametrize("seed", [0, 1])
def test_the_numbers_are_those_of_the_slow_twin(seed: int) -> None:
    snapshot = _random(seed)
    measured = measure_collapse(snapshot, delta=0.9, delta_space="raw", threshold=1.0)
    expected = _measure_slowly(snapshot, delta=0.9, threshold=1.0)
    assert [number.name for number in measured.numbers] == [*expected, "h_r2_by_chance"]
    for name, (value, n) in expected.items():
        assert measured[name].value == pytest.approx(value, abs=1e-6), name
        assert measured[name].n == n, name


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_delta_is_measured_where_the_memory_measures_it(offset: float) -> None:
    snapshot = _random(0)
    embedding = (snapshot.embedding * [3, 0.1, 1, 0] + offset).astype(np.float32)
    scaled = scale_like_memory(embedding)
    np.testing.assert_allclose(scaled, measure_scaling(embedding).apply(embedding))
    inside, outside = (
        measure_collapse(replace(snapshot, embedding=each.astype(np.float32)), delta=0.5, delta_space=space)
        for each, space in ((embedding, "normalized"), (scaled, "raw"))
    )
    for name in ("h_r2_knn", "delta_reached", "delta_far_share"):
        assert inside[name].value == pytest.approx(outside[name].value, abs=1e-6)


def test_the_verdict_says_in_words_what_the_numbers_say() -> None:
    rng = np.random.default_rng(0)
    worth = rng.normal(size=600)
    useful = _snapshot(np.stack([worth] * 4, axis=1), worth, worth > 0)
    flat = _snapshot(np.ones((600, 4)), worth, worth > 0)
    even = _snapshot(rng.normal(size=(600, 4)), np.ones(600), np.ones(600))
    found = measure_collapse(useful, delta=0.1)
    told, chance = found["h_r2_knn"], found["h_r2_by_chance"]
    assert -0.2 < chance.value < 0.05
    assert found.verdict.startswith(f"No: neighbors predict H with R² {told.value:.2f} [".replace("0.", "."))
    assert f"(−{-chance.value:.2f} expected by chance).".replace("0.", ".") in found.verdict
    assert "have the same ξ (.5" in found.verdict
    assert measure_collapse(flat, delta=0.1).verdict.startswith("Yes: neighbors do not predict H, R² −")
    assert measure_collapse(even, delta=0.1).verdict.startswith("Cannot tell: ")


def test_one_episode_fills_a_neighborhood_and_the_next_are_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighborhoods, "_CHUNK", 7)
    points = np.concatenate([np.zeros((90, 4)), np.ones((10, 4))])
    episode = np.repeat([1, 2], [90, 10])
    index, distance = find_neighbors_in_other_episodes(points, episode, np.arange(100), k=12)
    assert (np.sort(index[:90, :10], axis=1) == np.arange(90, 100)).all()
    assert (index[:90, 10:] == -1).all()
    assert np.isinf(distance[:90, 10:]).all()
    assert np.allclose(distance[:90, :10], 2, atol=1e-6)
    assert (index[90:] < 90).all()
    assert (index[90:] >= 0).all()


@pytest.mark.parametrize(("n", "names"), [(31, []), (32, ["trustworthiness", "continuity"])])
def test_a_layout_is_measured_if_it_has_enough_nodes(n: int, names: list[str]) -> None:
    snapshot = _random(0)
    layout = np.where(np.arange(SIZE)[:, None] < n, snapshot.embedding[:, :2], np.nan)
    frame = measure_collapse(snapshot, delta=0.9, layout=layout).to_frame()
    assert frame.columns.tolist() == list(COLUMNS)
    assert frame["name"].tolist()[7:] == names
    assert (frame["low"] <= frame["high"]).all()


def test_twins_are_chosen_without_regard_to_their_rows() -> None:
    index, _ = find_neighbors_in_other_episodes(np.ones((2000, 4)), np.arange(2000), np.arange(2000), k=15)
    assert abs(np.corrcoef(index[:, 0], np.arange(2000))[0, 1]) < 0.1


def test_the_same_seed_gives_the_same_numbers_and_another_sample_other_ones() -> None:
    snapshot = _random(3, size=600)
    first, again, other = (measure_collapse(snapshot, delta=0.5, max_nodes=300, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first["h_r2_knn"].n == 300
    assert measure_collapse(snapshot, delta=0.5, max_nodes=300, seed=1, n_jobs=2) == first


def test_ranks_are_the_published_trustworthiness_and_continuity() -> None:
    rng = np.random.default_rng(0)
    points, layout = rng.normal(size=(300, 4)), rng.normal(size=(300, 2))
    layout += points[:, :2]
    parts = compute_layout_quality(points, layout, k=7)
    assert parts[:, 0].mean() == pytest.approx(trustworthiness(points, layout, n_neighbors=7))
    assert parts[:, 1].mean() == pytest.approx(trustworthiness(layout, points, n_neighbors=7))
    assert compute_layout_quality(points, points @ np.eye(4), k=7) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"\b7\b.*\b16\b.*\b15\b"):
        compute_layout_quality(points[:15], layout[:15], k=7)


def test_resamples_draw_whole_episodes() -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=30)
    alone = np.stack([value, np.ones(30)], axis=1)
    drawn = resample_sums(alone, np.arange(30), seed=1)
    means = drawn[:, 0] / drawn[:, 1]
    expected = tuple(np.quantile(means, (0.025, 0.975)))
    assert compute_percentile_interval(np.append(means, np.nan)) == pytest.approx(expected)
    assert means.std() == pytest.approx(value.std() / 30**0.5, rel=0.1)
    repeated = resample_sums(np.repeat(alone, 8, axis=0), np.repeat(np.arange(30), 8), seed=1)
    np.testing.assert_allclose(repeated, 8 * drawn, err_msg="eight copies of a node are no eight witnesses")
    same = resample_sums(alone, np.zeros(30, np.int64), seed=1)
    np.testing.assert_allclose(same, np.tile(alone.sum(axis=0), (len(same), 1)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(0, 12))
def test_agreement_is_that_of_the_slow_twin_and_unknown_without_nodes(seed: int, k: int, n_selected: int) -> None:
    rng = np.random.default_rng(seed)
    embedding, layout = rng.normal(size=(40, 4)), rng.normal(size=(40, 2))
    layout[35:] = np.nan
    rows = rng.choice(40, n_selected, replace=False)

    def nearest(space: np.ndarray, row: int) -> set[int]:
        others = [other for other in range(35) if other != row]
        return set(sorted(others, key=lambda other: math.dist(space[row], space[other]))[:k])

    shares = {row: len(nearest(embedding, row) & nearest(layout, row)) / k for row in range(35)}
    agreed = measure_neighbor_agreement(embedding, layout, rows, k)
    for value, count, chosen in (
        (agreed.selected, agreed.n_selected, [row for row in range(35) if row in rows]),
        (agreed.rest, agreed.n_rest, [row for row in range(35) if row not in rows]),
    ):
        assert count == len(chosen)
        expected = np.mean([shares[row] for row in chosen]) if chosen else np.nan
        assert value == pytest.approx(expected, nan_ok=True)
    assert measure_neighbor_agreement(embedding, layout, rows, k, max_nodes=10).n_rest == 10


@pytest.mark.parametrize("delta_space", ["normalized", "raw"])
@pytest.mark.parametrize("most", [SIZE, 50])
def test_r2_alone_is_the_r2_of_all_numbers(delta_space, most):
    snapshot, other = _random(3), np.random.default_rng(4).normal(size=(SIZE, 4)).astype(np.float32) * [1, 5, 1, 1]
    for embedding in (None, other.astype(np.float32)):
        every = measure_collapse(
            snapshot, delta=0.1, delta_space=delta_space, embedding=embedding, max_nodes=most, seed=2
        )
        alone = compute_return_r2(snapshot, delta_space=delta_space, embedding=embedding, max_nodes=most, seed=2)
        assert alone == every["h_r2_knn"].value
