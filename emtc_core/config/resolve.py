"""Build a RunConfig: defaults < rules of the preset < TOML file < command line, all faults together.

What does not live here: the models and their bounds, the rules (presets/*.toml), the parser of values (`values`).
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError

from emtc_core.config.base import (
    IMPORTED,
    Before,
    Formerly,
    SettingError,
    Value,
    parse_toml,
    read_faults,
    read_text,
)
from emtc_core.config.outside import MIXER, ORIGINS, argument_fields, list_choices, owner_of
from emtc_core.config.run import PRESETS, RunConfig, list_algos, split_algo
from emtc_core.config.values import FieldInfo, parse_value
from emtc_core.errors import NO_VALUE, ConfigError, Fault
from emtc_core.plugins import missing_fault

_MOST_FAULTS = 10
_LONGEST_KEY = 80
_INIT_DESIRABILITY = "memory.init_desirability"
_RETIRED = {"gate.reward"}  # settings of earlier versions that had one choice only


@dataclass(frozen=True)
class AppliedRule:
    """A rule of a preset that holds for some algorithm and task."""

    why: str
    values: dict[str, Value]
    """By dotted key."""


def resolve(
    *,
    env: str = "skirmish",
    map: str = "3m",
    algo: str = "emtc-qplex",
    steps: int | None = None,
    seed: int = 1,
    preset: str = "paper",
    file: Path | None = None,
    overrides: Mapping[str, Value] | Sequence[str] = (),
) -> RunConfig:
    """Resolve the full configuration of one run.

    Args:
        env: Environment name.
        map: Map or scenario.
        algo: One of `list_algos()`.
        steps: Training length [env steps]; None keeps the task's own.
        seed: Seed of the run, >= 0.
        preset: One of `PRESETS`.
        file: TOML file with sections named as the models.
        overrides: Dotted keys, as a mapping or as "key=value" texts; they win over everything.

    Raises:
        ConfigError: With all faults.
    """
    explicit = parse_overrides(overrides)
    from_file = _read_file(file) if file else {}
    preset = str(explicit.get("preset", from_file.get("preset", preset)))
    algo = str(explicit.get("algo", from_file.get("algo", algo)))
    env = str(explicit.get("env.name", from_file.get("env.name", env)))
    map = str(explicit.get("env.map", from_file.get("env.map", map)))
    flat: dict[str, Any] = {"algo": algo, "seed": seed, "preset": preset, "env.name": env, "env.map": map}
    flat |= _preset_values(preset, env=env, map=map, algo=algo) | from_file
    if steps is not None:
        flat["train.t_max"] = steps
    flat |= explicit
    if flat.get(_INIT_DESIRABILITY) == "emu_table":
        flat[_INIT_DESIRABILITY] = _preset_values("emu_code", env=env, map=map, algo=algo)[_INIT_DESIRABILITY]
    _refuse_unknown_keys(flat)
    config = _validate(flat)
    if config.gate.tau_decay_steps is None:
        flat["gate.tau_decay_steps"] = config.train.t_max // 2
        config = _validate(flat)
    return config.with_origins()


def list_keys() -> set[str]:
    """The names of every setting, those of plug-ins' arguments among them."""
    return {key for key, _ in _fields()}


def _fields() -> Iterable[tuple[str, Any]]:
    yield from _walk(RunConfig, "")
    yield from argument_fields()


def describe_fields() -> list[FieldInfo]:
    """List every setting of the tree in declaration order, arguments of plug-ins at the end of their section."""
    fields = [_field_info(key, field) for key, field in _fields()]
    sections = list(dict.fromkeys(info.key.partition(".")[0] for info in fields))
    return sorted(fields, key=lambda info: sections.index(info.key.partition(".")[0]))


def flatten(config: RunConfig) -> dict[str, Value]:
    """Turn a configuration into dotted keys and plain values."""
    return flatten_tree(config.model_dump(mode="json"))


def flatten_tree(tree: Mapping[str, Any]) -> dict[str, Value]:
    """Turn a configuration as a run stored it, whatever version wrote it, into dotted keys and plain values."""
    try:
        flat = dict(_flatten(tree, ""))
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key="configuration") from exc
    ours = {"algo", "env.name"} <= flat.keys() and flat.get("preset") != IMPORTED
    return _as_it_was(flat) if ours else flat


