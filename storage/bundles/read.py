"""Open a bundle: check it and unpack it.

A bundle is a ZIP file of `manifest.json` (`manifest.BundleManifest`) and `study.db`, a SQLite database of EMTC Lab
without secondary indexes. Nothing in a bundle is executed or unpickled, and no text in it is used as a path.

These checks are made in this order. If one fails, no file remains:

1. It is a ZIP file that contains exactly the two files (`_open_archive`).
2. The manifest has at most `MAX_MANIFEST_BYTES`, the current format version and valid values (`_read_manifest`).
3. The database has at most `MAX_STUDY_BYTES`, and at most half of the free disk space, before it is unpacked.
4. While it is unpacked, its bytes are counted and compared with the size and the checksum in the manifest
   (`_unpack_study`).
5. It contains nothing but tables and the indexes that SQLite creates for their keys: no view, trigger, virtual table
   or other index, because these are SQL of the file (`_find_fault`, also for the next three checks).
6. It has tables of EMTC Lab, and its schema version is that of this program.
7. `PRAGMA quick_check` finds no damage.
8. Its tables and their columns (name, type, NOT NULL, position in the primary key, not generated) are those of this
   program.

Then the secondary indexes are created with this program's SQL, and the database is opened read-only. The values of the
rows are not checked. A page that cannot read a value shows one sentence. A database with the same checksum that is in
the cache already has passed the checks 3 to 8.
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
from contextlib import closing, contextmanager, suppress
from functools import cache
from lzma import LZMAError
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.manifest import MANIFEST, STUDY, BundleManifest, parse_manifest
from storage.engine import open_database
from storage.guards import shorten
from storage.models import SCHEMA_VERSION, Base
from storage.private_files import make_private_folder
from storage.schema import VERSION_TABLE

MAX_MANIFEST_BYTES: Final = 16 << 20
MAX_STUDY_BYTES: Final = 256 << 30
"""Limits of the unpacked files."""
_CHUNK_BYTES: Final = 1 << 14
"""Number of bytes that are read at once. `zipfile` decompresses as many compressed bytes without a limit."""
_ARCHIVE_ERRORS: Final = (
    *(zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error),
)
"""Exceptions of `zipfile` for a damaged file."""
_READ_VERSION: Final = f"SELECT version FROM {VERSION_TABLE.name} LIMIT 2"
_READ_ONLY_MODE: Final = 0o400
_TEMPORARY: Final = ".opening-"
_STALE_AFTER_S: Final = 86_400.0
"""A temporary folder that is older was left by a killed process, and is deleted [s]."""

Tables = dict[str, frozenset[tuple[Any, ...]]]
"""Table → its columns as (name, type, NOT NULL, position in the primary key, hidden)."""


def find_cache() -> Path:
    """Return the folder that the user's bundles are unpacked to. It may not exist yet."""
    return user_cache_path("emtc-lab") / "bundles"


def open_bundle(place: Path, *, cache: Path | None = None) -> tuple[Path, BundleManifest]:
    """Check a bundle and unpack it to a read-only database in the cache folder, unless its database is there already.

    Args:
        place: Path of the bundle.
        cache: The cache folder; the user's cache folder if None.

    Returns:
        The path of the database, and the manifest.

    Raises:
        StorageError: If the bundle is invalid, or the cache folder cannot be written.
    """
    folder = cache or find_cache()
    with _open_archive(place) as archive:
        manifest = _read_manifest(archive, place.name)
        cached = folder / f"{manifest.study.sha256[:16]}.db"
        if not _is_usable(cached):
            with make_temporary_folder(folder) as temporary:
                study = Path(temporary) / STUDY
                _unpack_study(archive, manifest, study, place.name)
                _prepare_database(study, place.name)
                study.chmod(_READ_ONLY_MODE)
                study.replace(cached)
    return cached, manifest


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


@contextmanager
def _open_archive(place: Path) -> Generator[zipfile.ZipFile]:
    """Open the ZIP file and check the names of its files. Errors in the `with` block become a StorageError."""
    name = place.name
    if not place.is_file():
        raise StorageError(f"There is no bundle at {place}.")
    try:
        if not zipfile.is_zipfile(place):
            raise StorageError(f"{name} is not a bundle of EMTC Lab, or it is incomplete. Request the file again.")
        with zipfile.ZipFile(place) as archive:
            members = archive.namelist()
            if len(members) != 2 or set(members) != {MANIFEST, STUDY}:
                unexpected = next((member for member in members if member not in (MANIFEST, STUDY)), None)
                reason = f"it contains {shorten(unexpected)}" if unexpected is not None else "one is missing or twice"
                raise StorageError(
                    f"{name} is not a bundle of EMTC Lab. A bundle contains {MANIFEST} and {STUDY}, but {reason}."
                )
            yield archive
    except _ARCHIVE_ERRORS as error:
        raise StorageError(f"{name} is damaged or incomplete. Request the file again.") from error
    except OSError as error:
        raise StorageError(f"{name} cannot be unpacked: {error.strerror or error}.") from error


