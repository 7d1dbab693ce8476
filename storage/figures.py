"""Draw a named figure with the app, if the app is installed.

This is the only import of the app in `storage`; the import contract in pyproject.toml allows it. A user's script may
have the name `app.py`, and then `import app` finds the script. In this case the figure is drawn in a new process
(`python -m storage.figures`) whose working directory is this project's folder.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from emtc_core import errors
from emtc_core.errors import NO_VALUE, ConfigError, EmtcError, Fault, StorageError
from emtc_core.install import FROM_CHECKOUT
from storage.engine import Database, open_database

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
        StorageError: If the app is not installed.
        ConfigError: If there is no such figure, or it cannot be drawn for these runs.
    """
    try:
        if _APP_FILE.is_file() and _is_app_shadowed():
            return _draw_in_new_process(db.url, name, runs, options)
        from app.figures.registry import draw_named

        return draw_named(db, name, runs, options)
    except ModuleNotFoundError as error:
        raise StorageError(f"{_NO_APP} ({error.name} is missing)") from error


def _is_app_shadowed() -> bool:
    """Return whether `import app` finds another module than this project's."""
    spec = find_spec("app")
    return spec is None or spec.origin is None or Path(spec.origin).resolve() != _APP_FILE


def _draw_in_new_process(url: str, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> Any:
    from plotly import io

    request = json.dumps([url, name, list(runs), dict(options)])
    command = [sys.executable, "-m", "storage.figures"]
    folder = _APP_FILE.parent.parent
    process = subprocess.run(command, cwd=folder, input=request, capture_output=True, text=True, check=False)
    if process.returncode:  # the last line of a traceback is the message of the exception
        raise StorageError(f"{name} could not be drawn: {process.stderr.strip().rpartition(chr(10))[2]}")
    kind, _, content = process.stdout.partition("\n")
    if kind != "figure":
        raise _read_error(kind, json.loads(content))
    return io.from_json(content)


def _write_error(error: EmtcError) -> tuple[str, dict[str, Any]]:
    """Return the name of the class of an error in `emtc_core.errors`, and its data as JSON values."""
    kind = next(base.__name__ for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
    if isinstance(error, ConfigError):
        given = [
            {name: value for name, value in vars(fault).items() if value is not NO_VALUE} for fault in error.faults
        ]
        return kind, {"faults": given}
    return kind, {name: getattr(error, name) for name in ("message", "hint")}


def _read_error(kind: str, data: dict[str, Any]) -> EmtcError:
    """Make the error that `_write_error` described."""
    error_class = getattr(errors, kind)
    if "faults" in data:
        return error_class(*(Fault(**fault | {"related": tuple(fault["related"])}) for fault in data["faults"]))
    return error_class(data.pop("message"), **data)


def main() -> None:
    """Read the arguments of `draw_figure` from stdin as JSON, and write the result to stdout.

    The first line is `figure` or the class of an error. Then follow the figure or the data of the error as JSON.
    """
    url, name, runs, options = json.load(sys.stdin)
    try:
        figure = draw_figure(open_database(url, read_only=True), name, runs, options)
    except EmtcError as error:
        kind, data = _write_error(error)
        sys.stdout.write(f"{kind}\n{json.dumps(data, default=str)}\n")
        return
    sys.stdout.write(f"figure\n{figure.to_json()}\n")


if __name__ == "__main__":
    main()
