"""What packages and modules outside this project bring: games, mixers, embedders, gates, schedules, callbacks, metrics.

Two ways in, both decided by this machine's user and by no stored row: an installed distribution with entry points in
the groups of `GROUPS`, read from its metadata and imported when it is used; and the modules that `EMTC_PLUGINS` lists,
with commas between them, which call `register` when they are imported. Processes that this one starts have both, as
they have its environment. What does not live here: what each kind must do, which stands where it is used.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
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
"""What a plug-in may be called: part of algorithms' names, of settings' keys and of metrics' names."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class Plugin:
    """One thing from outside, found and perhaps not imported yet."""

    kind: Kind
    name: str
    origin: str
    """Distribution and version, "my-package 0.1", or "module my_gates"."""
    module: str
    """Where it is defined, dotted."""
    source: EntryPoint | Any
    """The entry point, or what was registered."""

    @property
    def label(self) -> str:
        """Its name with its origin: "halfway (my-package 0.1)"."""
        return f"{self.name} ({self.origin})"

    @property
    def defined_as(self) -> str:
        """The name of its function or class in its module."""
        if isinstance(self.source, EntryPoint):
            return self.source.attr.partition(".")[0]
        return str(getattr(self.source, "__qualname__", "")).partition(".")[0]

    def load(self) -> Any:
        """Import what it stands for.

        Raises:
            PluginError: If that fails; the cause keeps its traceback.
        """
        if not isinstance(self.source, EntryPoint):
            return self.source
        try:
            return self.source.load()
        except Exception as error:  # anything may go wrong in a stranger's module
            raise PluginError(f"cannot be loaded: {_told(error)}", key=f"{self.kind} {self.label}") from error


@dataclass(frozen=True)
class PluginFile:
    """A plug-in whose module has been imported in this process, and the file that it came from."""

    kind: Kind
    name: str
    origin: str
    module: str
    file: Path | None


def register(kind: Kind, name: str) -> Callable[[Made], Made]:
    """Decorate what a module of `EMTC_PLUGINS` brings.

    Raises:
        PluginError: If there is no such kind, or the name cannot be part of a setting's.
    """
    if kind not in KINDS:
        raise PluginError(f"must be one of {', '.join(KINDS)}", key="kind", value=kind)
    _refuse_name(kind, name)

    def keep(made: Made) -> Made:
        module = getattr(made, "__module__", "?")
        _REGISTERED[kind, name] = Plugin(kind, name, f"module {module}", module, made)
        return made

    return keep


def list_plugins(kind: Kind | None = None) -> list[Plugin]:
    """List what this machine has from outside, by kind and name; of two of one name the first found."""
    found: dict[tuple[Kind, str], Plugin] = {}
    for plugin in _all():
        found.setdefault((plugin.kind, plugin.name), plugin)
    return [found[key] for key in sorted(found) if kind in (None, key[0])]


def list_names(kind: Kind) -> list[str]:
    """List the names of one kind."""
    return [plugin.name for plugin in list_plugins(kind)]


def find_plugin(kind: Kind, name: str) -> Plugin | None:
    """Find a plug-in; None where there is none of that name.

    Raises:
        PluginError: If two packages bring it.
    """
    found = [plugin for plugin in _all() if (plugin.kind, plugin.name) == (kind, name)]
    if len({plugin.origin for plugin in found}) > 1:
        both = " and ".join(plugin.origin for plugin in found)
        raise PluginError(f"is in two packages: {both}", key=f"{kind} {name}", hint="Uninstall one of them.")
    return found[0] if found else None


def get_plugin(kind: Kind, name: str, *, known: Iterable[str] = (), origin: str = "") -> Plugin:
    """Get a plug-in.

    Args:
        kind: Of which kind.
        name: Its name.
        known: Names that this project has itself, for the sentence.
        origin: Where a stored run had it from, for the sentence.

    Raises:
        PluginError: If there is none, naming what to install.
    """
    plugin = find_plugin(kind, name)
    if plugin is None:
        raise PluginError(missing_fault(kind, name, known=known, origin=origin))
    return plugin


