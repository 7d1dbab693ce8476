"""Take the runs of a bundle into one's own database: all of them, or none."""

from pathlib import Path

from sqlalchemy import select

from emtc_core.errors import StorageError
from storage.bundles.contents import WHOLE, copy_runs, list_present
from storage.bundles.read import unpacked
from storage.engine import Database, open_database, refuse_when_read_only
from storage.models import Run


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
        source = open_database(f"sqlite:///{study}", read_only=True)
        try:
            with source.read() as reading, db.transaction() as writing:
                ids = list(reading.execute(select(Run.id).order_by(Run.created_at, Run.id)).scalars())
                if here := list_present(writing, ids):
                    shown = ", ".join(here[:5]) + (" …" if len(here) > 5 else "")
                    raise StorageError(
                        f"Of the runs of {place.name} these are here already: {shown}. Nothing was imported; look at "
                        f"the bundle itself with: emtc open {place.name}"
                    )
                copy_runs(reading, writing, ids, WHOLE, renumber=True)
        finally:
            source.dispose()
    return ids
