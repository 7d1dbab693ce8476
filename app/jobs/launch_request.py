"""The request of the Launch form: parse and check the texts of its fields, which are also stored in the page's URL.

The fields are the choices at the top of the form (preset, algorithm, ...) and all settings by dotted key. A missing
field has its default. Each fault is assigned to a field, so that the form can show it next to this field.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from emtc_core.config.plugin_settings import list_plugin_fields
from emtc_core.config.resolve import Value, describe_fields, flatten, flatten_tree, resolve, suggest
from emtc_core.config.run import PRESETS, RunConfig, list_algos
from emtc_core.config.values import format_argument, parse_count
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError, Fault, describe_fault
from storage.runs.changes import make_run_name
from storage.runs.rows import RunRow

PRESET: Final = "preset"
ALGO: Final = "algo"
ENV: Final = "env"
MAP: Final = "map"
STEPS: Final = "steps"
SEEDS: Final = "seeds"
NAME: Final = "name"
OTHER_ALGOS: Final = "also"
"""Other algorithms that are trained with the same settings (the field "Compare with")."""
CHOICES: Final = (PRESET, ALGO, ENV, MAP, STEPS, SEEDS, NAME, OTHER_ALGOS)
"""Names of the fields at the top of the form. They are also the names of the URL parameters."""
DEFAULTS: Final = {PRESET: "demo", ALGO: "emtc-qplex", ENV: "skirmish", SEEDS: "1"}
"""Field → its text if the user has not set it."""
_DEFAULT_MAP: Final = "3m"
MAX_SEEDS: Final = 8
_SEED_RANGE: Final = re.compile(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*", re.ASCII)
MAX_CHARACTERS = 300
"""Longest text of a field [characters]."""
CHOICE_SETTINGS: Final = frozenset({"algo", "seed", "preset", "env.name", "env.map", "train.t_max"})
"""Settings that are among the choices at the top of the form."""
_FIELD_OF_SETTING: Final = {"seed": SEEDS, "env.name": ENV, "env.map": MAP, "train.t_max": STEPS}
_SETTING_OF_FIELD: Final = {name: key for key, name in _FIELD_OF_SETTING.items()}

_UNUSED_IF: Final = (
    ("gate.enabled", "false", "gate."),
    ("gate.schedule", "adaptive", "gate.tau_decay_steps"),
    ("incentive.enabled", "false", "incentive."),
    ("memory.success", "flag", "memory.success_threshold"),
)
"""A setting, its value, and the start of the keys of the settings that this value makes ineffective."""

FieldTexts = Mapping[str, str]
"""Field → text."""
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """The checked texts of the form: a configuration, or the faults of the texts."""

    choices: dict[str, str]
    """Valid preset, algorithm, environment and map; the default if the text is missing or invalid."""
    defaults: dict[str, Value]
    """Default of every setting for these choices."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """Field → fault of its text."""
    config: RunConfig | None = None
    """The resolved configuration with the first seed; None if there is a fault or the map is missing."""
    seeds: tuple[int, ...] = ()
    """Seeds of the runs to train."""
    other_algos: tuple[str, ...] = ()
    """Other algorithms to train with the same settings."""
    default_steps: int = 0
    """Default training length [env steps]."""


def is_field(name: str) -> bool:
    """Whether a URL parameter is a field of the form: one of its choices, or a dotted key."""
    return name in CHOICES or name in _FIELD_OF_SETTING or "." in name


def select_texts(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the fields of the form from URL parameters. The key of a setting that has a choice becomes that choice."""
    texts: dict[str, str] = {}
    for name, text in parameters.items():
        if is_field(name):
            texts[_FIELD_OF_SETTING.get(name, name)] = text.strip()[:MAX_CHARACTERS]
    return texts


