"""The app's package beside this one, whatever else is called `app` where a script or notebook runs.

`app.py` is what many call their own script, and Python puts its folder before every installed package. What stands
inside `own_app` sees this project's package; outside, the caller's own module keeps the name.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

_NAME: Final = "app"
_ROOT: Final = Path(__file__).resolve().parent.parent
_ours: dict[str, ModuleType] = {}


@contextmanager
def own_app() -> Generator[None]:
    """Let the name `app` mean this project's package; nested uses are one use.

    Raises:
        ModuleNotFoundError: If the package is not there.
    """
    if _is_ours(sys.modules.get(_NAME)):
        yield
        return
    is_disputed = _NAME in sys.modules or not _is_found_first()
    theirs = _take_away()
    sys.modules.update(_ours)
    try:
        _import_ours()
        yield
    finally:
        if is_disputed:
            _ours.update(_take_away())
            sys.modules.update(theirs)


def _import_ours() -> None:
    """Import the package from its folder, which is the first on the path meanwhile."""
    sys.path.insert(0, str(_ROOT))
    try:
        import_module(_NAME)
    finally:
        sys.path.remove(str(_ROOT))


def _is_ours(module: ModuleType | None) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and Path(place).resolve() == _ROOT / _NAME / "__init__.py"


def _is_found_first() -> bool:
    found = PathFinder.find_spec(_NAME)
    place = found.origin if found else None
    return place is not None and Path(place).resolve() == _ROOT / _NAME / "__init__.py"


def _take_away() -> dict[str, ModuleType]:
    """Take every module of that name out of the table of imported ones."""
    names = [name for name in sys.modules if name.partition(".")[0] == _NAME]
    return {name: sys.modules.pop(name) for name in names}
