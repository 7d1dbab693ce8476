"""Placing by landmarks: each point by itself, where its neighbors are, against a slow twin."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.projections import placing
from app.analysis.projections.alignment import MIN_SHARED_NODES, make_initial_layout, move_rigidly
from app.analysis.projections.placing import place_points


def _cloud(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(4, 4)) * 6
    return (centres[np.arange(n) % 4] + rng.normal(0, 0.5, (n, 4))).astype(np.float32)


def _place_slowly(landmarks: np.ndarray, layout: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Place one point by a search through all landmarks and plain loops."""
    distance = [math.dist(point.tolist(), each.tolist()) for each in landmarks]
    near = sorted(range(len(landmarks)), key=distance.__getitem__)[: placing.N_NEAREST_LANDMARKS]
    target = math.log(min(placing.PERPLEXITY, len(near)))
    beyond = [distance[j] ** 2 - distance[near[0]] ** 2 for j in near]

    def weights(precision: float) -> list[float]:
        raw = [math.exp(-precision * each) for each in beyond]
        return [each / sum(raw) for each in raw]

    low, high = 1e-9, 1e9
    for _ in range(200):
        middle = math.sqrt(low * high)
        entropy = -sum(w * math.log(w) for w in weights(middle) if w)
        low, high = (middle, high) if entropy > target else (low, middle)
    weight = weights(low)
    at = sum(w * layout[j].astype(float) for w, j in zip(weight, near, strict=True))
    for _ in range(placing.N_FIXED_POINT_STEPS):
        pull = [w / (1 + ((at - layout[j]) ** 2).sum()) for w, j in zip(weight, near, strict=True)]
        at = sum(p * layout[j].astype(float) for p, j in zip(pull, near, strict=True)) / sum(pull)
    return at


def test_a_place_is_that_of_the_slow_twin() -> None:
    landmarks, points = _cloud(200), _cloud(30, seed=1)
    layout = landmarks[:, :2] * 3
    drawn = place_points(landmarks, layout, points)
    expected = np.stack([_place_slowly(landmarks, layout, point) for point in points])
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn, expected, rtol=1e-3, atol=1e-2)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_place_does_not_depend_on_the_other_points_the_chunks_and_the_threads(data: st.DataObject) -> None:
    landmarks, points = _cloud(150), _cloud(40, seed=2)
    layout = landmarks[:, 1:3]
    whole = place_points(landmarks, layout, points)
    rows = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "CHUNK_SIZE", data.draw(st.integers(1, 60)))
        placed = place_points(landmarks, layout, points[rows], n_jobs=data.draw(st.integers(1, 3)))
    assert placed.tobytes() == whole[rows].tobytes()


def test_twins_few_landmarks_and_no_points_are_no_obstacle() -> None:
    same = np.ones((20, 4))
    layout = np.arange(40.0).reshape(20, 2)
    assert np.isfinite(place_points(same, layout, np.ones((3, 4)))).all()
    assert np.array_equal(place_points(same[:1], layout[:1], np.zeros((2, 4))), [[0, 1], [0, 1]])
    assert place_points(same, layout, np.empty((0, 4))).shape == (0, 2)


def test_placing_tells_how_far_it_is_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "CHUNK_SIZE", 10)
    landmarks, points = _cloud(60), _cloud(100, seed=4)
    parts: list[float] = []
    place_points(landmarks, landmarks[:, :2], points, progress=parts.append)
    assert parts == [pytest.approx((i + 1) / 10) for i in range(10)]

    class StopError(Exception):
        pass

    def stop(part: float) -> None:
        raise StopError

    with pytest.raises(StopError):
        place_points(landmarks, landmarks[:, :2], points, progress=stop)


def test_known_nodes_begin_where_they_were_and_others_among_them() -> None:
    embedding = _cloud(400)
    carried = (embedding[:, :2] * 2).astype(np.float32)
    carried[::4] = np.nan  # one whole cluster is new, and so has to begin somewhere finite
    carried[4::8] = embedding[4::8, :2] * 2
    begin = make_initial_layout(embedding, carried, np.arange(0, 400, 2))
    assert begin is not None
    assert np.isfinite(begin).all()
    known = np.isfinite(carried[::2, 0])
    assert np.array_equal(begin[known], carried[::2][known])
    assert np.linalg.norm(begin[~known] - embedding[::2, :2][~known] * 2, axis=1).max() < 4
    carried[MIN_SHARED_NODES - 1 :] = np.nan
    assert make_initial_layout(embedding, carried, np.arange(400)) is None


def test_a_layout_is_turned_mirrored_and_shifted_but_not_stretched() -> None:
    rng = np.random.default_rng(0)
    layout = rng.normal(size=(50, 2)).astype(np.float32)
    angle = np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    wanted = (layout @ angle * [1, -1] + [5, 6]).astype(np.float32)
    wanted[::3] = np.nan
    moved = move_rigidly(layout, wanted)
    known = np.isfinite(wanted[:, 0])
    np.testing.assert_allclose(moved[known], wanted[known], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(np.diff(moved, axis=0)), np.linalg.norm(np.diff(layout, axis=0)), 1e-5)
    assert np.array_equal(move_rigidly(layout, np.full_like(wanted, np.nan)), layout)
