"""Record the code and the machine that train a run, in the column `runs.versions`.

The entries are:


    commit, dirty, diff   of the git checkout, if there is one; the diff is a file of the run
    source                digest of the modules of `emtc_core`, in a checkout and in an installed wheel
    modules               digest of each user module: environments, plug-ins, and the modules that they import
    patched               functions or classes of `emtc_core` that a user module has replaced
    hardware              processor, cores, memory, GPU
    emtc_lab, python, …   versions of this program, Python and the libraries, one key each (`library_versions`)
    resumed               for each resume, the entries that differ from those of the start

The trainer calls `record_provenance` at its start, when all modules are loaded. Of the environment variables, only
names of modules are read, and no other variable is stored. Without git, the entries of the checkout are omitted. After
another error in `describe_process`, nothing is recorded. The training continues in both cases.
`app.analysis.settings` describes how the entries are shown.
"""

import logging
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import psutil
import torch

from app.analysis.provenance import hash_core, library_versions
from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import find_map_module
from emtc_core.errors import StorageError
from emtc_core.plugins import list_modules
from storage.engine import Database
from storage.files import run_folder
from storage.private_files import make_private_folder, open_private_append
from storage.runs.changes import update_versions
from storage.runs.rows import find_run

ROOT: Final = Path(__file__).resolve().parents[2]
_OWN_PACKAGES: Final = ("app", "emtc_core", "emtc_lab", "pages", "storage")
_MAIN_MODULES: Final = ("__main__", "__mp_main__")
_MAX_DIFF_BYTES: Final = 1 << 20
_MAX_FILES: Final = 2_000
"""Maximum number of files of a package in its digest."""
_MAX_RESUMES: Final = 20
"""Maximum number of resumes in the entry `resumed`."""
_MAX_VALUE_CHARACTERS: Final = 200
_GIT_TIMEOUT_S: Final = 10
_log = logging.getLogger(__name__)


def record_provenance(db: Database, run_id: str, env: EnvConfig, *, device: torch.device, token: str) -> None:
    """Record the code of this process in the row of a run; for a resumed run, what differs from its start.

    Args:
        db: An open database.
        run_id: The run.
        env: Environment of the run.
        device: Device of the training.
        token: Token that proves that this process is the trainer of the run.

    Raises:
        StorageError: If the database cannot be written, or another process owns the run.
    """
    try:
        entries, diff = describe_process(env, device=device)
    except Exception as exc:  # an error of git, the processor query or a user module must not end the training
        _log.warning("run %s: its code could not be described: %r", run_id, exc)
        return
    row = find_run(db, run_id)
    merged = merge_versions(row.versions, entries, env_step=row.env_steps)
    update_versions(db, run_id, merged, token=token)
    if diff:
        try:
            _write_diff(db, run_id, f"code-{entries['diff']}.diff", diff)
        except (StorageError, OSError) as exc:
            _log.warning("run %s: the diff of its code could not be written: %s", run_id, exc)


def describe_process(env: EnvConfig, *, device: torch.device) -> tuple[dict[str, Any], bytes]:
    """Return the entries of this process for `runs.versions` (code, hardware), and the diff of the checkout."""
    checkout, diff = read_checkout(ROOT)
    entries = {**library_versions(), **checkout, "source": hash_core(), "hardware": _describe_machine(device)}
    modules = dict(sorted(_find_user_modules(env).items()))
    digests: dict[str, str] = {}
    for name, module in modules.items():
        digest = digest_module(module)
        if digest:
            digests[name] = digest
    if digests:
        entries["modules"] = digests
    patches = list(_find_patches(tuple(modules)))
    if patches:
        entries["patched"] = patches
    return entries, diff


def merge_versions(stored: Mapping[str, Any], entries: Mapping[str, Any], *, env_step: int) -> dict[str, Any]:
    """Merge the stored entries with those of this process.

    The entries from the start of the run do not change. If the entries of a resume differ from them, one line is
    added to "resumed".

    Args:
        stored: Entries in the row of the run. If they do not contain "source", the run starts for the first time.
        entries: Entries of this process.
        env_step: Env step from which the run resumes.
    """
    if "source" not in stored:
        return {**stored, **entries}
    differences = []
    for key in sorted({*stored, *entries} - {"resumed"}):
        value = entries.get(key)
        if value != stored.get(key):
            differences.append(f"{key} none" if value is None else f"{key} {str(value)[:_MAX_VALUE_CHARACTERS]}")
    if not differences:
        return dict(stored)
    resumed = [*stored.get("resumed", []), f"from env step {env_step:,}: {', '.join(differences)}"]
    return {**stored, "resumed": resumed[-_MAX_RESUMES:]}


