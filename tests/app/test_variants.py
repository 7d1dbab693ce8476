"""Runs that differ in nothing but their seed are one line; whatever else differs is named."""

from app.analysis.settings import format_steps, format_value, learning_settings, name_algo, name_method, parse_steps
from app.analysis.variants import group_variants, list_differences
from emtc_core.config.run import list_algos
from tests.app.curve_cases import stored


def labels(configs: dict) -> dict[str, str]:
    return {run_id: variant.label for variant in group_variants(configs) for run_id in variant.run_ids}


def test_seed_device_and_telemetry_do_not_make_a_variant() -> None:
    configs = {
        "a": stored(seed=1),
        "b": stored("train.device=cpu", "record.snapshots=0", "eval.interval=500", seed=2),
    }
    assert labels(configs) == {"a": "EMTC(QPLEX) on 3m", "b": "EMTC(QPLEX) on 3m"}


def test_an_ablation_is_named_by_what_it_changes() -> None:
    assert labels(
        {"a": stored(), "b": stored("gate.enabled=false"), "c": stored("memory.delta=1.8e-3", "embed.type=dcae")}
    ) == {
        "a": "EMTC(QPLEX) on 3m",
        "b": "EMTC(QPLEX) on 3m, No-TCGM",
        "c": "EMTC(QPLEX) on 3m, No-TCSE, δ = 1.8e-3",
    }


def test_two_seeds_of_a_variant_must_agree_in_all_that_changes_what_is_learned() -> None:
    settings = {"algo": "emtc-qplex", "gate.enabled": True, "memory.delta": 0.1, "train.lr": 0.1, "train.hidden": 64}
    harmless = {
        "seed": 3,
        "record.snapshots": 2,
        "checkpoint.interval": 9,
        "eval.interval": 5,
        "train.device": "cpu",
        "memory.index_device": "cpu",
    }
    assert learning_settings({**settings, **harmless}) == settings


def test_an_embedder_without_its_contrast_has_the_paper_s_name() -> None:
    plain = stored("embed.type=dcae")
    found = labels({"a": stored(), "b": stored("embed.lambda_cl=0"), "c": plain})
    assert found["b"] == "EMTC(QPLEX) on 3m, No-TCSE (λ_cl = 0)"
    assert labels({"a": stored(), "c": plain, "d": stored("embed.type=dcae", "embed.lambda_cl=0", seed=2)}) == {
        "a": "EMTC(QPLEX) on 3m",
        "c": "EMTC(QPLEX) on 3m, No-TCSE",
        "d": "EMTC(QPLEX) on 3m, No-TCSE",
    }


def test_two_runs_with_other_learning_rates_are_never_one_line() -> None:
    variants = group_variants({"a": stored(), "b": stored("train.lr=0.01", "train.hidden=16")})
    assert [variant.name for variant in variants] == [
        "EMTC(QPLEX)",
        "EMTC(QPLEX), train.hidden = 16, train.lr = 0.01",
    ]


def test_settings_of_the_training_that_all_runs_share_are_not_in_their_names() -> None:
    shared = ("train.eps_steps=8000", "train.batch=8")
    configs = {"a": stored(*shared), "b": stored(*shared, "gate.enabled=false")}
    variants = group_variants(configs)
    assert [variant.name for variant in variants] == ["EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM"]
    assert [variant.changes_text for variant in variants] == ["", "gate.enabled = false"], (
        "the colors are those of the names"
    )
    assert variants[0].shared == {"train.batch": 8, "train.eps_steps": 8000}
    assert variants[0].method == "emtc-qplex (train.batch = 8, train.eps_steps = 8000)"
    with_plain = {variant.name for variant in group_variants({**configs, "c": stored()})}
    assert {"EMTC(QPLEX)", "EMTC(QPLEX), train.batch = 8, train.eps_steps = 8000"} < with_plain


def test_a_setting_of_the_method_that_all_runs_share_is_in_their_names() -> None:
    variants = group_variants({algo: stored("memory.delta=0.1", algo=algo) for algo in ("emtc-qplex", "emu-qplex")})
    assert [variant.name for variant in variants] == ["EMTC(QPLEX), δ = 0.1", "EMU(QPLEX), δ = 0.1"]


