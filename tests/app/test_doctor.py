"""The doctor says what is true of the GPU search here, and the guide what to do about each finding."""

import ast
import re
from pathlib import Path

import pytest
import torch

from app.jobs import doctor, gpu_check
from emtc_core.install import Faiss

GPU = "NVIDIA Some GPU"


@pytest.mark.parametrize(
    ("faiss", "gpu", "detail"),
    [
        (Faiss("1.15.1", is_usable=True), GPU, "1.15.1, GPU neighbor search"),
        (Faiss("", is_usable=False), "", "not installed; neighbors are searched on the CPU"),
        (Faiss("1.14.1", is_usable=False), GPU, "1.14.1 is too old, 1.15 or newer is needed; torch compares"),
        (Faiss("1.15.1", is_usable=True), "", "there is no GPU to use; neighbors are searched on the CPU"),
    ],
)
def test_faiss_is_usable_only_where_it_can_search_on_a_gpu(monkeypatch, faiss, gpu, detail):
    monkeypatch.setattr(doctor, "find_faiss", lambda: faiss)
    check = doctor._check_faiss(gpu)
    usable = faiss.is_usable and bool(gpu)
    assert (check.usable, detail in check.detail, bool(check.advice)) == (usable, True, not usable), check


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, [("cuda", False, False, "a CUDA build")]),
        (
            {
                "name": GPU,
                "results": [["product", True, "1e-7"], ["embedding", False, "RuntimeError: no kernel image"]],
            },
            [("cuda", True, False, ""), ("gpu:product", True, True, ""), ("gpu:embedding", False, True, "device=cpu")],
        ),
    ],
    ids=["no GPU", "wrong values"],
)
def test_a_gpu_is_a_fault_only_if_it_computes_other_values_than_the_cpu(report, expected):
    checks = doctor._list_gpu_checks(report)
    assert [(check.name, check.usable, check.needed) for check in checks] == [each[:3] for each in expected]
    assert all(advice in check.advice for check, (*_, advice) in zip(checks, expected, strict=True))


@pytest.mark.parametrize("compute", [gpu_check.multiply, gpu_check.embed])
def test_a_difference_of_a_hundredth_from_the_cpu_is_found(compute):
    errors = iter((1.0, 1.0, 1.0, 1.01))

    def compute_with_error(device):
        return next(errors) * compute(device)

    found = [gpu_check.compare(compute_with_error, torch.device("cpu"))[0] for _ in range(2)]
    assert found == [True, False]


PAGE = (Path(doctor.__file__).parents[1] / "guide" / "troubleshooting.md").read_text()
TABLE = PAGE[PAGE.index("## Findings of emtc doctor") : PAGE.index("## Start\n")]


def test_each_finding_has_an_entry_in_the_guide():
    named = set(re.findall(r"`([\w:-]+)`", "\n".join(line.split("|")[1] for line in TABLE.splitlines() if "|" in line)))
    assert named == {check.name for check in doctor.run_checks()} | {"gpu:product", "gpu:embedding", "mps"}


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
