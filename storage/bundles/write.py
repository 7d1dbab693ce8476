"""Write runs of a database to a bundle."""

import hashlib
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.contents import Contents, copy_runs
from storage.bundles.manifest import MANIFEST, STUDY, BundledRun, BundleManifest, StudyFile
from storage.engine import Database, check_not_read_only, open_database
from storage.private_files import open_output


@dataclass(frozen=True)
class WrittenBundle:
    """Path, sizes and number of runs of a new bundle."""

    place: Path
    size_bytes: int
    study_bytes: int
    """Size of the uncompressed database."""
    runs: int


def write_bundle(
    db: Database,
    run_ids: Sequence[str],
    place: Path,
    contents: Contents,
    *,
    made_by: str,
    add: Callable[[Database], object] | None = None,
) -> WrittenBundle:
    """Write runs to one file. All runs are read in one transaction.

    Args:
        db: The database that has the runs.
        run_ids: The runs.
        place: Path of the bundle. An existing file is replaced after the bundle is complete.
        contents: What is copied of each run.
        made_by: Name and version of this program.
        add: Called with the bundle's database after the runs are copied, to add for instance notebook entries.

    Raises:
        StorageError: If there is no run, or the bundle cannot be written. No incomplete file remains.
    """
    check_not_read_only("make a bundle")
    if not run_ids:
        raise StorageError("A bundle must contain at least one run. List runs with: emtc runs")
    with tempfile.TemporaryDirectory(prefix="emtc-bundle-") as folder:
        study = Path(folder) / STUDY
        target = open_database(sqlite_address(study))
        try:
            with db.read() as source, target.transaction() as connection:
                copy_runs(source, connection, run_ids, contents)
            if add is not None:
                add(target)
        finally:
            target.dispose()
        return pack_study(study, place, contents, made_by=made_by)


def pack_study(study: Path, place: Path, contents: Contents, *, made_by: str) -> WrittenBundle:
    """Pack a database with the current schema into a bundle. The file is changed: its indexes are removed.

    Args:
        study: Path of the database. It must not be open.
        place: Path of the bundle. An existing file is replaced after the bundle is complete.
        contents: What the database contains of each run.
        made_by: Name and version of this program.

    Raises:
        StorageError: If the bundle cannot be written. No incomplete file remains.
    """
    runs = _remove_indexes(study)
    with study.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = study.stat().st_size
    manifest = BundleManifest(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=made_by,
        contents=contents,
        runs=runs,
        study=StudyFile(size=size, sha256=sha256),
    )
    # LZMA makes thin bundles half as large as DEFLATE does. It is ten times slower, too slow for transitions.
    compression = zipfile.ZIP_DEFLATED if contents.transitions else zipfile.ZIP_LZMA
    with open_output(place) as file, zipfile.ZipFile(file, "w", compression, compresslevel=9) as archive:
        archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
        archive.write(study, STUDY)
    return WrittenBundle(place, place.stat().st_size, size, len(runs))


def _remove_indexes(study: Path) -> list[BundledRun]:
    """Remove the indexes, which are created again when the bundle is opened, and deleted data; return the runs."""
    columns = list(BundledRun.model_fields)
    try:
        with closing(sqlite3.connect(study, isolation_level=None)) as connection:
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM runs ORDER BY created_at, id").fetchall()
            indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
            for (name,) in connection.execute(indexes).fetchall():
                connection.execute(f'DROP INDEX "{name}"')
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("VACUUM")
        return [BundledRun.model_validate(dict(zip(columns, row, strict=True))) for row in rows]
    except sqlite3.Error as error:
        raise StorageError(
            f"The bundle could not be written: {error}. Check the free disk space in {study.parent}."
        ) from error
    except ValidationError as error:
        raise StorageError("A run has a value of the wrong type. Check the database with: emtc db check") from error
