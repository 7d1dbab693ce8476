"""Make a bundle: copy some runs into a database of their own, and pack it with what it says about itself."""

import hashlib
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.contents import Contents, copy_runs, refuse_empty
from storage.bundles.read import ABOUT, FORMAT, MANIFEST, STUDY, VERSION
from storage.engine import Database, open_database, refuse_when_read_only
from storage.models import SCHEMA_VERSION, Run
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


def write_bundle(db: Database, run_ids: Sequence[str], place: Path, contents: Contents, *, made_by: str) -> Written:
    """Write runs into one file, as they are at one moment.

    Args:
        db: An open database.
        run_ids: The runs.
        place: The file; what stands there is replaced in the end.
        contents: What of each run.
        made_by: Name and version of this program.

    Raises:
        StorageError: If it cannot be written; then there is no file.
    """
    refuse_when_read_only("make a bundle")
    refuse_empty(run_ids)
    with tempfile.TemporaryDirectory(prefix="emtc-bundle-") as folder:
        study = Path(folder) / STUDY
        runs = _copy(db, run_ids, study, contents)
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


def _copy(db: Database, run_ids: Sequence[str], study: Path, contents: Contents) -> list[dict[str, Any]]:
    target = open_database(sqlite_address(study))
    try:
        with db.read() as source, target.transaction() as connection:
            copy_runs(source, connection, run_ids, contents)
            rows = connection.execute(select(*_NAMED).order_by(Run.created_at, Run.id)).mappings().all()
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
