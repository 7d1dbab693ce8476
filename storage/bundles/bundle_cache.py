"""The bundles that this user has opened, each unpacked once and read-only in a cache folder, until it is removed.

Beside `<key>.db` lies `<key>.json`: the name that the file had, and what its manifest said about its making, for
people to read. What a bundle holds is asked of its database, which was checked; not of its manifest, which was not.
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
from storage.bundles.read import Manifest, find_cache, open_bundle
from storage.private_files import replaced

LONGEST_NAME: Final = 48
_KEY = re.compile("[0-9a-f]{16}")
_STRANGE_SIGNS = re.compile(r"[^\w .()+-]")
_LONGEST_FACT: Final = 80
_KINDS: Final = {
    "transitions": "every transition",
    "snapshots": "memory snapshots",
    "playbacks": "evaluation episodes",
    "trajectories": "states of all training episodes",
}


@dataclass(frozen=True)
class Bundle:
    """An opened bundle."""

    key: str
    """The beginning of its database's checksum."""
    name: str
    """Of the file it came from, told apart from others of that name."""
    study: Path
    packed_bytes: int
    opened_at: str
    made_at: str
    made_by: str
    contents: tuple[str, ...]
    """What its maker says went along besides curves and outcomes."""

    @property
    def url(self) -> str:
        """Its database, which is read and not written."""
        return sqlite_address(self.study)

    @property
    def study_bytes(self) -> int:
        """How much room it takes."""
        return self.study.stat().st_size

    @property
    def origin(self) -> str:
        """The tag of runs that were imported from it."""
        return f"from {self.name}"


def clean_name(name: str) -> str:
    """Make a file's name harmless wherever it is shown: a name out of letters, digits and a few signs."""
    kept = _STRANGE_SIGNS.sub("_", Path(name).name).strip() or "a bundle"
    return kept if len(kept) <= LONGEST_NAME else f"{kept[: LONGEST_NAME - 8].strip()}...emtc"


def cache_bundle(place: Path, *, name: str = "", cache: Path | None = None, is_ours: bool = False) -> Bundle:
    """Open a bundle and keep it in the cache; one that is there already is opened anew.

    Args:
        place: The bundle.
        name: The name to show; the file's own when missing.
        cache: The cache folder; this user's when missing.
        is_ours: It ships with the program, see `open_bundle`.

    Raises:
        StorageError: If it is no sound bundle; then nothing is left of it.
    """
    study, manifest = open_bundle(place, cache=cache, is_ours=is_ours)
    facts = _describe(manifest) | {"name": clean_name(name or place.name), "packed_bytes": place.stat().st_size}
    with replaced(_note(study)) as file:
        file.write(json.dumps(facts, indent=1, ensure_ascii=False).encode())
    return _read(study)


def list_bundles(*, cache: Path | None = None) -> list[Bundle]:
    """The bundles in the cache, opened last first; of several with one name each says its key, too."""
    folder = cache or find_cache()
    found = [_read(study) for study in folder.glob("*.db") if _KEY.fullmatch(study.stem) and _note(study).is_file()]
    times = Counter(bundle.name for bundle in found)
    named = [replace(each, name=f"{each.name} ({each.key[:6]})") if times[each.name] > 1 else each for each in found]
    return sorted(named, key=lambda each: (each.opened_at, each.key), reverse=True)


def find_bundle(key: str, *, cache: Path | None = None) -> Bundle | None:
    """The bundle of this key in the cache; None if it is not there."""
    return next((each for each in list_bundles(cache=cache) if each.key == key), None)


def remove_bundle(bundle: Bundle) -> None:
    """Remove a bundle from the cache, with what was unpacked of it; the file it came from stays where it is.

    Raises:
        StorageError: If it cannot be deleted.
    """
    try:
        for place in (_note(bundle.study), bundle.study):
            place.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{bundle.study} cannot be deleted: {error.strerror}.", reason="not_writable", subject=bundle.study
        ) from error


def is_cached(url: str, *, cache: Path | None = None) -> bool:
    """Whether a URL is that of a cached bundle's database."""
    return url.startswith(f"{sqlite_address(cache or find_cache())}/")


def _note(study: Path) -> Path:
    return study.with_suffix(".json")


def _describe(manifest: Manifest) -> dict[str, Any]:
    contents = manifest.facts.get("contents")
    kinds = [words for kind, words in _KINDS.items() if isinstance(contents, Mapping) and contents.get(kind) is True]
    if isinstance(contents, Mapping) and isinstance(most := contents.get("sample_nodes"), int):
        kinds.append(f"memory snapshots as samples of at most {most:,} nodes")
    return {
        "opened_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "made_at": _fact(manifest.facts.get("made_at")),
        "made_by": _fact(manifest.facts.get("made_by")),
        "contents": kinds,
    }


def _fact(value: object) -> str:
    """Keep a short text as it is; whatever else a stranger wrote is nothing."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_FACT else ""


def _read(study: Path) -> Bundle:
    """Read one's own note of a bundle; what cannot be read of it is empty."""
    try:
        known = json.loads(_note(study).read_text())
    except (OSError, ValueError):
        known = {}
    facts: Mapping[str, Any] = known if isinstance(known, dict) else {}
    opened_at, made_at, made_by = (_fact(facts.get(name)) for name in ("opened_at", "made_at", "made_by"))
    size, contents = facts.get("packed_bytes"), facts.get("contents")
    return Bundle(
        key=study.stem,
        name=clean_name(str(facts.get("name", study.name))),
        study=study,
        packed_bytes=size if isinstance(size, int) else 0,
        opened_at=opened_at,
        made_at=made_at,
        made_by=made_by,
        contents=tuple(_fact(each) for each in contents) if isinstance(contents, list) else (),
    )