def test_the_key_of_a_variant_is_the_one_that_old_links_hide() -> None:
    (variant,) = group_variants({"a": stored("gate.enabled=false")})
    assert variant.method == "emtc-qplex (gate.enabled = false)"
    assert variant.changes_text == "gate.enabled = false"


def test_budgets_are_named_where_they_differ_and_only_there() -> None:
    assert labels({"a": stored(steps=1000), "b": stored(steps=2000), "c": stored(algo="qmix", steps=3000)}) == {
        "a": "EMTC(QPLEX) on 3m, 1,000 steps",
        "b": "EMTC(QPLEX) on 3m, 2,000 steps",
        "c": "QMIX on 3m",
    }


def test_another_preset_and_another_environment_are_told() -> None:
    found = labels({"a": stored(preset="emu_code"), "b": stored(env="grf", map="academy_3_vs_1_with_keeper")})
    assert found["a"] == "EMTC(QPLEX) on 3m, preset = emu_code"
    assert found["b"] == "EMTC(QPLEX) on academy_3_vs_1_with_keeper [grf]"


def test_a_run_with_shifted_starts_is_not_averaged_with_those_of_fixed_starts() -> None:
    assert labels({"shifted": stored("env.skirmish.spawn_jitter=0.05"), "fixed": stored(seed=2)}) == {
        "shifted": "EMTC(QPLEX) on 3m, env.skirmish.spawn_jitter = 0.05",
        "fixed": "EMTC(QPLEX) on 3m",
    }


def test_a_configuration_of_a_stranger_is_labelled_all_the_same() -> None:
    env = {"name": "skirmish", "map": "9m", "skirmish": {"spawn_jitter": 0.0}}
    assert labels({"a": {"algo": "new", "env": env}}) == {"a": "new on 9m"}


def test_every_algorithm_has_the_name_that_the_paper_gives_it() -> None:
    names = [name_algo(algo) for algo in list_algos()]
    assert len(set(names)) == 17
    assert {"EMTC(QPLEX)", "EMU(CDS)", "QMIX", "CDS", "DMIX", "MAPPO", "EMC"} <= set(names)


def test_no_two_ablations_share_a_name() -> None:
    changes = [
        {"gate.enabled": False},
        {"embed.type": "dcae"},
        {"embed.type": "random"},
        {"embed.lambda_cl": 0.0},
        {"gate.tau_start": 0.6, "gate.tau_end": 0.6},
        {"gate.tau_start": 0.6},
        {"gate.tau_end": 0.6},
    ]
    assert len({name_method("emtc-qplex", each) for each in changes}) == len(changes)
    assert name_method("emu-qplex", {"embed.type": "dcae"}) == "EMU(QPLEX), embed.type = dcae"


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
    assert table["EMTC(QPLEX) on 3m"].tolist() == ["0.6", "1, 2"]
    assert table["EMTC(QPLEX) on 3m, τ_end = 0.5"].tolist() == ["0.5", "1"]


def test_settings_that_an_algorithm_does_not_read_are_not_listed() -> None:
    configs = {
        "a": stored(),
        "b": stored("gate.tau_end=0.5", seed=2),
        "c": stored("memory.delta=0.02", "train.lr=0.01", algo="qmix"),
    }
    table = list_differences(configs, group_variants(configs)).set_index("setting")
    assert "memory.delta" not in table.index, "only EMTC reads it"
    assert {"algo", "gate.tau_end", "train.lr"} <= set(table.index)
    (qmix,) = [name for name in table.columns if name.startswith("QMIX")]
    assert (table.loc["gate.tau_end", qmix], table.loc["train.lr", qmix]) == ("–", "0.01")


def test_numbers_are_written_as_the_paper_writes_them() -> None:
    assert [format_value(value) for value in (1.8e-7, 1.8e-2, 0.05, 0.1, "tcse", False)] == [
        "1.8e-7", "1.8e-2", "0.05", "0.1", "tcse", "false",
    ]  # fmt: skip
    assert [format_steps(t) for t in (800_000, 2_400_000, 52_340)] == ["0.8M", "2.4M", "52,340"]
    assert parse_steps("0.8M, 1.6m,2.4M") == [800_000, 1_600_000, 2_400_000]
    assert parse_steps("50k;1200") == [1200, 50_000]
    assert parse_steps("ten") == parse_steps("1,-2") == []
