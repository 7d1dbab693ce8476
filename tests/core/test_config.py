import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.resolve import (
    config_from_stored,
    describe_fields,
    describe_presets,
    flatten,
    resolve,
)
from emtc_core.config.run import PRESETS, list_algos, split_algo
from emtc_core.config.values import FieldInfo, format_argument, parse_count, parse_value
from emtc_core.errors import ConfigError, Fault, StorageError, describe_fault
from tests.errors import raises


def test_every_setting_has_a_description() -> None:
    assert [field.key for field in describe_fields() if not field.description] == []


def test_a_stored_configuration_comes_back_equal() -> None:
    config = resolve(map="corridor", algo="emu-cds", steps=123, seed=9)
    assert config_from_stored(config.model_dump(mode="json")) == config


def test_the_temperature_decays_over_half_the_run_unless_told_otherwise() -> None:
    assert resolve(steps=1000).gate.tau_decay_steps == 500
    assert resolve(steps=1000, overrides=["gate.tau_decay_steps=77"]).gate.tau_decay_steps == 77


@pytest.mark.parametrize("algo", list_algos())
@pytest.mark.parametrize("preset", PRESETS)
def test_every_algorithm_resolves_in_every_preset(algo: str, preset: str) -> None:
    config = resolve(algo=algo, preset=preset)
    assert config.backbone == split_algo(algo)[1]
    assert config.uses_memory == (split_algo(algo)[0] != "none")


def test_a_plain_backbone_has_neither_gate_nor_incentive() -> None:
    config = resolve(algo="qplex")
    assert not config.gate.enabled
    assert not config.incentive.enabled
    assert not config.uses_memory


@pytest.mark.parametrize(
    ("algo", "map", "delta"),
    [
        ("emtc-qplex", "3s_vs_5z", 1.8e-5),
        ("emtc-qplex", "3m", 1.8e-5),
        ("emtc-qplex", "2s3z", 1.8e-5),
        ("emu-qplex", "8m", 1.3e-5),
        ("emtc-qplex", "MMM2", 1.8e-3),
        ("emtc-qplex", "corridor", 1.8e-5),
        ("emtc-cds", "corridor", 1.8e-3),
        ("emu-qplex", "corridor", 1.3e-3),
        ("emu-cds", "corridor", 1.3e-5),
        ("emu-qplex", "3s_vs_5z", 1.3e-5),
    ],
)
def test_delta_follows_the_papers_table(algo: str, map: str, delta: float) -> None:
    assert resolve(algo=algo, map=map).memory.delta == delta


@pytest.mark.parametrize(
    ("algo", "env", "map", "expected"),
    [
        ("emu-qplex", "skirmish", "6h_vs_8z", True),
        ("emu-cds", "skirmish", "6h_vs_8z", False),
        ("emtc-cds", "skirmish", "corridor", True),
        ("emu-qplex", "skirmish", "corridor", False),
        ("emu-qplex", "grf", "academy_counterattack_easy", True),
        ("emu-qplex", "skirmish", "3s_vs_5z", False),
    ],
)
def test_the_initial_desirability_can_follow_emus_table(algo: str, env: str, map: str, expected: bool) -> None:
    config = resolve(env=env, map=map, algo=algo, overrides=["memory.init_desirability=emu_table"])
    assert config.memory.init_desirability is expected


@pytest.mark.parametrize(
    ("algo", "env", "map", "expected"),
    [
        ("emu-qplex", "skirmish", "3s_vs_5z", False),
        ("emu-qplex", "skirmish", "2s3z", False),
        ("emu-qplex", "smac", "6h_vs_8z", True),
        ("emu-cds", "skirmish", "6h_vs_8z", False),
        ("emu-cds", "skirmish", "corridor", True),
        ("emu-cds", "grf", "academy_counterattack_hard", True),
        ("emtc-qplex", "skirmish", "3s_vs_5z", True),
    ],
)
def test_emu_starts_new_nodes_as_its_own_configurations_do(algo: str, env: str, map: str, expected: bool) -> None:
    assert resolve(env=env, map=map, algo=algo).memory.init_desirability is expected


def test_lambda_of_episodic_control_is_written_as_the_paper_writes_it() -> None:
    assert resolve(algo="emc", overrides=["ec.lambda=0.3"]).ec.weight == 0.3
    assert flatten(resolve(algo="emc", map="corridor"))["ec.lambda"] == 0.01


def test_football_is_learned_in_units_of_a_hundred() -> None:
    config = resolve(env="grf", map="academy_3_vs_1_with_keeper")
    assert config.train.reward_scale == 100
    assert config.memory.delta == 1.8e-3


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


