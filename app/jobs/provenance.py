"""By which code a run is trained: observed by its trainer as it begins, when all modules that it uses are loaded.

    commit, dirty, diff   of the checkout, where it is one; the diff lies in the run's files
    source                a digest of the method's own modules, in a checkout and in a wheel
    modules               a digest of each module from outside: environments, plug-ins, what they import of their own
    patched               what such a module put in the place of something of the method's
    hardware              processor, cores, memory, GPU; and the versions of what is installed

Nothing is taken from the environment but names of modules. A part that cannot be observed is left out: no training
fails for it. What is read is described in `app.analysis.settings`.
"""

import logging
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import psutil
import torch

from app.analysis.provenance import digest_of_core, library_versions
from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.errors import StorageError
from emtc_core.plugins import list_loaded
from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.private_files import append_private, make_private_folder
from storage.runs.changes import update_versions
from storage.runs.rows import find_run

ROOT: Final = Path(__file__).resolve().parents[2]
_STARTED: Final = ("__main__", "__mp_main__")
OWN: Final = ("app", "emtc_core", "emtc_lab", "pages", "storage")
_LISTS: Final = ("EMTC_ENV_MODULES", "EMTC_PLUGINS")
_MOST_DIFF_BYTES: Final = 1 << 20
_MOST_FILES: Final = 2_000
_MOST_RESUMES: Final = 20
_log = logging.getLogger(__name__)


def record_provenance(db: Database, run_id: str, env: EnvConfig, *, device: torch.device, token: str) -> None:
    """Write by which code this process trains a run; of a resumed run, what differs from how it began.

    Raises:
        StorageError: If the database cannot be written, or somebody else has the run.
    """
    try:
        seen, diff = observe(env, device=device)
    except Exception as exc:  # no training fails because git, a processor or a module is odd
        _log.warning("run %s: by which code it is trained could not be observed: %r", run_id, exc)
        return
    row = find_run(db, run_id)
    update_versions(db, run_id, merge(row.versions, seen, env_step=row.env_steps), token=token)
    if diff:
        try:
            _keep(db, run_id, f"code-{seen['diff']}.diff", diff)
        except (StorageError, OSError) as exc:
            _log.warning("run %s: the changes of its code could not be kept: %s", run_id, exc)


def observe(env: EnvConfig, *, device: torch.device) -> tuple[dict[str, Any], bytes]:
    """Observe this process; return what `runs.versions` holds, and the diff of its checkout."""
    state, diff = read_checkout(ROOT)
    outside = dict(sorted(find_outside(env).items()))
    digests = {name: digest for name, module in outside.items() if (digest := digest_module(module))}
    patched = list(find_patches(tuple(outside)))
    seen = {**library_versions(), **state, "source": digest_of_core(), "hardware": describe_machine(device)}
    return seen | ({"modules": digests} if digests else {}) | ({"patched": patched} if patched else {}), diff


def merge(stored: Mapping[str, Any], seen: Mapping[str, Any], *, env_step: int) -> dict[str, Any]:
    """What a run stores after it began, or went on: how it began stays, and what differs later is listed."""
    if "source" not in stored:
        return {**stored, **seen}
    differ = sorted(key for key in {*stored, *seen} - {"resumed"} if stored.get(key) != seen.get(key))
    if not differ:
        return dict(stored)
    told = ", ".join(f"{key} {_short(seen.get(key))}" for key in differ)
    resumed = [*stored.get("resumed", []), f"from env step {env_step:,}: {told}"]
    return {**stored, "resumed": resumed[-_MOST_RESUMES:]}


def _short(value: Any) -> str:
    return "none" if value is None else str(value)[:200]


