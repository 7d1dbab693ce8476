"""Draw a named figure with the app, if the app is installed.

This is the only import of the app in `storage`; the import contract in pyproject.toml allows it.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import StorageError
from emtc_core.install import FROM_CHECKOUT
from storage.engine import Database

_NO_APP: Final = f"Figures are drawn by EMTC Lab's app. Install it with: {FROM_CHECKOUT}"
_APP_FILE: Final = Path(__file__).resolve().parent.parent / "app" / "__init__.py"


def draw_figure(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Draw a named figure of some runs, or of all evaluated runs, as a Plotly figure.

    Args:
        db: An open database.
        name: Name of the figure.
        runs: Ids of runs, or prefixes of ids; empty for all evaluated runs.
        options: Options of the figure.

    Raises:
        StorageError: If the app is not installed, or another file has the name of its package.
        ConfigError: If there is no such figure, or it cannot be drawn for these runs.
    """
    try:
        _check_package()
        from app.figures.registry import draw_named

        return draw_named(db, name, runs, options)
    except ModuleNotFoundError as error:
        raise StorageError(f"{_NO_APP} ({error.name} is missing)") from error


def _check_package() -> None:
    """Check that `import app` finds the app, without importing it.

    Raises:
        StorageError: If it finds another file, such as a user's script `app.py`.
    """
    spec = find_spec("app")
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() != _APP_FILE:
        raise StorageError(f"{spec.origin} has the name of a package of EMTC Lab.", hint="Rename the file.")
