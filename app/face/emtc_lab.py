"""Public names of EMTC Lab for scripts and notebooks, in one module.

    import emtc_lab

    db = emtc_lab.open_database("runs/emtc.db")  # same as storage.open_database
    policy = emtc_lab.load_policy("k3f9", "runs/emtc.db")
    actions = policy.act(obs, avail)

Installed as the module `emtc_lab`. Each name is imported at first use: `open_database` does not import torch,
`load_policy` does. Plug-ins import `register`, the base class of their settings (`ConfigSection`), and the types that
they return (`GateLaw`, `Mixed`).

Python first searches the folder of the script. So a file `storage.py` next to a script hides the package `storage`.
This module checks for such files when it is imported, and its error names them.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.jobs.policies import load_policy as load_policy
    from emtc_core.config.base import ConfigSection as ConfigSection
    from emtc_core.envs.checker import check_env as check_env
    from emtc_core.gate_laws import GateLaw as GateLaw
    from emtc_core.learner.mixers.base import Mixed as Mixed
    from emtc_core.plugins import register as register
    from storage import RecordedRun as RecordedRun
    from storage import open_database as open_database

__all__ = ["ConfigSection", "GateLaw", "Mixed", "RecordedRun", "check_env", "load_policy", "open_database", "register"]
_MODULE_BY_NAME = {
    "load_policy": "app.jobs.policies",
    "open_database": "storage",
    "RecordedRun": "storage",
    "ConfigSection": "emtc_core.config.base",
    "GateLaw": "emtc_core.gate_laws",
    "Mixed": "emtc_core.learner.mixers.base",
    "check_env": "emtc_core.envs.checker",
    "register": "emtc_core.plugins",
}
_PACKAGES = ("emtc_core", "storage", "app")
"""The packages of this project."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _find_file(package: str) -> Path | None:
    """Find the file that `import package` would load, without importing it."""
    try:
        spec = find_spec(package)
    except ValueError:  # sys.modules contains a module without a spec
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _check_packages() -> None:
    """Check that `import PACKAGE` loads this project's package, for each of its packages.

    Raises:
        ImportError: If another file has the name of a package, with the path of that file.
    """
    files = {package: _find_file(package) for package in _PACKAGES}
    # The folder of this project is the one that contains all packages.
    folders = [file.parents[1] for file in files.values() if file and file.name == "__init__.py"]
    project_folder = None
    for folder in folders:
        if all((folder / package / "__init__.py").is_file() for package in _PACKAGES):
            project_folder = folder
            break
    for package, file in files.items():
        if project_folder is None or file != project_folder / package / "__init__.py":
            fault = f"{file} has the name of a package" if file else f"cannot find the package {package}"
            raise ImportError(
                f"EMTC Lab cannot be imported here: {fault} of EMTC Lab. "
                "Rename the file, or start Python in another folder."
            )


_check_packages()
