"""What a run asks of a cluster, how many fit into it, and which databases its nodes reach."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.sweeps.ray_engine import Cluster, connect, count_slots, make_cluster
from emtc_core.config.resolve import resolve
from emtc_core.errors import ClusterError, ConfigError
from tests.errors import raises


def nodes(*offers: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in offers]


def test_a_run_asks_for_its_threads_and_for_a_gpu_only_where_its_device_is_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plain, wide, cuda = (
        resolve(map="3m", overrides=given) for given in ([], ["train.threads=4"], ["train.device=cuda"])
    )
    assert make_cluster(None, [plain], cpus=None, gpus=None) == Cluster(None, 1, 0)
    assert make_cluster("a:1", [plain, wide], cpus=None, gpus=None) == Cluster("a:1", 4, 0)
    assert make_cluster(None, [plain, cuda], cpus=None, gpus=None) == Cluster(None, 1, 1)
    assert make_cluster(None, [cuda], cpus=2, gpus=0.5) == Cluster(None, 2, 0.5)
    with raises(ConfigError, key="--gpus-per-run"):
        make_cluster(None, [cuda], cpus=None, gpus=1.5)  # Ray has no share of two GPUs
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert make_cluster(None, [plain], cpus=None, gpus=None).address == "head:6379"
    assert make_cluster("local", [plain], cpus=None, gpus=None).address is None


def test_as_many_runs_fit_as_the_scarcest_thing_of_each_node_allows() -> None:
    ray = SimpleNamespace(nodes=lambda: [*nodes((8, 2), (3, 0)), {"Alive": False, "Resources": {"CPU": 64.0}}])
    assert count_slots(ray, Cluster("a:1", 2, 0)) == 4 + 1
    assert count_slots(ray, Cluster("a:1", 1, 0.1)) == 8
    assert count_slots(ray, Cluster("a:1", 1, 1)) == 2
    with pytest.raises(ClusterError, match="GPU"):
        count_slots(ray, Cluster("a:1", 1, 3))


def test_a_sqlite_file_is_refused_where_other_machines_would_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"Alive": True, "Resources": {"CPU": 4.0}, "NodeManagerHostname": "far-away"}
    ray = SimpleNamespace(init=lambda **options: None, nodes=lambda: [node], shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ClusterError, match="far-away"), connect(Cluster("auto"), "sqlite:///x.db"):
        pass
    with connect(Cluster("auto"), "postgresql://x") as connected:
        assert connected is ray
