"""A faiss that aborts, fails or is missing is noticed in another process; the trainer's own process goes on."""

import sys
from pathlib import Path

import pytest
import torch

from emtc_core import faiss_probe
from emtc_core.faiss_probe import probe_faiss
from emtc_core.memory.index import incremental
from emtc_core.memory.index.faiss_check import check_faiss
from emtc_core.memory.index.incremental import BruteIndex, make_nearest_index

WORKING = """
import torch
from tests.core.flat_by_hand import FlatByHand
__version__ = "1.14.1"
METRIC_Lp, METRIC_Linf = "l2", "linf"
get_num_gpus = lambda: 1

class StandardGpuResources:
    def setTempMemory(self, size): ...

class GpuIndexFlatConfig: ...

class GpuIndexFlat(FlatByHand):
    def __init__(self, resources, dim, kind, settings):
        super().__init__(dim, kind)
"""
ABORT = """
import os, sys
def abort(*_):
    print("Faiss assertion failed: no kernel image is available", file=sys.stderr, flush=True)
    os.abort()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a package called faiss on the path of this interpreter and of those that it starts."""

    def put(text: str) -> None:
        (tmp_path / "faiss" / "contrib").mkdir(parents=True)
        (tmp_path / "faiss" / "__init__.py").write_text(text)
        (tmp_path / "faiss" / "contrib" / "torch_utils.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    loaded = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "faiss"}
    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] == "faiss"]:
        del sys.modules[name]
    sys.modules.update(loaded)


def test_a_faiss_that_finds_the_nearest_nodes_is_usable(install):
    install(WORKING)
    assert probe_faiss("cpu") == faiss_probe.FaissProbe("usable", "1.14.1")


def test_a_faiss_that_aborts_is_survived_and_its_last_words_are_kept(install):
    install(f"{WORKING}{ABORT}GpuIndexFlat.search = abort")
    probe = probe_faiss("cpu")
    assert (probe.state, probe.version) == ("fails", "1.14.1")
    assert "SIGABRT" in probe.detail
    assert "no kernel image" in probe.reason


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("raise ImportError('libcudart.so.12')", "not loadable"),
        ("__version__ = '1'", "no GPU support"),
        (WORKING + "get_num_gpus = lambda: 0", "no GPU"),
        (WORKING + "def fail(*_): raise RuntimeError('CUDA error 209')\nGpuIndexFlat.search = fail", "fails"),
        (WORKING + "same = lambda x: 900 + torch.arange(16).expand(len(x), 16)\n"
         "GpuIndexFlat.search = lambda self, x, k: (same(x), same(x))", "fails"),
    ],
)  # fmt: skip
def test_every_other_fault_has_a_state_and_a_reason(install, text, state):
    install(text)
    found = check_faiss("cpu")
    assert found["state"] == state
    assert "faiss" in faiss_probe.FaissProbe(**found).reason


def test_a_faiss_that_does_not_answer_fails(install):
    install("import time; time.sleep(60)")
    assert probe_faiss("cpu", timeout_s=0.2).state == "fails"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_faiss_for_cuda_without_a_gpu_is_not_used(install):
    install(WORKING)
    assert check_faiss("cuda") == {"state": "no GPU"}


@pytest.fixture
def seen_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    incremental.can_use_faiss.cache_clear()
    yield
    incremental.can_use_faiss.cache_clear()


def test_a_trainer_survives_a_faiss_that_aborts_and_searches_with_torch(install, seen_gpu, caplog):
    install(f"{WORKING}{ABORT}StandardGpuResources.__init__ = GpuIndexFlat.add = abort\nget_num_gpus = abort")
    with caplog.at_level("WARNING"):
        made = [make_nearest_index("l2", device="cuda"), make_nearest_index("linf", device="cuda")]
    assert [type(index) for index in made] == [BruteIndex, BruteIndex]
    assert [("SIGABRT" in each.getMessage()) for each in caplog.records] == [True]


def test_a_usable_faiss_is_probed_once(monkeypatch, seen_gpu):
    probed = []
    monkeypatch.setattr(incremental, "flat_on_gpu", lambda device: None)
    monkeypatch.setattr(
        incremental, "probe_faiss", lambda device: probed.append(device) or faiss_probe.FaissProbe("usable", "1.15")
    )
    made = [make_nearest_index("l2", device="cuda:1") for _ in range(2)]
    assert {type(index) for index in made} == {incremental.FaissGpuIndex}
    assert probed == ["cuda:1"]
