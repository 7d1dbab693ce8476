"""Make a bundle: copy some runs into a database of their own, and pack it with what it says about itself.

And the way back: take runs of a bundle into one's own database, all that were asked for, or none. Each is tagged with
its origin.
"""

import hashlib
import json
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
from storage.bundles.contents import WHOLE, Contents, copy_runs, list_present, refuse_empty
from storage.bundles.read import ABOUT, FORMAT, MANIFEST, STUDY, VERSION, unpacked
from storage.engine import Database, open_database, refuse_when_read_only
from storage.models import SCHEMA_VERSION, Base, Run
from storage.private_files import replaced

_CHUNK_BYTES = 1 << 20
_NAMED = (Run.id, Run.name, Run.env, Run.map, Run.algo, Run.seed, Run.status, Run.env_steps, Run.sweep_id)


@dataclass(frozen=True)
class Written:
    """What was made."""

    place: Path
    size_bytes: int
    study_bytes: int
    runs: int


def write_bundle(
    db: Database,
    run_ids: Sequence[str],
    place: Path,
    contents: Contents,
    *,
    made_by: str,
    add: Callable[[Database], object] | None = None,
) -> Written:
    """Write runs into one file, as they are at one moment.

    Args:
        db: An open database.
        run_ids: The runs.
        place: The file; what stands there is replaced in the end.
        contents: What of each run.
        made_by: Name and version of this program.
        add: Writes more into the bundle's own database, such as entries of its notebook, once the runs are there.

    Raises:
        StorageError: If it cannot be written; then there is no file.
    """
    refuse_when_read_only("make a bundle")
    refuse_empty(run_ids)
    with tempfile.TemporaryDirectory(prefix="emtc-bundle-") as folder:
        study = Path(folder) / STUDY
        runs = _copy(db, run_ids, study, contents, add)
        size, digest = study.stat().st_size, _digest(study)
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "about": ABOUT,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "made_by": made_by,
            "schema": SCHEMA_VERSION,
            "contents": contents.describe(),
            "runs": runs,
            "sweeps": sorted({run["sweep_id"] for run in runs if run["sweep_id"]}),
            "members": {STUDY: {"size": size, "sha256": digest}},
        }
        with replaced(place) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr(MANIFEST, json.dumps(facts, indent=1, ensure_ascii=False))
            archive.write(study, STUDY)
    return Written(place, place.stat().st_size, size, len(runs))


def _copy(
    db: Database, run_ids: Sequence[str], study: Path, contents: Contents, add: Callable[[Database], object] | None
) -> list[dict[str, Any]]:
    target = open_database(sqlite_address(study))
    try:
        with db.read() as source, target.transaction() as connection:
            copy_runs(source, connection, run_ids, contents)
            rows = connection.execute(select(*_NAMED).order_by(Run.created_at, Run.id)).mappings().all()
        if add is not None:
            add(target)
    finally:
        target.dispose()
    _shrink(study)
    return [dict(row) for row in rows]


def _shrink(study: Path) -> None:
    """Leave out what can be made anew, and everything that was deleted."""
    try:
        with closing(sqlite3.connect(study, isolation_level=None)) as connection:
            indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
            for (name,) in connection.execute(indexes).fetchall():
                connection.execute(f'DROP INDEX "{name}"')
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise StorageError(f"The bundle could not be packed: {error}. Is there room in {study.parent}?") from error


def _digest(place: Path) -> str:
    digest = hashlib.sha256()
    with place.open("rb") as file:
        while some := file.read(_CHUNK_BYTES):
            digest.update(some)
    return digest.hexdigest()


_COUNTED: Final = ("transitions", "episodes", "evaluations", "metrics", "snapshots", "eval_episodes")
_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Plan:
    """What an import would do."""

    new: tuple[str, ...]
    here: tuple[str, ...]
    """Runs whose ids one's own database has already; an import leaves them as they are."""
    rows: dict[str, int]
    """Table → rows of the new runs."""

    def __str__(self) -> str:
        if not self.new:
            return "nothing, for all of its runs are here already"
        counted = ", ".join(f"{self.rows[name]:,} {name.replace('eval_episodes', 'playbacks')}" for name in _COUNTED)
        return f"{len(self.new):,} run{'s' if len(self.new) != 1 else ''}: {counted}"


def plan_import(db: Database, bundle: Bundle) -> Plan:
    """What an import of an opened bundle would add, and which of its runs are here already; nothing is written."""
    source = open_database(bundle.url, read_only=True)
    try:
        with source.read() as reading, db.read() as own:
            ids = _list_ids(reading)
            here = list_present(own, ids)
            known = set(here)
            new = [each for each in ids if each not in known]
            rows = {name: _count(reading, name, new) for name in _COUNTED}
    finally:
        source.dispose()
    return Plan(tuple(new), tuple(here), rows)


def _list_ids(connection: Connection) -> list[str]:
    """List the runs of a bundle, oldest first."""
    return list(connection.execute(select(Run.id).order_by(Run.created_at, Run.id)).scalars())


def _count(connection: Connection, name: str, run_ids: Sequence[str]) -> int:
    table = Base.metadata.tables[name]
    asked = select(func.count()).select_from(table).where(table.c.run_id.in_(run_ids))
    return connection.execute(asked).scalar_one()


def import_opened(db: Database, bundle: Bundle, run_ids: Sequence[str]) -> list[str]:
    """Copy these runs of an opened bundle, as `import_bundle` does.

    Raises:
        StorageError: If one of them is here, or a row is none; then nothing was imported.
    """
    refuse_when_read_only("import a bundle")
    return _copy_in(db, bundle.study, bundle.name, run_ids)


def import_bundle(db: Database, place: Path, *, cache: Path | None = None) -> list[str]:
    """Copy every run of a bundle; a run that is here already is not replaced.

    Args:
        db: One's own database, open for writing.
        place: The bundle.
        cache: Folder to unpack it in for the moment.

    Returns:
        The ids of the new runs.

    Raises:
        StorageError: If it is no sound bundle, or one of its runs is here; then nothing was imported.
    """
    refuse_when_read_only("import a bundle")
    with unpacked(place, cache=cache) as (study, _):
        return _copy_in(db, study, place.name)


def _copy_in(db: Database, study: Path, shown: str, run_ids: Sequence[str] | None = None) -> list[str]:
    source = open_database(sqlite_address(study), read_only=True)
    try:
        with source.read() as reading, db.transaction() as writing:
            there = _list_ids(reading)
            wanted = set(there if run_ids is None else run_ids)
            ids = [each for each in there if each in wanted]
            if here := list_present(writing, ids):
                named = ", ".join(here[:_NAMED_AT_MOST]) + (" …" if len(here) > _NAMED_AT_MOST else "")
                raise StorageError(
                    f"Of the runs of {shown} these are here already: {named}. Nothing was imported; look at "
                    f"the bundle itself with: emtc open {shown}",
                    reason="exists",
                    subject=tuple(here),
                )
            copy_runs(reading, writing, ids, WHOLE, renumber=True, tag=f"from {clean_name(shown)}")
    finally:
        source.dispose()
    return ids
