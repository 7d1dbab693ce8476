"""One contract for every search index: same neighbours, same distances, lowest slot among equals."""

import importlib
from abc import ABC, abstractmethod
from types import ModuleType

import numpy as np
import pytest
import torch

from emtc_core.memory.index import incremental
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.index.incremental import BruteIndex, make_nearest_index, nearest_of
from tests.core.flat_by_hand import FlatByHand
from tests.require import require, require_package

METRICS: tuple[Metric, ...] = ("l2", "linf")


def _looped(z: np.ndarray, q: np.ndarray, metric: Metric) -> tuple[np.ndarray, np.ndarray]:
    slots, distances = [], []
    for point in q:
        gaps = np.abs(z - point)
        d = gaps.max(axis=1) if metric == "linf" else np.sqrt((gaps**2).sum(axis=1))
        slots.append(int(d.argmin()))
        distances.append(float(d.min()))
    return np.array(slots), np.array(distances)


class IndexContract(ABC):
    radius = np.inf

    @abstractmethod
    def make(self, metric: Metric) -> NeighborIndex: ...

    def check(self, z: np.ndarray, q: np.ndarray, metric: Metric) -> int:
        index = self.make(metric)
        index.build(z)
        slots, distances = index.query(q)
        want_slots, want_distances = _looped(z, q, metric)
        beyond = want_distances > self.radius if metric == "linf" else want_distances >= self.radius
        want_slots[beyond], want_distances[beyond] = -1, np.inf
        assert slots.dtype == np.int64
        assert slots.tolist() == want_slots.tolist()
        np.testing.assert_allclose(distances, want_distances, rtol=1e-12)
        return int((slots >= 0).sum())

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("dim", [1, 2, 4, 6])
    def test_it_finds_the_nearest_node(self, metric: Metric, dim: int) -> None:
        rng = np.random.default_rng(dim)
        z = rng.normal(size=(800, dim))
        q = np.concatenate([z[:50], z[:200] + rng.normal(size=(200, dim)) * 0.05, rng.normal(size=(100, dim))])
        assert self.check(z, q, metric) >= 50

    @pytest.mark.parametrize("metric", METRICS)
    def test_it_tells_neighbours_apart_that_are_closer_than_float32_can_say(self, metric: Metric) -> None:
        rng = np.random.default_rng(0)
        z = 100.0 + rng.normal(size=(300, 4)) * 1e-5
        self.check(z, z[:100] + rng.normal(size=(100, 4)) * 1e-6, metric)

    @pytest.mark.parametrize("metric", METRICS)
    def test_among_equals_the_lowest_slot_wins(self, metric: Metric) -> None:
        z = np.array([[0.5, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0.5, 0, 0, 0]])
        q = np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0.25, 0, 0, 0], [0.75, 0, 0, 0]])
        self.check(z, q, metric)

    @pytest.mark.parametrize("metric", METRICS)
    def test_many_nodes_in_one_place_are_no_trouble(self, metric: Metric) -> None:
        z = np.concatenate([np.zeros((500, 4)), np.ones((3, 4))])
        self.check(z, np.concatenate([z[:3], z[-3:] + 0.01]), metric)

    @pytest.mark.parametrize("metric", METRICS)
    def test_an_empty_index_finds_nothing(self, metric: Metric) -> None:
        index = self.make(metric)
        index.build(np.zeros((0, 4)))
        slots, distances = index.query(np.zeros((3, 4)))
        assert slots.tolist() == [-1, -1, -1]
        assert np.isinf(distances).all()

    def test_a_single_node_is_found(self) -> None:
        self.check(np.ones((1, 4)), np.ones((2, 4)), "l2")

    def test_building_again_forgets_what_was_there(self) -> None:
        index = self.make("l2")
        index.build(np.zeros((5, 2)))
        index.build(np.ones((2, 2)))
        assert index.query(np.ones((1, 2)))[0].tolist() == [0]


class TestGrid(IndexContract):
    radius = 0.3

    def make(self, metric: Metric) -> NeighborIndex:
        return GridIndex(self.radius, metric)


class TestGridOfTinyCells(IndexContract):
    radius = 1e-5

    def make(self, metric: Metric) -> NeighborIndex:
        return GridIndex(self.radius, metric)


class TestCKDTree(IndexContract):
    def make(self, metric: Metric) -> NeighborIndex:
        return CKDTreeIndex(metric)


class TestBrute(IndexContract):
    def make(self, metric: Metric) -> NeighborIndex:
        return BruteIndex(metric)


