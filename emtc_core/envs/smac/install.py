"""Install SMAC and SMACv2: a separate Python environment (350 MB), the two packages, and their maps.

    python -m emtc_core.envs.smac.install

Each step is printed to stderr, and the script can be repeated. It does not install the game, because only the user can
accept its license. One archive in SMACv2's repository contains the maps of both packages. The exit code is 0 if both
environments can be used, 1 if a part is missing, and 2 on an operating system without the game.
"""

import hashlib
import io
import os
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

from emtc_core.atomic_file import replace_atomically
from emtc_core.envs.smac import env, game_link, v2
from emtc_core.errors import EnvUnavailableError

SMAC_COMMIT: Final = "d6aab33f76abc3849c50463a8592a84f59a5ef84"
SMACV2_COMMIT: Final = "577ab5a2cff2391f8df582da5731ea9cd6adf3c6"
SOURCES = (
    f"SMAC @ https://github.com/oxwhirl/smac/archive/{SMAC_COMMIT}.zip",
    f"SMACv2 @ https://github.com/oxwhirl/smacv2/archive/{SMACV2_COMMIT}.zip",
)
REQUIREMENTS: Final = ("protobuf<3.21", "pysc2>=3,<5", "s2clientprotocol<=5.0.17.98310.0", "numpy<3")
MAPS_URL = f"https://github.com/oxwhirl/smacv2/raw/{SMACV2_COMMIT}/smacv2/env/starcraft2/maps/SMAC_Maps/SMAC_Maps.zip"
MAPS_SHA256 = "e507cc53b49f0ac334732d62628a42e0be2c53e9df29eeeaf608bb861a2a76cd"


def main() -> int:
    """Install the packages and the maps, and check that both environments can be used.

    Returns:
        The exit code.
    """
    if sys.platform == "win32":
        _print("StarCraft II's game worker needs Linux or macOS.")
        return 2
    try:
        _install()
    except EnvUnavailableError as error:
        _print(str(error))
        return 1
    reason = env.find_unavailable_reason() or v2.find_unavailable_reason()
    if reason:
        _print(reason[0].upper() + reason[1:])
        return 1
    _print("SMAC can be used: emtc train --env smac --map 3m, or --env smacv2 --map terran_5_vs_5")
    return 0


def _install() -> None:
    """Install the packages and, if the game is installed, the maps.

    Raises:
        EnvUnavailableError: If a program fails, or the maps cannot be downloaded or are not the published ones.
    """
    if os.environ.get(game_link.PYTHON_VARIABLE):
        _print(f"The interpreter in {game_link.PYTHON_VARIABLE} is used as it is.")
    else:
        python = str(game_link.default_python())
        _run([sys.executable, "-m", "venv", str(game_link.home() / "env")])
        _run([python, "-m", "pip", "install", "--no-input", *SOURCES, *REQUIREMENTS])
    if game_link.find_game_obstacle():
        _print(
            "Install the game now, because you must accept its license: read "
            "github.com/Blizzard/s2client-proto#downloads, unzip the Linux package (published results: 4.10) to "
            f"{game_link.game_folder()}, or set SC2PATH to its folder. Then run again: {env.HOW_TO_GET}"
        )
        return
    folder = game_link.game_folder() / "Maps" / "SMAC_Maps"
    _print(f"Download {MAPS_URL} and unpack its maps to {folder}. Existing files are kept.")
    try:
        _unpack_maps(folder)
    except (OSError, ValueError) as error:
        raise EnvUnavailableError(f"The maps cannot be installed: {error}.") from error


def _run(command: list[str]) -> None:
    _print(f"Run {' '.join(command)}")
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=2, env=game_link.isolated_environ())
    if done.returncode:
        raise EnvUnavailableError(f"The command ended with exit code {done.returncode}. The reason is above.")


def _unpack_maps(folder: Path) -> None:
    with urllib.request.urlopen(MAPS_URL, timeout=60) as response:
        content = response.read()
    if hashlib.sha256(content).hexdigest() != MAPS_SHA256:
        raise ValueError(f"the SHA-256 of the archive must be {MAPS_SHA256}")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            path = folder / Path(name).name
            if path.suffix == ".SC2Map" and not path.exists():
                with replace_atomically(path) as file:
                    file.write(archive.read(name))


def _print(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    sys.exit(main())
