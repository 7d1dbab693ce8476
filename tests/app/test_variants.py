"""Runs that differ in nothing but their seed are one line; whatever else differs is named."""

import pytest

from app.analysis.settings import format_steps, format_value, learning_settings, name_method, parse_steps
from app.analysis.variants import group_variants, list_differences
from tests.app.curve_cases import stored


def labels(configs: dict) -> dict[str, str]:
    return {run_id: variant.label for variant in group_variants(configs) for run_id in variant.run_ids}


STRANGER = {"algo": "new", "env": {"name": "skirmish", "map": "9m", "skirmish": {"spawn_jitter": 0.0}}}


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([stored(seed=1), stored("train.device=cpu", "record.snapshots=0", "eval.interval=500", seed=2)], ["", ""]),
        (
            [stored(), stored("gate.enabled=false"), stored("memory.delta=1.8e-3", "embed.type=dcae")],
            ["", ", No-TCGM", ", No-TCSE, δ = 1.8e-3"],
        ),
        ([stored("embed.lambda_cl=0")], [", No-TCSE (λ_cl = 0)"]),
        (
            [stored("embed.type=dcae"), stored("embed.type=dcae", "embed.lambda_cl=0", seed=2)],
            [", No-TCSE", ", No-TCSE"],
        ),
        ([stored(), stored("train.lr=0.01", "train.hidden=16")], ["", ", train.hidden = 16, train.lr = 0.01"]),
        ([stored("memory.delta=0.1"), stored("memory.delta=0.1", seed=2)], [", δ = 0.1", ", δ = 0.1"]),
        (
            [stored(steps=1000), stored(steps=2000), stored(algo="qmix", steps=3000)],
            [", 1,000 steps", ", 2,000 steps", "QMIX on 3m"],
        ),
        ([stored(), stored(preset="emu_code")], ["", ", preset = emu_code"]),
        (
            [stored(env="grf", map="academy_3_vs_1_with_keeper")],
            ["EMTC(QPLEX) on academy_3_vs_1_with_keeper [grf]"],
        ),
        (
            [stored("env.skirmish.spawn_jitter=0.05"), stored(seed=2)],
            [", env.skirmish.spawn_jitter = 0.05", ""],
        ),
        ([STRANGER], ["new on 9m"]),
    ],
    ids=[
        "seed, device and records", "ablations", "embedder without its contrast", "setting without effect",
        "settings of the training", "setting of the method in all runs", "lengths", "preset", "environment",
        "shifted starts", "unknown algorithm",
    ],
)  # fmt: skip
def test_a_run_is_named_by_the_settings_in_which_it_differs_in_more_than_its_seed(configs, expected) -> None:
    """An expected text that begins with a comma, or is empty, follows the name of the algorithm and its map."""
    found = labels(dict(enumerate(configs)))
    assert [found[k].removeprefix("EMTC(QPLEX) on 3m") for k in range(len(configs))] == expected


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
