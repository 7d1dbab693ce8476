"""Write runs of a database to a bundle, and import runs of a bundle into a database.

An import copies all requested runs or none, and does not change runs that the database already has. Each imported run
gets a tag with the name of the bundle.
"""

import hashlib
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, func, select

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.bundle_cache import Bundle, clean_name
from storage.bundles.contents import WHOLE, Contents, copy_runs, list_existing_runs
from storage.bundles.manifest import STUDY, BundleManifest
from storage.bundles.read import MANIFEST, unpack_temporarily
from storage.engine import Database, check_not_read_only, open_database
from storage.models import SCHEMA_VERSION, Base, Run
from storage.private_files import open_output

_MANIFEST_RUN_COLUMNS: Final = (
    *(Run.id, Run.name, Run.env, Run.map, Run.algo, Run.seed, Run.status, Run.env_steps, Run.sweep_id),
)
_COUNTED_TABLES: Final = ("transitions", "episodes", "evaluations", "metrics", "snapshots", "eval_episodes")
_MAX_LISTED_RUNS: Final = 5


@dataclass(frozen=True)
class WrittenBundle:
    """Path, sizes and number of runs of a new bundle."""

    place: Path
    size_bytes: int
    study_bytes: int
    """Size of the uncompressed database."""
    runs: int


@dataclass(frozen=True)
class BundleImport:
    """Result of an import."""

    new: tuple[str, ...]
    """Ids of the runs that were added, oldest first."""
    existing: tuple[str, ...]
    """Ids of the runs that the database already had. They were not changed."""


@dataclass(frozen=True)
class ImportPlan:
    """What an import would add to a database."""

    new: tuple[str, ...]
    """Ids of the runs that would be added."""
    existing: tuple[str, ...]
    """Ids of the runs that the database already has. An import does not change them."""
    rows: dict[str, int]
    """Table → number of rows of the new runs."""

    def __str__(self) -> str:
        if not self.new:
            return "nothing, because all of its runs are already in this database"
        counts = ", ".join(
            f"{self.rows[name]:,} {name.replace('eval_episodes', 'playbacks')}" for name in _COUNTED_TABLES
        )
        return f"{len(self.new):,} run{'s' if len(self.new) != 1 else ''}: {counts}"


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
        raise StorageError("A bundle must contain at least one run. List runs with: emtc runs", reason="no_runs")
    with tempfile.TemporaryDirectory(prefix="emtc-bundle-") as folder:
        study = Path(folder) / STUDY
        runs = _write_study(db, run_ids, study, contents, add)
        size = study.stat().st_size
        with study.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        facts = {
            "format": "emtc-bundle",
            "version": 1,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "made_by": made_by,
            "schema": str(SCHEMA_VERSION),
            "contents": contents.describe(),
            "runs": runs,
            "sweeps": sorted({run["sweep_id"] for run in runs if run["sweep_id"]}),
            "members": {STUDY: {"size": size, "sha256": sha256}},
        }
        manifest = BundleManifest.model_validate(facts)
        # LZMA makes thin bundles half as large as DEFLATE does. It is ten times slower, too slow for transitions.
        compression = zipfile.ZIP_DEFLATED if contents.transitions else zipfile.ZIP_LZMA
        with (
            open_output(place) as file,
            zipfile.ZipFile(file, "w", compression, compresslevel=9) as archive,
        ):
            archive.writestr(MANIFEST, manifest.model_dump_json(by_alias=True, indent=1))
            archive.write(study, STUDY)
    return WrittenBundle(place, place.stat().st_size, size, len(runs))


def plan_import(db: Database, bundle: Bundle) -> ImportPlan:
    """What would an import of an opened bundle add, and which of its runs does the database already have?"""
    source = open_database(bundle.url, read_only=True)
    try:
        with source.read() as bundle_connection, db.read() as connection:
            run_ids = _list_runs(bundle_connection)
            existing = list_existing_runs(connection, run_ids)
            existing_set = set(existing)
            new = [run_id for run_id in run_ids if run_id not in existing_set]
            rows = {}
            for name in _COUNTED_TABLES:
                table = Base.metadata.tables[name]
                count = select(func.count()).select_from(table).where(table.c.run_id.in_(new))
                rows[name] = bundle_connection.execute(count).scalar_one()
    finally:
        source.dispose()
    return ImportPlan(tuple(new), tuple(existing), rows)


