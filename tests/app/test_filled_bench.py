"""The benchmark that starts from a filled memory, run with few nodes, and the connection with latency."""

import pytest
from sqlalchemy import create_engine, text

from app.analysis.provenance import library_versions
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import open_database
from storage.files import run_folder
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.bench.end_to_end import run_filled, save_filled_state
from tests.postgres import add_latency, is_private

FAST = ["embed.min_entries=64", "embed.batch=64", "train.burn_in=8", "train.batch=8"]


def test_the_run_starts_at_step_0_with_as_many_nodes_as_wanted(tmp_path):
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


@pytest.mark.parametrize(("two_cores", "case"), [(False, ""), (True, ".two_cores")])
def test_the_benchmark_names_its_case_and_measures_something(two_cores, case):
    result = run_filled(nodes=500, steps=600, two_cores=two_cores)
    assert result["name"] == f"end_to_end.steps_per_second.skirmish.3s_vs_5z{case}"
    assert result["value"] > 0


def test_threads_that_a_run_left_to_the_machine_are_settled_once_and_stored(tmp_path, monkeypatch):
    db = open_database(f"sqlite:///{tmp_path / 'runs.db'}")
    config = resolve(map="3m", steps=600, overrides=[*FAST, "train.threads=auto", "eval.episodes=1"])
    run_id = create_run(db, config.model_dump(mode="json"), target_steps=600, versions={})
    monkeypatch.setattr("emtc_core.threads.count_idle_cores", lambda: 2)
    train_run(db, run_id, resume=False)
    assert find_run(db, run_id).config["train"]["threads"] == 2
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
