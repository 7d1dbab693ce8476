"""Figures by name, drawn by the app where it is installed.

This is the one arrow from storage up to the app, and pyproject's import contract names it. Many call their own script
`app.py`, and Python finds that one first: such a module is left alone, and the figure is drawn in a process of its own
(`python -m storage.figures`), which begins in this project's folder.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import ConfigError, EmtcError, Fault, StorageError
from emtc_core.install import FROM_CHECKOUT
from storage.engine import Database, open_database

NO_APP: Final = f"Figures are drawn by EMTC Lab's app. Install it with: {FROM_CHECKOUT}"
_APP: Final = Path(__file__).resolve().parent.parent / "app" / "__init__.py"


def draw_figure(db: Database, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Draw a named figure of some runs, or of every evaluated one, as a Plotly figure.

    Raises:
        StorageError: If the app is not installed.
        ConfigError: If there is no such figure, or it cannot be made of these runs.
    """
    try:
        if _APP.is_file() and _is_hidden():
            return _draw_in_own_process(db.url, name, runs, options)
        from app.figures.registry import draw_named

        return draw_named(db, name, runs, options)
    except ModuleNotFoundError as error:
        raise StorageError(f"{NO_APP} ({error.name} is missing)") from error


def _is_hidden() -> bool:
    """Whether Python finds another module called app in the place of this project's."""
    found = find_spec("app")
    return found is None or found.origin is None or Path(found.origin).resolve() != _APP


def _draw_in_own_process(url: str, name: str, runs: Sequence[str], options: Mapping[str, Any]) -> Any:
    from plotly import io

    asked = json.dumps([url, name, list(runs), dict(options)])
    command = [sys.executable, "-m", "storage.figures"]
    done = subprocess.run(command, cwd=_APP.parent.parent, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StorageError(f"{name} could not be drawn: {done.stderr.strip().rpartition(chr(10))[2]}")
    kind, _, answer = done.stdout.partition("\n")
    if kind != "figure":
        raise ConfigError(Fault(hint=answer.strip())) if kind == "config" else StorageError(answer.strip())
    return io.from_json(answer)


def main() -> None:
    """Read a question from stdin; write `figure` and its JSON, or `config` or `storage` and why there is none."""
    url, name, runs, options = json.load(sys.stdin)
    try:
        drawn = draw_figure(open_database(url, read_only=True), name, runs, options)
    except EmtcError as error:
        sys.stdout.write(f"{'config' if isinstance(error, ConfigError) else 'storage'}\n{error}\n")
        return
    sys.stdout.write(f"figure\n{drawn.to_json()}\n")


if __name__ == "__main__":
    main()
