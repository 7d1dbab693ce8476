"""Settings whose value is a plug-in's name, and the arguments of plug-ins as settings.

A setting of `PLUGIN_SETTINGS` accepts built-in names and names of installed plug-ins. The arguments of an environment, gate or
mixer plug-in are the fields of a pydantic model, or the typed parameters of its factory. They are settings with the keys
`env.<name>.<argument>`, `gate.<name>.…` and `mixer.<name>.…`, in all forms and in stored runs.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from emtc_core.config.base import SettingError, convert_errors
from emtc_core.errors import Fault, PluginError
from emtc_core.gate_laws import GATE_LAWS
from emtc_core.plugins import Kind, Plugin, find_plugin, list_names, list_plugins, make_missing_fault

PLUGIN_SETTINGS: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    "gate.type": ("gate", tuple(GATE_LAWS)),
    "embed.type": ("embedder", ("tcse", "dcae", "random")),
    "train.eps_schedule": ("schedule", ("linear",)),
}
"""Setting → kind of plug-in that it accepts, and the built-in names."""
PLUGIN_LIST_SETTINGS: Final[dict[str, Kind]] = {"record.callbacks": "callback", "record.metrics": "metric"}
"""Settings that accept a list of plug-in names, separated by commas."""
ORIGINS: Final = "plugins"
"""Not a setting: the plug-ins of a run, kind → name → origin."""
FIXED_PARAMETERS: Final[dict[Kind, int]] = {"env": 0, "gate": 3, "mixer": 2}
"""Kind with arguments → number of fixed parameters before them: gate (delta, tau, context), mixer (config, info)."""
MIXER: Final = "mixer"
"""Not a setting: first part of the keys of mixer plug-ins' arguments."""
_NOT_ARGUMENTS = ("map", "n_envs")
"""Parameters of an environment factory that are not settings."""
_STRICT = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True)
"""Configuration of the pydantic models of arguments."""


def list_choices(key: str) -> tuple[str, ...]:
    """List the names that a setting of `PLUGIN_SETTINGS` accepts; empty for another setting."""
    if key not in PLUGIN_SETTINGS:
        return ()
    kind, builtin = PLUGIN_SETTINGS[key]
    return (*builtin, *(name for name in list_names(kind) if name not in builtin))


def split_names(text: str) -> list[str]:
    """Split "a, b" into names, without duplicates."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def list_named_plugins(values: Mapping[str, Any]) -> Iterable[tuple[str, Kind, str]]:
    """List the plug-ins in the values of settings, as (setting, kind, name); `values` by dotted key."""
    for key, (kind, builtin) in PLUGIN_SETTINGS.items():
        if (name := values.get(key)) and name not in builtin:
            yield key, kind, str(name)
    for key, kind in PLUGIN_LIST_SETTINGS.items():
        for name in split_names(str(values.get(key) or "")):
            yield key, kind, name


def check_installed(values: Mapping[str, Any], origins: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if a setting names a plug-in that is not installed.

    Args:
        values: Settings by dotted key.
        origins: Origins of the plug-ins of a stored run: kind → name → origin.

    Raises:
        SettingError: With the setting, and what to install.
    """
    for key, kind, name in list_named_plugins(values):
        builtin = PLUGIN_SETTINGS[key][1] if key in PLUGIN_SETTINGS else ()
        try:
            plugin = find_plugin(kind, name)
        except PluginError as error:
            raise SettingError(*(replace(fault, key=key) for fault in error.faults)) from error
        if plugin is None:
            origin = origins.get(kind, {}).get(name, "")
            raise SettingError(make_missing_fault(kind, name, key=key, builtin=builtin, origin=origin))


def validate_arguments(kind: Kind, name: str, given: Any) -> dict[str, Any] | None:
    """Validate the arguments of a plug-in and add the defaults.

    Args:
        kind: Kind of the plug-in.
        name: Its name.
        given: The arguments by name, as stored or as set by the user.

    Returns:
        The arguments, or None if the plug-in is not installed.

    Raises:
        SettingError: With all faults, by the keys of the settings.
        PluginError: If the plug-in cannot be loaded.
    """
    plugin = find_plugin(kind, name)
    if plugin is None:
        return None
    model = make_argument_model(plugin)
    if model is None:
        if given:
            raise SettingError(Fault(f"{kind}.{name}", given, f"must be absent: {plugin.label} takes no arguments"))
        return {}
    try:
        return model.model_validate(given or {}).model_dump(mode="json")
    except ValidationError as error:
        faults = convert_errors(error, lambda parts: ".".join((kind, name, *parts)))
        keys = ", ".join(f"{kind}.{name}.{field}" for field in model.model_fields)
        rule = f"is not a setting; {kind}.{name} has {keys}"
        unknown = {f"{kind}.{name}.{item['loc'][0]}" for item in error.errors() if item["type"] == "extra_forbidden"}
        raise SettingError(
            *(replace(fault, rule=rule) if fault.key in unknown else fault for fault in faults)
        ) from error