def value_before(key: str) -> Before | None:
    """What a stored run that does not name a setting did; None for a setting that every run names."""
    return _befores().get(current_key(key))


def current_key(key: str) -> str:
    """The key that a setting has today, whatever it was called."""
    return _former_keys().get(key, key)


def stored_keys(key: str) -> tuple[str, ...]:
    """Every key under which runs have stored a setting, today's first."""
    now = current_key(key)
    return (now, *(former for former, found in _former_keys().items() if found == now))


@cache
def _befores() -> dict[str, Before]:
    return {key: note for key, field in _walk(RunConfig, "") for note in field.metadata if isinstance(note, Before)}


@cache
def _former_keys() -> dict[str, str]:
    """Keys of today by those of earlier versions."""
    return {
        note.key: key for key, field in _walk(RunConfig, "") for note in field.metadata if isinstance(note, Formerly)
    }


def _rename(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {current_key(key): value for key, value in flat.items()}


def _as_it_was(flat: dict[str, Value]) -> dict[str, Value]:
    """Complete the settings of a stored run by what its version did, and drop what had no other choice."""
    env, algo = flat["env.name"], str(flat["algo"])
    before = {
        key: note.value
        for key, note in _befores().items()
        if note.env in ("", env) and (not note.algos or algo.startswith(note.algos))
    }
    return before | {key: value for key, value in _rename(flat).items() if key not in _RETIRED}


def config_from_stored(stored: Mapping[str, Any]) -> RunConfig:
    """Rebuild the configuration that a run stored; a setting that it does not name is as it was before it existed.

    Raises:
        ConfigError: If this version knows other settings than the one that stored it.
    """
    return _validate(flatten_tree(stored))


def change(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Set some of a configuration's settings otherwise, given as "key=value".

    Raises:
        ConfigError: With all faults.
    """
    explicit = parse_overrides(overrides)
    _refuse_unknown_keys(explicit)
    return _validate({**flatten(config), **explicit})


def _validate(flat: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(_nest(flat))
    except ValidationError as exc:
        known = list_keys()
        faults = read_faults(exc, lambda parts: _key_of(parts, known))
        choices = {info.key: info.choices for info in describe_fields()}
        raise ConfigError(*(_suggest(fault, choices.get(fault.key, ())) for fault in faults)) from exc


def _suggest(fault: Fault, choices: Sequence[str]) -> Fault:
    """Add the choice that is meant, if a text is close to one."""
    if fault.hint or fault.value in choices or not isinstance(fault.value, str):
        return fault
    return replace(fault, hint=suggest(fault.value, choices))


def suggest(text: str, options: Iterable[str], otherwise: str = "") -> str:
    """Write which of some names is probably meant; `otherwise` if none is close."""
    close = difflib.get_close_matches(text[:_LONGEST_KEY], options, n=1, cutoff=0.5)
    return f'Did you mean "{close[0]}"?' if close else otherwise


def _key_of(parts: Sequence[str], known: AbstractSet[str]) -> str:
    """The setting at a place in the tree; where it may be of several types, the place ends in one of their names."""
    keys = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((key for key in keys if key in known), keys[0] if keys else "")


def _refuse_unknown_keys(flat: Mapping[str, Any]) -> None:
    known = list_keys()
    unknown = [key for key in flat if key not in known]
    faults = [_unknown_key(key, known) for key in unknown[:_MOST_FAULTS]]
    if len(unknown) > _MOST_FAULTS:
        faults.append(Fault(rule=f"There are {len(unknown) - _MOST_FAULTS:,} more unknown settings"))
    if faults:
        raise ConfigError(*faults)


def _unknown_key(key: str, known: Iterable[str]) -> Fault:
    owner = owner_of(key)
    if owner and not any(owner_of(each) == owner for each in known):
        return replace(
            missing_fault(*owner),
            key=key,
            value=NO_VALUE,
            rule=f"belongs to the {owner[0]} {owner[1]}, which is not here",
        )
    return Fault(
        key, rule="is not a setting", hint=suggest(key, known, "List all settings with: emtc train --help-keys")
    )


def parse_overrides(overrides: Mapping[str, Value] | Sequence[str]) -> dict[str, Any]:
    """Read settings by dotted key, under their names of today; those given as "key=value" texts are parsed.

    Raises:
        ConfigError: If a text has no key or no value.
    """
    if isinstance(overrides, Mapping):
        return _rename(overrides)
    fields = {info.key: info for info in describe_fields()}
    parsed = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError("must be key=value", key="--set", value=text)
        info = fields.get(current_key(key.strip()))
        parsed[key.strip()] = parse_value(info, value) if info else value.strip()
    return _rename(parsed)


def _read_file(path: Path) -> dict[str, Any]:
    return _rename(flatten_tree(parse_toml(read_text(path), str(path))))


def _preset_values(preset: str, *, env: str, map: str, algo: str) -> dict[str, Any]:
    if preset not in PRESETS:
        raise ConfigError(f"must be one of {', '.join(PRESETS)}", key="preset", value=preset)
    values: dict[str, Any] = {}
    for name in dict.fromkeys(("paper", preset)):
        for rule in applied_rules(name, env=env, map=map, algo=algo):
            values |= rule.values
    return values


def applied_rules(preset: str, *, env: str, map: str, algo: str) -> list[AppliedRule]:
    """List the preset's own rules that hold for this algorithm and task, in the order in which they apply."""
    try:
        method, backbone = split_algo(algo)
    except SettingError as exc:
        raise ConfigError(*exc.faults) from exc
    facts = {"env": env, "map": map, "method": method, "backbone": backbone}
    return [
        AppliedRule(rule["why"], rule["set"])
        for rule in _rules(preset)
        if all(facts[fact] in allowed for fact, allowed in rule["when"].items())
    ]


def describe_presets() -> dict[str, str]:
    """Summary of each preset, one sentence by name."""
    return {name: str(_read_preset(name)["summary"]) for name in PRESETS}


def _rules(name: str) -> list[dict[str, Any]]:
    return _read_preset(name)["rule"]


@cache
def _read_preset(name: str) -> dict[str, Any]:
    text = files("emtc_core.config").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, leaf = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError("is a setting inside one that has a value", key=key)
        node[leaf] = value
    return tree


def _walk(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if not prefix and name in (ORIGINS, MIXER):
            continue
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", field


def _field_info(key: str, field: Any) -> FieldInfo:
    annotation, metadata, optional, words = _unwrap(field.annotation, list(field.metadata))
    choices = tuple(str(c) for c in get_args(annotation)) if get_origin(annotation) is Literal else ()
    choices = tuple(list_algos()) if key == "algo" else list_choices(key) or choices
    lows = [m.ge if isinstance(m, Ge) else m.gt for m in metadata if isinstance(m, Ge | Gt)]
    highs = [m.le if isinstance(m, Le) else m.lt for m in metadata if isinstance(m, Le | Lt)]
    text = field.description or (f"Argument {key.rpartition('.')[2]}." if owner_of(key) else "")
    unit = text[text.rfind("[") + 1 : text.rfind("]")] if "[" in text else ""
    kind = "choice" if choices else getattr(annotation, "__name__", "str")
    return FieldInfo(
        key=key,
        type=kind if kind in ("int", "float", "bool", "str", "choice") else "str",
        default=None if field.is_required() else field.default,
        minimum=float(lows[0]) if lows else None,  # type: ignore[arg-type]  # bounds here are numbers
        maximum=float(highs[0]) if highs else None,  # type: ignore[arg-type]
        choices=choices,
        unit=unit,
        description=text,
        optional=optional,
        minimum_open=any(isinstance(m, Gt) for m in metadata),
        words=("emu_table",) if key == _INIT_DESIRABILITY else words,
    )


def _unwrap(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any], bool, tuple[str, ...]]:
    """Peel Optional, Annotated and further words off a type; pydantic keeps outer metadata on the field itself."""
    optional, words = False, ()
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        words = tuple(str(word) for each in inner[1:] if get_origin(each) is Literal for word in get_args(each))
        optional, annotation = len(inner) < len(get_args(annotation)), inner[0]
    if hasattr(annotation, "__metadata__"):
        for extra in annotation.__metadata__:
            metadata.extend(getattr(extra, "metadata", [extra]))
        annotation = annotation.__origin__
    return annotation, metadata, optional, words
