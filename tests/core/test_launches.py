"""How much the host launches on a GPU and sends to it: a budget for each stage, counted on an imitated GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.launches import MINI_BATCHES

ROOT = Path(__file__).resolve().parents[2]


def read_counts(module: str) -> Any:
    """Count in another process, because the imitation changes PyTorch."""
    command = [sys.executable, "-m", module, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    if "undefined symbol" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("this build of PyTorch keeps its device guards elsewhere")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, Any]]:
    return {count["stage"]: count for count in read_counts("tests.core.launches")}


@pytest.mark.ci
def test_a_training_waits_for_the_gpu_once_per_round_and_row_of_metrics_and_twice_per_refit():
    counts = read_counts("tests.core.training_launches")
    calls = {stage: count["calls"] for stage, count in counts.items()}
    waits = {stage: count["most_waits"] for stage, count in counts.items()}
    launches = {stage: count["most_launches"] for stage, count in counts.items()}
    assert min(calls[stage] for stage in ("vector step", "round", "episode", "update", "refit", "row of metrics")) > 0
    assert waits["vector step"] == waits["episode"] == waits["update"] == waits["target copy"] == 0
    assert waits["round"] <= 1
    assert waits["row of metrics"] <= 1
    assert waits["refit"] <= 2
    assert launches["vector step"] == 0
    assert launches["episode"] <= 3
    assert launches["update"] <= 5
    assert counts["rest"]["launches"] == counts["rest"]["waits"] == 0


@pytest.mark.ci
def test_a_refit_launches_one_graph_per_mini_batch_and_little_else(counts):
    refit = counts["refit"]
    assert refit["replays"] == MINI_BATCHES
    assert 10 < refit["launches"] - refit["replays"] <= 200


def test_an_update_of_cds_launches_one_graph_per_chunk_of_rows(counts):
    update = counts["update, cds"]
    assert update["replays"] == -(-32 * 250 * 3 // 256)
    assert 300 < update["launches"] <= 600


@pytest.mark.parametrize("algo", ["emtc-qplex", "qmix"])
def test_an_update_without_intrinsic_reward_launches_one_graph_and_little_else(counts, algo):
    update = counts[f"update, {algo}"]
    assert update["replays"] == 1
    assert update["launches"] <= 5
    assert update["replayed"] > 100


def test_an_episode_is_stored_with_one_transfer_and_one_launch(counts):
    assert counts["stored episode"]["launches"] == 2


def test_an_update_with_curiosity_launches_no_more_than_today(counts):
    assert 100 < counts["update, emc"]["launches"] <= 420


def test_a_re_projection_sends_the_rows_that_changed(counts):
    assert 0 < counts["re-projection"]["sent_bytes"] < 0.3 * counts["re-projection, all nodes"]["sent_bytes"]
