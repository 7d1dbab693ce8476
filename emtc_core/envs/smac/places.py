"""Where StarCraft II's parts lie: the interpreter of its own, the game, the maps; and what is missing of them.

What lives here: paths and the questions to them. What does not: bringing anything there (`emtc setup smac`).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from platformdirs import user_data_path

from emtc_core.envs.smac import worker

PYTHON_VARIABLE: Final = "EMTC_SMAC_PYTHON"
GAME_VARIABLE: Final = "SC2PATH"
WORKER: Final = Path(worker.__file__)
_KEPT_S, _PATIENCE_S = 5.0, 60.0


def home() -> Path:
    """Folder of the isolated environment and of what was downloaded for it."""
    return user_data_path("emtc-lab") / "smac"


def own_python() -> Path:
    """Interpreter of the environment that `emtc setup smac` makes."""
    return home() / "env" / "bin" / "python"


def find_python() -> Path:
    """Interpreter that runs the game worker."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named).expanduser() if named else own_python()


def game_folder() -> Path:
    """Folder of StarCraft II, where pysc2 looks for it, too."""
    return Path(os.environ.get(GAME_VARIABLE) or Path.home() / "StarCraftII").expanduser()


def find_maps() -> dict[str, Path]:
    """Find the map files of the game by their names."""
    return {path.stem: path for path in sorted((game_folder() / "Maps").rglob("*.SC2Map"))}


def isolated_environ() -> dict[str, str]:
    """Copy the process's environment without what would bring this project's packages into another interpreter."""
    ours = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {**{name: value for name, value in os.environ.items() if name not in ours}, "PYTHONNOUSERSITE": "1"}


def find_obstacle(package: str, map_file: str) -> str:
    """Look for the interpreter, the package, the game and the maps, in this order."""
    if sys.platform == "win32":
        return "its game worker needs Linux or macOS."
    return _why_not_python(package) or why_no_game() or _why_no_maps(map_file)


def why_no_game() -> str:
    """Sentence that the game is not where it is looked for; empty where it is."""
    folder = game_folder()
    if (folder / "Versions").is_dir():
        return ""
    return f"StarCraft II is not in {folder} ({GAME_VARIABLE})."


def _why_no_maps(map_file: str) -> str:
    maps = find_maps()
    if maps and (not map_file or map_file in maps):
        return ""
    missing = f"{map_file}.SC2Map is" if map_file and maps else "SMAC's maps are"
    return f"{missing} not in {game_folder() / 'Maps'}."


def _why_not_python(package: str) -> str:
    python = find_python()
    if not python.is_file():
        if PYTHON_VARIABLE in os.environ:
            return f"{PYTHON_VARIABLE} names {python}, which is not there."
        return f"it needs StarCraft II, whose isolated environment is not in {home() / 'env'}."
    return why_not_packages(python, package)


def why_not_packages(python: Path, package: str) -> str:
    """What an interpreter lacks to play `package`; empty where it lacks nothing."""
    found = _ask(python)
    if isinstance(found, str):
        return found
    if not found[package]:
        return f"the package {package} is not in the environment of {python}."
    if package not in found["starcraft"]:
        return f"{package} in the environment of {python} is the hyperparameter optimiser of that name."
    missing = next((name for name in ("pysc2", "numpy") if not found[name]), None)
    return f"the package {missing} is not in the environment of {python}." if missing else ""


def _ask(python: Path) -> dict[str, Any] | str:
    """Ask an interpreter what it has; the answer is kept for some seconds, as pages ask for every map."""
    known = _ANSWERS.get(python)
    if known is None or time.monotonic() - known[0] > _KEPT_S:
        known = _ANSWERS[python] = (time.monotonic(), _run_check(python))
    return known[1]


_ANSWERS: dict[Path, tuple[float, dict[str, Any] | str]] = {}


def _run_check(python: Path) -> dict[str, Any] | str:
    command = [str(python), str(WORKER), worker.CHECK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_PATIENCE_S, env=isolated_environ()
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return f"the interpreter {python} does not answer ({type(error).__name__})."
