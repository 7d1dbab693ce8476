"""Install what StarCraft II's environments need: a separate Python environment, two packages, the maps.

This module lists the missing parts as tasks and carries them out. Each task can be interrupted and repeated. The
questions to the user are in `emtc setup`. The game is not installed here, because only the user can accept its license.

One archive in SMACv2's repository, at a fixed commit, contains the maps of both packages; SMAC's own maps are the same
files. Only map files are extracted, only into the maps folder, and no existing file is changed.
"""

import hashlib
import json
import os
import re
import subprocess
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emtc_core.atomic_file import replace_atomically
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.game_link import GameLink, GameSpec
from emtc_core.envs.smac.maps import ARENA, SMAC_MAPS, SMACV2_MAPS, smac_arguments, smacv2_arguments
from emtc_core.errors import EnvUnavailableError

SMAC_COMMIT: Final = "d6aab33f76abc3849c50463a8592a84f59a5ef84"
SMACV2_COMMIT: Final = "577ab5a2cff2391f8df582da5731ea9cd6adf3c6"
MAPS_FILE: Final = "SMAC_Maps.zip"
MAPS_URL = f"https://github.com/oxwhirl/smacv2/raw/{SMACV2_COMMIT}/smacv2/env/starcraft2/maps/SMAC_Maps/{MAPS_FILE}"
MAPS_SHA256: Final = "e507cc53b49f0ac334732d62628a42e0be2c53e9df29eeeaf608bb861a2a76cd"
SOURCES: Final = (
    f"SMAC @ https://github.com/oxwhirl/smac/archive/{SMAC_COMMIT}.zip",
    f"SMACv2 @ https://github.com/oxwhirl/smacv2/archive/{SMACV2_COMMIT}.zip",
)
REQUIREMENTS: Final = ("protobuf<3.21", "pysc2>=3,<5", "s2clientprotocol<=5.0.17.98310.0", "numpy<3")
GAME_HELP: Final = (
    "EMTC Lab does not install the game, because you must accept its license: read "
    "github.com/Blizzard/s2client-proto#downloads, unzip the Linux package (published results: 4.10) to {folder}, or "
    "set SC2PATH to its folder. Then run again: emtc setup smac"
)

_MAX_ARCHIVE_BYTES, _MAX_MAP_BYTES = 16 << 20, 4 << 20
_DOWNLOAD_TIMEOUT_S = 60.0
_MAP_NAME = re.compile(r"(?:SMAC_Maps/)?([A-Za-z0-9_]{1,64}\.SC2Map)", re.ASCII)
"""File names that are allowed in the archive."""
_INSTALLED_FILE = "emtc-setup.json"
"""File in the Python environment that lists the installed requirements."""


@dataclass(frozen=True)
class InstallTask:
    """A part that is still to be installed."""

    name: str
    description: str
    run: Callable[[], list[str]]
    """Install the part. Returns messages for the user."""


def list_tasks(base_python: str, source: Path | None) -> list[InstallTask]:
    """List the tasks for all missing parts, in order; empty if only the game is missing.

    Args:
        base_python: Interpreter that makes the Python environment.
        source: Folder with the packages and the archive; None to download them.
    """
    tasks: list[InstallTask] = []
    if not os.environ.get(game_link.PYTHON_VARIABLE):
        env = game_link.home() / "env"
        if not _has_pip(game_link.default_python()):
            about = f"make a separate Python environment in {env}, with {base_python}"
            tasks.append(InstallTask("environment", about, lambda: make_environment(base_python, env)))
        if tasks or _read_installed(env) != [*SOURCES, *REQUIREMENTS]:
            origin = f"from {source}" if source else "from GitHub and the package index (350 MB on disk)"
            about = f"install {', '.join((*SOURCES, *REQUIREMENTS))} there, {origin}"
            tasks.append(InstallTask("packages", about, lambda: install_packages(env, source)))
    if not has_maps():
        origin = f"copy {source / MAPS_FILE}" if source else f"download {MAPS_URL} (503 kB)"
        folder = game_link.game_folder() / "Maps" / "SMAC_Maps"
        next_step = f"keep it in {_download_folder()}" if game_link.find_game_obstacle() else f"unpack it to {folder}"
        tasks.append(InstallTask("maps", f"{origin} and {next_step}", lambda: install_maps(source)))
    return tasks


def has_maps() -> bool:
    """Check whether the game has every map; without the game, whether the archive has been downloaded."""
    if game_link.find_game_obstacle():
        return is_published_archive(_download_folder() / MAPS_FILE)
    return {*SMAC_MAPS, ARENA} <= game_link.find_maps().keys()


def make_environment(base_python: str, env: Path) -> list[str]:
    """Make an empty virtual environment. It replaces an incomplete one.

    Raises:
        EnvUnavailableError: If that fails.
    """
    env.parent.mkdir(parents=True, exist_ok=True)
    _run([base_python, "-m", "venv", "--clear", str(env)], "The environment cannot be made")
    return []


def install_packages(env: Path, source: Path | None) -> list[str]:
    """Install the packages into a virtual environment, test them and record that they are installed.

    Raises:
        EnvUnavailableError: If that fails.
    """
    python = env / "bin" / "python"
    packages = ["--no-index", "--find-links", str(source), "SMAC", "SMACv2"] if source else list(SOURCES)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run([*pip, *packages, *REQUIREMENTS], "The packages cannot be installed")
    check_packages(python)
    (env / _INSTALLED_FILE).write_text(json.dumps([*SOURCES, *REQUIREMENTS]))
    return []