def import_runs(db: Database, bundle: Bundle, run_ids: Sequence[str]) -> list[str]:
    """Import the given runs of an opened bundle.

    Args:
        db: The database that the runs are added to.
        bundle: The bundle.
        run_ids: The runs.

    Returns:
        The ids of the new runs, oldest first.

    Raises:
        StorageError: If the database already has one of the runs, or a row is invalid. Then no run is imported.
    """
    check_not_read_only("import a bundle")
    return list(_import_runs(db, bundle.study, bundle.name, run_ids).new)


def import_bundle(db: Database, place: Path, *, cache: Path | None = None) -> BundleImport:
    """Import the runs of a bundle file that the database does not have yet.

    Args:
        db: The database that the runs are added to.
        place: Path of the bundle.
        cache: Folder for the temporary unpacked database; the user's cache folder if None.

    Raises:
        StorageError: If the bundle is invalid. Then no run is imported.
    """
    check_not_read_only("import a bundle")
    with unpack_temporarily(place, cache=cache) as (study, _):
        return _import_runs(db, study, place.name)


def _write_study(
    db: Database, run_ids: Sequence[str], study: Path, contents: Contents, add: Callable[[Database], object] | None
) -> list[dict[str, Any]]:
    """Write the bundle's database; return the columns of its runs that the manifest lists, oldest run first.

    Indexes are removed, because they are rebuilt when the bundle is opened. VACUUM removes deleted data.
    """
    target = open_database(sqlite_address(study))
    try:
        with db.read() as source, target.transaction() as connection:
            copy_runs(source, connection, run_ids, contents)
            statement = select(*_MANIFEST_RUN_COLUMNS).order_by(Run.created_at, Run.id)
            rows = connection.execute(statement).mappings().all()
        if add is not None:
            add(target)
    finally:
        target.dispose()
    try:
        with closing(sqlite3.connect(study, isolation_level=None)) as sqlite:
            indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
            for (name,) in sqlite.execute(indexes).fetchall():
                sqlite.execute(f'DROP INDEX "{name}"')
            sqlite.execute("PRAGMA journal_mode=DELETE")
            sqlite.execute("VACUUM")
    except sqlite3.Error as error:
        raise StorageError(
            f"The bundle could not be written: {error}. Check the free disk space in {study.parent}."
        ) from error
    return [dict(row) for row in rows]


def _list_runs(connection: Connection) -> list[str]:
    """List the ids of all runs, oldest first."""
    return list(connection.execute(select(Run.id).order_by(Run.created_at, Run.id)).scalars())


def _import_runs(db: Database, study: Path, name: str, run_ids: Sequence[str] | None = None) -> BundleImport:
    """Import runs of an unpacked bundle in one transaction.

    Args:
        db: The database that the runs are added to.
        study: Path of the unpacked database.
        name: Name of the bundle, for the tag and for messages.
        run_ids: The runs, none of which the database may have; None: all runs that the database does not have.
    """
    source = open_database(sqlite_address(study), read_only=True)
    try:
        with source.read() as reader, db.transaction() as writer:
            requested = None if run_ids is None else set(run_ids)
            ids = [run_id for run_id in _list_runs(reader) if requested is None or run_id in requested]
            existing = list_existing_runs(writer, ids)
            if existing and run_ids is not None:
                listed = ", ".join(existing[:_MAX_LISTED_RUNS]) + (" …" if len(existing) > _MAX_LISTED_RUNS else "")
                raise StorageError(
                    f"These runs of {name} are already in the database: {listed}. Nothing was imported. "
                    f"View the bundle without an import with: emtc open {name}",
                    reason="exists",
                    subject=tuple(existing),
                )
            new = [run_id for run_id in ids if run_id not in set(existing)]
            copy_runs(reader, writer, new, WHOLE, renumber=True, tag=f"from {clean_name(name)}")
    finally:
        source.dispose()
    return BundleImport(tuple(new), tuple(existing))
