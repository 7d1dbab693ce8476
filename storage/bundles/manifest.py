"""What a bundle says about itself: a zip of `manifest.json` and `study.db`, an ordinary database of EMTC Lab.

- `format`, `version`: "emtc-bundle", now 1.
- `about`: how to open it, for whoever finds the file.
- `made_at`, `made_by`: when, and by which version.
- `schema`: of study.db, whose secondary indexes are left out: they are made anew when it is opened.
- `contents`: what was copied of each run; see `contents.Contents`.
- `runs`, `sweeps`: who is in it.
- `members`: name → size [bytes] and sha256 of each other member, unpacked.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from emtc_core.errors import StorageError
from emtc_core.install import how_to_upgrade

FORMAT: Final = "emtc-bundle"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
STUDY: Final = "study.db"
MOST_MANIFEST_BYTES: Final = 16 << 20
MOST_STUDY_BYTES: Final = 256 << 30
"""SQLite's own files may be bigger; a study that is does not travel in one file."""
ABOUT: Final = (
    "Runs of EMTC Lab. Look at them with: emtc open FILE, or take them into your own database with: "
    "emtc open FILE --import. study.db is an ordinary SQLite database."
)
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """The checked part of a manifest."""

    size: int
    sha256: str
    facts: Mapping[str, Any]

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """The runs that it names."""
        return list(self.facts["runs"])


def read_manifest(content: bytes, shown: str) -> Manifest:
    """Read a manifest, which may hold anything.

    Args:
        content: The member.
        shown: The bundle's name, for messages.

    Raises:
        StorageError: If it is none, or of a newer version.
    """
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or not isinstance(facts.get("version"), int):
        raise StorageError(f"{shown} is no bundle of EMTC Lab: its manifest does not say that it is one.")
    if facts["version"] != VERSION:
        raise StorageError(
            f"{shown} is a bundle of version {facts['version']}, this program reads {VERSION}. "
            f"Upgrade with: {how_to_upgrade()}"
        )
    members = facts.get("members")
    member = members.get(STUDY) if isinstance(members, dict) and members.keys() == {STUDY} else None
    size, digest = (member.get("size"), member.get("sha256")) if isinstance(member, dict) else (None, None)
    if not isinstance(size, int) or size < 1 or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise StorageError(f"{shown} is damaged: its manifest does not say how big {STUDY} is. Ask for it again.")
    if not isinstance(facts.get("runs"), list):
        raise StorageError(f"{shown} is damaged: its manifest names no runs. Ask for it again.")
    return Manifest(size, digest, facts)
