"""Runs that differ in nothing but their seed are one line; whatever else differs is named."""

from pathlib import Path

import numpy as np

from app.tables import make_win_rates_table
from app.variants import label_variants
from emtc_core.config.resolve import resolve
from emtc_core.recorder import EvaluationRecord
from storage.engine import Database, open_database
from storage.recorder import DatabaseRecorder
from storage.runs import create_run, finish_run, start_run
from tests.storage.records import ME


def stored(*overrides: str, algo: str = "emtc-qplex", **arguments) -> dict:
    return resolve(algo=algo, overrides=list(overrides), **arguments).model_dump(mode="json")


def test_seed_device_and_telemetry_do_not_make_a_variant() -> None:
    configs = {
        "a": stored(seed=1),
        "b": stored("train.device=cpu", "record.snapshots=0", "eval.interval=500", seed=2),
    }
    assert label_variants(configs) == {"a": "emtc-qplex on 3m", "b": "emtc-qplex on 3m"}


def test_an_ablation_is_named_by_what_it_changes() -> None:
    labels = label_variants(
        {"a": stored(), "b": stored("gate.enabled=false"), "c": stored("memory.delta=1.8e-3", "embed.type=dcae")}
    )
    assert labels == {
        "a": "emtc-qplex on 3m",
        "b": "emtc-qplex on 3m (gate.enabled = false)",
        "c": "emtc-qplex on 3m (embed.type = dcae, memory.delta = 0.0018)",
    }


def test_budgets_are_named_where_they_differ_and_only_there() -> None:
    labels = label_variants({"a": stored(steps=1000), "b": stored(steps=2000), "c": stored(algo="qmix", steps=3000)})
    assert labels == {
        "a": "emtc-qplex on 3m, 1,000 steps",
        "b": "emtc-qplex on 3m, 2,000 steps",
        "c": "qmix on 3m",
    }


def test_another_preset_and_another_environment_are_told() -> None:
    labels = label_variants({"a": stored(preset="emu_code"), "b": stored(env="grf", map="academy_3_vs_1_with_keeper")})
    assert labels["a"] == "emtc-qplex on 3m (preset = emu_code)"
    assert labels["b"] == "emtc-qplex on academy_3_vs_1_with_keeper [grf]"


def test_a_configuration_of_a_stranger_is_labelled_all_the_same() -> None:
    assert label_variants({"a": {"algo": "new", "env": {"name": "skirmish", "map": "9m"}}}) == {"a": "new on 9m"}


def finish(db: Database, config: dict, win_rate: float) -> None:
    run_id = create_run(db, config, target_steps=100, versions={})
    start_run(db, run_id, **ME)
    recorder = DatabaseRecorder(db, run_id)
    won = np.arange(10) < round(10 * win_rate)
    recorder.record_evaluation(EvaluationRecord(0, returns=np.ones(10), lengths=np.full(10, 7), won=won))
    recorder.close()
    finish_run(db, run_id, "finished")


def test_a_cell_of_the_table_holds_seeds_and_never_an_ablation(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    for seed, rate in enumerate([0.8, 1.0], start=1):
        finish(db, stored(seed=seed), rate)
    finish(db, stored("gate.enabled=false"), 0.1)
    finish(db, stored("eval.report=median", "eval.seeds=1", algo="qmix"), 0.5)
    table = make_win_rates_table(db).set_index("variant")["3m"]
    assert table["emtc-qplex"] == "90.0 ± 14.1 (n = 2 of 5)"
    assert table["emtc-qplex (gate.enabled = false)"] == "10.0 (n = 1 of 5)"
    assert table["qmix"] == "50.0 [50.0–50.0] (n = 1)"
    db.dispose()
