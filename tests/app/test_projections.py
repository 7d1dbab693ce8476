"""Projections: the same picture twice, honest samples, and agreement with the published graph."""

import numpy as np
import pytest

from app.analysis.projections.linear import compute_pca
from app.analysis.projections.neighbors import find_neighbors
from app.analysis.projections.sampling import sample_stratified_rows
from app.analysis.projections.snapshots import compute_projection


@pytest.fixture(scope="module")
def blobs() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 4)) * 6
    return np.concatenate([rng.normal(c, 0.5, (60, 4)) for c in centres]).astype(np.float32)


@pytest.fixture(scope="module")
def layouts(blobs) -> dict[str, np.ndarray]:
    return {method: compute_projection(method, blobs, seed=0) for method in ("pca", "tsne", "umap")}


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
def test_same_seed_gives_bit_identical_coordinates(blobs, layouts, method):
    again = compute_projection(method, blobs, seed=0)
    assert again.dtype == np.float32
    assert again.shape == (len(blobs), 2)
    assert again.tobytes() == layouts[method].tobytes()


@pytest.mark.slow
def test_number_of_threads_does_not_change_the_picture():
    points = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    assert (
        compute_projection("tsne", points, seed=3, n_jobs=1).tobytes()
        == compute_projection("tsne", points, seed=3, n_jobs=2).tobytes()
    )


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_separate_clusters_stay_separate(layouts, method):
    label = np.repeat(np.arange(4), 60)
    index, _ = find_neighbors(layouts[method], 5)
    assert (label[index] == label[:, None]).mean() > 0.98


def test_umap_depends_on_its_seed(blobs, layouts):
    assert not np.array_equal(compute_projection("umap", blobs, seed=1), layouts["umap"])


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_progress_rises_and_an_exception_in_it_cancels(blobs, method):
    parts: list[float] = []
    compute_projection(method, blobs, seed=0, progress=parts.append)
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[-1] <= 1

    class StopError(Exception):
        pass

    def stop(part: float) -> None:
        if part > 0.3:
            raise StopError

    with pytest.raises(StopError):
        compute_projection(method, blobs, seed=0, progress=stop)


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
@pytest.mark.parametrize("n_distinct", [1, 11, 12])
def test_a_map_has_as_many_points_as_there_are_different_embeddings(method, n_distinct):
    distinct = np.random.default_rng(0).normal(size=(n_distinct, 4)).astype(np.float32)
    points = distinct[np.arange(774) % n_distinct]
    drawn = compute_projection(method, points, seed=0)
    assert len(np.unique(drawn, axis=0)) == n_distinct
    assert np.isfinite(drawn).all()
    assert len(np.unique(compute_projection(method, points, seed=0, init=drawn), axis=0)) == n_distinct
    if n_distinct > 1:
        assert np.ptp(drawn, axis=0).max() > 1, "the points are apart"


def test_pca_agrees_with_scikit_learn_up_to_sign(blobs):
    from sklearn.decomposition import PCA

    ours, theirs = compute_pca(blobs), PCA(2)
    expected = theirs.fit_transform(blobs.astype(np.float64))
    assert np.allclose(np.abs(ours.coordinates), np.abs(expected), atol=1e-3)
    assert f"{100 * theirs.explained_variance_ratio_[0]:.0f} %" in ours.x_label


def test_neighbors_leave_the_point_itself_out_even_among_twins():
    points = np.zeros((6, 4))
    index, distance = find_neighbors(points, 3)
    assert (index != np.arange(6)[:, None]).all()
    assert (distance == 0).all()


def test_sample_gives_every_stratum_its_share_and_is_reproducible():
    rng = np.random.default_rng(0)
    h, t = rng.normal(size=20_000), rng.integers(0, 60, 20_000)
    rows = sample_stratified_rows(h, t, n=3000, seed=7)
    assert len(rows) == len(set(rows.tolist())) == 3000
    assert np.array_equal(rows, sample_stratified_rows(h, t, n=3000, seed=7))
    assert not np.array_equal(rows, sample_stratified_rows(h, t, n=3000, seed=8))
    for values in (h, t):
        edges = np.quantile(values, np.linspace(0, 1, 11))[1:-1]
        whole = np.bincount(np.searchsorted(edges, values, side="right"), minlength=10) / len(h)
        part = np.bincount(np.searchsorted(edges, values[rows], side="right"), minlength=10) / len(rows)
        assert np.abs(whole - part).max() < 0.01


def test_pca_turns_its_axes_towards_earlier_places_and_takes_their_scale(blobs):
    alone = compute_pca(blobs)
    earlier = -3 * alone.coordinates
    earlier[::2] = np.nan  # these nodes are new
    told = compute_pca(blobs, earlier_coordinates=earlier)
    assert np.allclose(told.coordinates, -3 * alone.coordinates, atol=1e-2)
    assert (told.x_label, told.y_label) == (alone.x_label, alone.y_label)
    nowhere = np.full_like(earlier, np.nan)
    assert np.array_equal(compute_pca(blobs, earlier_coordinates=nowhere).coordinates, alone.coordinates)


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_a_layout_that_begins_from_places_stays_near_them(blobs, layouts, method):
    first = layouts[method]
    again = compute_projection(method, blobs, seed=0, init=first)
    other = compute_projection(method, blobs, seed=0, init=first[:, ::-1])
    centre_distance = [np.linalg.norm(_centres(first) - _centres(each)) for each in (again, other)]
    assert centre_distance[0] < centre_distance[1] / 2


def _centres(layout: np.ndarray) -> np.ndarray:
    scaled = (layout - layout.mean(axis=0)) / layout.std()
    return scaled.reshape(4, 60, 2).mean(axis=1)
