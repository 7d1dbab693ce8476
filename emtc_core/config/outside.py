"""Settings that name plug-ins, and settings that plug-ins have themselves: environments, gates and mixers.

A setting of `PLUGGED` takes this project's own names and those that `emtc_core.plugins` knows. The arguments of a
plug-in are the fields of a pydantic model or the typed parameters of its factory: `env.<name>.<argument>`,
`gate.<name>.…`, `mixer.<name>.…`, on every form and in every stored run. What does not live here: the rest of the
tree, and what a plug-in does.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from emtc_core.config.base import SettingError, read_faults
from emtc_core.errors import Fault, PluginError
from emtc_core.plugins import Kind, Plugin, find_plugin, list_names, list_plugins, missing_fault

PLUGGED: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    "gate.type": ("gate", ("gaussian",)),
    "embed.type": ("embedder", ("tcse", "dcae", "random")),
    "train.eps_schedule": ("schedule", ("linear",)),
}
"""Setting → kind of plug-in that it takes, and this project's own names."""
LISTED: Final[dict[str, Kind]] = {"record.callbacks": "callback", "record.metrics": "metric"}
"""Settings that take any number of names, with commas between them."""
ORIGINS: Final = "plugins"
"""Not a setting: what a run's plug-ins were, kind → name → origin."""
ARGUED: Final[dict[Kind, int]] = {"env": 0, "gate": 3, "mixer": 2}
"""Kinds that have arguments → what comes before those: (delta, tau, context), (config, info)."""
MIXER: Final = "mixer"
"""Not a setting itself, but the head of those of mixers from outside."""
_NOT_ARGUMENTS = ("map", "n_envs")


def list_choices(key: str) -> tuple[str, ...]:
    """List the names that a setting takes; nothing for a setting that names no plug-in."""
    if key not in PLUGGED:
        return ()
    kind, own = PLUGGED[key]
    return (*own, *(name for name in list_names(kind) if name not in own))


def split_names(text: str) -> list[str]:
    """Split "a, b" into its names, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def find_named(values: Mapping[str, Any]) -> Iterable[tuple[str, Kind, str]]:
    """List the plug-ins that settings name: (setting, kind, name); `values` by dotted key."""
    for key, (kind, own) in PLUGGED.items():
        if (name := values.get(key)) and name not in own:
            yield key, kind, str(name)
    for key, kind in LISTED.items():
        for name in split_names(str(values.get(key) or "")):
            yield key, kind, name


def check_named(values: Mapping[str, Any], origins: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a plug-in that is not here.

    Raises:
        SettingError: With the setting, and what to install.
    """
    for key, kind, name in find_named(values):
        own = PLUGGED[key][1] if key in PLUGGED else ()
        try:
            found = find_plugin(kind, name)
        except PluginError as error:
            raise SettingError(*(replace(fault, key=key) for fault in error.faults)) from error
        if found is None:
            origin = origins.get(kind, {}).get(name, "")
            raise SettingError(missing_fault(kind, name, key=key, known=own, origin=origin))


def read_arguments(kind: Kind, name: str, given: Any) -> dict[str, Any] | None:
    """Validate the arguments of a plug-in, defaults filled in; None where there is none of that name.

    Raises:
        SettingError: With all faults, by the keys of the settings.
        PluginError: If it cannot be loaded.
    """
    plugin = find_plugin(kind, name)
    if plugin is None:
        return None
    model = arguments_of(plugin)
    if model is None:
        if given:
            raise SettingError(Fault(f"{kind}.{name}", given, f"must be absent: {plugin.label} takes no arguments"))
        return {}
    try:
        return model.model_validate(given or {}).model_dump(mode="json")
    except ValidationError as error:
        faults = read_faults(error, lambda parts: ".".join((kind, name, *parts)))
        known = ", ".join(f"{kind}.{name}.{each}" for each in model.model_fields)
        unknown = f"is not a setting; {kind}.{name} has {known}"
        strange = {f"{kind}.{name}.{each['loc'][0]}" for each in error.errors() if each["type"] == "extra_forbidden"}
        raise SettingError(
            *(replace(fault, rule=unknown) if fault.key in strange else fault for fault in faults)
        ) from error


