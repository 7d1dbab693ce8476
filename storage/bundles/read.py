"""Open a bundle from anybody: what it says is checked before it is believed, and nothing of it is followed.

A bundle is a zip of `manifest.json` and `study.db`, an ordinary database of EMTC Lab. Its manifest holds:

- `format`, `version`: "emtc-bundle", now 1.
- `about`: how to open it, for whoever finds the file.
- `made_at`, `made_by`: when, and by which version.
- `schema`: of study.db, whose secondary indexes are left out: they are made anew when it is opened.
- `contents`: what was copied of each run; see `contents.Contents`.
- `runs`, `sweeps`: who is in it.
- `members`: name → size [bytes] and sha256 of each other member, unpacked.

Only two members are read, by names that are written here, so no name in the file ever becomes a path. What comes out
is counted while it is unpacked and compared with the manifest's size and checksum, and the database is then looked at
row by row (`maintenance.check_database`) before anything writes to it or shows it. Nothing is left of a bundle that is
refused.
"""

import hashlib
import json
import re
import shutil
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from platformdirs import user_cache_path

from emtc_core.errors import EmtcError, NewerDatabaseError, StorageError
from emtc_core.install import how_to_upgrade
from storage.address import sqlite_address
from storage.bundles.soundness import check_study
from storage.engine import find_schema, open_database
from storage.guards import shorten
from storage.maintenance.check_database import check_database
from storage.migrations import upgrade
from storage.private_files import make_private_folder

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

_CHUNK_BYTES: Final = 1 << 20
_MOST_DIRECTORY_BYTES: Final = 1 << 16  # of the zip's own list; two members take 150
_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_PLAIN_FILE_MODE: Final = 0o400


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


def parse_manifest(content: bytes, shown: str) -> Manifest:
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
        raise StorageError(
            f"{shown} is no bundle of EMTC Lab: its manifest does not say that it is one.",
            reason="not_a_manifest",
            subject=shown,
        )
    if facts["version"] != VERSION:
        raise StorageError(
            f"{shown} is a bundle of version {facts['version']}, this program reads {VERSION}. "
            f"Upgrade with: {how_to_upgrade()}",
            reason="newer_version",
            subject=facts["version"],
        )
    members = facts.get("members")
    member = members.get(STUDY) if isinstance(members, dict) and members.keys() == {STUDY} else None
    size, digest = (member.get("size"), member.get("sha256")) if isinstance(member, dict) else (None, None)
    if not isinstance(size, int) or size < 1 or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise StorageError(
            f"{shown} is damaged: its manifest does not say how big {STUDY} is. Ask for it again.",
            reason="no_size",
            subject=shown,
        )
    if not isinstance(facts.get("runs"), list):
        raise StorageError(
            f"{shown} is damaged: its manifest names no runs. Ask for it again.", reason="no_runs", subject=shown
        )
    return Manifest(size, digest, facts)


def find_cache() -> Path:
    """The folder in which this user's bundles are unpacked; it need not exist."""
    return user_cache_path("emtc-lab") / "bundles"


def peek(place: Path) -> Manifest:
    """Read what a bundle says about itself, which nothing has been checked of yet but its form.

    Raises:
        StorageError: If it is no bundle.
    """
    with _opened(place) as archive:
        return _read_manifest(archive, place.name)


def open_bundle(place: Path, *, cache: Path | None = None, is_ours: bool = False) -> tuple[Path, Manifest]:
    """Unpack a bundle into the cache folder, checked and read-only; return where, and its manifest.

    Args:
        place: The bundle.
        cache: Folder for it; this user's cache when missing.
        is_ours: It ships with the program and is trusted as its code is: its checksum is compared, its rows are not
            looked at one by one, and what this version has unpacked of it before serves again.

    Raises:
        StorageError: If it is no sound bundle; then nothing is left of it.
    """
    folder = cache or find_cache()
    if is_ours and (ready := _find_unpacked(place, folder)) is not None:
        return ready
    with unpacked(place, cache=folder, is_ours=is_ours) as (study, manifest):
        study.chmod(_PLAIN_FILE_MODE)
        kept = _kept(folder, manifest)
        study.replace(kept)
    return kept, manifest


