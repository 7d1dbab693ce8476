"""Build a RunConfig from defaults, preset rules, a TOML file and the command line. Later sources win.

An error lists all faults. The models and their bounds are in the other modules of this package, the preset rules in
`presets/*.toml`, the parser of values in `values`.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    SettingError,
    Value,
    convert_errors,
    parse_toml,
    read_text,
)
from emtc_core.config.plugin_settings import PLUGIN, find_owner, list_choices, list_plugin_fields
from emtc_core.config.run import PRESETS, RunConfig, list_algos, split_algo
from emtc_core.config.values import FieldInfo, parse_value
from emtc_core.errors import ConfigError, Fault
from emtc_core.plugins import HOW_TO_ADD, find_plugin

_MAX_FAULTS = 10
_MAX_KEY_CHARS = 80
_INIT_DESIRABILITY = "memory.init_desirability"
_DEFAULT_MAP = "3m"
_START_VALUES = {"algo": "emtc-qplex", "seed": 1, "preset": "paper", "env.name": "skirmish"}


@dataclass(frozen=True)
class AppliedRule:
    """A preset rule that applies to the algorithm and task of a run."""

    reason: str
    values: dict[str, Value]
    """Settings by dotted key."""


def resolve(
    *,
    env: str | None = None,
    map: str | None = None,
    algo: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Value] | Sequence[str] = (),
    find_default_map: Callable[[str], str] = lambda env: _DEFAULT_MAP,
) -> RunConfig:
    """Resolve the full configuration of one run.

    An argument that is None has the value of the file, otherwise its default.

    Args:
        env: Environment name; default: skirmish.
        map: Map or scenario; default: that of `find_default_map`.
        algo: One of `list_algos()`; default: emtc-qplex.
        steps: Training length [env steps]; default: the preset's value for the task.
        seed: Seed of the run, >= 0; default: 1.
        preset: One of `PRESETS`; default: paper.
        file: TOML file; its tables are the sections of RunConfig, such as [train]. A setting that it does not have gets
            the default of this version.
        overrides: Settings by dotted key, as a mapping or as "key=value" texts. They win over all other sources.
        find_default_map: Returns the default map of an environment.

    Raises:
        ConfigError: With all faults.
    """
    arguments = {
        "algo": algo, "seed": seed, "preset": preset, "env.name": env, "env.map": map, "train.t_max": steps,
    }  # fmt: skip
    given = {key: value for key, value in arguments.items() if value is not None} | parse_overrides(overrides)
    from_file = flatten_tree(parse_toml(read_text(file), str(file))) if file else {}
    start: dict[str, Any] = {**_START_VALUES, **from_file, **given}
    preset, algo, env = str(start["preset"]), str(start["algo"]), str(start["env.name"])
    map = str(start["env.map"]) if "env.map" in start else find_default_map(env)
    flat = start | {"env.map": map} | _preset_values(preset, env=env, map=map, algo=algo) | from_file | given
    if flat.get(_INIT_DESIRABILITY) == "emu_table":  # use the value of the preset emu_code for this task
        flat[_INIT_DESIRABILITY] = _preset_values("emu_code", env=env, map=map, algo=algo)[_INIT_DESIRABILITY]
    _refuse_unknown_keys(flat)
    config = _validate(flat)
    if config.gate.tau_decay_steps is None:
        flat["gate.tau_decay_steps"] = config.train.t_max // 2
        config = _validate(flat)
    return config


def list_keys() -> set[str]:
    """List the keys of all settings, with those of plug-ins."""
    return {key for key, _ in _list_fields()}


def _list_fields() -> Iterable[tuple[str, Any]]:
    yield from _walk_fields(RunConfig, "")
    yield from list_plugin_fields()


def describe_fields() -> list[FieldInfo]:
    """List all settings in the order of declaration, with those of plug-ins at the end of their section."""
    fields = [_make_field_info(key, field) for key, field in _list_fields()]
    sections = list(dict.fromkeys(info.key.partition(".")[0] for info in fields))
    return sorted(fields, key=lambda info: sections.index(info.key.partition(".")[0]))


def flatten(config: RunConfig) -> dict[str, Value]:
    """Convert a configuration to values by dotted key."""
    return dict(_flatten(config.model_dump(mode="json"), ""))


def flatten_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the tables of a file, or the stored configuration of a run, to values by dotted key.

    Raises:
        ConfigError: If it is nested too deeply.
    """
    try:
        return dict(_flatten(tree, ""))
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key="configuration") from exc


def config_from_stored(stored: Mapping[str, Any]) -> RunConfig:
    """Rebuild the configuration of a stored run.

    Raises:
        ConfigError: If the stored settings are not valid in this version.
    """
    return _validate(flatten_tree(stored))


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return a copy of a configuration with some settings changed; `overrides` are "key=value" texts.

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
        all_keys = list_keys()
        faults = convert_errors(exc, lambda parts: _find_key(parts, all_keys))
        choices = {info.key: info.choices for info in describe_fields()}
        raise ConfigError(*(_add_suggestion(fault, choices.get(fault.key, ())) for fault in faults)) from exc


def _add_suggestion(fault: Fault, choices: Sequence[str]) -> Fault:
    """Add a hint with the most similar choice, if the value is a text."""
    if fault.hint or fault.value in choices or not isinstance(fault.value, str):
        return fault
    return replace(fault, hint=suggest(fault.value, choices))