def complete_arguments(kind: Kind, name: str, values: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Complete the arguments of the plug-in that a section names; those of others of its kind are left out.

    Args:
        kind: Of which kind.
        name: The one that is used; where it is not here, its arguments stay as they were.
        values: The section as it was given: its own settings, and arguments by plug-in.
        own: The section's own settings.

    Raises:
        SettingError: With all faults.
    """
    told = {key: value for key, value in values.items() if key in own or key == name or not isinstance(value, Mapping)}
    try:
        arguments = read_arguments(kind, name, values.get(name))
    except PluginError as error:
        raise SettingError(*error.faults) from error
    return {**told, name: arguments} if arguments else told


def arguments_of(plugin: Plugin) -> type[BaseModel] | None:
    """The model of a plug-in's arguments; None if it takes none.

    Raises:
        PluginError: If it cannot be loaded, or an argument has no plain type.
    """
    return _arguments_of(plugin.load(), plugin.kind, plugin.label)


@cache
def _arguments_of(factory: Callable[..., Any], kind: Kind, label: str) -> type[BaseModel] | None:
    if not callable(factory):
        raise PluginError("must be callable", key=f"{kind} {label}", value=type(factory).__name__)
    try:
        parameters = _own_parameters(factory, kind)
        hints = _hints_of(factory) if parameters else {}
    except (NameError, TypeError, ValueError) as error:
        raise PluginError(f"has arguments that cannot be read: {error}", key=f"{kind} {label}") from error
    if model := _own_model(parameters, hints):
        return model
    untyped = [each.name for each in parameters if each.name not in hints]
    if untyped:
        types = "int, float, bool, str, Literal"
        raise PluginError(f"must give its argument a type: {types}", key=f"{kind} {label}", value=untyped[0])
    fields: dict[str, Any] = {
        each.name: (hints[each.name], ... if each.default is each.empty else each.default) for each in parameters
    }
    return create_model(f"{label} arguments", __config__=_STRICT, **fields) if fields else None


_STRICT = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _own_parameters(factory: Callable[..., Any], kind: Kind) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except ValueError:  # one that is written in C does not tell
        return []
    return [each for each in parameters[ARGUED[kind] :] if _is_argument(each)]


def _hints_of(factory: Callable[..., Any]) -> dict[str, Any]:
    if inspect.isclass(factory):
        return get_type_hints(factory.__init__, include_extras=True)
    return get_type_hints(factory if inspect.isroutine(factory) else type(factory).__call__, include_extras=True)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return parameter.name not in _NOT_ARGUMENTS and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _own_model(parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> type[BaseModel] | None:
    """The model that a factory takes as its one argument, if it does."""
    hint = hints.get(parameters[0].name) if len(parameters) == 1 else None
    return hint if inspect.isclass(hint) and issubclass(hint, BaseModel) else None


def bind_arguments(plugin: Plugin, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a plug-in is called with for its validated arguments: each by its name, or all as the model it asks for."""
    if not arguments:
        return {}
    model, own = arguments_of(plugin), _own_parameters(plugin.load(), plugin.kind)
    if model is None or [each.name for each in own] == list(model.model_fields):
        return dict(arguments)
    return {own[0].name: model.model_validate(dict(arguments))}


def call_factory(plugin: Plugin, map: str, arguments: Mapping[str, Any], copies: Mapping[str, int]) -> Any:
    """Make one environment with validated arguments, and with the map where the factory asks for it."""
    factory = plugin.load()
    told = {"map": map} if "map" in inspect.signature(factory).parameters else {}
    return factory(**bind_arguments(plugin, arguments), **told, **copies)


def argument_fields() -> Iterable[tuple[str, Any]]:
    """List (key, pydantic field) of the arguments of every plug-in that can be loaded, by kind."""
    for plugin in (each for kind in ARGUED for each in list_plugins(kind)):
        try:
            model = arguments_of(plugin)
        except PluginError:
            continue  # it is told where somebody asks for that plug-in
        for name, field in model.model_fields.items() if model else ():
            yield f"{plugin.kind}.{plugin.name}.{name}", field


def owner_of(key: str) -> tuple[Kind, str] | None:
    """The plug-in whose argument a key would be, here or not: kind and name; None for any other key."""
    kind, *rest = key.split(".")
    return (kind, rest[0]) if kind in ARGUED and len(rest) > 1 else None
