"""What is asked for when runs are launched: every fault by its field, and a stored run asked for once more."""

import shlex
from collections.abc import Callable

import pytest
from hypothesis import given
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
from emtc_core.config.resolve import FieldInfo, describe_fields, flatten, resolve
from emtc_core.config.run import PRESETS, list_algos
from emtc_core.errors import NO_VALUE, ConfigError, Fault, StorageError

MAPS = {
    "skirmish": ["3m", "2s3z"],
    "grf": ["academy_3_vs_1_with_keeper"],
    "pettingzoo": ["module:factory"],
}
NUMBERS = [info for info in describe_fields() if info.type in ("int", "float")]


def ask(**texts: str):
    return check_request(select_texts({name.replace("__", "."): text for name, text in texts.items()}), MAPS)


def test_nothing_asked_for_is_the_demo():
    asked = ask()
    assert asked.faults == {}
    assert asked.config == resolve(preset="demo")
    assert asked.seeds == (1,)


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


def test_a_fault_that_stands_at_another_setting_names_its_own():
    fault = check_request({"gate.tau_start": "0.1"}, MAPS).faults["gate.tau_start"]
    assert describe_field_fault("gate.tau_start", fault) == "gate.tau_end must be <= gate.tau_start = 0.1 (got 0.6)."
    assert describe_field_fault("gate.tau_end", fault) == "Must be <= gate.tau_start = 0.1 (got 0.6)."
    assert describe_field_fault("steps", Fault("train.t_max", -5, "must be >= 1")) == "Must be >= 1 (got -5)."


WRONG: dict[str, Callable[[FieldInfo], str | None]] = {
    **{text: lambda info, text=text: text for text in ("word", "nan", "inf")},
    "too small": lambda info: None if info.minimum is None else f"{info.minimum - 1:g}",
    "too large": lambda info: None if info.maximum is None else f"{info.maximum * 2 + 1:.0f}",
}


@pytest.mark.parametrize("kind", WRONG)
def test_every_numeric_field_refuses_words_and_what_is_out_of_bounds(kind):
    names = {"train.t_max": "steps", "seed": "seeds"}
    texts = {names.get(info.key, info.key): text for info in NUMBERS if (text := WRONG[kind](info)) is not None}
    asked = check_request(texts, MAPS)
    assert asked.config is None
    assert len(texts) > 20
    assert texts.keys() - asked.faults.keys() == set()
    assert [name for name in texts if names.get(asked.faults[name].key, asked.faults[name].key) != name] == []


def test_a_map_alone_finds_its_environment():
    asked = ask(map="academy_3_vs_1_with_keeper")
    assert asked.config is not None
    assert asked.config.env.name == "grf"


def test_the_command_lines_names_are_understood():
    assert select_texts({"seed": "3", "train.t_max": "9", "env.map": "3m", "x": "1"}) == {
        "seeds": "3",
        "steps": "9",
        "map": "3m",
    }


def test_defaults_that_depend_on_the_length_follow_it():
    assert ask(steps="60k").defaults["gate.tau_decay_steps"] == 30_000


def test_an_error_without_a_setting_stands_at_no_field_and_keeps_its_words():
    placed = assign_faults(StorageError("The disk is full."))
    assert list(placed) == [""]
    assert describe_field_fault("", placed[""]) == "The disk is full."


@given(
    st.sampled_from(PRESETS),
    st.sampled_from(list_algos()),
    st.sampled_from([info for info in describe_fields() if info.type in ("bool", "choice") and "." in info.key]),
    st.floats(1e-12, 0.9),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_a_stored_run_asked_for_once_more_is_the_same_run(preset, algo, info, delta, steps, grf):
    env, map = ("grf", MAPS["grf"][0]) if grf else ("skirmish", "2s3z")
    choice = info.choices[-1] if info.choices else not info.default
    try:
        config = resolve(
            env=env, map=map, algo=algo, steps=steps, seed=7, preset=preset,
            overrides={info.key: choice, "memory.delta": delta},
        )  # fmt: skip
    except ConfigError:
        return
    asked = check_request(make_texts(config.model_dump(mode="json"), name="Again"), MAPS)
    assert asked.faults == {}
    assert asked.config == config
    assert asked.seeds == (7,)


def test_a_setting_of_another_version_is_refused_by_name_and_not_lost():
    stored = resolve(preset="demo").model_dump(mode="json")
    stored["gate"]["colour"] = "red"
    texts = make_texts(stored)
    assert texts["gate.colour"] == "red"
    assert check_request(texts, MAPS).faults["gate.colour"].key == "gate.colour"


def test_a_command_is_broken_only_between_options_and_means_the_same():
    command = write_command({"steps": "1000", "name": "it's a --steps 5 name that is longer than a line"})
    lines = break_lines(command, max_width=20).split(" \\\n")
    assert lines[1] == "  --steps 1000"
    assert shlex.split(" ".join(lines)) == shlex.split(command)


def test_the_command_repeats_the_run():
    config = resolve(preset="demo", algo="emu-qplex", seed=4, steps=300, overrides={"memory.delta": 0.5})
    line = write_command(make_texts(config.model_dump(mode="json"), name="it's mine"))
    assert line.startswith("emtc train --env skirmish --map 3m --algo emu-qplex --steps 300 --seed 4 --name 'it'")
    words = [word.removeprefix("--set ") for word in line.split(" --set ")[1:]]
    assert flatten(resolve(env="skirmish", map="3m", algo="emu-qplex", steps=300, seed=4, overrides=words)) == flatten(
        config
    )
