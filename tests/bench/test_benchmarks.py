"""Benchmarks that are run with small sizes have the names of the contract and positive values. No time is checked."""

import json
import sys
from functools import partial

import pytest
from sqlalchemy import create_engine, text

from app.analysis.provenance import library_versions
from emtc_core.config.resolve import resolve
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import open_database
from storage.files import run_folder
from storage.queries.runs import list_runs
from storage.runs.changes import create_run
from tests.bench import embedder, learner, memory, parallel_runs
from tests.bench.__main__ import BENCHMARKS, main
from tests.bench.end_to_end import run_filled, run_late, save_filled_state
from tests.bench.telemetry import run_contention
from tests.postgres import add_latency, is_private
from tests.report import BenchResult, make_result

FAST = ["embed.min_entries=64", "embed.batch=64", "train.burn_in=8", "train.batch=8"]


def by_name(results: list[BenchResult]) -> dict[str, BenchResult]:
    for result in results:
        assert set(result) == {"name", "value", "unit", "budget", "met", "reference"}
        assert result["value"] > 0
        assert (result["met"] is None) == (result["budget"] is None)
    return {result["name"]: result for result in results}


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


def test_an_unknown_benchmark_is_refused(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["storm"])
    assert "storm" in capsys.readouterr().err
    assert "storm" not in BENCHMARKS


@pytest.mark.ci
def test_the_learner_reports_updates_and_the_share_of_the_memory() -> None:
    results = by_name(learner.run(("emtc-qplex", "mappo"), entries=5000))
    assert set(results) == {
        "learner.update_seconds.emtc-qplex",
        "learner.speedup_of_two_threads.emtc-qplex",
        "learner.update_seconds.mappo",
        "learner.act_ms.emtc-qplex",
        "learner.memory_share",
        "learner.memory_share.settled",
    }
    assert max(results[name]["value"] for name in results if "share" in name) < 1


def test_the_memory_reports_writes_and_lookups() -> None:
    results = by_name(memory.run((400,)))
    assert {"memory.write_episode_ms.400", "memory.lookup_per_second.400"} <= set(results)


def test_the_embedder_reports_its_cycle() -> None:
    assert set(by_name(embedder.run((400,)))) == {"embedder.cycle_seconds.400", "embedder.reproject_seconds.400"}


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


@pytest.mark.parametrize(("threads", "case"), [(1, ""), (2, ".two_threads")])
def test_a_training_from_a_filled_memory_reports_its_speed(threads: int, case: str) -> None:
    result = run_filled(nodes=500, steps=600, threads=threads)
    assert set(by_name([result])) == {f"end_to_end.steps_per_second.skirmish.3s_vs_5z{case}"}


def test_a_training_near_its_end_has_evaluations_in_the_measured_time() -> None:
    settings = ("eval.interval=300", "eval.episodes=2", "embed.min_entries=64", "embed.batch=64", "train.n_envs=2")
    result = run_late(nodes=500, warm_up=100, steps=800, settings=settings)
    assert set(by_name([result])) == {"end_to_end.steps_per_second.skirmish.3s_vs_5z.late"}
    assert "evaluations: " in result["reference"]
    assert "evaluations: 0" not in result["reference"]


def test_trainings_at_the_same_time_report_their_total_speed() -> None:
    results = parallel_runs.run((2,), nodes=500, steps=600)
    assert set(by_name(results)) == {"end_to_end.steps_per_second.skirmish.3s_vs_5z.jobs_2"}
    assert "steps/s each" in results[0]["reference"]


def test_the_total_speed_is_that_of_the_time_in_which_all_train() -> None:
    times = [[(0.0, 0), (10.0, 1000)], [(2.0, 100), (4.0, 300), (8.0, 500)]]
    assert parallel_runs.compute_speed(times) == pytest.approx((600 + 400) / 6)


@pytest.mark.parametrize("arguments", [["learner", "--jobs", "1,2"], ["all", "--jobs", "2"]])
def test_only_the_complete_training_has_several_jobs(arguments: list[str], capsys) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.strip() == "--jobs is an option of the benchmark end_to_end only."


@pytest.mark.slow
def test_four_recorders_and_three_live_pages_never_meet_a_locked_database(tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    report = run_contention(url, seconds=20)
    assert report.lock_errors == []
    assert report.ticks > 0
    db = open_database(url)
    assert sum(list_runs(db)["env_steps"].tolist()) == report.transitions > 0
    db.dispose()


@pytest.mark.postgres
def test_a_server_with_latency_gives_the_same_answers(postgres_server: str) -> None:
    if not is_private(postgres_server):
        pytest.skip("latency can only be added to a private server")
    with add_latency(postgres_server, delay_s=0.002) as url:
        engine = create_engine(url)
        with engine.connect() as connection:
            assert (
                connection.execute(text("SELECT sum(n) FROM generate_series(1, 100000) AS n")).scalar_one()
                == 5000050000
            )
            rows = connection.execute(text("SELECT repeat('x', 1000) FROM generate_series(1, 1000)")).scalars().all()
        engine.dispose()
    assert rows == ["x" * 1000] * 1000
