"""The cache folder with the bundles that this user has opened. Each is unpacked once and read-only.

Each bundle has two files: `<key>.db`, the checked database, and `<key>.json`, a note with the file name of the bundle
and some entries of its manifest. The note is only shown to people, because the manifest's entries are not checked.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.manifest import get_short_text
from storage.bundles.read import find_cache, open_bundle
from storage.private_files import open_output

MAX_NAME_LENGTH: Final = 48
_KEY: Final = re.compile("[0-9a-f]{16}")
_REPLACED_CHARACTERS: Final = re.compile(r"[^\w .()+-]")
_CONTENT_LABELS: Final = {
    "transitions": "every transition",
    "snapshots": "memory snapshots",
    "playbacks": "evaluation episodes",
    "trajectories": "states of all training episodes",
}


@dataclass(frozen=True)
class Bundle:
    """A bundle in the cache folder. Texts from its manifest are empty if they are missing or not valid."""

    key: str
    """First 16 hexadecimal digits of the database's SHA-256."""
    name: str
    """File name of the bundle. If several bundles in the cache have this name, the key is appended."""
    study: Path
    """Path of the unpacked database."""
    packed_bytes: int
    """Size of the bundle file."""
    opened_at: str
    made_at: str
    made_by: str
    contents: tuple[str, ...]
    """What the bundle contains, according to its manifest, in addition to curves and outcomes."""
    sample_nodes: int | None
    """Largest number of nodes of its memory snapshots; None if the snapshots are complete or missing."""

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


def cache_bundle(place: Path, *, name: str = "", cache: Path | None = None, is_trusted: bool = False) -> Bundle:
    """Check a bundle and add it to the cache. A bundle with the same content is replaced.

    Args:
        place: Path of the bundle.
        name: Name to show; the file name if empty.
        cache: The cache folder; the user's cache folder if None.
        is_trusted: The bundle is part of this program; see `open_bundle`.

    Raises:
        StorageError: If the bundle is invalid. Then nothing of it remains in the cache folder.
    """
    study, manifest = open_bundle(place, cache=cache, is_trusted=is_trusted)
    labels = [label for key, label in _CONTENT_LABELS.items() if getattr(manifest.contents, key)]
    if n := len(manifest.contents.whole):
        labels.append(f"everything of {n} run{'s' if n > 1 else ''}")
    if manifest.contents.sample_nodes is not None:
        labels.append(f"memory snapshots as samples of at most {manifest.contents.sample_nodes:,} nodes")
    note = {
        "opened_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "made_at": manifest.made_at,
        "made_by": manifest.made_by,
        "contents": labels,
        "sample_nodes": manifest.contents.sample_nodes,
        "name": clean_name(name or place.name),
        "packed_bytes": place.stat().st_size,
    }
    with open_output(_note_path(study)) as file:
        file.write(json.dumps(note, indent=1, ensure_ascii=False).encode())
    return _read_bundle(study)


def list_bundles(*, cache: Path | None = None) -> list[Bundle]:
    """List the bundles in the cache, last opened first. The key is appended to names that occur more than once."""
    folder = cache or find_cache()
    studies = [path for path in folder.glob("*.db") if _KEY.fullmatch(path.stem) and _note_path(path).is_file()]
    bundles = [_read_bundle(study) for study in studies]
    counts = Counter(bundle.name for bundle in bundles)
    unique = [
        replace(bundle, name=f"{bundle.name} ({bundle.key[:6]})") if counts[bundle.name] > 1 else bundle
        for bundle in bundles
    ]
    return sorted(unique, key=lambda bundle: (bundle.opened_at, bundle.key), reverse=True)


def find_bundle(key: str, *, cache: Path | None = None) -> Bundle | None:
    """Find the bundle with this key in the cache; None if it is not there."""
    return next((bundle for bundle in list_bundles(cache=cache) if bundle.key == key), None)


def remove_bundle(bundle: Bundle) -> None:
    """Delete a bundle's note and database from the cache. The original file is not changed.

    Raises:
        StorageError: If a file cannot be deleted.
    """
    try:
        for path in (_note_path(bundle.study), bundle.study):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{bundle.study} cannot be deleted: {error.strerror}.", reason="not_writable", subject=bundle.study
        ) from error


def is_cached(url: str, *, cache: Path | None = None) -> bool:
    """Whether a URL is the URL of a database in the cache folder."""
    return url.startswith(f"{sqlite_address(cache or find_cache())}/")


def _note_path(study: Path) -> Path:
    return study.with_suffix(".json")


def _read_bundle(study: Path) -> Bundle:
    """Read the note of a bundle. Entries that are missing or not valid become empty."""
    try:
        note = json.loads(_note_path(study).read_text())
    except (OSError, ValueError):
        note = {}
    entries: Mapping[str, Any] = note if isinstance(note, dict) else {}
    size, contents, sample_nodes = (entries.get(key) for key in ("packed_bytes", "contents", "sample_nodes"))
    return Bundle(
        key=study.stem,
        name=clean_name(str(entries.get("name", study.name))),
        study=study,
        packed_bytes=size if isinstance(size, int) else 0,
        opened_at=get_short_text(entries.get("opened_at")),
        made_at=get_short_text(entries.get("made_at")),
        made_by=get_short_text(entries.get("made_by")),
        contents=tuple(get_short_text(entry) for entry in contents) if isinstance(contents, list) else (),
        sample_nodes=sample_nodes if isinstance(sample_nodes, int) else None,
    )
