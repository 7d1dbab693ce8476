"""What is asked for when runs are launched: texts by field, as an address holds them, and what they amount to.

The fields are the choices of the Launch form and every setting by its dotted key; one that is absent has its usual
value. What is wrong with a text is told by field, so that it can be marked where it stands.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, TypeVar

from emtc_core.config.base import quote, shorten
from emtc_core.config.outside import ORIGINS, owner_of
from emtc_core.config.resolve import (
    FieldInfo,
    Value,
    current_key,
    describe_fields,
    flatten,
    flatten_tree,
    list_keys,
    resolve,
)
from emtc_core.config.run import PRESETS, RunConfig, list_algos
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.errors import ConfigError
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
_SCALES = {"k": 1_000, "m": 1_000_000}

Texts = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What texts amount to."""

    choices: dict[str, str]
    """Preset, algorithm, environment and map, each a name that exists; the usual one where a text names none."""
    defaults: dict[str, Value]
    """Every setting's value by these choices, where no text says otherwise."""
    faults: dict[str, str] = field(default_factory=dict)
    """Field → what is wrong with its text, in a sentence."""
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
    faults: dict[str, str] = {}
    choices = _choose(texts, maps, faults)
    steps = _read(STEPS, texts, faults, parse_count) if texts.get(STEPS) else None
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
        faults |= place_faults(str(exc).splitlines(), settings) | faults
    wrong = bool(faults) or not choices[MAP]
    return Request(
        choices, defaults, faults, None if wrong else config, tuple(seeds), _others(choices, also), usual_steps
    )


def place_faults(sentences: Sequence[str], keys: Sequence[str] | Mapping[str, object]) -> dict[str, str]:
    """Find the field of each sentence: the settings among `keys` that it speaks of, else the first it speaks of."""
    placed: dict[str, str] = {}
    known = list_keys()
    for sentence in sentences:
        head, colon, rest = sentence.partition(": ")
        spoken = [key for key in re.findall(r"[a-z]\w*(?:\.[a-z]\w*)+", sentence) if key in known]
        own = [key for key in spoken if key in keys] or spoken[:1] or [""]
        plain = rest.replace("input should be", "must be")
        told = plain[:1].upper() + plain[1:] if colon and head in own else sentence
        for key in own:
            placed.setdefault(_OTHER_NAMES.get(str(key), str(key)), told)
    return placed


def parse_count(text: str) -> int:
    """Read a whole number as people write it: 40000, 40,000, 40_000, 40k, 1.5M.

    Raises:
        ConfigError: If it is none.
    """
    plain = text.strip().lower().replace(",", "").replace("_", "")
    scale = _SCALES.get(plain[-1:], 1)
    digits = plain[:-1] if scale > 1 else plain
    whole, dot, part = digits.removeprefix("-").partition(".")
    fine = (whole + part).isdecimal() and (whole + part).isascii() and len(whole + part) <= 18
    value = float(digits) * scale if fine else 0.5
    if not fine or (dot and not part) or value != int(value):
        raise ConfigError(f"Must be a whole number, as 40000, 40k or 1.5M, got {quote(text)}.")
    return int(digits) if scale == 1 and not dot else round(value)


def parse_algos(text: str) -> list[str]:
    """Read "qplex,emu-qplex" as distinct algorithms in their order.

    Raises:
        ConfigError: If there is no such algorithm.
    """
    named = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for algo in named:
        if algo not in list_algos():
            raise ConfigError(f"There is no algorithm {quote(algo)}.{_hint(algo, list_algos())}")
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
            raise ConfigError(f'Seeds must be written as 1, 1,2,5 or 1-5, got "{shorten(text)}".')
        if len(first) > 10 or len(last) > 10 or not int(first) <= int(last or first) < 2**31:
            raise ConfigError(f'Seeds must rise and stay below 2147483648, got "{shorten(text)}".')
        if int(last or first) - int(first) >= MOST_SEEDS:
            raise ConfigError(f'At most {MOST_SEEDS} seeds start at once, got "{shorten(text)}".')
        seeds += range(int(first), int(last or first) + 1)
    distinct = list(dict.fromkeys(seeds))
    if len(distinct) > MOST_SEEDS:
        raise ConfigError(f"At most {MOST_SEEDS} seeds start at once, got {len(distinct)}.")
    return distinct