def check_request(texts: FieldTexts, maps: Mapping[str, Sequence[str]]) -> Request:
    """Resolve the configuration of a request, or find the faults of its texts.

    Args:
        texts: Field → text.
        maps: Environment → its maps.
    """
    faults: dict[str, Fault] = {}
    choices = _read_choices(texts, maps, faults)
    steps = _parse(STEPS, texts.get(STEPS), faults, lambda text: parse_count(text, "train.t_max"))
    seeds = _parse(SEEDS, texts.get(SEEDS) or DEFAULTS[SEEDS], faults, parse_seeds) or [1]
    algos = _parse(OTHER_ALGOS, texts.get(OTHER_ALGOS), faults, parse_algos) or []
    settings = _read_settings(texts, faults)
    default_config = _resolve_defaults(choices, None)
    default_steps = default_config.train.t_max
    if steps is not None:
        try:
            default_config = _resolve_defaults(choices, steps)
        except ConfigError as exc:  # the training length is out of bounds; continue with the default
            faults |= assign_faults(exc, ["train.t_max"])
            steps = None
    config = None
    try:
        config = _resolve(choices, steps, settings, seed=seeds[0])
    except ConfigError as exc:
        for name, fault in assign_faults(exc, settings).items():
            faults.setdefault(name, fault)
    return Request(
        choices,
        defaults=_list_plugin_defaults() | flatten(default_config),
        faults=faults,
        config=None if faults or not choices[MAP] else config,
        seeds=tuple(seeds),
        other_algos=tuple(algo for algo in algos if algo != choices[ALGO]),
        default_steps=default_steps,
    )


def assign_faults(error: EmtcError, keys: Iterable[str] = ()) -> dict[str, Fault]:
    """Assign each fault of an error to a field.

    Args:
        error: The error. If it contains no faults, its message is a fault of the field "", or of the map if the
            environment is not available.
        keys: Settings in the request. A fault that concerns several settings is assigned to those that are in the
            request.
    """
    if isinstance(error, ConfigError):
        faults = list(error.faults)
    else:
        key = "env.map" if isinstance(error, EnvUnavailableError) else ""
        faults = [Fault(key, hint=str(error))]
    faults_by_field: dict[str, Fault] = {}
    settings = set(keys)
    for fault in faults:
        concerned_keys = [key for key in (fault.key, *fault.related) if key in settings]
        for key in concerned_keys or [fault.key]:
            faults_by_field.setdefault(_FIELD_OF_SETTING.get(key, key), fault)
    return faults_by_field


def describe_field_fault(name: str, fault: Fault) -> str:
    """Describe a fault for the text next to a field. The key of the fault is written only if it is of another field."""
    return describe_fault(fault, with_key=_FIELD_OF_SETTING.get(fault.key, fault.key) != name)


def parse_algos(text: str) -> list[str]:
    """Parse algorithms such as "qplex,emu-qplex"; repeated ones are dropped.

    Raises:
        ConfigError: If an algorithm does not exist.
    """
    algos = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for algo in algos:
        if algo not in list_algos():
            raise ConfigError(_make_name_fault(OTHER_ALGOS, algo, list_algos()))
    return algos


def parse_seeds(text: str, *, key: str = "seed", max_seeds: int = MAX_SEEDS) -> list[int]:
    """Parse seeds such as "1", "1,2,5" or "1-5"; repeated ones are dropped.

    Args:
        text: The text.
        key: Name of the setting or option in the error message.
        max_seeds: Largest number of seeds.

    Raises:
        ConfigError: If the text has another format, or there are more than `max_seeds` seeds.
    """
    seeds: dict[int, None] = {}  # an ordered set
    for part in text.split(","):
        match = _SEED_RANGE.fullmatch(part)
        if match is None:
            raise ConfigError("must be written as 1, 1,2,5 or 1-5, with at most 10 digits", key=key, value=text)
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < 2**31:
            raise ConfigError("must be in increasing order and below 2147483648", key=key, value=text)
        too_many = last - first >= max_seeds  # checked first, because "1-2000000000" would fill the memory
        if not too_many:
            seeds |= dict.fromkeys(range(first, last + 1))
        if too_many or len(seeds) > max_seeds:
            raise ConfigError(f"must be at most {max_seeds:,} seeds", key=key, value=text)
    return list(seeds)