def test_an_error_that_is_copied_to_another_process_keeps_its_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=["embed.dim=0", "train.batch=0"])
    assert pickle.loads(pickle.dumps(caught.value)).faults == caught.value.faults
    copied = pickle.loads(pickle.dumps(StorageError("Gone.", hint="Look again.")))
    assert (copied.message, copied.hint) == ("Gone.", "Look again.")


def test_all_faults_are_found_together() -> None:
    with raises(ConfigError, key=["train.batch", "embed.dim"]):
        resolve(overrides=["embed.dim=0", "train.batch=many"])


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.t_max=40k", 40_000),
        ("train.t_max=1e6", 1_000_000),
        ("train.lr=1e-3", 1e-3),
        ('env.map="8m"', "8m"),
        ("gate.enabled=False", False),
        ("gate.enabled=0", False),
        ("gate.tau_decay_steps=7", 7),
        ("memory.delta=1", 1.0),
    ],
)
def test_a_text_is_read_in_the_type_of_its_setting(override: str, value: object) -> None:
    assert flatten(resolve(overrides=[override]))[override.partition("=")[0]] == value


def test_an_empty_text_leaves_an_optional_setting_unset() -> None:
    assert resolve(steps=1000, overrides=["gate.tau_decay_steps="]).gate.tau_decay_steps == 500


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
def test_what_is_no_count_is_refused(text: str) -> None:
    with raises(ConfigError, key="train.t_max", value=text):
        parse_count(text, "train.t_max")


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nbatch = 7\nlr = 0.1\n")
    config = resolve(file=file, overrides=["train.batch=9"])
    assert (config.train.batch, config.train.lr) == (9, 0.1)


def test_an_argument_wins_over_the_file_only_if_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algo = "qmix"\nseed = 4\n[env]\nmap = "8m"\n[train]\nt_max = 7000\n')
    as_in_file = resolve(file=file)
    assert (as_in_file.algo, as_in_file.seed, as_in_file.env.map, as_in_file.train.t_max) == ("qmix", 4, "8m", 7000)
    given = resolve(file=file, algo="vdn", seed=1, map="3m", steps=900)
    assert (given.algo, given.seed, given.env.map, given.train.t_max) == ("vdn", 1, "3m", 900)


def test_a_users_file_is_completed_with_the_defaults_of_this_version(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algo = "emtc-qplex"\n[env]\nname = "skirmish"\nmap = "3m"\n[train]\nlr = 0.1\n')
    assert resolve(file=file) == resolve(algo="emtc-qplex", map="3m", overrides=["train.lr=0.1"])


@given(st.sampled_from([f for f in describe_fields() if f.type == "float" and not f.optional]), st.floats())
def test_no_number_outside_its_bounds_is_accepted(field, value: float) -> None:
    inside = (field.minimum is None or value >= field.minimum) and (field.maximum is None or value <= field.maximum)
    try:
        accepted = flatten(resolve(overrides={field.key: value}))[field.key]
    except ConfigError:
        return
    assert inside
    assert accepted == value


def test_every_preset_says_in_one_sentence_what_it_is() -> None:
    assert list(describe_presets()) == list(PRESETS)
    assert all(text.endswith(".") and len(text) > 40 for text in describe_presets().values())


def test_every_whole_number_has_bounds_that_a_database_holds():
    whole = [info for info in describe_fields() if info.type == "int"]
    assert len(whole) > 20
    assert [info.key for info in whole if info.maximum is None or info.maximum >= 2**63] == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.t_max=" + "9" * 20, "train.t_max"),
        ("train.t_max=" + "9" * 5000, "train.t_max"),
        ("train.t_max=" + "[" * 5000, "train.t_max"),
        ("k" * 5000 + "=1", "k" * 5000),
        ("gate=1", "gate"),
    ],
    ids=range(5),
)
def test_a_monstrous_value_is_one_short_sentence(override, key):
    with raises(ConfigError, key=key) as fault:
        resolve(overrides=[override])
    assert len(str(fault.value)) < 300
    assert "\n" not in str(fault.value)


def test_a_stored_configuration_that_is_none_is_one_sentence():
    deep: dict = {}
    for _ in range(3000):
        deep = {"a": deep | {"b": 1}}
    for stored in ({"gate": 1, "gate.enabled": True}, deep, {"train": []}, {"x": 1}):
        with pytest.raises(ConfigError):
            config_from_stored(stored)