def parse_value(info: FieldInfo, text: str) -> Value:
    """Read a setting's text; an empty one is "not set" where that is possible.

    Raises:
        ConfigError: If it is no value of its kind; bounds are the configuration's own matter.
    """
    if not text and info.optional:
        return None
    if info.type == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"Must be true or false, got {quote(text)}.")
        return text.lower() == "true"
    if info.type == "choice" and text not in info.choices:
        raise ConfigError(f"Must be one of {', '.join(info.choices)}, got {quote(text)}.{_hint(text, info.choices)}")
    if info.type == "int":
        return parse_count(text)
    if info.type == "float":
        try:
            return float(text)
        except ValueError as exc:
            raise ConfigError(f"Must be a number, got {quote(text)}.") from exc
    return text


def write_text(value: Value) -> str:
    """Write a value so that reading it gives the same: 1.8e-05, true; nothing for "not set"."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


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


def _choose(texts: Texts, maps: Mapping[str, Sequence[str]], faults: dict[str, str]) -> dict[str, str]:
    named = {name: texts.get(name) or USUAL[name] for name in (PRESET, ALGO, ENV)}
    if ENV not in texts and (owner := _env_of(texts.get(MAP, ""), maps)):
        named[ENV] = owner
    known: dict[str, Sequence[str]] = {PRESET: PRESETS, ALGO: list_algos(), ENV: list(maps)}
    words = {PRESET: "preset", ALGO: "algorithm", ENV: "environment"}
    for name, options in known.items():
        if named[name] not in options:
            faults[name] = f"There is no {words[name]} {quote(named[name])}.{_hint(named[name], options)}"
            named[name] = USUAL[name]
    return named | {MAP: _choose_map(texts.get(MAP, ""), named[ENV], maps, faults)}


def _choose_map(map: str, env: str, maps: Mapping[str, Sequence[str]], faults: dict[str, str]) -> str:
    if env in IMPORTED_BY_MAP:
        return map
    if map and map not in maps[env]:
        faults.setdefault(MAP, f"There is no map {quote(map)} in {env}.{_hint(map, maps[env])}")
    return map if map in maps[env] else maps[env][0]


def _env_of(map: str, maps: Mapping[str, Sequence[str]]) -> str:
    """The environment that has a map, where the address names the map alone."""
    return next((env for env, its in maps.items() if map in its), "")


def _hint(text: str, options: Sequence[str]) -> str:
    close = get_close_matches(text[:LONGEST], options, n=1, cutoff=0.5)
    return f" Did you mean {quote(close[0])}?" if close else ""


def _read(name: str, texts: Texts, faults: dict[str, str], parse: Callable[[str], T]) -> T | None:
    try:
        return parse(texts[name])
    except ConfigError as exc:
        faults[name] = str(exc)
        return None


def _read_settings(texts: Texts, faults: dict[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, text in texts.items():
        if key in CHOICES:
            continue
        info = _fields().get(key)
        if info is None:
            faults[key] = f"There is no setting {quote(key)}.{_hint(key, list(_fields()))}"
            continue
        try:
            found[key] = parse_value(info, text)
        except ConfigError as exc:
            faults[key] = str(exc)
    return found


def _read_length(steps: int | None, choices: Mapping[str, str], faults: dict[str, str]) -> int | None:
    """The training length if it can be one; defaults that depend on it follow it."""
    if steps is None:
        return None
    try:
        _resolve_usual(choices, steps)
    except ConfigError as exc:
        faults |= place_faults(str(exc).splitlines(), ["train.t_max"])
        return None
    return steps


def _resolve(
    choices: Mapping[str, str], steps: int | None, settings: Mapping[str, Value], *, seed: int = 1
) -> RunConfig:
    return resolve(
        env=choices[ENV],
        map=choices[MAP] or "-",
        algo=choices[ALGO],
        steps=steps,
        seed=seed,
        preset=choices[PRESET],
        overrides=settings,
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