def _kept(folder: Path, manifest: Manifest) -> Path:
    return folder / f"{manifest.sha256[:16]}.db"


def _find_unpacked(place: Path, folder: Path) -> tuple[Path, Manifest] | None:
    """The database of a bundle that stands whole in the cache, in this version's schema."""
    manifest = peek(place)
    kept = _kept(folder, manifest)
    if not kept.is_file() or find_schema(sqlite_address(kept))[0] != upgrade.SCHEMA_VERSION:
        return None
    return kept, manifest


@contextmanager
def unpacked(place: Path, *, cache: Path | None = None, is_ours: bool = False) -> Generator[tuple[Path, Manifest]]:
    """Unpack a bundle for as long as it is needed: a database of this version's schema, checked as `open_bundle` says.

    Raises:
        StorageError: If it is no sound bundle.
    """
    folder = cache or find_cache()
    try:
        make_private_folder(folder)
        holder = tempfile.TemporaryDirectory(prefix=".opening-", dir=folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}. A bundle is unpacked there.") from error
    with holder as name:
        study = Path(name) / STUDY
        manifest = _unpack(place, study)
        _make_ready(study, place.name, is_ours=is_ours)
        yield study, manifest


def _unpack(place: Path, study: Path) -> Manifest:
    shown = place.name
    with _opened(place) as archive:
        manifest = _read_manifest(archive, shown)
        _check_size(manifest, study.parent, shown)
        with archive.open(STUDY) as member:
            _write_checked(member, study, manifest, shown)
    return manifest


@contextmanager
def _opened(place: Path) -> Generator[zipfile.ZipFile]:
    """Open the two members of a bundle, and say in one sentence whatever is wrong with them."""
    shown = place.name
    if not place.is_file():
        raise StorageError(f"There is no bundle at {place}.", reason="not_found", subject=place)
    try:
        with place.open("rb") as file:
            _check_directory(file, shown)
            with zipfile.ZipFile(file) as archive:
                _check_members(archive, shown)
                yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error) as error:
        raise StorageError(
            f"{shown} is damaged, or was cut off on its way: {error}. Ask for it again.",
            reason="damaged",
            subject=shown,
        ) from error
    except OSError as error:
        raise StorageError(f"{shown} cannot be unpacked: {error.strerror or error}.") from error


def _read_manifest(archive: zipfile.ZipFile, shown: str) -> Manifest:
    with archive.open(MANIFEST) as member:
        return parse_manifest(_read_whole(member, shown), shown)


def _check_directory(file: IO[bytes], shown: str) -> None:
    """Look at the zip's own list before it is loaded: a small file may claim to list millions of members."""
    size = file.seek(0, 2)
    tail_bytes = min(size, _END.size + _LOCATOR.size)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    if len(tail) < _END.size or not tail[-_END.size :].startswith(b"PK\5\6"):
        raise StorageError(
            f"{shown} is no bundle of EMTC Lab, or was cut off on its way. Ask for it again.",
            reason="not_a_bundle",
            subject=shown,
        )
    listed = _END.unpack(tail[-_END.size :])[5]
    if tail.startswith(b"PK\6\7") and len(tail) == _END.size + _LOCATOR.size:
        file.seek(min(size, _LOCATOR.unpack(tail[: _LOCATOR.size])[2]))
        listed = max(listed if listed < 0xFFFFFFFF else 0, _END_64.unpack(file.read(_END_64.size))[8])
    if listed > _MOST_DIRECTORY_BYTES:
        raise StorageError(
            f"{shown} is no bundle of EMTC Lab: it lists far more than two members.",
            reason="too_many_members",
            subject=shown,
        )
    file.seek(0)


def _check_members(archive: zipfile.ZipFile, shown: str) -> None:
    names = [info.filename for info in archive.infolist()]
    if sorted(names) == [MANIFEST, STUDY]:
        return
    strange = next((name for name in names if name not in (MANIFEST, STUDY)), None)
    found = f"it holds {shorten(strange)}" if strange is not None else f"it does not hold {MANIFEST} and {STUDY} once"
    raise StorageError(f"{shown} is no bundle of EMTC Lab: {found}.", reason="other_members", subject=strange or "")