def missing_fault(
    kind: str,
    name: str,
    *,
    key: str = "",
    value: object = NO_VALUE,
    known: Iterable[str] = (),
    origin: str = "",
) -> Fault:
    """Describe that a plug-in is not installed, and how to get it.

    Args:
        kind: Its kind, or "plug-in" if that is not known.
        name: Its name.
        key: The setting that names it; without one the fault has the kind as its key.
        value: The value of that setting, if it is more than the name.
        known: Names that this project has itself.
        origin: Where a stored run had it from.
    """
    here = ", ".join([*known, *(plugin.name for plugin in list_plugins() if kind in (plugin.kind, "plug-in"))])
    lost = [f"{module} failed when it was imported ({why})" for module, why in list_failures().items()]
    faults = f" {VARIABLE} lists a module that cannot be imported: {'; '.join(lost)}." if lost else ""
    rule = f"must be the name of an installed {kind}"
    given = name[:80] if value is NO_VALUE else value
    return Fault(key or kind, given, f"{rule}: {here}" if here else rule, f"{_advice(origin)}{faults}")


def _advice(origin: str) -> str:
    if origin.startswith("module "):
        return f"The run had it from {origin}: list that in {VARIABLE}."
    if origin:
        package, _, version = origin.rpartition(" ")
        return f"The run had it from {origin}: pip install {package}=={version}"
    return f"Install the package that brings it, or list its module in {VARIABLE}."


def list_failures() -> dict[str, str]:
    """List the modules of `EMTC_PLUGINS` that could not be imported, each with its error."""
    return dict(_import_listed(os.environ.get(VARIABLE, ""), str(home_folder())))


def list_loaded() -> list[PluginFile]:
    """List the plug-ins whose modules this process has imported, with their files, for whoever hashes them."""
    return [
        PluginFile(plugin.kind, plugin.name, plugin.origin, plugin.module, _file_of(plugin.module))
        for plugin in _all()
        if plugin.module in sys.modules
    ]


def find_culprit(error: BaseException) -> Plugin | None:
    """Find the plug-in in whose code an error was raised, or the error that caused it."""
    at: BaseException | None = error
    while at is not None:
        frames = [frame for frame, _ in traceback.walk_tb(at.__traceback__)]
        for frame in reversed(frames):
            own = [plugin for plugin in _all() if plugin.module == frame.f_globals.get("__name__")]
            if own:
                defined = frame.f_code.co_qualname.partition(".")[0]
                return next((plugin for plugin in own if plugin.defined_as == defined), own[0])
        at = at.__cause__
    return None


def describe_failure(error: BaseException) -> str:
    """What ended a run, in one sentence that names the plug-in to blame where there is one."""
    culprit = None if isinstance(error, PluginError) else find_culprit(error)
    if culprit is None:
        return f"{type(error).__name__}: {error}"
    return f"The {culprit.kind} {culprit.label} failed: {_told(error)}. Its traceback is in the run's log."


def home_folder() -> Path:
    """Where a user's own modules are looked for: where the command was typed, which its trainers are told."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.cwd())


def import_from_home(module: str) -> Any:
    """Import a module that may lie where the command was typed."""
    if (here := str(home_folder())) not in sys.path:
        sys.path.append(here)
    return import_module(module)


_REGISTERED: dict[tuple[Kind, str], Plugin] = {}


def _all() -> list[Plugin]:
    _import_listed(os.environ.get(VARIABLE, ""), str(home_folder()))
    return [*_installed(tuple((place, _changed_at(place)) for place in sys.path)), *_REGISTERED.values()]


def _changed_at(place: str) -> float:
    """When something was last installed into a folder of the path, or removed from it."""
    try:
        return os.stat(place or ".").st_mtime  # noqa: PTH116 - asked at every look, six folders at a time
    except OSError:
        return 0.0


@lru_cache(maxsize=4)
def _installed(path: tuple[tuple[str, float], ...]) -> tuple[Plugin, ...]:
    """Read the entry points of every distribution on the path; nothing is imported."""
    found = entry_points()
    return tuple(
        Plugin(kind, entry.name, _origin_of(entry), entry.module, entry)
        for kind, group in GROUPS.items()
        for entry in found.select(group=group)
        if NAME.fullmatch(entry.name)
    )


def _origin_of(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else f"module {entry.module}"


@cache
def _import_listed(listed: str, home: str) -> tuple[tuple[str, str], ...]:
    """Import what `EMTC_PLUGINS` lists, once for each value of it; return what failed."""
    failed: list[tuple[str, str]] = []
    for module in listed.replace(",", " ").split():
        try:
            import_from_home(module)
        except Exception as error:  # a stranger's module may fail in any way; what needs it says so
            failed.append((module, _told(error)))
    return tuple(failed)


def _refuse_name(kind: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise PluginError(f"must have a name of small letters, digits and _, such as my_{kind}", key=kind, value=name)


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file) if file else None


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}" if str(error) else type(error).__name__
