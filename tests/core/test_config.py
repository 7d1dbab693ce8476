import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.resolve import (
    config_from_stored,
    describe_fields,
    flatten,
    resolve,
)
from emtc_core.config.run import PRESETS, list_algos, split_algo
from emtc_core.config.values import FieldInfo, format_argument, parse_count, parse_value
from emtc_core.errors import ConfigError, Fault, StorageError, describe_fault
from tests.errors import raises


@pytest.mark.parametrize("algo", list_algos())
@pytest.mark.parametrize("preset", PRESETS)
def test_every_algorithm_resolves_in_every_preset(algo: str, preset: str) -> None:
    config = resolve(algo=algo, preset=preset)
    assert config.backbone == split_algo(algo)[1]
    assert config.uses_memory == (split_algo(algo)[0] != "none")
    assert config.uses_memory or not (config.gate.enabled or config.incentive.enabled)


@pytest.mark.parametrize(
    ("given", "steps"), [([], 500), (["gate.tau_decay_steps="], 500), (["gate.tau_decay_steps=77"], 77)]
)
def test_the_temperature_decays_over_half_the_run_unless_it_is_set(given: list[str], steps: int) -> None:
    assert resolve(steps=1000, overrides=given).gate.tau_decay_steps == steps


FOOTBALL = ("grf", "academy_counterattack_hard")
TABLE = "memory.init_desirability=emu_table"


@pytest.mark.parametrize(
    ("algo", "task", "overrides", "expected"),
    [
        ("emtc-qplex", ("skirmish", "3s_vs_5z"), [], {"memory.delta": 1.8e-5, "memory.init_desirability": True}),
        ("emtc-qplex", ("skirmish", "MMM2"), [], {"memory.delta": 1.8e-3}),
        ("emtc-qplex", ("skirmish", "corridor"), [], {"memory.delta": 1.8e-5}),
        ("emtc-cds", ("skirmish", "corridor"), [], {"memory.delta": 1.8e-3}),
        ("emtc-qplex", FOOTBALL, [], {"memory.delta": 1.8e-3, "train.reward_scale": 100}),
        ("emu-qplex", ("skirmish", "3s_vs_5z"), [], {"memory.delta": 1.3e-5, "memory.init_desirability": False}),
        ("emu-qplex", ("skirmish", "corridor"), [], {"memory.delta": 1.3e-3}),
        ("emu-cds", ("skirmish", "corridor"), [], {"memory.delta": 1.3e-5, "memory.init_desirability": True}),
        ("emu-qplex", ("smac", "6h_vs_8z"), [], {"memory.init_desirability": True}),
        ("emu-cds", ("skirmish", "6h_vs_8z"), [], {"memory.init_desirability": False}),
        ("emu-cds", FOOTBALL, [], {"memory.init_desirability": True}),
        ("emu-qplex", ("skirmish", "6h_vs_8z"), [TABLE], {"memory.init_desirability": True}),
        ("emu-cds", ("skirmish", "6h_vs_8z"), [TABLE], {"memory.init_desirability": False}),
        ("emtc-cds", ("skirmish", "corridor"), [TABLE], {"memory.init_desirability": True}),
        ("emu-qplex", ("skirmish", "corridor"), [TABLE], {"memory.init_desirability": False}),
        ("emu-qplex", ("grf", "academy_counterattack_easy"), [TABLE], {"memory.init_desirability": True}),
        ("emu-qplex", ("skirmish", "3s_vs_5z"), [TABLE], {"memory.init_desirability": False}),
        ("emc", ("skirmish", "corridor"), [], {"ec.lambda": 0.01}),
        ("emc", ("skirmish", "3m"), ["ec.lambda=0.3"], {"ec.lambda": 0.3}),
    ],
)
def test_defaults_follow_the_tables_of_the_papers_and_of_emus_code(
    algo: str, task: tuple[str, str], overrides: list[str], expected: dict[str, object]
) -> None:
    env, map = task
    values = flatten(resolve(env=env, map=map, algo=algo, overrides=overrides))
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "fault", "sentence"),
    [
        (
            {"overrides": ["gate.tau_endd=1"]},
            Fault("gate.tau_endd", rule="is not a setting", hint='Did you mean "gate.tau_end"?'),
            'gate.tau_endd is not a setting. Did you mean "gate.tau_end"?',
        ),
        (
            {"overrides": ["gate.tau_end=1.5"]},
            Fault("gate.tau_end", 1.5, "must be <= gate.tau_start = 1.2", related=("gate.tau_start",)),
            "gate.tau_end must be <= gate.tau_start = 1.2 (got 1.5).",
        ),
        ({"steps": -5}, Fault("train.t_max", -5, "must be >= 1"), "train.t_max must be >= 1 (got -5)."),
        (
            {"overrides": ["train.batch"]},
            Fault("--set", "train.batch", "must be key=value"),
            "--set must be key=value (got 'train.batch').",
        ),
        (
            {"overrides": ["gate.mode=stord"]},
            Fault("gate.mode", "stord", "must be 'stored' or 'recompute'", 'Did you mean "stored"?'),
            "gate.mode must be 'stored' or 'recompute' (got 'stord'). Did you mean \"stored\"?",
        ),
        (
            {"preset": "mine"},
            Fault("preset", "mine", f"must be one of {', '.join(PRESETS)}"),
            f"preset must be one of {', '.join(PRESETS)} (got 'mine').",
        ),
    ],
)
def test_a_fault_has_its_data_and_is_shown_as_one_sentence(arguments: dict, fault: Fault, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**arguments)
    assert caught.value.faults == [fault]
    assert str(caught.value) == sentence


