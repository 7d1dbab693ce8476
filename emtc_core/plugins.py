"""Plug-ins: environments, mixers, embedders, gates, schedules, callbacks and metrics of other packages and modules.

Every plug-in is an entry point in one of the groups of `GROUPS`. The user of this machine adds it in one of two places:

  * in the metadata of an installed distribution. Its module is imported when the plug-in is used;
  * in a module that the environment variable `EMTC_PLUGINS` lists (separated by commas). The module is imported and
    adds entry points with `register`.

A stored row can never add a plug-in. Child processes inherit both places with the environment. The contract of each
kind is documented where the kind is used.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from emtc_core.errors import NO_VALUE, Fault, PluginError

Kind = Literal["env", "mixer", "embedder", "gate", "schedule", "callback", "metric"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
GROUPS: Final[dict[Kind, str]] = {kind: f"emtc_lab.{kind}s" for kind in KINDS}
"""Entry-point group of each kind: emtc_lab.envs, emtc_lab.mixers, …"""
VARIABLE = "EMTC_PLUGINS"
FOLDER_VARIABLE = "EMTC_ENV_FOLDER"
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
"""Valid name of a plug-in. It is part of algorithm names, setting keys and metric names."""

Factory = TypeVar("Factory")


@dataclass(frozen=True)
class Plugin:
    """One plug-in. Its module may not be imported yet."""

    kind: Kind
    origin: str
    """Distribution and version, "my-package 0.1", or "module my_gates"."""
    entry_point: EntryPoint
    """Name, module, and name of the function or class in its module."""
    factory: Any = None
    """The function or class, if `register` added the entry point. Otherwise `load` imports it."""

    @property
    def name(self) -> str:
        """Name of the plug-in in settings."""
        return self.entry_point.name

    @property
    def module(self) -> str:
        """Dotted name of the defining module."""
        return self.entry_point.module

    @property
    def function_name(self) -> str:
        """Name of the plug-in's function or class in its module; empty for a lambda."""
        return (self.entry_point.attr or "").partition(".")[0]

    @property
    def label(self) -> str:
        """Name with origin: "halfway (my-package 0.1)"."""
        return f"{self.name} ({self.origin})"

    def load(self) -> Any:
        """Return the plug-in's function or class; import its module if necessary.

        Raises:
            PluginError: If the import fails. The cause has the traceback.
        """
        if self.factory is not None:
            return self.factory
        try:
            return self.entry_point.load()
        except Exception as error:  # the code of a plug-in may raise anything
            raise PluginError(f"cannot be loaded: {_describe(error)}", key=f"{self.kind} {self.label}") from error


@dataclass(frozen=True)
class PluginFile:
    """A plug-in whose module is imported in this process, and the file of the module."""

    kind: Kind
    name: str
    origin: str
    module: str
    file: Path | None


_REGISTERED: dict[tuple[Kind, str], Plugin] = {}
"""The plug-ins of the modules in `EMTC_PLUGINS`, by kind and name."""


