"""Settings that name plug-ins, and the plug-ins' own settings.

A section that names plug-ins has a field `plugin` with their own settings: `gate.plugin.cauchy.strictness`. They are
settings in all forms and in stored runs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from emtc_core.config.base import SettingError, convert_errors
from emtc_core.errors import Fault
from emtc_core.gate_laws import GATE_LAWS
from emtc_core.plugins import HOW_TO_ADD, Kind, find_plugin, list_names, list_plugins

PLUGIN_SETTINGS: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    "gate.type": ("gate", tuple(GATE_LAWS)),
    "embed.type": ("embedder", ("tcse", "dcae", "random")),
    "train.eps_schedule": ("schedule", ("linear",)),
    "record.metrics": ("metric", ()),
    "record.callbacks": ("callback", ()),
}
"""Setting → kind of plug-in that it accepts, and the built-in names. Without built-in names it is a list of plug-ins."""
PLUGIN: Final = "plugin"
"""Field of a section with the settings of plug-ins."""
PluginValues = dict[str, dict[str, Any]]
"""Name of a plug-in → its settings."""
_PREFIXES: Final[dict[Kind, str]] = {
    "environment": "env.",
    "gate": "gate.",
    "embedder": "embed.",
    "schedule": "train.",
    "metric": "record.",
    "callback": "record.",
    "mixer": "",
    "backbone": "",
}
"""Kind of plug-in → start of the keys of its settings."""


def list_choices(key: str) -> tuple[str, ...]:
    """List the names that a setting accepts, if it has built-in names and names of plug-ins; else return nothing."""
    if key not in PLUGIN_SETTINGS:
        return ()
    kind, builtin = PLUGIN_SETTINGS[key]
    return tuple(list_names(kind, builtin)) if builtin else ()


def split_names(text: str) -> list[str]:
    """Split "a, b" into names, without duplicates."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def check_installed(key: str, value: str) -> None:
    """Raise if the value of a setting of `PLUGIN_SETTINGS` is neither a built-in name nor that of a plug-in.

    Raises:
        SettingError: With the valid names.
    """
    kind, builtin = PLUGIN_SETTINGS[key]
    valid_names = list_names(kind, builtin)
    for name in [value] if builtin else split_names(value):
        if name not in valid_names:
            rule = (
                f"must be one of {', '.join(valid_names)}" if valid_names else f"must be the name of a {kind} plug-in"
            )
            raise SettingError(Fault(key, name, rule, HOW_TO_ADD))


def complete_settings(prefix: str, values: Any, *fields: str) -> Any:
    """Validate the own settings of the plug-ins that a section names, add defaults, and drop those of other plug-ins.

    Settings of a plug-in that is not installed are not changed.

    Args:
        prefix: Start of the keys of the section, such as "gate.".
        values: The values of the section, before their validation.
        fields: Fields of the section with names of plug-ins. "emtc-NAME" names the plug-in NAME.

    Raises:
        SettingError: With all faults.
    """
    given = values.get(PLUGIN, {}) if isinstance(values, Mapping) else None
    if not isinstance(given, Mapping):
        return values  # pydantic reports the wrong type
    texts = [str(values.get(field, "")) for field in fields]
    names = [name.rpartition("-")[2] for text in texts for name in split_names(text)]
    completed: dict[str, Any] = {}
    faults: list[Fault] = []
    for name in names:
        plugin = find_plugin(name)
        if plugin is None and name in given:
            completed[name] = given[name]
        elif plugin is not None and plugin.settings is not None:
            path = [f"{prefix}{PLUGIN}", name]
            try:
                completed[name] = plugin.settings.model_validate(given.get(name, {})).model_dump(mode="json")
            except ValidationError as error:
                faults += convert_errors(error, lambda parts, path=path: ".".join([*path, *parts[:1]]))
    if faults:
        raise SettingError(*faults)
    return {**values, PLUGIN: completed}


def list_plugin_fields() -> Iterable[tuple[str, Any]]:
    """List (key, pydantic field) of the settings of all plug-ins."""
    for plugin in list_plugins():
        for name, field in plugin.settings.model_fields.items() if plugin.settings else ():
            yield f"{_PREFIXES[plugin.kind]}{PLUGIN}.{plugin.name}.{name}", field


def find_owner(key: str) -> str | None:
    """Find the name of the plug-in, installed or not, to which a setting belongs; None for another setting."""
    start, _, rest = key.partition(f"{PLUGIN}.")
    return rest.partition(".")[0] if rest and start in _PREFIXES.values() else None