def suggest(text: str, options: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that contains the most similar option.

    Args:
        text: The text that was entered.
        options: The valid texts.
        otherwise: Result if no option is similar.
    """
    matches = difflib.get_close_matches(text[:_MAX_KEY_CHARS], options, n=1, cutoff=0.5)
    return f'Did you mean "{matches[0]}"?' if matches else otherwise


def _find_key(parts: Sequence[str], all_keys: AbstractSet[str]) -> str:
    """Return the key of a setting for pydantic's location. For a union type the location ends with a type's name."""
    keys = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((key for key in keys if key in all_keys), keys[0] if keys else "")


def _refuse_unknown_keys(flat: Mapping[str, Any]) -> None:
    all_keys = list_keys()
    unknown = [key for key in flat if key not in all_keys]
    faults = [_make_unknown_key_fault(key, all_keys) for key in unknown[:_MAX_FAULTS]]
    if len(unknown) > _MAX_FAULTS:
        faults.append(Fault(rule=f"There are {len(unknown) - _MAX_FAULTS:,} more unknown settings"))
    if faults:
        raise ConfigError(*faults)


def _make_unknown_key_fault(key: str, all_keys: Iterable[str]) -> Fault:
    plugin_name = find_owner(key)
    if plugin_name and find_plugin(plugin_name) is None:
        return Fault(key, rule=f"belongs to the plug-in {plugin_name}, which is not installed", hint=HOW_TO_ADD)
    return Fault(
        key, rule="is not a setting", hint=suggest(key, all_keys, "List all settings with: emtc train --help-keys")
    )


def parse_overrides(overrides: Mapping[str, Value] | Sequence[str]) -> dict[str, Any]:
    """Return settings by dotted key. Values of "key=value" texts are parsed.

    Raises:
        ConfigError: If a text has no key or no value.
    """
    if isinstance(overrides, Mapping):
        return dict(overrides)
    fields = {info.key: info for info in describe_fields()}
    parsed = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError("must be key=value", key="--set", value=text)
        info = fields.get(key.strip())
        parsed[key.strip()] = parse_value(info, value) if info else value.strip()
    return parsed


def _preset_values(preset: str, *, env: str, map: str, algo: str) -> dict[str, Any]:
    if preset not in PRESETS:
        raise ConfigError(f"must be one of {', '.join(PRESETS)}", key="preset", value=preset)
    values: dict[str, Any] = {}
    for name in dict.fromkeys(("paper", preset)):
        for rule in applied_rules(name, env=env, map=map, algo=algo):
            values |= rule.values
    return values


def applied_rules(preset: str, *, env: str, map: str, algo: str) -> list[AppliedRule]:
    """List the preset's rules for an algorithm and task, in the order in which they apply.

    Args:
        preset: One of `PRESETS`. The rules of "paper", on which all presets are based, are not added.
        env: Environment name.
        map: Map or scenario.
        algo: One of `list_algos()`.

    Raises:
        ConfigError: If the algorithm is unknown.
    """
    try:
        method, backbone = split_algo(algo)
    except SettingError as exc:
        raise ConfigError(*exc.faults) from exc
    task = {"env": env, "map": map, "method": method, "backbone": backbone}
    return [
        AppliedRule(rule["why"], rule["set"])
        for rule in _read_preset(preset)["rule"]
        if all(task[name] in allowed for name, allowed in rule["when"].items())
    ]


def describe_presets() -> dict[str, str]:
    """Return name → summary of each preset."""
    return {name: str(_read_preset(name)["summary"]) for name in PRESETS}


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
                raise ConfigError("must not be under a setting that has a value", key=key)
        node[leaf] = value
    return tree


def _walk_fields(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, Any]]:
    """List (dotted key, pydantic field) of all settings of a model and its sections."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if name == PLUGIN:
            continue
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk_fields(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", field


def _make_field_info(key: str, field: Any) -> FieldInfo:
    annotation, metadata, optional, words = _unwrap(field.annotation, list(field.metadata))
    choices = tuple(str(c) for c in get_args(annotation)) if get_origin(annotation) is Literal else ()
    choices = tuple(list_algos()) if key == "algo" else list_choices(key) or choices
    lows = [m.ge if isinstance(m, Ge) else m.gt for m in metadata if isinstance(m, Ge | Gt)]
    highs = [m.le if isinstance(m, Le) else m.lt for m in metadata if isinstance(m, Le | Lt)]
    text = field.description or ""
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
    """Split an annotation into its plain type, its metadata, whether it is optional, and texts that it also accepts.

    `Optional` and `Annotated` are removed. The argument `metadata` is the metadata of the outermost `Annotated`, which
    pydantic stores in the field.
    """
    optional, words = False, ()
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        words = tuple(
            str(word) for literal in inner[1:] if get_origin(literal) is Literal for word in get_args(literal)
        )
        optional, annotation = len(inner) < len(get_args(annotation)), inner[0]
    if hasattr(annotation, "__metadata__"):
        for extra in annotation.__metadata__:
            metadata.extend(getattr(extra, "metadata", [extra]))
        annotation = annotation.__origin__
    return annotation, metadata, optional, words
