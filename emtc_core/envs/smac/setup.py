"""What makes StarCraft II's tasks usable here: an interpreter of their own, two packages, the maps.

What lives here: what is still to be done, and doing it; each task can be interrupted and done again. What does not:
questions to the user (`emtc setup`), and the game itself, whose licence only the user can accept.

One archive, kept in SMACv2's repository at a fixed commit, holds the maps of both packages: those of SMAC are the same
files. What is unpacked is data: nothing leaves the folder, and no file that is there already is changed.
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

from emtc_core.envs.smac import places
from emtc_core.envs.smac.maps import ARENA, SMAC_MAPS, SMACV2_MAPS, smac_arguments, smacv2_arguments
from emtc_core.envs.smac.places import GameLink, Play
from emtc_core.errors import EnvUnavailableError

SMAC_COMMIT: Final = "d6aab33f76abc3849c50463a8592a84f59a5ef84"
SMACV2_COMMIT: Final = "577ab5a2cff2391f8df582da5731ea9cd6adf3c6"
MAPS_FILE: Final = "SMAC_Maps.zip"
MAPS_URL = f"https://github.com/oxwhirl/smacv2/raw/{SMACV2_COMMIT}/smacv2/env/starcraft2/maps/SMAC_Maps/{MAPS_FILE}"
MAPS_SHA256: Final = "e507cc53b49f0ac334732d62628a42e0be2c53e9df29eeeaf608bb861a2a76cd"
_MOST_BYTES, _LARGEST_MAP, _PATIENCE_S = 16 << 20, 4 << 20, 60.0
_MAP_NAME = re.compile(r"(?:SMAC_Maps/)?([A-Za-z0-9_]{1,64}\.SC2Map)", re.ASCII)
SOURCES: Final = (
    f"SMAC @ https://github.com/oxwhirl/smac/archive/{SMAC_COMMIT}.zip",
    f"SMACv2 @ https://github.com/oxwhirl/smacv2/archive/{SMACV2_COMMIT}.zip",
)
NEEDED: Final = ("protobuf<3.21", "pysc2>=3,<5", "s2clientprotocol<=5.0.17.98310.0", "numpy<3")
GAME_HELP: Final = (
    "Its licence is yours to accept, so nobody brings it for you: read github.com/Blizzard/s2client-proto#downloads, "
    "unzip the Linux package (published results: 4.10) to {folder}, or set SC2PATH to where it is; then, once more: "
    "emtc setup smac"
)
_DONE = "emtc-setup.json"


@dataclass(frozen=True)
class Task:
    """Something that is still to be done."""

    name: str
    about: str
    do: Callable[[], list[str]]
    """Do it; return what the user should know."""


def list_tasks(base_python: str, source: Path | None) -> list[Task]:
    """List what is to be done, in order; nothing where everything but the game is there."""
    named = os.environ.get(places.PYTHON_VARIABLE)
    tasks = [] if named else _environment_tasks(places.home() / "env", base_python, source)
    if not has_maps():
        tasks.append(Task("maps", _about_maps(source), lambda: bring_maps(source)))
    return tasks


def _environment_tasks(env: Path, base_python: str, source: Path | None) -> list[Task]:
    tasks: list[Task] = []
    if not _has_pip(places.own_python()):
        about = f"make an environment of its own in {env}, with {base_python}"
        tasks.append(Task("environment", about, lambda: make_environment(base_python, env)))
    if tasks or _read_done(env) != [*SOURCES, *NEEDED]:
        where = f"from {source}" if source else "from GitHub and the package index (350 MB on the disk)"
        about = f"install {', '.join((*SOURCES, *NEEDED))} there, {where}"
        tasks.append(Task("packages", about, lambda: install_packages(env, source)))
    return tasks


def has_maps() -> bool:
    """Whether the game has every map; without a game, whether they are kept for it."""
    if places.why_no_game():
        return is_sound(_kept() / MAPS_FILE)
    return {*SMAC_MAPS, ARENA} <= places.find_maps().keys()


def make_environment(base_python: str, env: Path) -> list[str]:
    """Make an empty virtual environment, over whatever an interrupted try left."""
    env.parent.mkdir(parents=True, exist_ok=True)
    _run([base_python, "-m", "venv", "--clear", str(env)], "The environment cannot be made")
    return []


def install_packages(env: Path, source: Path | None) -> list[str]:
    """Install the packages and try whether they load; then note that it was done."""
    python = env / "bin" / "python"
    offline = ["--no-index", "--find-links", str(source), "SMAC", "SMACv2"] if source else list(SOURCES)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run([*pip, *offline, *NEEDED], "The packages cannot be installed")
    try_packages(python)
    (env / _DONE).write_text(json.dumps([*SOURCES, *NEEDED]))
    return []


def try_packages(python: Path) -> None:
    """Let a game worker make both environments, which starts no game, and compare their sizes with what is known.

    Raises:
        EnvUnavailableError: If one does not load, or has other sizes.
    """
    for package, map, arguments, known in (
        ("smac", "3m", smac_arguments("3m"), SMAC_MAPS["3m"]),
        ("smacv2", "zerg_5_vs_5", smacv2_arguments("zerg_5_vs_5"), SMACV2_MAPS["zerg_5_vs_5"]),
    ):
        link = GameLink(python, Play(package, map, arguments))
        try:
            link.greet()
            link.ask_to_make(0)
            found = link.take_sizes()
        finally:
            link.kill()
        if found != known.sizes():
            raise EnvUnavailableError(f"{package} says that {map} has {found}, and must say {known.sizes()}.")


def bring_maps(source: Path | None) -> list[str]:
    """Bring the archive and, where the game is, put the maps beside it."""
    archive = bring_archive(_kept(), source)
    if places.why_no_game():
        return [f"The maps are kept in {archive.parent} until the game is there."]
    folder = places.game_folder() / "Maps" / "SMAC_Maps"
    others = unpack_maps(archive, folder)
    return [f"Left as they are, with other contents than the published maps: {', '.join(others)}."] if others else []


def _about_maps(source: Path | None) -> str:
    origin = f"{source / MAPS_FILE}" if source else f"{MAPS_URL} (503 kB)"
    game = places.game_folder() / "Maps" / "SMAC_Maps"
    return f"bring {origin} and " + (f"keep it in {_kept()}" if places.why_no_game() else f"unpack it to {game}")


def _kept() -> Path:
    return places.home() / "downloads"


def _has_pip(python: Path) -> bool:
    """Whether the environment was made to its end: pip is what `venv` brings last."""
    command, environ = [str(python), "-m", "pip", "--version"], places.isolated_environ()
    try:
        return subprocess.run(command, capture_output=True, check=False, env=environ).returncode == 0
    except OSError:
        return False


def _read_done(env: Path) -> list[str] | None:
    try:
        return json.loads((env / _DONE).read_text())
    except (OSError, ValueError):
        return None


def _run(command: list[str], failure: str) -> None:
    """Run a program that speaks to standard error, whatever it calls its output."""
    try:
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=2, env=places.isolated_environ())
    except OSError as error:
        raise EnvUnavailableError(f"{failure}: {command[0]} cannot be started ({error.strerror}).") from error
    if done.returncode:
        raise EnvUnavailableError(
            f"{failure}: {' '.join(command[1:3])} ended with exit code {done.returncode}; its reason is above. "
            f"What was done is kept. Once mended, go on: emtc setup smac"
        )


def bring_archive(folder: Path, source: Path | None) -> Path:
    """Bring the archive of the maps into a folder, from `source` if there is one; keep it if it is there and sound.

    Raises:
        EnvUnavailableError: If it cannot be had, or is another file than the published one.
    """
    place = folder / MAPS_FILE
    if is_sound(place):
        return place
    content = _download() if source is None else _read(source / MAPS_FILE)
    where = MAPS_URL if source is None else str(source / MAPS_FILE)
    if hashlib.sha256(content).hexdigest() != MAPS_SHA256:
        raise EnvUnavailableError(
            f"{where} is not the file that was published: its SHA-256 must be {MAPS_SHA256}. Nothing was unpacked.",
            reason="checksum",
            subject=where,
        )
    _write(place, content)
    return place


def is_sound(place: Path) -> bool:
    """Whether the archive is there, whole and unchanged."""
    return place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == MAPS_SHA256


def unpack_maps(archive: Path, folder: Path) -> list[str]:
    """Put the maps of an archive into a folder; return the names of those that were there with other contents.

    Raises:
        EnvUnavailableError: If the archive is broken or holds anything else than maps; then nothing is written.
    """
    maps = _read_maps(archive)
    others: list[str] = []
    for name, content in maps.items():
        place = folder / name
        if not place.exists():
            _write(place, content)
        elif place.read_bytes() != content:
            others.append(name)
    return others


def _read_maps(archive: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(archive) as opened:
            return {_name_of(entry): opened.read(entry) for entry in opened.infolist() if not entry.is_dir()}
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise EnvUnavailableError(
            f"{archive} is no sound archive of maps: {error}. Nothing was unpacked.",
            reason="unsound_archive",
            subject=archive,
        ) from error


def _name_of(entry: zipfile.ZipInfo) -> str:
    found = _MAP_NAME.fullmatch(entry.filename)
    if not found or entry.file_size > _LARGEST_MAP:
        raise zipfile.BadZipFile(f"it holds {entry.filename[:100]!r} of {entry.file_size:,} bytes")
    return found[1]


def _download() -> bytes:
    try:
        with urllib.request.urlopen(MAPS_URL, timeout=_PATIENCE_S) as answer:
            return answer.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise EnvUnavailableError(
            f"{MAPS_URL} cannot be downloaded: {error}. Bring it on another machine, and then: "
            f"emtc setup smac --from FOLDER",
            reason="download",
            subject=MAPS_URL,
        ) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EnvUnavailableError(f"{file} cannot be read: {error.strerror}. It is {MAPS_URL}") from error


def _write(place: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = place.with_name(f"{place.name}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(place)
    except OSError as error:
        raise EnvUnavailableError(f"{place} cannot be written: {error.strerror}.") from error