def test_few_queries_need_every_node_where_nodes_stand_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    index = incremental.FaissGpuIndex("l2", device="cpu", make_flat=FlatByHand)
    z = np.random.default_rng(0).normal(size=(2000, 4))
    index.build(z)
    monkeypatch.setattr(BruteIndex, "query", lambda self, q: pytest.fail(f"{len(q)} queries were uncertain"))
    assert index.query(z[:500])[0].tolist() == list(range(500))


class TestFaissWithAFlatIndexByHand(IndexContract):
    def make(self, metric: Metric) -> NeighborIndex:
        return incremental.FaissGpuIndex(metric, device="cpu", make_flat=FlatByHand)


@pytest.fixture
def faiss() -> ModuleType:
    """The package, on a host or for a GPU."""
    return require_package("faiss")


@pytest.mark.usefixtures("faiss")
class TestFaissWithItsOwnFlatIndexOnTheCpu(IndexContract):
    """The index that faiss computes on a host, by the very calls that are made on a GPU."""

    def make(self, metric: Metric) -> NeighborIndex:
        faiss = importlib.import_module("faiss")
        importlib.import_module("faiss.contrib.torch_utils")
        kinds = {"linf": faiss.METRIC_Linf, "l2": faiss.METRIC_Lp}
        return incremental.FaissGpuIndex(
            metric, device="cpu", make_flat=lambda dim, metric: faiss.IndexFlat(dim, kinds[metric])
        )


def test_the_installed_faiss_takes_the_calls_that_are_made_on_a_gpu(faiss: ModuleType) -> None:
    require("faiss-gpu", hasattr(faiss, "GpuIndexFlat"), "this faiss was built without GPUs")
    make = incremental.flat_on_gpu("cuda:0")
    for metric in METRICS:
        if faiss.get_num_gpus():
            assert make(4, metric).metric_arg == 0.0
            continue
        with pytest.raises(RuntimeError, match="Invalid GPU device"):  # arguments that do not fit raise a TypeError
            make(4, metric)


@pytest.mark.gpu
class TestFaissGpu(IndexContract):
    def make(self, metric: Metric) -> NeighborIndex:
        require("gpu", incremental.can_use_faiss("cuda"), "faiss does not search on a GPU here; see emtc doctor")
        return incremental.FaissGpuIndex(metric, device="cuda")


@pytest.mark.parametrize("is_linf", [False, True])
def test_the_choice_among_faiss_candidates_is_exact_and_takes_the_lowest_slot(is_linf: bool) -> None:
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0 + 1e-9, 0.0]], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    slots, distances, farthest = incremental.select_nearest_candidates(
        q, z, torch.tensor([[3, 2, 1], [0, 1, 3]]), is_linf=is_linf
    )
    assert farthest.tolist() == pytest.approx([1e-9, 2.0], abs=1e-12)
    assert slots.tolist() == [1, 3]
    assert distances.tolist() == pytest.approx([0.0, 1.0 - 1e-9], abs=1e-12)


def test_the_device_decides_which_index_serves_unlimited_distance() -> None:
    assert isinstance(make_nearest_index("l2", device="cpu"), CKDTreeIndex)


def test_a_node_exactly_at_the_radius_is_out_for_l2_and_in_for_linf() -> None:
    z, q = np.array([[0.25, 0.0]]), np.array([[0.0, 0.0]])
    for metric, want in (("l2", -1), ("linf", 0)):
        index = GridIndex(0.25, metric)  # type: ignore[arg-type]  # both are metrics
        index.build(z)
        assert index.query(q)[0].tolist() == [want]


@pytest.mark.parametrize("order", [2.0, np.inf])
@pytest.mark.parametrize("dim", [1, 4, 7])  # from 8 on NumPy adds squares in another order
def test_the_nearest_of_some_slots_is_the_first_minimum_of_their_distances(dim: int, order: float) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, dim)) * np.array([1.0, 1e-8])[rng.integers(0, 2, (400, 1))]
    z[200:300] = z[:100]
    q = np.concatenate([z[150:250], rng.normal(size=(50, dim)), 0.5 * (z[:50] + z[50:100])])
    slots = np.sort(rng.choice(400, 250, replace=False))
    expected = [slots[np.argmin(np.linalg.norm(z[slots] - row, ord=order, axis=1))] for row in q]
    assert nearest_of(slots, z, q, order == np.inf).tolist() == expected