def find_unused_settings(texts: FieldTexts, request: Request) -> frozenset[str]:
    """Find the settings that have no effect because of the value of another setting.

    With `gate.enabled` = false, for example, no other setting of the gate has an effect.

    Args:
        texts: Field → text.
        request: The checked request.
    """

    def is_set(key: str, value: str) -> bool:
        return texts.get(key, format_argument(request.defaults.get(key))) == value

    unused: set[str] = set()
    for key, value, prefix in _UNUSED_IF:
        if is_set(key, value):
            unused |= {name for name in request.defaults if name.startswith(prefix) and name != key}
    return frozenset(unused)


def make_texts(stored: Mapping[str, object], *, name: str = "") -> dict[str, str]:
    """Return the texts that request a stored run again: its choices, and the settings that differ from its preset.

    A setting that does not exist in this version is included, so that the form reports it.
    """
    settings = flatten_tree(stored)
    texts = {
        PRESET: str(settings.get("preset", "paper")),
        ALGO: str(settings.get("algo", "")),
        ENV: str(settings.get("env.name", "")),
        MAP: str(settings.get("env.map", "")),
        STEPS: format_argument(settings.get("train.t_max")),
        SEEDS: format_argument(settings.get("seed")),
        NAME: name,
    }
    texts = {key: text for key, text in texts.items() if text}
    return texts | {key: format_argument(settings[key]) for key in find_changed_settings(settings)}


def make_clone_texts(run: RunRow, *, seed: int | None = None) -> dict[str, str]:
    """Return the texts that request a stored run again, with another seed if `seed` is set.

    An automatic name (of a single run or of a run of a sweep) is left out, so that the new run gets one that fits its
    values. Any other name is kept, after "Clone of" or with the new seed.
    """
    has_automatic_name = run.sweep_id is not None or run.name == make_run_name(run.config)
    name = "" if has_automatic_name else f"Clone of {run.name.removeprefix('Clone of ')}"
    if seed is None:
        return make_texts(run.config, name=name)
    if name:
        former_end = f"seed {run.seed}"
        start = run.name.removesuffix(former_end) if run.name.endswith(former_end) else f"{run.name}, "
        name = f"{start}seed {seed}"
    return make_texts(run.config, name=name) | {SEEDS: str(seed)}


