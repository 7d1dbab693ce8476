"""Import runs of a bundle into a database.

An import copies all requested runs or none, and does not change runs that the database already has. Each imported run
gets a tag with the name of the bundle.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, select

from storage.address import sqlite_address
from storage.bundles.bundle_cache import Bundle, clean_name
from storage.bundles.contents import WHOLE, copy_runs
from storage.bundles.read import find_cache, make_temporary_folder, open_bundle
from storage.engine import Database, check_not_read_only, open_database
from storage.models import Base, Run

_COUNTED_TABLES: Final = ("transitions", "episodes", "evaluations", "metrics", "snapshots", "eval_episodes")


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


def plan_import(db: Database, bundle: Bundle) -> ImportPlan:
    """What would an import of an opened bundle add, and which of its runs does the database already have?"""
    source = open_database(bundle.url, read_only=True)
    try:
        with source.read() as reader, db.read() as connection:
            new, existing = _split_runs(reader, connection)
            rows = {}
            for name in _COUNTED_TABLES:
                table = Base.metadata.tables[name]
                count = select(func.count()).select_from(table).where(table.c.run_id.in_(new))
                rows[name] = reader.execute(count).scalar_one()
    finally:
        source.dispose()
    return ImportPlan(tuple(new), tuple(existing), rows)


def import_runs(db: Database, study: Path, name: str) -> BundleImport:
    """Import the runs of an opened bundle that the database does not have yet, in one transaction.

    Args:
        db: The database that the runs are added to.
        study: Path of the unpacked database.
        name: Name of the bundle, for the tag.

    Raises:
        StorageError: If a row cannot be read or inserted. Then no run is imported.
    """
    check_not_read_only("import a bundle")
    source = open_database(sqlite_address(study), read_only=True)
    try:
        with source.read() as reader, db.transaction() as writer:
            new, existing = _split_runs(reader, writer)
            copy_runs(reader, writer, new, WHOLE, renumber=True, tag=f"from {clean_name(name)}")
    finally:
        source.dispose()
    return BundleImport(tuple(new), tuple(existing))


def import_bundle(db: Database, place: Path, *, cache: Path | None = None) -> BundleImport:
    """Import the runs of a bundle file that the database does not have yet. The bundle is not added to the cache.

    Args:
        db: The database that the runs are added to.
        place: Path of the bundle.
        cache: Folder for the temporary unpacked database; the user's cache folder if None.

    Raises:
        StorageError: If the bundle is invalid. Then no run is imported.
    """
    check_not_read_only("import a bundle")
    with make_temporary_folder(cache or find_cache()) as folder:
        study, _ = open_bundle(place, cache=Path(folder))
        return import_runs(db, study, place.name)


def _split_runs(source: Connection, target: Connection) -> tuple[list[str], list[str]]:
    """Return the ids of the runs that the target does not have, and of those that it has, each oldest first."""
    run_ids = source.execute(select(Run.id).order_by(Run.created_at, Run.id)).scalars().all()
    existing = [run_id for run_id in run_ids if target.execute(select(Run.id).where(Run.id == run_id)).first()]
    return [run_id for run_id in run_ids if run_id not in set(existing)], existing
