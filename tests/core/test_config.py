from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.resolve import (
    config_from_stored,
    describe_fields,
    describe_presets,
    flatten,
    flatten_tree,
    resolve,
)
from emtc_core.config.run import PRESETS, list_algos, split_algo
from emtc_core.errors import ConfigError


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
    ("arguments", "sentence"),
    [
        ({"overrides": ["gate.tau_endd=1"]}, 'There is no setting "gate.tau_endd". Did you mean "gate.tau_end"?'),
        ({"overrides": ["gate.tau_end=1.5"]}, "gate.tau_end must not exceed gate.tau_start, got 1.5 > 1.2."),
        ({"steps": -5}, "train.t_max: input should be greater than or equal to 1, got -5."),
        ({"overrides": ["train.batch"]}, '--set takes key=value, got "train.batch".'),
        (
            {"preset": "mine"},
            f"preset must be one of {', '.join(PRESETS)}, got 'mine'.",
        ),
    ],
)
def test_a_fault_is_one_sentence(arguments: dict, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**arguments)
    assert str(caught.value) == sentence


def test_all_faults_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=["embed.dim=0", "train.batch=many"])
    assert len(str(caught.value).splitlines()) == 2


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nbatch = 7\nlr = 0.1\n")
    config = resolve(file=file, overrides=["train.batch=9"])
    assert (config.train.batch, config.train.lr) == (9, 0.1)


@given(st.sampled_from([f for f in describe_fields() if f.type == "float" and not f.optional]), st.floats())
def test_no_number_outside_its_bounds_is_accepted(field, value: float) -> None:
    inside = (field.minimum is None or value >= field.minimum) and (field.maximum is None or value <= field.maximum)
    try:
        accepted = flatten(resolve(overrides={field.key: value}))[field.key]
    except ConfigError:
        return
    assert inside
    assert accepted == value


def test_a_run_stored_before_a_setting_existed_keeps_what_it_did() -> None:
    stored = resolve(map="3m").model_dump(mode="json")
    del stored["gate"]["lookup"], stored["gate"]["on_empty"]
    del stored["embed"]["min_episodes"], stored["embed"]["return_scale"]
    del stored["env"]["skirmish"]["spawn_jitter"]
    stored["gate"]["reward"] = "extrinsic"  # had one choice, is gone
    config = config_from_stored(stored)
    assert (config.gate.lookup, config.gate.on_empty, config.embed.min_episodes) == ("written", "block", 0)
    assert config.embed.return_scale == "none"
    assert config.env.skirmish.spawn_jitter == 0.05


def test_the_former_key_of_a_setting_is_read_wherever_a_key_is_read(tmp_path: Path) -> None:
    stored = resolve(map="3m").model_dump(mode="json")
    del stored["train"]["updates_per_episode"]
    stored["train"]["num_circle"] = 3
    (tmp_path / "old.toml").write_text("[train]\nnum_circle = 3\n")
    read = [
        config_from_stored(stored),
        resolve(file=tmp_path / "old.toml"),
        resolve(overrides=["train.num_circle=3"]),
        resolve(overrides={"train.num_circle": 3}),
    ]
    assert [config.train.updates_per_episode for config in read] == [3] * 4
    assert all("train.num_circle" not in flatten(config) for config in read)
    assert flatten_tree(stored)["train.updates_per_episode"] == 3


def test_every_preset_says_in_one_sentence_what_it_is() -> None:
    assert list(describe_presets()) == list(PRESETS)
    assert all(text.endswith(".") and len(text) > 40 for text in describe_presets().values())


def test_every_whole_number_has_bounds_that_a_database_holds():
    whole = [info for info in describe_fields() if info.type == "int"]
    assert len(whole) > 20
    assert [info.key for info in whole if info.maximum is None or info.maximum >= 2**63] == []


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.t_max=" + "9" * 20, "train.t_max: input should be less than"),
        ("train.t_max=" + "9" * 5000, "train.t_max: "),
        ("train.t_max=" + "[" * 5000, "--set takes a number"),
        ("k" * 5000 + "=1", "There is no setting"),
        ("gate=1", 'There is no setting "gate"'),
    ],
    ids=range(5),
)
def test_a_monstrous_value_is_one_short_sentence(override, sentence):
    with pytest.raises(ConfigError) as fault:
        resolve(overrides=[override])
    assert sentence in str(fault.value)
    assert len(str(fault.value)) < 300
    assert "\n" not in str(fault.value)


def test_a_stored_configuration_that_is_none_is_one_sentence():
    deep: dict = {}
    for _ in range(3000):
        deep = {"a": deep | {"b": 1}}
    for stored in ({"gate": 1, "gate.enabled": True}, deep, {"train": []}, {"x": 1}):
        with pytest.raises(ConfigError):
            config_from_stored(stored)
