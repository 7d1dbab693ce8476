"""Plug-ins: environments, mixers, gate laws and other parts from packages and modules outside this project.

A module calls `register` when it is imported. It is imported if `EMTC_PLUGINS` lists it (separated by commas), or if an
installed package names it as an entry point of the group `emtc_lab.plugins`. Child processes inherit the variable. A
stored row can never add a plug-in. The page *Plug-ins* of the guide documents the factory of each kind.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel

from emtc_core.errors import PluginError
from emtc_core.user_modules import import_user_module

Kind = Literal["environment", "mixer", "backbone", "embedder", "gate", "schedule", "metric", "callback"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
VARIABLE: Final = "EMTC_PLUGINS"
GROUP: Final = "emtc_lab.plugins"
"""Group of entry points. The value of an entry point is a module."""
HOW_TO_ADD: Final = f"For a plug-in, install its package or list its module in {VARIABLE}."
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)


@dataclass(frozen=True)
class Plugin:
    """One registered plug-in."""

    kind: Kind
    name: str
    factory: Callable[..., Any]
    settings: type[BaseModel] | None = None
    """The plug-in's own settings."""

    def bind(self, values: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the factory. If the plug-in has settings, they are its keyword argument `settings`.

        Args:
            values: The field `plugin` of the section that names the plug-in: name → settings.
        """
        if self.settings is None:
            return self.factory
        return partial(self.factory, settings=self.settings.model_validate(values.get(self.name, {})))


_REGISTERED: dict[str, Plugin] = {}


def register(kind: Kind, name: str, factory: Callable[..., Any], *, settings: type[BaseModel] | None = None) -> None:
    """Add a plug-in.

    Args:
        kind: One of `KINDS`.
        name: Its name in settings: small letters, digits and _. All plug-ins have different names.
        factory: The function or class that the page *Plug-ins* describes for this kind.
        settings: A pydantic model with the plug-in's own settings. The factory gets them as its argument `settings`.

    Raises:
        PluginError: If the kind is unknown, or the name is not valid or not unique.
    """
    if kind not in KINDS:
        raise PluginError(f"must be one of {', '.join(KINDS)}", key="kind", value=kind)
    if not _NAME.fullmatch(name):
        raise PluginError(f"must have a name of small letters, digits and _, such as my_{kind}", key=kind, value=name)
    if name in _REGISTERED:
        raise PluginError("is registered already", key=f"{_REGISTERED[name].kind} {name}")
    _REGISTERED[name] = Plugin(kind, name, factory, settings)


def list_plugins() -> list[Plugin]:
    """List the plug-ins of this machine, sorted by kind and name.

    Raises:
        PluginError: If a module of plug-ins cannot be imported.
    """
    if error := _import_modules(list_modules()):
        raise PluginError(error, hint=f"Correct it, remove it from {VARIABLE}, or uninstall its package.")
    return sorted(_REGISTERED.values(), key=lambda plugin: (plugin.kind, plugin.name))


def find_plugin(name: str) -> Plugin | None:
    """Find a plug-in by name."""
    return next((plugin for plugin in list_plugins() if plugin.name == name), None)


def get_plugin(kind: Kind, name: str) -> Plugin:
    """Get a plug-in by kind and name.

    Raises:
        PluginError: If it is not registered.
    """
    if (plugin := find_plugin(name)) is None or plugin.kind != kind:
        raise PluginError("is not installed", key=f"{kind} {name[:80]}", hint=HOW_TO_ADD)
    return plugin


def list_names(kind: Kind, builtin: Collection[str] = ()) -> list[str]:
    """List the built-in names, and the names of the plug-ins of one kind.

    Raises:
        PluginError: If a plug-in has a built-in name.
    """
    names = [plugin.name for plugin in list_plugins() if plugin.kind == kind]
    if reserved := [name for name in names if name in builtin]:
        raise PluginError("must have another name, because this name is built-in", key=f"{kind} {reserved[0]}")
    return [*builtin, *names]


def list_modules() -> tuple[str, ...]:
    """List the modules of plug-ins: those of `EMTC_PLUGINS`, then those of installed packages."""
    return (*os.environ.get(VARIABLE, "").replace(",", " ").split(), *_list_installed_modules())


@cache
def _list_installed_modules() -> tuple[str, ...]:
    return tuple(entry.module for entry in entry_points(group=GROUP))


@cache
def _import_modules(modules: tuple[str, ...]) -> str:
    """Import modules once per process; return the first error, or an empty text."""
    for module in modules:
        try:
            import_user_module(module)
        except Exception as error:  # the code of a plug-in may raise anything
            message = " ".join(str(error).split())
            return f"The plug-in module {module} cannot be imported: {type(error).__name__}: {message}"
    return ""