def resolve_defaults(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the default of every setting for a run's task, length and preset.

    The result is empty if the task, algorithm or preset does not exist in this version.
    """
    steps = settings.get("train.t_max")
    try:
        defaults = resolve(
            env=str(settings.get("env.name")),
            map=str(settings.get("env.map")),
            algo=str(settings.get("algo")),
            steps=steps if isinstance(steps, int) else None,
            preset=str(settings.get("preset", "paper")),
        )
    except ConfigError:
        return {}
    return flatten(defaults)


def find_changed_settings(settings: Mapping[str, Value]) -> list[str]:
    """List the settings of a run that differ from its preset; all of them if the preset is unknown."""
    defaults = resolve_defaults(settings)
    changed = [key for key in settings if key not in defaults or defaults[key] != settings[key]]
    return [key for key in changed if key not in CHOICE_SETTINGS]


def write_command(texts: FieldTexts) -> str:
    """Write the command that starts a request with its first seed."""
    flags = {ENV: "--env", MAP: "--map", ALGO: "--algo", STEPS: "--steps", SEEDS: "--seed", NAME: "--name"}
    words = ["emtc", "train"]
    for name, flag in flags.items():
        if texts.get(name):
            words += [flag, texts[name]]
    settings = [key for key in texts if key not in CHOICES]
    for key in (PRESET, *settings):
        if key in texts:
            words += ["--set", f"{key}={texts[key]}"]
    return " ".join(map(shlex.quote, words))


def break_lines(command: str, *, max_width: int = 56) -> str:
    """Break a command for a shell into lines, between two options and never between an option and its value.

    Args:
        command: A command of `write_command`: two words, then pairs of an option and its value.
        max_width: Width of a line [characters]. A longer option has its own line.
    """
    words = shlex.split(command)
    lines = [shlex.join(words[:2])]
    for pair in zip(words[2::2], words[3::2], strict=True):
        option = shlex.join(pair)
        if len(lines[-1]) + 1 + len(option) <= max_width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"  {option}")
    return " \\\n".join(lines)


def _read_choices(texts: FieldTexts, maps: Mapping[str, Sequence[str]], faults: dict[str, Fault]) -> dict[str, str]:
    """Read preset, algorithm, environment and map. An unknown name adds a fault and is replaced by the default."""
    choices = {name: texts.get(name) or DEFAULTS[name] for name in (PRESET, ALGO, ENV)}
    if ENV not in texts:  # a map without an environment selects the environment that has this map
        envs_with_map = [env for env, names in maps.items() if texts.get(MAP, "") in names]
        choices[ENV] = envs_with_map[0] if envs_with_map else DEFAULTS[ENV]
    valid_names: dict[str, Sequence[str]] = {PRESET: PRESETS, ALGO: list_algos(), ENV: list(maps)}
    for name, options in valid_names.items():
        if choices[name] not in options:
            faults[name] = _make_name_fault(_SETTING_OF_FIELD.get(name, name), choices[name], options)
            choices[name] = DEFAULTS[name]
    return choices | {MAP: _read_map(texts.get(MAP, ""), choices[ENV], maps, faults)}


def _read_map(map: str, env: str, maps: Mapping[str, Sequence[str]], faults: dict[str, Fault]) -> str:
    if env in IMPORTED_BY_MAP:  # its map is an import path, not one of a list of names
        return map
    if map and map not in maps[env]:
        rule = f"must be a map of {env}"
        faults.setdefault(MAP, Fault("env.map", map, rule, suggest(map, maps[env])))
    return map if map in maps[env] else maps[env][0]


def _make_name_fault(key: str, name: str, options: Sequence[str]) -> Fault:
    return Fault(key, name, "must be a name that exists", suggest(name, options))


def _parse(name: str, text: str | None, faults: dict[str, Fault], parse: Callable[[str], T]) -> T | None:
    """Parse the text of a field. Return None if the text is empty or has a fault, which is added to `faults`."""
    if not text:
        return None
    try:
        return parse(text)
    except ConfigError as exc:
        faults[name] = exc.faults[0]
        return None


def _read_settings(texts: FieldTexts, faults: dict[str, Fault]) -> dict[str, str]:
    """Select the texts of settings and add a fault for each unknown key. The values are checked later, by `resolve`."""
    valid_keys = [info.key for info in describe_fields() if info.key not in CHOICE_SETTINGS]
    settings: dict[str, str] = {}
    for key, text in texts.items():
        if key in valid_keys:
            settings[key] = text
        elif key not in CHOICES:
            faults[key] = Fault(key, rule="is not a setting", hint=suggest(key, valid_keys))
    return settings


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


def _resolve_defaults(choices: Mapping[str, str], steps: int | None) -> RunConfig:
    """Resolve the choices without settings."""
    try:
        return _resolve(choices, steps, {})
    except ConfigError:  # the environment needs settings that have no default: use the default environment
        return _resolve({**choices, ENV: DEFAULTS[ENV], MAP: _DEFAULT_MAP}, steps, {})


def _list_plugin_defaults() -> dict[str, Value]:
    plugin_keys = {key for key, _ in list_plugin_fields()}
    return {info.key: info.default for info in describe_fields() if info.key in plugin_keys}
