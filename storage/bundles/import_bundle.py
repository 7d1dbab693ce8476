"""Take runs of a bundle into one's own database: all that were asked for, or none. Each is tagged with its origin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, select

from emtc_core.errors import StorageError
from storage.address import sqlite_address
from storage.bundles.bundle_cache import Bundle, clean_name
from storage.bundles.contents import WHOLE, copy_runs, list_present
from storage.bundles.read import unpacked
from storage.engine import Database, open_database, refuse_when_read_only
from storage.models import Base, Run

_COUNTED: Final = ("transitions", "episodes", "evaluations", "metrics", "snapshots", "eval_episodes")
_NAMED = 5


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
    return _copy(db, bundle.study, bundle.name, run_ids)


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
        return _copy(db, study, place.name)


def _copy(db: Database, study: Path, shown: str, run_ids: Sequence[str] | None = None) -> list[str]:
    source = open_database(sqlite_address(study), read_only=True)
    try:
        with source.read() as reading, db.transaction() as writing:
            there = _list_ids(reading)
            wanted = set(there if run_ids is None else run_ids)
            ids = [each for each in there if each in wanted]
            if here := list_present(writing, ids):
                named = ", ".join(here[:_NAMED]) + (" …" if len(here) > _NAMED else "")
                raise StorageError(
                    f"Of the runs of {shown} these are here already: {named}. Nothing was imported; look at "
                    f"the bundle itself with: emtc open {shown}"
                )
            copy_runs(reading, writing, ids, WHOLE, renumber=True, tag=f"from {clean_name(shown)}")
    finally:
        source.dispose()
    return ids
