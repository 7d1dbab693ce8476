"""Benchmarks that are run with small sizes have the names of the contract and positive values. No time is checked."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from app.analysis.provenance import library_versions
from emtc_core.config.resolve import resolve
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import open_database
from storage.files import run_folder
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from tests.bench import embedder, learner, memory, parallel_runs
from tests.bench.__main__ import main
from tests.bench.end_to_end import run_filled, run_late, save_filled_state
from tests.bench.telemetry import run_contention
from tests.report import BenchResult, make_result

FAST = ["embed.min_entries=64", "embed.batch=64", "train.burn_in=8", "train.batch=8"]
SPEED = "end_to_end.steps_per_second.skirmish.3s_vs_5z"


def list_names(results: Sequence[BenchResult]) -> set[str]:
    for result in results:
        assert set(result) == {"name", "value", "unit", "budget", "met", "reference"}
        assert result["value"] > 0
        assert (result["met"] is None) == (result["budget"] is None)
    return {result["name"] for result in results}


def run_late_part() -> list[BenchResult]:
    settings = ("eval.interval=300", "eval.episodes=2", "embed.min_entries=64", "embed.batch=64", "train.n_envs=2")
    result = run_late(nodes=500, warm_up=100, steps=800, settings=settings)
    assert "evaluations: " in result["reference"]
    assert "evaluations: 0" not in result["reference"]
    return [result]


def test_several_benchmarks_print_one_json_object(monkeypatch, capsys) -> None:
    def measure(name: str) -> list[BenchResult]:
        sys.stdout.write("a message of a library\n")
        return [make_result(name, 1.0, "s")]

    for name in ("learner", "memory"):
        monkeypatch.setattr(f"tests.bench.{name}.run", partial(measure, name))
    assert main(["learner", "memory", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [figure["name"] for figure in report["figures"]] == ["learner", "memory"]
    assert {"cpu", "cores", "memory_gib", "python", "torch", "device"} <= report["machine"].keys()


@pytest.mark.parametrize(
    ("run", "names"),
    [
        pytest.param(
            lambda: learner.run(("emtc-qplex", "mappo"), entries=5000),
            "learner.update_seconds.emtc-qplex learner.speedup_of_two_threads.emtc-qplex learner.act_ms.emtc-qplex "
            "learner.memory_share learner.memory_share.settled learner.update_seconds.mappo",
            id="learner",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: memory.run((400,)), "memory.write_episode_ms.400 memory.lookup_per_second.400", id="memory"
        ),
        pytest.param(
            lambda: embedder.run((400,)), "embedder.cycle_seconds.400 embedder.reproject_seconds.400", id="embedder"
        ),
        pytest.param(
            lambda: [run_filled(nodes=500, steps=600, threads=2)], f"{SPEED}.two_threads", id="end_to_end-filled"
        ),
        pytest.param(run_late_part, f"{SPEED}.late", id="end_to_end-late", marks=pytest.mark.ci),
        pytest.param(
            lambda: parallel_runs.run((2,), nodes=500, steps=600),
            f"{SPEED}.jobs_2",
            id="end_to_end-two-runs",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_benchmark_reports_positive_values_under_its_names(run: Callable[[], list[BenchResult]], names: str) -> None:
    assert set(names.split()) <= list_names(run())


def test_a_training_from_a_filled_memory_starts_at_step_0_with_its_nodes(tmp_path) -> None:
    config = resolve(env="skirmish", map="3m", overrides=FAST)
    database = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    versions = library_versions()
    run_id = create_run(database, config.model_dump(mode="json"), target_steps=config.train.t_max, versions=versions)
    save_filled_state(database, run_id, config, nodes=500)
    saved = CheckpointStore(run_folder(database, run_id), keep=1, run_id=run_id).load_latest()
    assert saved is not None
    state = saved.state
    assert saved.env_step == state["env_step"] == 0
    assert len(state["episodic"]["memory"]["table"]["state"]) >= 500
    assert len(state["replay_buffer"]["length"]) >= 64


def test_the_total_speed_is_that_of_the_time_in_which_all_train() -> None:
    times = [[(0.0, 0), (10.0, 1000)], [(2.0, 100), (4.0, 300), (8.0, 500)]]
    assert parallel_runs.compute_speed(times) == pytest.approx((600 + 400) / 6)


@pytest.mark.slow
def test_four_recorders_and_three_live_pages_never_meet_a_locked_database(tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    report = run_contention(url, seconds=20)
    assert report.lock_errors == []
    assert report.ticks > 0
    db = open_database(url)
    assert sum(list_runs(db)["env_steps"].tolist()) == report.transitions > 0
    db.dispose()