def register(kind: Kind, name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that adds an entry point for a function or class of an `EMTC_PLUGINS` module.

    Raises:
        PluginError: If the kind is unknown or the name is not valid.
    """
    if kind not in KINDS:
        raise PluginError(f"must be one of {', '.join(KINDS)}", key="kind", value=kind)
    if not NAME.fullmatch(name):
        raise PluginError(f"must have a name of small letters, digits and _, such as my_{kind}", key=kind, value=name)

    def decorate(factory: Factory) -> Factory:
        module = getattr(factory, "__module__", "?")
        function = str(getattr(factory, "__qualname__", "")).partition(".")[0]
        value = f"{module}:{function}" if function.isidentifier() else module  # a lambda has no valid name
        _REGISTERED[kind, name] = Plugin(kind, f"module {module}", EntryPoint(name, value, GROUPS[kind]), factory)
        return factory

    return decorate


def list_plugins(kind: Kind | None = None) -> list[Plugin]:
    """List the plug-ins of this machine, sorted by kind and name. If two have one name, the first is listed."""
    plugins: dict[tuple[Kind, str], Plugin] = {}
    for plugin in _list_all():
        plugins.setdefault((plugin.kind, plugin.name), plugin)
    return [plugins[key] for key in sorted(plugins) if kind in (None, key[0])]


def list_names(kind: Kind) -> list[str]:
    """List the names of the plug-ins of one kind."""
    return [plugin.name for plugin in list_plugins(kind)]


def find_plugin(kind: Kind, name: str) -> Plugin | None:
    """Find a plug-in by kind and name; None if there is none.

    Raises:
        PluginError: If two packages provide it.
    """
    matches = [plugin for plugin in _list_all() if (plugin.kind, plugin.name) == (kind, name)]
    if len({plugin.origin for plugin in matches}) > 1:
        origins = " and ".join(plugin.origin for plugin in matches)
        raise PluginError(f"is in two packages: {origins}", key=f"{kind} {name}", hint="Uninstall one of them.")
    return matches[0] if matches else None


def get_plugin(kind: Kind, name: str, *, builtin: Iterable[str] = (), origin: str = "") -> Plugin:
    """Get a plug-in by kind and name.

    Args:
        kind: Kind of plug-in.
        name: Its name.
        builtin: Built-in names, for the message.
        origin: Origin of the plug-in that a stored run used, for the message.

    Raises:
        PluginError: If there is none. The message contains what to install.
    """
    plugin = find_plugin(kind, name)
    if plugin is None:
        raise PluginError(make_missing_fault(kind, name, builtin=builtin, origin=origin))
    return plugin


def make_missing_fault(
    kind: str,
    name: str,
    *,
    key: str = "",
    value: object = NO_VALUE,
    builtin: Iterable[str] = (),
    origin: str = "",
) -> Fault:
    """Make the fault of a plug-in that is not installed, with a hint how to install it.

    Args:
        kind: Its kind, or "plug-in" if the kind is unknown.
        name: Its name.
        key: The setting that contains the name; the default is the kind.
        value: The value of the setting, if it differs from the name.
        builtin: Names that are not plug-ins.
        origin: Origin of the plug-in that a stored run used.
    """
    names = ", ".join([*builtin, *(plugin.name for plugin in list_plugins() if kind in (plugin.kind, "plug-in"))])
    if origin.startswith("module "):
        hint = f"The run used it from {origin}: list that in {VARIABLE}."
    elif origin:
        package, _, version = origin.rpartition(" ")
        hint = f"The run used it from {origin}: pip install {package}=={version}"
    else:
        hint = f"Install the package that provides it, or list its module in {VARIABLE}."
    if failures := [f"import of {module} failed ({reason})" for module, reason in list_failures().items()]:
        hint += f" {VARIABLE} lists a module that cannot be imported: {'; '.join(failures)}."
    rule = f"must be the name of an installed {kind}"
    return Fault(key or kind, name[:80] if value is NO_VALUE else value, f"{rule}: {names}" if names else rule, hint)


def list_failures() -> dict[str, str]:
    """List the modules of `EMTC_PLUGINS` that could not be imported, each with its error."""
    return dict(_import_listed_modules(os.environ.get(VARIABLE, ""), str(get_user_folder())))


def list_loaded() -> list[PluginFile]:
    """List the plug-ins whose modules are imported in this process, with the files of the modules."""
    loaded: list[PluginFile] = []
    for plugin in _list_all():
        if plugin.module in sys.modules:
            file = getattr(sys.modules[plugin.module], "__file__", None)
            path = Path(file) if file else None
            loaded.append(PluginFile(plugin.kind, plugin.name, plugin.origin, plugin.module, path))
    return loaded


def find_failed_plugin(error: BaseException) -> Plugin | None:
    """Find the plug-in whose code raised an error or one of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        for frame in reversed(frames):
            plugins = [plugin for plugin in _list_all() if plugin.module == frame.f_globals.get("__name__")]
            if plugins:
                function = frame.f_code.co_qualname.partition(".")[0]
                same_function = [plugin for plugin in plugins if plugin.function_name == function]
                return (same_function or plugins)[0]
        cause = cause.__cause__
    return None


def describe_failure(error: BaseException) -> str:
    """Describe the error that ended a run in one sentence, with the plug-in that raised it, if any."""
    plugin = None if isinstance(error, PluginError) else find_failed_plugin(error)
    if plugin is None:
        return f"{type(error).__name__}: {error}"
    return f"The {plugin.kind} {plugin.label} failed: {_describe(error)}. Its traceback is in the run's log."


def get_user_folder() -> Path:
    """Return the folder of the user's modules: where the command was started. Trainers get it by a variable."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.cwd())


def has_user_module(module: str) -> bool:
    """Check whether a top-level module is found, also in the folder where the command was started. No import."""
    try:
        spec = find_spec(module)
    except ValueError:  # a loaded module without a specification, such as __main__
        spec = None
    return spec is not None or PathFinder.find_spec(module, [str(get_user_folder())]) is not None


def import_user_module(module: str) -> Any:
    """Import a module that may be in the folder where the command was started."""
    if (folder := str(get_user_folder())) not in sys.path:
        sys.path.append(folder)
    return import_module(module)


def _list_all() -> list[Plugin]:
    _import_listed_modules(os.environ.get(VARIABLE, ""), str(get_user_folder()))
    return [*_read_entry_points(tuple((path, _read_mtime(path)) for path in sys.path)), *_REGISTERED.values()]


def _read_mtime(path: str) -> float:
    try:
        return os.stat(path or ".").st_mtime  # noqa: PTH116 - called often, for six folders at a time
    except OSError:
        return 0.0


@lru_cache(maxsize=4)
def _read_entry_points(path: tuple[tuple[str, float], ...]) -> tuple[Plugin, ...]:
    """Read the entry points of all distributions, without importing them.

    Args:
        path: Entries of `sys.path` with their modification times, so that the cache notices an installation.
    """
    entries, plugins = entry_points(), list[Plugin]()
    for kind, group in GROUPS.items():
        for entry in entries.select(group=group):
            if NAME.fullmatch(entry.name):
                origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else f"module {entry.module}"
                plugins.append(Plugin(kind, origin, entry))
    return tuple(plugins)


@cache
def _import_listed_modules(names: str, folder: str) -> tuple[tuple[str, str], ...]:
    """Import the modules of `EMTC_PLUGINS`, once per value of both arguments; return (module, error) of failures."""
    failures: list[tuple[str, str]] = []
    for module in names.replace(",", " ").split():
        try:
            import_user_module(module)
        except Exception as error:  # the code of a plug-in may raise anything; `make_missing_fault` reports it
            failures.append((module, _describe(error)))
    return tuple(failures)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}" if str(error) else type(error).__name__