def _read_manifest(archive: zipfile.ZipFile, name: str) -> BundleManifest:
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise StorageError(
            f"{name} is not a bundle of EMTC Lab: its manifest is larger than {MAX_MANIFEST_BYTES >> 20} MiB."
        )
    return parse_manifest(archive.read(MANIFEST), name)


def _is_usable(study: Path) -> bool:
    """Return whether there is a database of the current schema at this path."""
    with suppress(StorageError):
        open_database(sqlite_address(study), read_only=True).dispose()
        return True
    return False


def _unpack_study(archive: zipfile.ZipFile, manifest: BundleManifest, study: Path, name: str) -> None:
    """Unpack the database and compare its size and checksum with the manifest. Stop if it is larger than stated."""
    free = shutil.disk_usage(study.parent).free
    size = max(archive.getinfo(STUDY).file_size, manifest.study.size)
    if size > min(MAX_STUDY_BYTES, free // 2):
        raise StorageError(
            f"{name} has {size / 1e9:,.1f} GB unpacked. {free / 1e9:,.1f} GB are free in {study.parent.parent}. The "
            f"limit is half of the free space, and at most {MAX_STUDY_BYTES / 1e9:,.0f} GB."
        )
    digest, size = hashlib.sha256(), 0
    with archive.open(STUDY) as member, study.open("xb") as file:
        while chunk := member.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > manifest.study.size:
                raise StorageError(
                    f"{name} was modified: {STUDY} is larger than the {manifest.study.size:,} bytes in its manifest. "
                    "Request the file again."
                )
            digest.update(chunk)
            file.write(chunk)
    if size != manifest.study.size or digest.hexdigest() != manifest.study.sha256:
        raise StorageError(
            f"{name} was modified: {STUDY} does not match the size and the checksum in its manifest. Request the file "
            "again."
        )


def _prepare_database(study: Path, name: str) -> None:
    """Check an unpacked database and create its secondary indexes."""
    try:
        with closing(sqlite3.connect(study, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            if (fault := _find_fault(connection)) is not None:
                raise StorageError(f"{name} is refused: {fault}.")
            connection.execute("PRAGMA journal_mode=DELETE")  # one file without a write-ahead log
            connection.execute("BEGIN")
            for table in Base.metadata.sorted_tables:
                for index in table.indexes:
                    connection.execute(_compile(CreateIndex(index)))
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise StorageError(f"{name} is refused: its database is damaged ({shorten(str(error))}).") from error


def _find_fault(connection: sqlite3.Connection) -> str | None:
    """Return why a database is refused, as a clause; None if all checks pass."""
    other = connection.execute(
        "SELECT type, name FROM sqlite_master "
        "WHERE (type != 'table' AND sql IS NOT NULL) OR (type = 'table' AND rootpage = 0)"  # 0: a virtual table
    ).fetchone()
    if other is not None:
        kind = "virtual table" if other[0] == "table" else other[0]
        return f"its database contains the {kind} {shorten(other[1])}, and only tables are allowed"
    expected, tables = _list_expected_tables(), _list_tables(connection)
    if expected.keys().isdisjoint(tables):
        return "its database is not a database of EMTC Lab"
    versions = [version for (version,) in connection.execute(_READ_VERSION)]
    if versions != [SCHEMA_VERSION]:
        version = shorten(versions[0]) if versions else "none"
        return f"its database has the schema version {version}, and this program reads {SCHEMA_VERSION}"
    (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if report != "ok":
        return f"its database is damaged ({shorten(report.splitlines()[-1])})"
    for table in sorted(expected.keys() | tables.keys()):
        if tables.get(table) != expected.get(table):
            return f"its table {shorten(table)} differs from the schema of this program"
    return None


def _list_tables(connection: sqlite3.Connection) -> Tables:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    columns = 'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)'
    return {
        table: frozenset(connection.execute(columns, (table,)).fetchall())
        for (table,) in connection.execute(names).fetchall()
    }


@cache
def _list_expected_tables() -> Tables:
    """List the tables of this program."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in (*Base.metadata.sorted_tables, VERSION_TABLE):
            connection.execute(_compile(CreateTable(table)))
        return _list_tables(connection)


def _compile(statement: ExecutableDDLElement) -> str:
    return str(statement.compile(dialect=sqlite.dialect()))
