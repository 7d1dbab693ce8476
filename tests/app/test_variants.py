"""Runs that differ in nothing but their seed are one line; whatever else differs is named."""

from pathlib import Path

import numpy as np

from app.results import make_win_rates_table
from app.theme import METHOD, style_methods
from app.variants import group_variants, label_variants, list_differences
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


def test_a_run_from_before_the_fixed_starts_is_not_averaged_with_those_after() -> None:
    before = stored()
    del before["env"]["skirmish"]["spawn_jitter"]
    assert label_variants({"old": before, "new": stored(seed=2)}) == {
        "old": "emtc-qplex on 3m (env.skirmish.spawn_jitter = 0.05)",
        "new": "emtc-qplex on 3m",
    }


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
    assert table["qmix"] == "50.0 (n = 1)"
    db.dispose()


def test_variants_stand_by_task_and_then_in_the_papers_order() -> None:
    variants = group_variants(
        {
            "a": stored(algo="qmix", seed=2),
            "b": stored("gate.enabled=false"),
            "c": stored(algo="qmix", seed=1),
            "d": stored(),
            "e": stored(map="2s3z"),
        }
    )
    assert [(v.task, v.method, v.run_ids) for v in variants] == [
        ("2s3z", "emtc-qplex", ("e",)),
        ("3m", "emtc-qplex", ("d",)),
        ("3m", "emtc-qplex (gate.enabled = false)", ("b",)),
        ("3m", "qmix", ("c", "a")),
    ]


def test_only_settings_that_differ_are_listed_and_seeds_share_a_cell() -> None:
    configs = {"a": stored(seed=1), "b": stored(seed=2), "c": stored("gate.tau_end=0.5", seed=1)}
    table = list_differences(configs, group_variants(configs)).set_index("setting")
    assert table.index.tolist() == ["gate.tau_end", "seed"]
    assert table["emtc-qplex on 3m"].tolist() == ["0.6", "1, 2"]
    assert table["emtc-qplex on 3m (gate.tau_end = 0.5)"].tolist() == ["0.5", "1"]


def test_a_color_belongs_to_its_method_whatever_stands_beside_it() -> None:
    ablation = "emtc-qplex (gate.enabled = false)"
    alone, among = style_methods([ablation, "qmix"]), style_methods(["cds", "qmix", "mappo", ablation])
    assert alone["qmix"] == among["qmix"] == METHOD["qmix"]
    assert len(set(METHOD.values())) == len(METHOD)
    assert len(set(among.values())) == 4


def test_many_ablations_are_all_told_apart() -> None:
    names = [f"emtc-qplex (memory.delta = {k})" for k in range(20)]
    assert len(set(style_methods(names).values())) == 20
    assert style_methods(names) == style_methods(names[::-1])
