"""Check a bundle from any source and unpack it.

No code from a bundle is executed, and no text in it is used as the path of a file or the name of a module.

A bundle is a zip file of `manifest.json` and `study.db`. `study.db` is a normal database of EMTC Lab. The manifest
(`manifest.BundleManifest`) has these keys:

- `format`, `version`: "emtc-bundle" and 1.
- `about`: a text for people, which explains how to open the file.
- `made_at`, `made_by`: time, and version of EMTC Lab that wrote it.
- `schema`: schema version of `study.db`. Secondary indexes are not stored; they are created when the bundle is opened.
- `contents`: what was copied of each run; see `contents.Contents.describe`.
- `runs`, `sweeps`: the runs with some of their columns, and the ids of their sweeps.
- `members`: name → size [bytes] and sha256 of each other file in the bundle, uncompressed.

Only `manifest.json` and `study.db` are read from the zip file. The unpacked database is checked in this order:

1. While `study.db` is unpacked, its bytes are counted and compared with the size and the checksum in the manifest.
2. `check_database` checks the schema and the pages of the file.
3. The indexes are created.
4. `check_study` checks the settings and the invariants of the runs.

Nothing is shown before all checks have passed. Steps 2 and 4 are left out for a bundle that is part of this program. If
a check fails, the unpacked files are deleted.
"""

import hashlib
import shutil
import sqlite3
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Generator
from contextlib import closing, contextmanager
from lzma import LZMAError
from pathlib import Path
from typing import IO, Final

from platformdirs import user_cache_path
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError

from emtc_core.errors import EmtcError, StorageError
from storage.address import sqlite_address
from storage.bundles.check_study import check_study
from storage.bundles.manifest import STUDY, BundleManifest, parse_manifest
from storage.engine import open_database
from storage.guards import shorten
from storage.maintenance.check_database import check_database
from storage.models import Base
from storage.private_files import make_private_folder

MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 16 << 20
MAX_STUDY_BYTES: Final = 256 << 30
"""Limit of the unpacked database. A database of SQLite itself could be larger."""
_CHUNK_BYTES: Final = 1 << 20
_MAX_DIRECTORY_BYTES: Final = 1 << 16
"""Limit of the zip file's central directory. The directory of two files has about 150 bytes."""
_DIRECTORY_END: Final = struct.Struct("<4s4H2LH")
"""The zip format's "end of central directory" record."""
_ZIP64_LOCATOR: Final = struct.Struct("<4sLQL")
"""The "ZIP64 end of central directory locator"."""
_ZIP64_DIRECTORY_END: Final = struct.Struct("<4sQ2H2L4Q")
"""The "ZIP64 end of central directory" record."""
_READ_ONLY_MODE: Final = 0o400
_TEMPORARY: Final = ".opening-"
_STALE_AFTER_S: Final = 86_400.0
"""A temporary folder that is older was left by a killed process, and is deleted [s]."""


def find_cache() -> Path:
    """Return the folder that the user's bundles are unpacked to. It may not exist yet."""
    return user_cache_path("emtc-lab") / "bundles"


def read_manifest(place: Path) -> BundleManifest:
    """Read the manifest of a bundle. Only its format is validated here, not the data of the bundle.

    Raises:
        StorageError: If the file is not a bundle.
    """
    with _open_archive(place) as archive:
        return _read_manifest(archive, place.name)


def open_bundle(place: Path, *, cache: Path | None = None, is_trusted: bool = False) -> tuple[Path, BundleManifest]:
    """Check a bundle and unpack it to a read-only database in the cache folder.

    Args:
        place: Path of the bundle.
        cache: The cache folder; the user's cache folder if None.
        is_trusted: The bundle is part of this program and is trusted like its code. Its checksum is compared, but its
            rows are not checked. It is not unpacked again if the cache has it.

    Returns:
        The path of the database, and the manifest.

    Raises:
        StorageError: If the bundle is invalid. Then nothing of it remains in the cache folder.
    """
    folder = cache or find_cache()
    if is_trusted:
        manifest = read_manifest(place)
        cached = _cached_path(folder, manifest)
        if cached.is_file():
            return cached, manifest
    with unpack_temporarily(place, cache=folder, is_trusted=is_trusted) as (study, manifest):
        study.chmod(_READ_ONLY_MODE)
        cached = _cached_path(folder, manifest)
        study.replace(cached)
    return cached, manifest


