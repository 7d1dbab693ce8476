"""The doctor says what is true of the GPU search here, and the guide what to do about each finding."""

import ast
import re
from pathlib import Path

import pytest

from app.jobs import doctor

GPU = "NVIDIA Some GPU"
FAISS = "__version__ = '1.14.1'\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a package called faiss on the path of this interpreter and of those it asks."""

    def put(text: str) -> None:
        (tmp_path / "faiss.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return put


@pytest.mark.parametrize(
    ("text", "gpu", "usable", "detail"),
    [
        (FAISS + "GpuIndexFlat = get_num_gpus = lambda: 1", GPU, True, "1.14.1, GPU neighbour search"),
        (
            FAISS + "GpuIndexFlat = get_num_gpus = lambda: 0",
            "",
            False,
            "there is no GPU to use; neighbours are searched on",
        ),
        (
            FAISS + "GpuIndexFlat = get_num_gpus = lambda: 1",
            "",
            False,
            "there is no GPU to use; neighbours are searched on",
        ),
        (FAISS + "get_num_gpus = lambda: 0", GPU, False, "1.14.1 without GPU support; torch compares every node"),
        ("raise ImportError('libcudart.so.12')", GPU, False, "it does not load; torch compares every node on the GPU"),
    ],
)
def test_faiss_is_usable_only_where_it_can_search_on_a_gpu(monkeypatch, install, text, gpu, usable, detail):
    monkeypatch.setattr(doctor, "_ASK_TOOLKIT", "print('12.6')")  # without loading torch
    install(text)
    check = doctor._faiss(gpu)
    assert (check.usable, detail in check.detail, bool(check.advice)) == (usable, True, not usable), check


def test_another_cuda_than_that_of_faiss_is_named(monkeypatch, install):
    install(FAISS + "GpuIndexFlat = get_num_gpus = lambda: 0")
    monkeypatch.setattr(doctor, "_ASK_TOOLKIT", "print('13.0')")
    assert "made for CUDA 12, torch for CUDA 13.0" in doctor._faiss(GPU).advice


def test_no_gpu_is_no_fault_of_the_machine():
    assert not doctor._device("").needed
    assert doctor._device(GPU).usable


PAGE = (Path(doctor.__file__).parents[1] / "guide" / "troubleshooting.md").read_text()
TABLE = PAGE[PAGE.index("## What the doctor finds") : PAGE.index("## Starting")]


def test_each_finding_has_an_entry_in_the_guide():
    named = set(re.findall(r"`([\w:-]+)`", "\n".join(line.split("|")[1] for line in TABLE.splitlines() if "|" in line)))
    assert named == {check.name for check in doctor.run_checks()}


def test_an_entry_quotes_the_words_of_its_finding():
    source = Path(doctor.__file__).read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    failed = [call.args[2] for call in calls if len(call.args) > 2 and ast.unparse(call.args[1]) == "False"]
    pieces = [
        [piece.value.strip(" ,;").removeprefix("but ") for piece in ast.walk(detail) if isinstance(piece, ast.Constant)]
        for detail in failed
    ]
    told = [words for words in pieces if any(isinstance(word, str) and len(word) > 5 for word in words)]
    assert len(told) > 4
    assert [words for words in told if not any(f"*{word}*" in TABLE for word in words)] == []
    assert [words for words in re.findall(r"(?<!\*)\*([a-z][^*]+)\*", TABLE) if words not in source] == []
