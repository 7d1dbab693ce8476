"""What is asked for when runs are launched: every fault by its field, and a stored run asked for once more."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.jobs.launch_request import (
    assign_faults,
    break_lines,
    check_request,
    describe_field_fault,
    make_texts,
    select_texts,
    write_command,
)
from emtc_core.config.resolve import describe_fields, resolve
from emtc_core.config.run import PRESETS, list_algos
from emtc_core.errors import NO_VALUE, ConfigError, StorageError

MAPS = {
    "skirmish": ["3m", "2s3z"],
    "grf": ["academy_3_vs_1_with_keeper"],
    "pettingzoo": ["module:factory"],
}
NUMBERS = [info for info in describe_fields() if info.type in ("int", "float")]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, resolve(preset="demo")),
        ({"map": "academy_3_vs_1_with_keeper"}, resolve(preset="demo", env="grf", map="academy_3_vs_1_with_keeper")),
        (
            {"seed": "3-4", "train.t_max": "60k", "env.map": "2s3z", "x": "1"},
            resolve(preset="demo", map="2s3z", steps=60_000, seed=3),
        ),
    ],
    ids=["nothing", "a map", "settings of the command line"],
)
def test_a_field_that_is_not_set_has_the_default_of_the_others(parameters, expected):
    request = check_request(select_texts(parameters), MAPS)
    assert request.faults == {}
    assert request.config == expected
    assert request.defaults["gate.tau_decay_steps"] == expected.gate.tau_decay_steps
    assert request.seeds == ((3, 4) if "seed" in parameters else (1,))


@pytest.mark.parametrize(
    ("texts", "field", "key", "value", "hint"),
    [
        ({"steps": "-5"}, "steps", "train.t_max", -5, ""),
        ({"steps": "many"}, "steps", "train.t_max", "many", ""),
        ({"steps": "1e99"}, "steps", "train.t_max", "1e99", ""),
        ({"seeds": "1-99"}, "seeds", "seed", "1-99", ""),
        ({"seeds": "9" * 40}, "seeds", "seed", "9" * 40, ""),
        ({"map": "2s4z"}, "map", "env.map", "2s4z", "2s3z"),
        ({"algo": "emtc-qmixx"}, "algo", "algo", "emtc-qmixx", "emtc-qmix"),
        ({"env": "football"}, "env", "env.name", "football", ""),
        ({"preset": "paperr"}, "preset", "preset", "paperr", "paper"),
        ({"gate.tua_end": "1"}, "gate.tua_end", "gate.tua_end", NO_VALUE, "gate.tau_end"),
        ({"gate.enabled": "maybe"}, "gate.enabled", "gate.enabled", "maybe", ""),
        ({"gate.mode": "stord"}, "gate.mode", "gate.mode", "stord", "stored"),
        ({"gate.tau_end": "9"}, "gate.tau_end", "gate.tau_end", 9.0, ""),
        ({"gate.tau_start": "0.1"}, "gate.tau_start", "gate.tau_end", 0.6, ""),
    ],
)
def test_a_fault_stands_at_its_field_and_nothing_can_start(texts, field, key, value, hint):
    asked = check_request(select_texts(texts), MAPS)
    assert asked.config is None
    assert list(asked.faults) == [field]
    fault = asked.faults[field]
    assert (fault.key, fault.value) == (key, value)
    assert f'"{hint}"' in fault.hint if hint else not fault.hint


@pytest.mark.parametrize(
    ("field", "error", "text"),
    [
        ("gate.tau_start", ConfigError("must be <= 0.1", key="gate.tau_end"), "gate.tau_end must be <= 0.1."),
        ("gate.tau_end", ConfigError("must be <= 0.1", key="gate.tau_end"), "Must be <= 0.1."),
        ("steps", ConfigError("must be >= 1", key="train.t_max", value=-5), "Must be >= 1 (got -5)."),
        ("", StorageError("The disk is full."), "The disk is full."),
    ],
    ids=["another setting", "its setting", "its choice", "no setting"],
)
def test_a_fault_names_its_setting_where_it_is_not_next_to_it(field, error, text):
    (fault,) = assign_faults(error).values()
    assert describe_field_fault(field, fault) == text


def test_a_stored_setting_that_does_not_exist_here_is_reported():
    stored = resolve(preset="demo").model_dump(mode="json")
    stored["gate"]["plugin_setting"] = "red"
    assert check_request(make_texts(stored), MAPS).faults.keys() == {"gate.plugin_setting"}


@pytest.mark.parametrize("kind", ["word", "nan", "too small", "too large"])
def test_every_numeric_field_refuses_words_and_what_is_out_of_bounds(kind):
    names = {"train.t_max": "steps", "seed": "seeds"}
    texts = {}
    for info in NUMBERS:
        if kind == "too small" and info.minimum is not None:
            texts[names.get(info.key, info.key)] = f"{info.minimum - 1:g}"
        elif kind == "too large" and info.maximum is not None:
            texts[names.get(info.key, info.key)] = f"{info.maximum * 2 + 1:.0f}"
        elif kind in ("word", "nan"):
            texts[names.get(info.key, info.key)] = kind
    request = check_request(texts, MAPS)
    assert request.config is None
    assert len(texts) > 20
    assert texts.keys() - request.faults.keys() == set()
    assert [name for name in texts if names.get(request.faults[name].key, request.faults[name].key) != name] == []


@settings(max_examples=40)
@given(
    st.sampled_from(PRESETS),
    st.sampled_from(list_algos()),
    st.sampled_from([info for info in describe_fields() if info.type in ("bool", "choice") and "." in info.key]),
    st.floats(1e-12, 0.9),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_the_form_and_the_command_of_a_stored_run_request_the_same_run(preset, algo, info, delta, steps, grf):
    env, map = ("grf", MAPS["grf"][0]) if grf else ("skirmish", "2s3z")
    choice = info.choices[-1] if info.choices else not info.default
    try:
        config = resolve(
            env=env, map=map, algo=algo, steps=steps, seed=7, preset=preset,
            overrides={info.key: choice, "memory.delta": delta},
        )  # fmt: skip
    except ConfigError:
        return
    texts = make_texts(config.model_dump(mode="json"), name="it's a --steps 5 name that is longer than a line")
    request = check_request(texts, MAPS)
    assert (request.faults, request.config, request.seeds) == ({}, config, (7,))
    lines = break_lines(write_command(texts), max_width=20).split(" \\\n")
    assert len(lines) > 5
    assert all(line.startswith("  --") for line in lines[1:])
    words = shlex.split(" ".join(lines))
    assert words[:2] == ["emtc", "train"]
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    given_settings = dict(value.split("=", 1) for option, value in pairs if option == "--set")
    options = {option.removeprefix("--"): value for option, value in pairs if option != "--set"}
    assert options.pop("name") == texts["name"]
    assert check_request(select_texts(options | given_settings), MAPS).config == config
