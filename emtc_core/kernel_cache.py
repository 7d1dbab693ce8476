"""The folder in which numba stores compiled kernels. Without one, the modules with kernels cannot be imported."""

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from platformdirs import user_cache_path

from emtc_core.errors import ConfigError

FOLDER_VARIABLE: Final = "NUMBA_CACHE_DIR"


def list_cache_folders(package: str) -> list[Path]:
    """List the folders in which numba tries to store the kernels of a package, in its order.

    numba tries the folder in NUMBA_CACHE_DIR, the folder of the module and the user's cache folder.
    """
    configured, spec = os.environ.get(FOLDER_VARIABLE), find_spec(package)
    folders = [Path(configured)] if configured else []
    if spec and spec.origin:
        folders.append(Path(spec.origin).parent / "__pycache__")
    return [*folders, user_cache_path("numba", appauthor=False)]


def check_kernel_cache(*packages: str) -> None:
    """Check that numba can store the kernels of these packages, without an import of numba.

    Args:
        packages: Names of packages with kernels. Default: emtc_core.

    Raises:
        ConfigError: If no folder is writable.
    """
    for package in packages or ("emtc_core",):
        folders = list_cache_folders(package)
        if not any(map(_is_writable, folders)):
            tried = ", ".join(map(str, folders))
            rule = f"The compiled kernels of {package} cannot be stored, because no folder is writable: {tried}"
            raise ConfigError(rule, hint=f"Set {FOLDER_VARIABLE} to a writable folder.")


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
