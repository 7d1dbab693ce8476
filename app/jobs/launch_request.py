"""What is asked for when runs are launched: texts by field, as an address holds them, and what they amount to.

The fields are the choices of the Launch form and every setting by its dotted key; one that is absent has its usual
value. What is wrong with a text is found by field, so that it can be marked under that field.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

from emtc_core.config.outside import ORIGINS, owner_of
from emtc_core.config.resolve import (
    Value,
    current_key,
    describe_fields,
    flatten,
    flatten_tree,
    resolve,
    suggest,
)
from emtc_core.config.run import PRESETS, RunConfig, list_algos
from emtc_core.config.values import FieldInfo, parse_count, write_text
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.errors import ConfigError, EmtcError, Fault, describe_fault
from emtc_core.plugins import Plugin, list_plugins

PRESET, ALGO, ENV, MAP, STEPS, SEEDS, NAME = "preset", "algo", "env", "map", "steps", "seeds", "name"
ALSO = "also"
CHOICES: Final = (PRESET, ALGO, ENV, MAP, STEPS, SEEDS, NAME, ALSO)
USUAL: Final = {PRESET: "demo", ALGO: "emtc-qplex", ENV: "skirmish", SEEDS: "1"}
_USUAL_MAP: Final = "3m"
MOST_SEEDS = 8
LONGEST = 300
"""Of a text [characters]."""
_OTHER_NAMES: Final = {"seed": SEEDS, "env.name": ENV, "env.map": MAP, "train.t_max": STEPS}
IDENTITY: Final = frozenset({"algo", "seed", "preset", "env.name", "env.map", "train.t_max"})
"""Settings that are choices of the form."""
_SETTINGS: Final = {name: key for key, name in _OTHER_NAMES.items()}

Texts = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What texts amount to."""

    choices: dict[str, str]
    """Preset, algorithm, environment and map, each a name that exists; the usual one where a text names none."""
    defaults: dict[str, Value]
    """Every setting's value by these choices, where no text says otherwise."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """Field → what is wrong with its text."""
    config: RunConfig | None = None
    """The whole configuration with the first seed; None while there is a fault."""
    seeds: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    """Further algorithms, which the same is asked of."""
    usual_steps: int = 0
    """The training length where no text names one [env steps]."""


def is_field(name: str) -> bool:
    """Whether a name in an address is meant for the form: one of its choices, or a dotted key."""
    return name in CHOICES or name in _OTHER_NAMES or "." in name


def read_texts(given: Texts) -> dict[str, str]:
    """Take what is meant for the form out of an address, under the names of today."""
    named = {current_key(name): text.strip()[:LONGEST] for name, text in given.items() if is_field(name)}
    return {_OTHER_NAMES.get(key, key): text for key, text in named.items()}


def check(texts: Texts, maps: Mapping[str, Sequence[str]]) -> Request:
    """Resolve what is asked for, or find what is wrong with it.

    Args:
        texts: By field.
        maps: Every environment's maps.
    """
    faults: dict[str, Fault] = {}
    choices = _choose(texts, maps, faults)
    steps = _read(STEPS, texts, faults, lambda text: parse_count(text, "train.t_max")) if texts.get(STEPS) else None
    seeds = _read(SEEDS, {SEEDS: texts.get(SEEDS) or USUAL[SEEDS]}, faults, parse_seeds) or [1]
    also = _read(ALSO, texts, faults, parse_algos) if texts.get(ALSO) else None
    settings = _read_settings(texts, faults)
    length = _read_length(steps, choices, faults)
    arguments = {info.key: info.default for info in describe_fields() if owner_of(info.key)}
    defaults = arguments | flatten(_resolve_usual(choices, length))
    usual_steps = _resolve_usual(choices, None).train.t_max
    config = None
    try:
        config = _resolve(choices, length, settings, seed=seeds[0])
    except ConfigError as exc:
        faults |= place_faults(exc, settings) | faults
    wrong = bool(faults) or not choices[MAP]
    return Request(
        choices, defaults, faults, None if wrong else config, tuple(seeds), _others(choices, also), usual_steps
    )


def place_faults(error: EmtcError, keys: Iterable[str] = ()) -> dict[str, Fault]:
    """Find the field of each fault of an error.

    Args:
        error: What was raised. One without faults belongs to no field, whose name is "".
        keys: Settings that were given. A fault that is about several settings belongs to those of them.
    """
    placed: dict[str, Fault] = {}
    given = set(keys)
    for fault in error.faults if isinstance(error, ConfigError) else [_as_fault(error)]:
        own = [key for key in (fault.key, *fault.related) if key in given] or [fault.key]
        for key in own:
            placed.setdefault(_OTHER_NAMES.get(key, key), fault)
    return placed


def _as_fault(error: EmtcError) -> Fault:
    key = error.subject if isinstance(error.subject, str) and error.subject in _fields() | _OTHER_NAMES else ""
    return Fault(key, hint=str(error))


def describe_at(name: str, fault: Fault) -> str:
    """Write a fault for a place next to its field: the key only where it is another setting's."""
    return describe_fault(fault, with_key=_OTHER_NAMES.get(fault.key, fault.key) != name)