def check_packages(python: Path) -> None:
    """Make both environments in a game worker, without starting the game, and compare their sizes with `maps.py`.

    Raises:
        EnvUnavailableError: If a package cannot be imported, or the sizes differ.
    """
    for package, map, arguments, smac_map in (
        ("smac", "3m", smac_arguments("3m"), SMAC_MAPS["3m"]),
        ("smacv2", "zerg_5_vs_5", smacv2_arguments("zerg_5_vs_5"), SMACV2_MAPS["zerg_5_vs_5"]),
    ):
        link = GameLink(python, GameSpec(package, map, arguments))
        try:
            link.receive_hello()
            link.request_make(0)
            sizes = link.receive_sizes()
        finally:
            link.kill()
        if sizes != smac_map.sizes():
            raise EnvUnavailableError(f"{package} has other sizes for {map}: {sizes}, expected {smac_map.sizes()}.")


def install_maps(source: Path | None) -> list[str]:
    """Get the archive of the maps and, if the game is installed, extract it into the game's maps folder.

    Args:
        source: Folder with the archive; None to download it.

    Returns:
        Messages for the user.

    Raises:
        EnvUnavailableError: If the archive cannot be read, is not the published one, or cannot be written.
    """
    archive = get_archive(_download_folder(), source)
    if game_link.find_game_obstacle():
        return [f"The maps are kept in {archive.parent} until the game is installed."]
    folder = game_link.game_folder() / "Maps" / "SMAC_Maps"
    different = unpack_maps(archive, folder)
    if not different:
        return []
    return [f"Existing files that differ from the published maps were not changed: {', '.join(different)}."]


def get_archive(folder: Path, source: Path | None) -> Path:
    """Write the archive of the maps into a folder, unless the folder already has it.

    Args:
        folder: Folder for the archive.
        source: Folder to copy it from; None to download it.

    Returns:
        Path of the archive.

    Raises:
        EnvUnavailableError: If the archive cannot be read or written, or is not the published one.
    """
    path = folder / MAPS_FILE
    if is_published_archive(path):
        return path
    origin = MAPS_URL if source is None else str(source / MAPS_FILE)
    content = _download() if source is None else _read(source / MAPS_FILE)
    if hashlib.sha256(content).hexdigest() != MAPS_SHA256:
        raise EnvUnavailableError(
            f"{origin} is not the published file: its SHA-256 must be {MAPS_SHA256}. Nothing was unpacked."
        )
    _write(path, content)
    return path


def is_published_archive(path: Path) -> bool:
    """Check whether the archive exists and is the published file."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == MAPS_SHA256


def unpack_maps(archive: Path, folder: Path) -> list[str]:
    """Extract the maps of an archive into a folder. Existing files are not changed.

    Returns:
        Names of the existing files whose contents differ from the archive.

    Raises:
        EnvUnavailableError: If the archive is damaged or contains a file that is not a map. Then nothing is written.
    """
    different: list[str] = []
    for name, content in _read_maps(archive).items():
        path = folder / name
        if not path.exists():
            _write(path, content)
        elif path.read_bytes() != content:
            different.append(name)
    return different


def _read_maps(archive: Path) -> dict[str, bytes]:
    """Read all maps of an archive: file name -> content."""
    maps: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                if entry.is_dir():
                    continue
                match = _MAP_NAME.fullmatch(entry.filename)
                if not match or entry.file_size > _MAX_MAP_BYTES:
                    description = f"{entry.filename[:100]!r} of {entry.file_size:,} bytes"
                    raise zipfile.BadZipFile(f"it contains {description}")
                maps[match[1]] = opened.read(entry)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise EnvUnavailableError(
            f"{archive} is not a valid archive of maps: {error}. Nothing was unpacked."
        ) from error
    return maps


def _download_folder() -> Path:
    return game_link.home() / "downloads"


def _has_pip(python: Path) -> bool:
    """Check whether the virtual environment is complete: `venv` installs pip as its last step."""
    command, environ = [str(python), "-m", "pip", "--version"], game_link.isolated_environ()
    try:
        return subprocess.run(command, capture_output=True, check=False, env=environ).returncode == 0
    except OSError:
        return False


def _read_installed(env: Path) -> list[str] | None:
    """Read the installed requirements of the environment; None if none are recorded."""
    try:
        return json.loads((env / _INSTALLED_FILE).read_text())
    except (OSError, ValueError):
        return None


def _run(command: list[str], failure: str) -> None:
    """Run a program with its standard output redirected to standard error.

    Raises:
        EnvUnavailableError: If it cannot be started or fails. The message begins with `failure`.
    """
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=2, env=game_link.isolated_environ()
        )
    except OSError as error:
        raise EnvUnavailableError(f"{failure}: {command[0]} cannot be started ({error.strerror}).") from error
    if done.returncode:
        raise EnvUnavailableError(
            f"{failure}: {' '.join(command[1:3])} ended with exit code {done.returncode}; its reason is above. "
            f"Completed steps are kept. Fix the cause and run again: emtc setup smac"
        )


def _download() -> bytes:
    try:
        with urllib.request.urlopen(MAPS_URL, timeout=_DOWNLOAD_TIMEOUT_S) as response:
            return response.read(_MAX_ARCHIVE_BYTES)
    except (OSError, ValueError) as error:
        raise EnvUnavailableError(
            f"{MAPS_URL} cannot be downloaded: {error}. Download it on another machine, copy it here and run: "
            f"emtc setup smac --from FOLDER"
        ) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EnvUnavailableError(
            f"{file} cannot be read: {error.strerror}. It can be downloaded from {MAPS_URL}"
        ) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file completely, or not at all.

    Raises:
        EnvUnavailableError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as file:
            file.write(content)
    except OSError as error:
        raise EnvUnavailableError(f"{path} cannot be written: {error.strerror}.") from error