def complete_arguments(kind: Kind, name: str, values: Mapping[str, Any], setting_keys: Iterable[str]) -> dict[str, Any]:
    """Validate the arguments of the plug-in that a section uses, and drop the arguments of other plug-ins.

    Args:
        kind: Kind of the plug-in.
        name: Name of the plug-in that is used. If it is not installed, its arguments are not changed.
        values: The section: its settings, and arguments by plug-in.
        setting_keys: Keys of the section's settings.

    Raises:
        SettingError: With all faults.
    """
    section = {
        key: value
        for key, value in values.items()
        if key in setting_keys or key == name or not isinstance(value, Mapping)
    }
    try:
        arguments = validate_arguments(kind, name, values.get(name))
    except PluginError as error:
        raise SettingError(*error.faults) from error
    return {**section, name: arguments} if arguments else section


def make_argument_model(plugin: Plugin) -> type[BaseModel] | None:
    """Return the pydantic model of a plug-in's arguments; None if it has none.

    Raises:
        PluginError: If the plug-in cannot be loaded, or an argument has no type.
    """
    return _make_argument_model(plugin.load(), plugin.kind, plugin.label)


@cache
def _make_argument_model(factory: Callable[..., Any], kind: Kind, label: str) -> type[BaseModel] | None:
    if not callable(factory):
        raise PluginError("must be callable", key=f"{kind} {label}", value=type(factory).__name__)
    try:
        parameters = _list_parameters(factory, kind)
        hints = _read_hints(factory) if parameters else {}
    except (NameError, TypeError, ValueError) as error:
        raise PluginError(f"has arguments that cannot be read: {error}", key=f"{kind} {label}") from error
    hint = hints.get(parameters[0].name) if len(parameters) == 1 else None
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        return hint
    untyped = [parameter.name for parameter in parameters if parameter.name not in hints]
    if untyped:
        types = "int, float, bool, str, Literal"
        raise PluginError(f"must give its argument a type: {types}", key=f"{kind} {label}", value=untyped[0])
    fields: dict[str, Any] = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in parameters
    }
    return create_model(f"{label} arguments", __config__=_STRICT, **fields) if fields else None


def _list_parameters(factory: Callable[..., Any], kind: Kind) -> list[inspect.Parameter]:
    """List the parameters of a factory that are settings."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except ValueError:  # a function written in C may have no signature
        return []
    return [
        parameter
        for parameter in parameters[FIXED_PARAMETERS[kind] :]
        if parameter.name not in _NOT_ARGUMENTS
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _read_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    if inspect.isclass(factory):
        return get_type_hints(factory.__init__, include_extras=True)
    return get_type_hints(factory if inspect.isroutine(factory) else type(factory).__call__, include_extras=True)


def bind_arguments(plugin: Plugin, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Make the keyword arguments of a plug-in's factory from validated arguments: by name, or as one pydantic model."""
    if not arguments:
        return {}
    model, parameters = make_argument_model(plugin), _list_parameters(plugin.load(), plugin.kind)
    if model is None or [parameter.name for parameter in parameters] == list(model.model_fields):
        return dict(arguments)
    return {parameters[0].name: model.model_validate(dict(arguments))}


def call_factory(plugin: Plugin, map: str, arguments: Mapping[str, Any], copies: Mapping[str, int]) -> Any:
    """Make one environment of a plug-in.

    Args:
        plugin: The environment.
        map: Map, passed if the factory has a parameter `map`.
        arguments: Validated arguments.
        copies: Further keyword arguments, such as the number of copies.
    """
    factory = plugin.load()
    map_argument = {"map": map} if "map" in inspect.signature(factory).parameters else {}
    return factory(**bind_arguments(plugin, arguments), **map_argument, **copies)


def argument_fields() -> Iterable[tuple[str, Any]]:
    """List (key, pydantic field) of the arguments of all plug-ins that can be loaded, by kind."""
    for plugin in (plugin for kind in FIXED_PARAMETERS for plugin in list_plugins(kind)):
        try:
            model = make_argument_model(plugin)
        except PluginError:
            continue  # reported when a run uses the plug-in
        for name, field in model.model_fields.items() if model else ():
            yield f"{plugin.kind}.{plugin.name}.{name}", field


def find_owner(key: str) -> tuple[Kind, str] | None:
    """Return kind and name of the plug-in, installed or not, whose argument has this key; None for another key."""
    kind, *rest = key.split(".")
    return (kind, rest[0]) if kind in FIXED_PARAMETERS and len(rest) > 1 else None