def test_a_fault_is_shown_next_to_its_field_without_the_key() -> None:
    fault = Fault("train.t_max", -5, "must be >= 1", hint="Use 40k.")
    assert describe_fault(fault, with_key=False) == "Must be >= 1 (got -5). Use 40k."
    assert describe_fault(Fault("sweep file", rule="is empty")) == "The sweep file is empty."


def test_all_faults_are_found_together_and_copied_to_another_process() -> None:
    with raises(ConfigError, key=["train.batch", "embed.dim"]) as caught:
        resolve(overrides=["embed.dim=0", "train.batch=many"])
    assert pickle.loads(pickle.dumps(caught.value)).faults == caught.value.faults
    copied = pickle.loads(pickle.dumps(StorageError("Gone.", hint="Look again.")))
    assert (copied.message, copied.hint) == ("Gone.", "Look again.")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.t_max=40k", 40_000),
        ("train.t_max=1e6", 1_000_000),
        ("train.lr=1e-3", 1e-3),
        ('env.map="8m"', "8m"),
        ("gate.enabled=False", False),
        ("gate.enabled=0", False),
        ("memory.delta=1", 1.0),
    ],
)
def test_a_text_is_read_in_the_type_of_its_setting(override: str, value: object) -> None:
    assert flatten(resolve(overrides=[override]))[override.partition("=")[0]] == value


@given(
    st.sampled_from([info for info in describe_fields() if info.type in ("int", "float", "bool", "choice")]),
    st.data(),
)
def test_a_written_value_is_read_as_the_same_value(info: FieldInfo, data: st.DataObject) -> None:
    kinds = {"int": st.integers(0, 10**17), "float": st.floats(allow_nan=False), "bool": st.booleans()}
    value = data.draw(st.sampled_from(info.choices) if info.choices else kinds[info.type])
    assert parse_value(info, format_argument(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40000", 40000),
        ("40,000", 40000),
        ("40_000", 40000),
        ("40k", 40000),
        ("1.5M", 1500000),
        ("-5", -5),
        ("1e3", 1000),
        ("1.25e1k", 12500),
        ("+7", 7),
        ("10.0", 10),
        ("2500e-2", 25),
    ],
)
def test_counts_are_read_as_people_write_them(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.", "--3", "1k5", "½", "9" * 30, "1e99", "1e-2", "nan", "0x10"])
def test_another_text_than_a_count_is_refused(text: str) -> None:
    with raises(ConfigError, key="train.t_max", value=text):
        parse_count(text, "train.t_max")


def test_an_argument_wins_over_the_file_only_if_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algo = "qmix"\nseed = 4\n[env]\nmap = "8m"\n[train]\nt_max = 7000\n')
    as_in_file = resolve(file=file)
    assert (as_in_file.algo, as_in_file.seed, as_in_file.env.map, as_in_file.train.t_max) == ("qmix", 4, "8m", 7000)
    given = resolve(file=file, algo="vdn", seed=1, map="3m", steps=900)
    assert (given.algo, given.seed, given.env.map, given.train.t_max) == ("vdn", 1, "3m", 900)


def test_a_file_is_completed_with_the_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algo = "emtc-qplex"\n[env]\nname = "skirmish"\nmap = "3m"\n[train]\nbatch = 7\nlr = 0.1\n')
    in_words = resolve(algo="emtc-qplex", map="3m", overrides=["train.lr=0.1", "train.batch=9"])
    assert resolve(file=file, overrides=["train.batch=9"]) == in_words


@given(st.sampled_from([f for f in describe_fields() if f.type == "float" and not f.optional]), st.floats())
def test_no_number_outside_its_bounds_is_accepted(field, value: float) -> None:
    inside = (field.minimum is None or value >= field.minimum) and (field.maximum is None or value <= field.maximum)
    try:
        accepted = flatten(resolve(overrides={field.key: value}))[field.key]
    except ConfigError:
        return
    assert inside
    assert accepted == value


def test_every_whole_number_has_bounds_that_a_database_holds():
    whole = [info for info in describe_fields() if info.type == "int"]
    assert len(whole) > 20
    assert [info.key for info in whole if info.maximum is None or info.maximum >= 2**63] == []


def nest(depth: int) -> dict:
    nested: dict = {"b": 1}
    for _ in range(depth):
        nested = {"a": nested}
    return nested


@pytest.mark.parametrize(
    "make",
    [lambda: {"gate": 1, "gate.enabled": True}, lambda: nest(3000), lambda: {"train": []}, lambda: {"x": 1}],
    ids=["a section and a key", "deep", "a list", "an unknown key"],
)
def test_another_object_than_a_stored_configuration_is_refused(make: Callable[[], dict]) -> None:
    with pytest.raises(ConfigError):
        config_from_stored(make())
