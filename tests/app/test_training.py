"""The function that trains a run of a database."""

from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from storage.engine import open_database
from storage.runs.changes import create_run
from storage.runs.rows import find_run

FAST = ["embed.min_entries=64", "embed.batch=64", "train.burn_in=8", "train.batch=8"]


def test_threads_that_a_run_left_to_the_machine_are_settled_once_and_stored(tmp_path, monkeypatch):
    db = open_database(f"sqlite:///{tmp_path / 'runs.db'}")
    config = resolve(map="3m", steps=600, overrides=[*FAST, "train.threads=auto", "eval.episodes=1"])
    run_id = create_run(db, config.model_dump(mode="json"), target_steps=600, versions={})
    monkeypatch.setattr("emtc_core.threads.count_idle_cores", lambda: 2)
    train_run(db, run_id, resume=False)
    assert find_run(db, run_id).config["train"]["threads"] == 2
    db.dispose()
