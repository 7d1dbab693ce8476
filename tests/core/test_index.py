"""One contract for every search index: the nearest node, its distance, and the lowest slot of equal distances."""

import sys
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import pytest

from emtc_core import install
from emtc_core.config.memory import MemoryConfig
from emtc_core.config.resolve import resolve
from emtc_core.errors import ConfigError
from emtc_core.install import Faiss, find_faiss
from emtc_core.memory.index import device
from emtc_core.memory.index.base import CKDTreeIndex, Metric, NeighborIndex
from emtc_core.memory.index.device import BruteIndex, FaissIndex, make_nearest_index
from emtc_core.memory.index.grid import GridIndex
from emtc_core.memory.index.incremental import nearest_of
from emtc_core.memory.positions import NodePositions
from tests.errors import raises
from tests.require import require, require_package

METRICS: tuple[Metric, ...] = ("l2", "linf")


def _looped(z: np.ndarray, q: np.ndarray, metric: Metric) -> tuple[np.ndarray, np.ndarray]:
    if not len(z):
        return np.full(len(q), -1), np.full(len(q), np.inf)
    slots, distances = [], []
    for point in q:
        gaps = np.abs(z - point)
        d = gaps.max(axis=1) if metric == "linf" else np.sqrt((gaps**2).sum(axis=1))
        slots.append(int(d.argmin()))
        distances.append(float(d.min()))
    return np.array(slots), np.array(distances)


def _make_cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Nodes and queries by name."""
    rng = np.random.default_rng(0)
    cases = {}
    for dim in (1, 2, 4, 6):
        z = rng.normal(size=(800, dim))
        near = z[:200] + rng.normal(size=(200, dim)) * 0.05
        cases[f"{dim} dimensions"] = z, np.concatenate([z[:50], near, rng.normal(size=(100, dim))])
    z = 100.0 + rng.normal(size=(300, 4)) * 1e-5
    cases["closer than float32 can represent"] = z, z[:100] + rng.normal(size=(100, 4)) * 1e-6
    z = np.array([[0.5, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0.5, 0, 0, 0]])
    cases["equal distances"] = z, np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0.25, 0, 0, 0], [0.75, 0, 0, 0]])
    z = np.concatenate([np.zeros((500, 4)), np.ones((3, 4))])
    cases["many nodes at one position"] = z, np.concatenate([z[:3], z[-3:] + 0.01])
    cases["one node"] = np.ones((1, 4)), np.ones((2, 4))
    cases["no node"] = np.zeros((0, 4)), np.zeros((3, 4))
    return cases


CASES = _make_cases()


class IndexContract(ABC):
    radius = np.inf

    @abstractmethod
    def make(self, metric: Metric) -> NeighborIndex: ...

    def check(self, z: np.ndarray, q: np.ndarray, metric: Metric) -> None:
        """Compare with loops. The index had other nodes before."""
        index = self.make(metric)
        index.build(np.full((5, q.shape[1]), q.mean()))
        index.build(z)
        slots, distances = index.query(q)
        want_slots, want_distances = _looped(z, q, metric)
        beyond = want_distances > self.radius if metric == "linf" else want_distances >= self.radius
        want_slots[beyond], want_distances[beyond] = -1, np.inf
        assert slots.dtype == np.int64
        assert slots.tolist() == want_slots.tolist()
        np.testing.assert_allclose(distances, want_distances, rtol=1e-12)

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("case", CASES)
    def test_each_query_finds_the_nearest_node_with_the_lowest_slot(self, metric: Metric, case: str) -> None:
        self.check(*CASES[case], metric)


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


class TestFaissOnTheCpu(IndexContract):
    """The flat index of faiss on a host. The class differs on a GPU only in how this index is made."""

    def make(self, metric: Metric) -> NeighborIndex:
        require_package("faiss")
        return FaissIndex(metric, device="cpu")

    def test_queries_of_separate_nodes_do_not_need_a_search_of_all_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.make("l2")
        z = np.random.default_rng(0).normal(size=(2000, 4))
        index.build(z)
        monkeypatch.setattr(BruteIndex, "query", lambda self, q: pytest.fail(f"{len(q)} queries were uncertain"))
        assert index.query(z[:500])[0].tolist() == list(range(500))


@pytest.mark.gpu
class TestFaissOnAGpu(IndexContract):
    def make(self, metric: Metric) -> NeighborIndex:
        require("gpu", find_faiss().is_usable, "faiss-gpu is not installed, or too old; see emtc doctor")
        return FaissIndex(metric, device="cuda")


@pytest.mark.parametrize(("installed", "is_usable"), [("1.9.0", False), ("1.14.1", False), ("1.15", True)])
def test_earlier_versions_of_faiss_are_not_used(
    monkeypatch: pytest.MonkeyPatch, installed: str, is_usable: bool
) -> None:
    monkeypatch.setattr(install, "version", lambda name: installed)
    assert find_faiss() == (installed, is_usable)


def test_torch_searches_if_faiss_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "find_faiss", lambda: Faiss("1.15.1", is_usable=True))
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert isinstance(make_nearest_index("l2", device="cuda"), BruteIndex)
    assert "faiss" in caplog.text


@pytest.mark.parametrize(("setting", "kind"), [("auto", BruteIndex), ("cuda", BruteIndex), ("cpu", CKDTreeIndex)])
def test_the_setting_chooses_the_index_for_any_distance(
    monkeypatch: pytest.MonkeyPatch, setting: Literal["auto", "cpu", "cuda"], kind: type[NeighborIndex]
) -> None:
    monkeypatch.setattr(device, "find_faiss", lambda: Faiss("", is_usable=False))
    assert isinstance(make_nearest_index("l2", device="cpu"), CKDTreeIndex)
    positions = NodePositions(MemoryConfig(index_device=setting), dim=4, device="cuda")
    assert isinstance(positions._nearest._make_index(), kind)
    with raises(ConfigError, key="memory.index_device", value="cuda", related=("train.device",)):
        resolve(overrides={"memory.index_device": "cuda", "train.device": "cpu"})


@pytest.mark.parametrize(("metric", "slot"), [("l2", -1), ("linf", 0)])
def test_a_node_at_exactly_the_radius_is_found_only_with_linf(metric: Metric, slot: int) -> None:
    index = GridIndex(0.25, metric)
    index.build(np.array([[0.25, 0.0]]))
    assert index.query(np.array([[0.0, 0.0]]))[0].tolist() == [slot]


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