@contextmanager
def unpack_temporarily(
    place: Path, *, cache: Path | None = None, is_trusted: bool = False
) -> Generator[tuple[Path, BundleManifest]]:
    """Check a bundle and unpack it to a temporary database with the current schema.

    The database is deleted at the end of the context, unless the caller has moved it.

    Args:
        place: Path of the bundle.
        cache: Folder for the temporary database; the user's cache folder if None.
        is_trusted: See `open_bundle`.

    Raises:
        StorageError: If the bundle is invalid, or the folder cannot be written.
    """
    with make_temporary_folder(cache or find_cache()) as path:
        study = Path(path) / STUDY
        with _open_archive(place) as archive:
            manifest = _read_manifest(archive, place.name)
            _check_free_space(manifest, study.parent, place.name)
            with archive.open(STUDY) as member:
                _write_study(member, study, manifest, place.name)
        _prepare_database(study, place, is_trusted=is_trusted)
        yield study, manifest


def make_temporary_folder(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder in the cache folder. Delete those that killed processes have left there.

    Raises:
        StorageError: If the cache folder cannot be written.
    """
    try:
        make_private_folder(cache)
        for folder in cache.glob(f"{_TEMPORARY}*"):
            if time.time() - folder.lstat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)
        return tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache)
    except OSError as error:
        raise StorageError(f"{cache} cannot be written: {error.strerror}. Bundles are unpacked there.") from error


def _cached_path(folder: Path, manifest: BundleManifest) -> Path:
    return folder / f"{manifest.sha256[:16]}.db"


@contextmanager
def _open_archive(place: Path) -> Generator[zipfile.ZipFile]:
    """Open the zip file and check the names of its members. Errors in the `with` block become a StorageError."""
    name = place.name
    if not place.is_file():
        raise StorageError(f"There is no bundle at {place}.", reason="not_found", subject=place)
    try:
        with place.open("rb") as file:
            _check_directory_size(file, name)
            with zipfile.ZipFile(file) as archive:
                members = [info.filename for info in archive.infolist()]
                if sorted(members) != [MANIFEST, STUDY]:
                    unexpected = next((member for member in members if member not in (MANIFEST, STUDY)), None)
                    reason = (
                        f"it does not contain {MANIFEST} and {STUDY} exactly once"
                        if unexpected is None
                        else f"it contains {shorten(unexpected)}"
                    )
                    raise StorageError(
                        f"{name} is not a bundle of EMTC Lab: {reason}.",
                        reason="other_members",
                        subject=unexpected or "",
                    )
                yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        LZMAError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        struct.error,
    ) as error:
        raise StorageError(
            f"{name} is damaged or incomplete: {error}. Request the file again.", reason="damaged", subject=name
        ) from error
    except OSError as error:
        raise StorageError(f"{name} cannot be unpacked: {error.strerror or error}.") from error


def _read_manifest(archive: zipfile.ZipFile, name: str) -> BundleManifest:
    with archive.open(MANIFEST) as member:
        content = member.read(MAX_MANIFEST_BYTES + 1)
    if len(content) > MAX_MANIFEST_BYTES:
        raise StorageError(
            f"{name} is not a bundle of EMTC Lab: its manifest is larger than {MAX_MANIFEST_BYTES >> 20} MiB.",
            reason="manifest_too_large",
            subject=name,
        )
    return parse_manifest(content, name)


def _check_directory_size(file: IO[bytes], name: str) -> None:
    """Check the size of the zip file's directory before `zipfile` loads it.

    A small file can claim a directory of millions of members.
    """
    size = file.seek(0, 2)
    tail_bytes = min(size, _DIRECTORY_END.size + _ZIP64_LOCATOR.size)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    if len(tail) < _DIRECTORY_END.size or not tail[-_DIRECTORY_END.size :].startswith(b"PK\5\6"):
        raise StorageError(
            f"{name} is not a bundle of EMTC Lab, or it is incomplete. Request the file again.",
            reason="not_a_bundle",
            subject=name,
        )
    directory_bytes = _DIRECTORY_END.unpack(tail[-_DIRECTORY_END.size :])[5]  # field 5: size of the directory
    if tail.startswith(b"PK\6\7") and len(tail) == _DIRECTORY_END.size + _ZIP64_LOCATOR.size:
        zip64_offset = _ZIP64_LOCATOR.unpack(tail[: _ZIP64_LOCATOR.size])[2]  # field 2: offset of the ZIP64 record
        file.seek(min(size, zip64_offset))
        # field 8: size of the directory
        zip64_bytes = _ZIP64_DIRECTORY_END.unpack(file.read(_ZIP64_DIRECTORY_END.size))[8]
        # 0xFFFFFFFF means: see the ZIP64 record
        directory_bytes = max(directory_bytes if directory_bytes < 0xFFFFFFFF else 0, zip64_bytes)
    if directory_bytes > _MAX_DIRECTORY_BYTES:
        raise StorageError(
            f"{name} is not a bundle of EMTC Lab: it lists far more than two members.",
            reason="too_many_members",
            subject=name,
        )
    file.seek(0)


def _check_free_space(manifest: BundleManifest, folder: Path, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if manifest.size > min(MAX_STUDY_BYTES, free // 2):  # the other half is for its indexes and for queries
        raise StorageError(
            f"{name} unpacks to {manifest.size / 1e9:,.1f} GB according to its manifest. {free / 1e9:,.1f} GB are free "
            f"in {folder.parent}. The limit is half of the free space, and at most {MAX_STUDY_BYTES / 1e9:,.0f} GB.",
            reason="too_large",
            subject=manifest.size,
        )


def _write_study(member: IO[bytes], study: Path, manifest: BundleManifest, name: str) -> None:
    """Unpack the database and compare its size and checksum with the manifest. Stop if it is larger than stated."""
    digest, size = hashlib.sha256(), 0
    with study.open("xb") as file:
        while chunk := member.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > manifest.size:
                raise StorageError(
                    f"{name}: {STUDY} has more than the {manifest.size:,} bytes in its manifest. Do not trust it.",
                    reason="larger_than_manifest",
                    subject=name,
                )
            digest.update(chunk)
            file.write(chunk)
    if size != manifest.size or digest.hexdigest() != manifest.sha256:
        raise StorageError(
            f"{name} was modified: {STUDY} does not match the checksum in its manifest. Request the file again.",
            reason="altered",
            subject=name,
        )


def _prepare_database(study: Path, place: Path, *, is_trusted: bool) -> None:
    """Check the rows of a database unless it is trusted, and create its indexes."""
    name = place.name
    try:
        url = sqlite_address(study)
        if not is_trusted:
            _check_structure(url)
        _create_indexes(study)
        db = open_database(url)
        try:
            if not is_trusted:
                check_study(db)
        finally:
            db.dispose()
        with closing(sqlite3.connect(study, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except (EmtcError, sqlite3.Error) as error:
        message = str(error).replace(str(study), STUDY)
        reason, subject = (error.reason, error.subject) if isinstance(error, EmtcError) else ("", "")
        raise StorageError(
            f"{name} is refused: {message.rstrip('.')}. The unpacked files were deleted.",
            reason=reason or "unsound",
            subject=subject,
        ) from error


def _check_structure(url: str) -> None:
    """Raise if `check_database` finds errors.

    A map's name can be the import path of a module. All names are allowed here, because no module is imported.
    `check_database` does not check the settings (`checks_contents`): `check_study` does this.
    """
    report = check_database(url, is_allowed=lambda map: True, checks_contents=False)
    errors = [finding for finding in report.findings if finding.kind != "notice"]
    if errors:
        more = f" (and {len(errors) - 1:,} more)" if len(errors) > 1 else ""
        raise StorageError(
            f"{errors[0].where}: {errors[0].what.rstrip('.')}{more}", reason="unsound", subject=errors[0].where
        )
    if not report.runs:
        raise StorageError("it contains no runs", reason="no_runs")


def _create_indexes(study: Path) -> None:
    """Replace all indexes by those of this schema. Their SQL comes from this program, never from the bundle."""
    engine = create_engine(URL.create("sqlite", database=str(study)))
    try:
        with engine.begin() as connection:
            connection.execute(text("PRAGMA trusted_schema=OFF"))
            indexes = text("SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL")
            for name in connection.execute(indexes).scalars().all():
                quoted = name.replace('"', '""')
                connection.exec_driver_sql(f'DROP INDEX "{quoted}"')
            for table in Base.metadata.sorted_tables:
                for index in table.indexes:
                    index.create(connection)
            connection.execute(text("REINDEX"))  # also checks primary keys: fails if two rows have the same key
    except DBAPIError as error:
        raise StorageError(f"its indexes cannot be created: {error.orig}") from error
    finally:
        engine.dispose()
