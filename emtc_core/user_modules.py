"""Import of modules that the user has written: plug-ins, and environments that are named by an import path.

They may be in the folder where the command was started. Trainers and the app get this folder by a variable.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "EMTC_ENV_FOLDER"


def get_user_folder() -> Path:
    """Return the folder of the user's modules: where the command was started."""
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
