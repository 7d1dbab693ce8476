"""SMAC's maps from their public source: brought once, checked, and put where the game looks for them.

One archive, kept in SMACv2's repository at a fixed commit, holds the maps of both packages: those of SMAC are the
same files. What is unpacked is data: nothing leaves the folder, and no file that is there already is changed.
"""

import hashlib
import re
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

from emtc_core.errors import EnvUnavailableError

SMAC_COMMIT: Final = "d6aab33f76abc3849c50463a8592a84f59a5ef84"
SMACV2_COMMIT: Final = "577ab5a2cff2391f8df582da5731ea9cd6adf3c6"
MAPS_FILE: Final = "SMAC_Maps.zip"
MAPS_URL = f"https://github.com/oxwhirl/smacv2/raw/{SMACV2_COMMIT}/smacv2/env/starcraft2/maps/SMAC_Maps/{MAPS_FILE}"
MAPS_SHA256: Final = "e507cc53b49f0ac334732d62628a42e0be2c53e9df29eeeaf608bb861a2a76cd"
_MOST_BYTES, _LARGEST_MAP, _PATIENCE_S = 16 << 20, 4 << 20, 60.0
_MAP_NAME = re.compile(r"(?:SMAC_Maps/)?([A-Za-z0-9_]{1,64}\.SC2Map)", re.ASCII)


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
            f"{where} is not the file that was published: its SHA-256 must be {MAPS_SHA256}. Nothing was unpacked."
        )
    _write(place, content)
    return place


def is_sound(place: Path) -> bool:
    """Tell whether the archive is there, whole and unchanged."""
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
        raise EnvUnavailableError(f"{archive} is no sound archive of maps: {error}. Nothing was unpacked.") from error


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
            f"emtc setup smac --from FOLDER"
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