def read_checkout(root: Path) -> tuple[dict[str, Any], bytes]:
    """Commit and diff of a checkout; nothing for an installed wheel, which may lie inside somebody's repository."""
    if not (root / ".git").exists() or (commit := _git(root, "rev-parse", "HEAD")) is None:
        return {}, b""
    parts = ("--", *(name for name in (*OWN, "pyproject.toml") if (root / name).exists()))
    diff = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", *parts) or b""
    for name in (_git(root, "ls-files", "--others", "--exclude-standard", *parts) or b"").decode().splitlines():
        diff += f"# not in git: {name} {_digest_file(root / name)}\n".encode()
    state: dict[str, Any] = {"commit": commit.decode().strip(), "dirty": bool(diff)}
    if diff:
        state["diff"] = _digest(diff)
    cut = b"" if len(diff) <= _MOST_DIFF_BYTES else b"\n# cut here: %d bytes in all\n" % len(diff)
    return state, diff[:_MOST_DIFF_BYTES] + cut


def _git(root: Path, *arguments: str) -> bytes | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, check=False, timeout=10, env=environment)
        return done.stdout if done.returncode == 0 else None
    return None


def find_outside(env: EnvConfig) -> dict[str, ModuleType]:
    """Loaded packages and modules that are neither ours, nor Python's, nor merely installed: hers, and those listed."""
    listed = {entry.partition(":")[0].partition(".")[0] for name in _LISTS for entry in _entries(name)}
    if env.name in IMPORTED_BY_MAP:
        listed.add(env.map.partition(":")[0].partition(".")[0])
    listed |= {plugin.module.partition(".")[0] for plugin in list_loaded()}
    loaded = {name: module for name, module in list(sys.modules.items()) if "." not in name and name not in OWN}
    return {
        name: module
        for name, module in loaded.items()
        if name not in _STARTED and _place(module) and (name in listed or not _is_installed(_place(module)))
    }


def _entries(variable: str) -> list[str]:
    return os.environ.get(variable, "").replace(",", " ").split()


def _place(module: ModuleType) -> str:
    place = getattr(module, "__file__", None)
    return place if isinstance(place, str) else ""


def _is_installed(place: str) -> bool:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.base_prefix, sys.prefix}
    return "site-packages" in place or any(place.startswith(f"{folder}{os.sep}") for folder in folders)


def digest_module(module: ModuleType) -> str:
    """A digest of a module's file, or of every module of a package; nothing where there is no file."""
    place = Path(_place(module))
    if place.name != "__init__.py":
        return _digest_file(place)
    files = sorted(place.parent.rglob("*.py"))[:_MOST_FILES]
    return _digest(b"".join(str(each.relative_to(place.parent)).encode() + each.read_bytes() for each in files))


def _digest_file(place: Path) -> str:
    try:
        return _digest(place.read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def find_patches(outside: tuple[str, ...]) -> Iterator[str]:
    """Find what modules from outside put in the place of functions, classes, methods or list entries of the method's.

    An entry under a name of its own is no patch: that is how plug-ins are listed.
    """
    modules = {name: module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "emtc_core"}
    own = {
        (attribute, key)
        for module in modules.values()
        for attribute, table in list(vars(module).items())
        if isinstance(table, dict)
        for key, value in list(table.items())
        if _origin(value) == "emtc_core"
    }
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            if (origin := _origin(value)) in outside and not attribute.startswith("__"):
                yield f"{name}.{attribute} by {origin}"
            elif isinstance(value, dict):
                for key, entry in list(value.items()):
                    if (origin := _origin(entry)) in outside and (attribute, key) in own:
                        yield f"{name}.{attribute}[{key!r}] by {origin}"
            elif isinstance(value, type) and value.__module__ == name:
                for method, function in list(vars(value).items()):
                    if (origin := _origin(function)) in outside:
                        yield f"{name}.{attribute}.{method} by {origin}"


def _origin(value: object) -> str:
    """The package that a function, method or class was written in."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if not isinstance(value, FunctionType | type):
        return ""
    return str(getattr(value, "__module__", "")).partition(".")[0]


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, memory and GPU."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return {"cpu": _processor(), "cores": f"{os.cpu_count()} cores", "memory": memory, **gpu}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _keep(db: Database, run_id: str, name: str, diff: bytes) -> None:
    """Put a diff among the run's files, once."""
    files, place = run_place(db, run_id).files_of(run_id), run_folder(db, run_id) / name
    make_private_folder(place.parent)
    if not place.exists():
        with append_private(place) as file:
            file.write(diff)
        if files is not None:
            files.write(name, diff)