def read_checkout(root: Path) -> tuple[dict[str, Any], bytes]:
    """Read the commit and the diff of a checkout.

    Both are empty if `root` has no .git folder, as in an installed wheel. Without this check, git would search the
    parent folders and use the repository of another project.
    """
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit is None:
        return {}, b""
    paths = [name for name in (*_OWN_PACKAGES, "pyproject.toml") if (root / name).exists()]
    diff = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--", *paths) or b""
    untracked_files = _git(root, "ls-files", "--others", "--exclude-standard", "--", *paths) or b""
    for name in untracked_files.decode().splitlines():
        diff += f"# not in git: {name} {_digest_file(root / name)}\n".encode()
    state: dict[str, Any] = {"commit": commit.decode().strip(), "dirty": bool(diff)}
    if diff:
        state["diff"] = _digest(diff)  # the entry is a digest of the diff, also in the name of the diff's file
    if len(diff) > _MAX_DIFF_BYTES:
        diff = diff[:_MAX_DIFF_BYTES] + b"\n# cut here: %d bytes in all\n" % len(diff)
    return state, diff


def digest_module(module: ModuleType) -> str:
    """Compute the digest of a module's file, or of all files of a package; "" if there is no file."""
    path = Path(_get_path(module))
    if path.name != "__init__.py":
        return _digest_file(path)
    files = sorted(path.parent.rglob("*.py"))[:_MAX_FILES]
    contents = [str(file.relative_to(path.parent)).encode() + file.read_bytes() for file in files]
    return _digest(b"".join(contents))


def _git(root: Path, *arguments: str) -> bytes | None:
    """Run git; return its output, or None if it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_TIMEOUT_S, env=environment)
        return done.stdout if done.returncode == 0 else None
    return None


def _find_user_modules(env: EnvConfig) -> dict[str, ModuleType]:
    """Find the loaded top-level modules of the user.

    - Modules that are not part of this program, of Python or of an installed package.
    - Plug-ins and environments that the user has listed by name, even if they are installed packages.
    """
    listed = {module.partition(".")[0] for module in (*list_modules(), find_map_module(env))}
    user_modules = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name in (*_OWN_PACKAGES, *_MAIN_MODULES):
            continue
        path = _get_path(module)
        if path and (name in listed or not _is_installed(path)):
            user_modules[name] = module
    return user_modules


def _get_path(module: ModuleType) -> str:
    """Get the path of a module's file, or "" if it has none."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) else ""


def _is_installed(path: str) -> bool:
    """Whether a file is part of Python or of an installed package."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.base_prefix, sys.prefix}
    return "site-packages" in path or any(path.startswith(f"{folder}{os.sep}") for folder in folders)


def _digest_file(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _find_patches(user_modules: tuple[str, ...]) -> Iterator[str]:
    """Find functions, classes, methods and registry entries of `emtc_core` that a user module has replaced.

    A new registry entry is not a patch, because plug-ins are registered that way. Each text ends with the name
    of the user module, for example "emtc_core.gate.gate.delta_mem by my_module".
    """
    modules = {name: module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "emtc_core"}
    core_keys = _list_core_keys(modules.values())
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            package = _get_package(value)
            # The name now refers to a function or class of a user module.
            if package in user_modules and not attribute.startswith("__"):
                yield f"{name}.{attribute} by {package}"
            # A registry of `emtc_core` has an entry of a user module for a key that `emtc_core` also defines.
            elif isinstance(value, dict):
                for key, entry in list(value.items()):
                    package = _get_package(entry)
                    if package in user_modules and (attribute, key) in core_keys:
                        yield f"{name}.{attribute}[{key!r}] by {package}"
            # A class of this module has a method of a user module.
            elif isinstance(value, type) and value.__module__ == name:
                for method, function in list(vars(value).items()):
                    package = _get_package(function)
                    if package in user_modules:
                        yield f"{name}.{attribute}.{method} by {package}"


def _list_core_keys(modules: Iterable[ModuleType]) -> set[tuple[str, Any]]:
    """List the registry entries that `emtc_core` defines, as (name of the registry, key).

    Every dict at module level counts as a registry.
    """
    core_keys = set()
    for module in modules:
        for attribute, registry in list(vars(module).items()):
            if isinstance(registry, dict):
                entries = list(registry.items())
                core_keys |= {(attribute, key) for key, value in entries if _get_package(value) == "emtc_core"}
    return core_keys


def _get_package(value: object) -> str:
    """Get the package that defines a function, method or class; "" for another object."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if not isinstance(value, FunctionType | type):
        return ""
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, memory and GPU."""
    machine = {
        "cpu": _read_processor_name(),
        "cores": f"{os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return machine


def _read_processor_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _write_diff(db: Database, run_id: str, name: str, diff: bytes) -> None:
    """Write a diff to the run's folder. An existing diff is kept."""
    path = run_folder(db, run_id) / name
    make_private_folder(path.parent)
    if not path.exists():
        with open_private_append(path) as file:
            file.write(diff)
