"""The actions that are interrupted at crash points, how a user completes them, and the checks afterwards.

Each action works in a folder that is prepared once and copied for each crash point. The folder contains `x.db` with
one finished run, the reference. An interrupted run that is continued must have the same rows as the reference.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import select, update

from app.analysis.provenance import library_versions
from app.jobs.resume import claim_to_resume, examine_checkpoints
from app.jobs.train_process import train_detached
from emtc_core.config.run import RunConfig
from emtc_core.errors import EmtcError
from storage.bundles.contents import WHOLE
from storage.bundles.import_bundle import import_bundle
from storage.bundles.write import write_bundle
from storage.engine import Database, open_database
from storage.maintenance.backup import back_up_database, vacuum
from storage.maintenance.check import check_run
from storage.maintenance.thin import Thinning, thin_run
from storage.models import Run
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, start_again
from storage.runs.claims import make_token
from storage.runs.removal import remove_run
from storage.runs.rows import find_run
from tests.records import opened_database
from tests.torture.fleet import storm_config
from tests.torture.storm import find_wrong

STEPS: Final = 900
CONFIG: Final[RunConfig] = storm_config(STEPS)
_EVERYTHING: Final = Thinning(trajectories=True, transitions=True, checkpoints=True, snapshots_every=1000)


@dataclass(frozen=True)
class Action:
    """An action that writes. Each function gets the folder."""

    prepare: Callable[[Path], None]
    """Add to the folder what the action needs."""
    run: Callable[[Path], None]
    complete: Callable[[Path], None]
    """Do what a user does after a crash. Afterwards the action must be complete."""
    find_wrong: Callable[[Path], list[str]]
    """Return one sentence per violation."""


def train_reference(folder: Path) -> None:
    """Record the reference run without interruption."""
    train_new_run(_make_url(folder))


def train_new_run(url: str) -> None:
    """Record a run without interruption."""
    db = open_database(url)
    token = make_token()
    run_id = create_run(
        db, CONFIG.model_dump(mode="json"), target_steps=CONFIG.train.t_max, versions=library_versions(), token=token
    )
    _train(db, run_id, token, resume=False)


def _make_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'x.db'}"


def _opened(folder: Path) -> AbstractContextManager[Database]:
    return opened_database(_make_url(folder))


def _list_run_ids(db: Database) -> list[str]:
    return [str(run_id) for run_id in list_runs(db, limit=None)["id"]]


def _do_nothing(folder: Path) -> None:
    pass


def _train(db: Database, run_id: str, token: str, *, resume: bool) -> None:
    url = db.url
    db.dispose()

    def announce(line: str) -> None:
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")

    if train_detached(url, run_id, announce=announce, token=token, resume=resume):
        raise EmtcError(f"Run {run_id} failed.")


def continue_training(url: str) -> None:
    """Resume each run that is not finished. Start a run again that cannot resume."""
    db = open_database(url)
    _make_owners_lost(db)
    unfinished = [row for run_id in _list_run_ids(db) if (row := find_run(db, run_id)).live_status != "finished"]
    for row in unfinished:
        if examine_checkpoints(db, row).can_resume:
            _train(db, row.id, claim_to_resume(db, row.id), resume=True)
        else:
            token = make_token()
            child = start_again(db, row.id, versions=library_versions(), token=token)
            _train(db, child, token, resume=False)


def _make_owners_lost(db: Database) -> None:
    """Date heartbeats and claims ten minutes back: the trainers have ended, and the runs are lost at once."""
    earlier = timedelta(minutes=10)
    with db.transaction() as connection:
        for row in connection.execute(select(Run.id, Run.heartbeat_at, Run.claimed_at)).all():
            times = {"heartbeat_at": row.heartbeat_at, "claimed_at": row.claimed_at}
            values = {name: time - earlier for name, time in times.items() if time is not None}
            if values:
                connection.execute(update(Run).where(Run.id == row.id).values(**values))


def _continue_training(folder: Path) -> None:
    continue_training(_make_url(folder))


def find_wrong_training(url: str) -> list[str]:
    """Compare all runs of a database. Return one sentence per violation."""
    with opened_database(url) as db:
        rows = [find_run(db, run_id) for run_id in _list_run_ids(db)]
        parents = {row.parent_id for row in rows}
        unfinished = [
            f"{row.id} is {row.live_status}" for row in rows if row.live_status != "finished" and row.id not in parents
        ]
        return unfinished + find_wrong(db, CONFIG)


def _find_wrong_training(folder: Path) -> list[str]:
    return find_wrong_training(_make_url(folder))


def _back_up(folder: Path) -> None:
    with _opened(folder) as db:
        back_up_database(db, folder / "copy.db")


def _complete_backup(folder: Path) -> None:
    if not (folder / "copy.db").exists():
        _back_up(folder)


def _find_wrong_backup(folder: Path) -> list[str]:
    copies = [file.name for file in folder.glob("*.db") if file.name != "x.db"]
    unexpected = [] if copies == ["copy.db"] else [f"the copies are {copies}, not copy.db alone"]
    return unexpected + _find_wrong_database(folder) + _find_wrong_database(folder, "copy.db")


def _find_wrong_database(folder: Path, name: str = "x.db", *, runs: int = 1) -> list[str]:
    with opened_database(f"sqlite:///{folder / name}", create=False) as db:
        ids = _list_run_ids(db)
        missing = [] if len(ids) == runs else [f"{name} has {len(ids)} runs, not {runs}"]
        return missing + [fault for run_id in ids for fault in check_run(db, run_id)]


def _move_to_bundle(folder: Path) -> None:
    with _opened(folder) as db:
        write_bundle(db, _list_run_ids(db), folder / "study.emtc", WHOLE, made_by="a test")
        for run_id in _list_run_ids(db):
            remove_run(db, run_id)


def _import(folder: Path) -> None:
    with _opened(folder) as db:
        import_bundle(db, folder / "study.emtc", cache=folder / "cache")


def _complete_import(folder: Path) -> None:
    with _opened(folder) as db:
        is_complete = bool(_list_run_ids(db))
    if not is_complete:
        _import(folder)


def _thin(folder: Path) -> None:
    with _opened(folder) as db:
        for run_id in _list_run_ids(db):
            thin_run(db, run_id, _EVERYTHING)


def _find_wrong_thinning(folder: Path) -> list[str]:
    with _opened(folder) as db:
        removed = [str(thin_run(db, run_id, _EVERYTHING)) for run_id in _list_run_ids(db)]
        return [f"{data} was not removed" for data in removed if data != "nothing"] + _find_wrong_database(folder)


def _vacuum(folder: Path) -> None:
    with _opened(folder) as db:
        vacuum(db)


ACTIONS: Final = {
    "train": Action(_do_nothing, train_reference, _continue_training, _find_wrong_training),
    "backup": Action(_do_nothing, _back_up, _complete_backup, _find_wrong_backup),
    "import": Action(_move_to_bundle, _import, _complete_import, _find_wrong_database),
    "thin": Action(_do_nothing, _thin, _thin, _find_wrong_thinning),
    "vacuum": Action(_thin, _vacuum, _vacuum, _find_wrong_database),
}
"""Every action of the program that writes more than one row, by name."""
