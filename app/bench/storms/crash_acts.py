"""What is broken off at a crash point: each act that writes, what a person does next, and what must hold then.

Every act works in a folder of its own, which was prepared once and is copied for each point. In it lies `x.db` with one
finished run, the reference: whatever an interrupted run is made to go on with must equal its rows.
"""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.analysis.provenance import library_versions
from app.bench.records import opened
from app.bench.storm import find_wrong
from app.bench.storms.fleet import storm_config
from app.jobs.resume import claim_to_resume, examine_checkpoints
from app.jobs.train_process import train_detached
from emtc_core.config.run import RunConfig
from emtc_core.errors import EmtcError
from storage.bundles.contents import WHOLE
from storage.bundles.write import import_bundle, write_bundle
from storage.engine import Database, open_database
from storage.maintenance.backup import vacuum
from storage.maintenance.check_run import check_run
from storage.maintenance.thin import Thinning, thin_run
from storage.migrations import upgrade
from storage.migrations.upgrade import copy_database
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, start_again
from storage.runs.lifecycle import State, make_owner
from storage.runs.removal import remove_run
from storage.runs.rows import find_run

STEPS: Final = 900
OLDER: Final = "0006"
CONFIG: Final[RunConfig] = storm_config(STEPS)
_EVERYTHING: Final = Thinning(trajectories=True, transitions=True, checkpoints=True, snapshots_every=1000)


@dataclass(frozen=True)
class Act:
    """Something that writes, done in a folder that may be copied."""

    prepare: Callable[[Path], None]
    """Add to a folder with the reference run what the act needs."""
    do: Callable[[Path], None]
    go_on: Callable[[Path], None]
    """What a person would do once more after a crash; after it the act must be done."""
    find_wrong: Callable[[Path], list[str]]


def _open(folder: Path) -> Database:
    return open_database(f"sqlite:///{folder / 'x.db'}")


def _opened(folder: Path) -> AbstractContextManager[Database]:
    return opened(f"sqlite:///{folder / 'x.db'}")


def train_reference(folder: Path) -> None:
    """Record the run that is never interrupted."""
    db = _open(folder)
    owner = make_owner()
    run_id = create_run(
        db, CONFIG.model_dump(mode="json"), target_steps=CONFIG.train.t_max, versions=library_versions(), owner=owner
    )
    _train_on(db, run_id, owner.token, resume=False)


def _train_on(db: Database, run_id: str, token: str, *, resume: bool) -> None:
    url = db.url
    db.dispose()
    if train_detached(url, run_id, announce=_say, token=token, resume=resume):
        raise EmtcError(f"Run {run_id} failed.")


def _go_on_training(folder: Path) -> None:
    db = _open(folder)
    left = [row for run_id in _run_ids(db) if (row := find_run(db, run_id)).state != State.FINISHED]
    for row in left:
        if examine_checkpoints(db, row).can_resume:
            _train_on(db, row.id, claim_to_resume(db, row.id).token, resume=True)
        else:
            owner = make_owner()
            child = start_again(db, row.id, versions=library_versions(), owner=owner)
            _train_on(db, child, owner.token, resume=False)


def _find_wrong_rows(folder: Path) -> list[str]:
    with _opened(folder) as db:
        rows = [find_run(db, run_id) for run_id in _run_ids(db)]
        parents = {row.parent_id for row in rows}
        unfinished = [f"{row.id} is {row.state}" for row in rows if row.state != "finished" and row.id not in parents]
        return unfinished + find_wrong(db, CONFIG)


def _nothing(folder: Path) -> None:
    pass


def _back_up(folder: Path) -> None:
    copy_database(folder / "x.db", folder / "copy.db")


def _back_up_again(folder: Path) -> None:
    if not (folder / "copy.db").exists():
        _back_up(folder)


def _find_wrong_copy(folder: Path) -> list[str]:
    copies = [place.name for place in folder.glob("*.db") if place.name != "x.db"]
    strange = [] if copies == ["copy.db"] else [f"there are the copies {copies}"]
    return strange + _find_wrong_runs(folder) + _find_wrong_runs(folder, "copy.db")


def _find_wrong_runs(folder: Path, name: str = "x.db", *, runs: int = 1) -> list[str]:
    with opened(f"sqlite:///{folder / name}", create=False) as db:
        ids = _run_ids(db)
        missing = [] if len(ids) == runs else [f"{name} holds {len(ids)} runs, not {runs}"]
        return missing + [breach for run_id in ids for breach in check_run(db, run_id)]


def _age(folder: Path) -> None:
    """Make the database one of an older schema, with the rows that this one had a place for."""
    new, place = folder / "new.db", folder / "x.db"
    _fold(place)
    place.rename(new)
    upgrade.make_older(place, OLDER)
    with closing(sqlite3.connect(place)) as old:
        old.execute("ATTACH ? AS new", [str(new)])
        for (name,) in old.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall():
            if name != "alembic_version":
                shared = ", ".join(f'"{column}"' for column in _columns(old, "main", name) & _columns(old, "new", name))
                old.execute(f'INSERT INTO main."{name}" ({shared}) SELECT {shared} FROM new."{name}"')
        old.commit()
    new.unlink()


def _columns(connection: sqlite3.Connection, schema: str, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f'PRAGMA {schema}.table_info("{table}")')}


def _fold(place: Path) -> None:
    """Leave one file, without a log beside it."""
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _upgrade(folder: Path) -> None:
    _open(folder).dispose()


def _bundle(folder: Path) -> None:
    with _opened(folder) as db:
        write_bundle(db, _run_ids(db), folder / "study.emtc", WHOLE, made_by="a benchmark")
        for run_id in _run_ids(db):
            remove_run(db, run_id)


def _import(folder: Path) -> None:
    with _opened(folder) as db:
        import_bundle(db, folder / "study.emtc", cache=folder / "cache")


def _import_again(folder: Path) -> None:
    with _opened(folder) as db:
        done = bool(_run_ids(db))
    if not done:
        _import(folder)


def _thin(folder: Path) -> None:
    with _opened(folder) as db:
        for run_id in _run_ids(db):
            thin_run(db, run_id, _EVERYTHING)


def _find_wrong_thinned(folder: Path) -> list[str]:
    with _opened(folder) as db:
        left = [str(thin_run(db, run_id, _EVERYTHING)) for run_id in _run_ids(db)]
        return [f"{each} was left" for each in left if each != "nothing"] + _find_wrong_runs(folder)


def _vacuum(folder: Path) -> None:
    with _opened(folder) as db:
        vacuum(db)


def _run_ids(db: Database) -> list[str]:
    return [str(each) for each in list_runs(db, limit=None)["id"]]


def _say(sentence: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{sentence}\n")


ACTS: Final = {
    "train": Act(_nothing, train_reference, _go_on_training, _find_wrong_rows),
    "backup": Act(_nothing, _back_up, _back_up_again, _find_wrong_copy),
    "upgrade": Act(_age, _upgrade, _upgrade, _find_wrong_runs),
    "import": Act(_bundle, _import, _import_again, _find_wrong_runs),
    "thin": Act(_nothing, _thin, _thin, _find_wrong_thinned),
    "vacuum": Act(_thin, _vacuum, _vacuum, _find_wrong_runs),
}
"""Every act of the program that writes more than a row, by name."""