def _read_whole(member: IO[bytes], shown: str) -> bytes:
    content = member.read(MOST_MANIFEST_BYTES + 1)
    if len(content) > MOST_MANIFEST_BYTES:
        raise StorageError(
            f"{shown} is no bundle of EMTC Lab: its manifest is bigger than any.",
            reason="manifest_too_large",
            subject=shown,
        )
    return content


def _check_size(manifest: Manifest, folder: Path, shown: str) -> None:
    free = shutil.disk_usage(folder).free
    if manifest.size > min(MOST_STUDY_BYTES, free // 2):  # its indexes and a search take room, too
        raise StorageError(
            f"{shown} says that it unpacks to {manifest.size / 1e9:,.1f} GB; {free / 1e9:,.1f} GB are free in "
            f"{folder.parent}, and at most {MOST_STUDY_BYTES / 1e9:,.0f} GB are unpacked.",
            reason="too_large",
            subject=manifest.size,
        )


def _write_checked(member: IO[bytes], study: Path, manifest: Manifest, shown: str) -> None:
    """Unpack no more than was announced, and compare it with its checksum."""
    digest, written = hashlib.sha256(), 0
    with study.open("xb") as file:
        while some := member.read(_CHUNK_BYTES):
            written += len(some)
            if written > manifest.size:
                raise StorageError(
                    f"{shown} unpacks to more than its manifest says; it was made to fill a disk.",
                    reason="larger_than_manifest",
                    subject=shown,
                )
            digest.update(some)
            file.write(some)
    if written != manifest.size or digest.hexdigest() != manifest.sha256:
        raise StorageError(
            f"{shown} was altered: {STUDY} is not what its manifest says. Ask for it again.",
            reason="altered",
            subject=shown,
        )


def _make_ready(study: Path, shown: str, *, is_ours: bool) -> None:
    """Look at every row of the database that is not ours, then give it its indexes and this version's schema."""
    try:
        url = sqlite_address(study)
        if not is_ours:
            _refuse_unsound(url, shown)
        schema, _ = find_schema(url)
        if schema is None:
            raise StorageError("it holds no tables", reason="no_tables")
        _make_indexes(study, schema)
        db = open_database(url)
        try:
            if not is_ours:
                check_study(db)
        finally:
            db.dispose()
        with closing(sqlite3.connect(study, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except NewerDatabaseError as error:
        raise StorageError(
            f"{shown} comes from a newer version. Upgrade with: {how_to_upgrade()}",
            reason="newer_version",
            subject=shown,
        ) from error
    except (EmtcError, sqlite3.Error) as error:
        reason = str(error).replace(str(study), STUDY)
        cause = error if isinstance(error, EmtcError) else StorageError()
        raise StorageError(
            f"{shown} is refused: {reason.rstrip('.')}. Nothing was kept of it.",
            reason=cause.reason or "unsound",
            subject=cause.subject,
        ) from error


def _refuse_unsound(url: str, shown: str) -> None:
    """Maps that name a module stay what they are elsewhere, too: text, unless this machine allows them."""
    report = check_database(url, is_allowed=lambda map: True)
    if report.schema is not None and report.schema > upgrade.SCHEMA_VERSION:
        raise NewerDatabaseError(f"{shown} has schema {report.schema}.", reason="newer_version", subject=report.schema)
    wrong = [finding for finding in report.findings if finding.kind != "notice"]
    if wrong:
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        raise StorageError(
            f"{wrong[0].where}: {wrong[0].what.rstrip('.')}{more}", reason="unsound", subject=wrong[0].where
        )
    if not report.runs:
        raise StorageError("it holds no run", reason="no_runs")


def _make_indexes(study: Path, schema: str) -> None:
    """Make the indexes that a database of this schema has: text and content are ours, never the bundle's."""
    fresh = upgrade.describe_indexes(schema)
    with closing(sqlite3.connect(study, isolation_level=None)) as connection:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("BEGIN")
        own = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
        for (name,) in connection.execute(own).fetchall():
            quoted = name.replace('"', '""')
            connection.execute(f'DROP INDEX "{quoted}"')
        for statement in fresh.values():
            connection.execute(statement)
        connection.execute("REINDEX")  # of keys, too: two rows of one key are found here
        connection.execute("COMMIT")
