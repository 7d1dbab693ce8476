"""The cache folder with the bundles that this user has opened. Each is unpacked once and read-only.

Each bundle has two files: `<key>.db`, the database, and `<key>.json`, its file name and some values of its manifest.
"""

import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.contents import Contents
from storage.bundles.read import find_cache, open_bundle
from storage.private_files import open_output

MAX_NAME_LENGTH: Final = 48
_REPLACED_CHARACTERS: Final = re.compile(r"[^\w .()+-]")


class Bundle(BaseModel):
    """A bundle in the cache folder. `<key>.json` contains these fields."""

    model_config = ConfigDict(frozen=True)

    study: Path
    """Path of the unpacked database."""
    name: str
    """File name of the bundle. If several bundles in the cache have this name, the key is appended."""
    packed_bytes: int
    """Size of the bundle file."""
    opened_at: datetime
    made_at: str
    made_by: str
    contents: Contents

    @property
    def key(self) -> str:
        """First 16 hexadecimal digits of the database's SHA-256."""
        return self.study.stem

    @property
    def url(self) -> str:
        """URL of the database, for reading only."""
        return sqlite_address(self.study)

    @property
    def study_bytes(self) -> int:
        """Size of the unpacked database."""
        return self.study.stat().st_size

    @property
    def origin(self) -> str:
        """Tag of the runs that are imported from this bundle."""
        return f"from {self.name}"


def clean_name(name: str) -> str:
    """Replace unusual characters in a file name by `_` and shorten it, so that any page can show it safely."""
    cleaned = _REPLACED_CHARACTERS.sub("_", Path(name).name).strip() or "a bundle"
    return cleaned if len(cleaned) <= MAX_NAME_LENGTH else f"{cleaned[: MAX_NAME_LENGTH - 8].strip()}...emtc"


def cache_bundle(place: Path, *, name: str = "", cache: Path | None = None) -> Bundle:
    """Check a bundle and add it to the cache. A bundle with the same content is replaced.

    Args:
        place: Path of the bundle.
        name: Name to show; the file name if empty.
        cache: The cache folder; the user's cache folder if None.

    Raises:
        StorageError: If the bundle is invalid. Then nothing of it remains in the cache folder.
    """
    study, manifest = open_bundle(place, cache=cache)
    bundle = Bundle(
        study=study,
        name=clean_name(name or place.name),
        packed_bytes=place.stat().st_size,
        opened_at=datetime.now(UTC),
        made_at=manifest.made_at,
        made_by=manifest.made_by,
        contents=manifest.contents,
    )
    with open_output(_note_path(study)) as file:
        file.write(bundle.model_dump_json(indent=1).encode())
    return bundle


def list_bundles(*, cache: Path | None = None) -> list[Bundle]:
    """List the bundles in the cache, last opened first. The key is appended to names that occur more than once."""
    bundles: list[Bundle] = []
    for study in (cache or find_cache()).glob("*.db"):
        with suppress(OSError, ValidationError):  # another process removes it, or it is of another version
            bundles.append(Bundle.model_validate_json(_note_path(study).read_bytes()))
    counts = Counter(bundle.name for bundle in bundles)
    unique = [
        bundle.model_copy(update={"name": f"{bundle.name} ({bundle.key[:6]})"}) if counts[bundle.name] > 1 else bundle
        for bundle in bundles
    ]
    return sorted(unique, key=lambda bundle: (bundle.opened_at, bundle.key), reverse=True)


def find_bundle(key: str, *, cache: Path | None = None) -> Bundle | None:
    """Find the bundle with this key in the cache; None if it is not there."""
    return next((bundle for bundle in list_bundles(cache=cache) if bundle.key == key), None)


def remove_bundle(bundle: Bundle) -> None:
    """Delete a bundle's two files from the cache. The original file is not changed.

    Raises:
        StorageError: If a file cannot be deleted.
    """
    try:
        for path in (_note_path(bundle.study), bundle.study):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{bundle.study} cannot be deleted: {error.strerror}.") from error


def is_cached(url: str, *, cache: Path | None = None) -> bool:
    """Whether a URL is the URL of a database in the cache folder."""
    return url.startswith(f"{sqlite_address(cache or find_cache())}/")


def _note_path(study: Path) -> Path:
    return study.with_suffix(".json")