def parse_algos(text: str) -> list[str]:
    """Read "qplex,emu-qplex" as distinct algorithms in their order.

    Raises:
        ConfigError: If there is no such algorithm.
    """
    named = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for algo in named:
        if algo not in list_algos():
            raise ConfigError(_unknown_name(ALSO, algo, list_algos()))
    return named


def _others(choices: Mapping[str, str], also: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(algo for algo in also or () if algo != choices[ALGO])


def parse_seeds(text: str) -> list[int]:
    """Read "1", "1,2,5" or "1-5" as distinct seeds in their order.

    Raises:
        ConfigError: If it is something else, or more than MOST_SEEDS.
    """
    seeds: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and first.isascii() and (not dash or (last.isdecimal() and last.isascii()))):
            raise ConfigError("must be written as 1, 1,2,5 or 1-5", key="seed", value=text)
        if len(first) > 10 or len(last) > 10 or not int(first) <= int(last or first) < 2**31:
            raise ConfigError("must rise and stay below 2147483648", key="seed", value=text)
        if int(last or first) - int(first) >= MOST_SEEDS:
            raise ConfigError(f"must be at most {MOST_SEEDS} seeds", key="seed", value=text)
        seeds += range(int(first), int(last or first) + 1)
    distinct = list(dict.fromkeys(seeds))
    if len(distinct) > MOST_SEEDS:
        raise ConfigError(f"must be at most {MOST_SEEDS} seeds", key="seed", value=text)
    return distinct


def request_of(stored: Mapping[str, object], *, name: str = "") -> dict[str, str]:
    """The texts that ask for a run which a database stores once more: its task, and what its preset does not say.

    A setting that this version does not know is among them, so that it is refused by name and not lost in silence.
    """
    settings = flatten_tree(stored)
    texts = {
        PRESET: str(settings.get("preset", "paper")),
        ALGO: str(settings.get("algo", "")),
        ENV: str(settings.get("env.name", "")),
        MAP: str(settings.get("env.map", "")),
        STEPS: write_text(settings.get("train.t_max")),
        SEEDS: write_text(settings.get("seed")),
        NAME: name,
    }
    return {key: text for key, text in texts.items() if text} | {
        key: write_text(settings[key]) for key in find_own(settings)
    }


def usual_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    """What a run's task, length and preset say of every setting; nothing where this version does not know them."""
    steps = settings.get("train.t_max")
    try:
        usual = resolve(
            env=str(settings.get("env.name")),
            map=str(settings.get("env.map")),
            algo=str(settings.get("algo")),
            steps=steps if isinstance(steps, int) else None,
            preset=str(settings.get("preset", "paper")),
        )
    except ConfigError:
        return {}
    return flatten(usual)


def find_own(settings: Mapping[str, Value]) -> list[str]:
    """List the settings of a run that its preset does not give it; all of them where the preset is not known."""
    usual = usual_settings(settings)
    own = (key for key in settings if not key.startswith(f"{ORIGINS}."))
    return [key for key in own if key not in IDENTITY and (key not in usual or usual[key] != settings[key])]


