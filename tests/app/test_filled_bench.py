"""The benchmark that starts from a filled memory, run small: its name and what it starts from."""

from app.analysis.provenance import library_versions
from app.bench.end_to_end import run_filled, save_filled_state
from emtc_core.config.resolve import resolve
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import open_database
from storage.files.places import run_folder
from storage.runs.changes import create_run

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


def test_the_benchmark_names_its_case_and_measures_something():
    figure = run_filled(nodes=500, steps=600)
    assert figure["name"] == "end_to_end.steps_per_second.skirmish.3s_vs_5z"
    assert figure["value"] > 0