def write_command(texts: Texts) -> str:
    """Write the line of a terminal that starts what texts ask for, with the first of its seeds."""
    flags = {ENV: "--env", MAP: "--map", ALGO: "--algo", STEPS: "--steps", SEEDS: "--seed", NAME: "--name"}
    words = [
        "emtc",
        "train",
        *(word for name, flag in flags.items() if texts.get(name) for word in (flag, texts[name])),
    ]
    for key in (PRESET, *(key for key in texts if key not in CHOICES)):
        if key in texts:
            words += ["--set", f"{key}={texts[key]}"]
    return " ".join(map(shlex.quote, words))


def _choose(texts: Texts, maps: Mapping[str, Sequence[str]], faults: dict[str, Fault]) -> dict[str, str]:
    named = {name: texts.get(name) or USUAL[name] for name in (PRESET, ALGO, ENV)}
    if ENV not in texts and (owner := _env_of(texts.get(MAP, ""), maps)):
        named[ENV] = owner
    known: dict[str, Sequence[str]] = {PRESET: PRESETS, ALGO: list_algos(), ENV: list(maps)}
    for name, options in known.items():
        if named[name] not in options:
            faults[name] = _unknown_name(_SETTINGS.get(name, name), named[name], options)
            named[name] = USUAL[name]
    return named | {MAP: _choose_map(texts.get(MAP, ""), named[ENV], maps, faults)}


def _choose_map(map: str, env: str, maps: Mapping[str, Sequence[str]], faults: dict[str, Fault]) -> str:
    if env in IMPORTED_BY_MAP:
        return map
    if map and map not in maps[env]:
        rule = f"must be a map of {env}"
        faults.setdefault(MAP, Fault("env.map", map, rule, suggest(map, maps[env])))
    return map if map in maps[env] else maps[env][0]


def _env_of(map: str, maps: Mapping[str, Sequence[str]]) -> str:
    """The environment that has a map, where the address names the map alone."""
    return next((env for env, its in maps.items() if map in its), "")


def _unknown_name(key: str, name: str, options: Sequence[str]) -> Fault:
    return Fault(key, name, "must be a name that exists", suggest(name, options))


def _read(name: str, texts: Texts, faults: dict[str, Fault], parse: Callable[[str], T]) -> T | None:
    try:
        return parse(texts[name])
    except ConfigError as exc:
        faults[name] = exc.faults[0]
        return None


def _read_settings(texts: Texts, faults: dict[str, Fault]) -> dict[str, str]:
    """Choose the texts that are settings; their values are read with all others by `resolve`."""
    given = {key: text for key, text in texts.items() if key not in CHOICES}
    known = _fields()
    for key in given.keys() - known.keys():
        faults[key] = Fault(key, rule="is not a setting", hint=suggest(key, known))
    return {key: text for key, text in given.items() if key in known}


def _read_length(steps: int | None, choices: Mapping[str, str], faults: dict[str, Fault]) -> int | None:
    """The training length if it can be one; defaults that depend on it follow it."""
    if steps is None:
        return None
    try:
        _resolve_usual(choices, steps)
    except ConfigError as exc:
        faults |= place_faults(exc, ["train.t_max"])
        return None
    return steps


def _resolve(choices: Mapping[str, str], steps: int | None, settings: Mapping[str, str], *, seed: int = 1) -> RunConfig:
    return resolve(
        env=choices[ENV],
        map=choices[MAP] or "-",
        algo=choices[ALGO],
        steps=steps,
        seed=seed,
        preset=choices[PRESET],
        overrides=[f"{key}={text}" for key, text in settings.items()],
    )


def _resolve_usual(choices: Mapping[str, str], steps: int | None) -> RunConfig:
    """What the choices amount to without any setting; of an environment that wants some, all but its own."""
    try:
        return _resolve(choices, steps, {})
    except ConfigError:
        return _resolve({**choices, ENV: USUAL[ENV], MAP: _USUAL_MAP}, steps, {})


def _fields() -> dict[str, FieldInfo]:
    """Settings that are no choice of the form."""
    return _fields_beside(tuple(list_plugins("env")))


@lru_cache(maxsize=4)
def _fields_beside(envs: tuple[Plugin, ...]) -> dict[str, FieldInfo]:
    """Those settings where these environments from outside are here."""
    return {info.key: info for info in describe_fields() if info.key not in IDENTITY}
