"""Sweeps: planned, queued, claimed run by run, stopped, continued.

A sweep's runs are rows of `runs` that carry its id. Several schedulers may work on one sweep, on several machines,
and any of them may be killed at any moment: a run is claimed in one transaction that leaves the claimer's process in
the row, so a claim whose process has gone is free again. Starting processes is the caller's business.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, insert, select, update

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.liveness import is_process_alive, is_process_gone, is_start_overdue, live_status
from storage.models import Run, SweepRow
from storage.ownership import Owner
from storage.runs import forget_commands, new_run_values

SweepStatus = Literal["active", "stopped"]
_SILENT_ELSEWHERE_S = 120.0  # another machine's trainer is left alone for so long


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan: `key` tells it from every other run of all sweeps."""

    key: str
    name: str
    config: Mapping[str, Any]
    target_steps: int


@dataclass(frozen=True)
class Worker:
    """A process by what names it for good."""

    pid: int
    pid_created_at: float
    host: str


@dataclass(frozen=True)
class Claim:
    """A run that this scheduler, and nobody else, may start."""

    run_id: str
    resume: bool
    token: str
    """By which the trainer owns the run."""


def save_sweep(
    db: Database,
    sweep_id: str,
    *,
    name: str,
    plan: Mapping[str, Any],
    runs: Sequence[PlannedRun],
    versions: Mapping[str, Any],
    jobs: int,
) -> int:
    """Write a sweep and queue the runs that it does not have yet, all or nothing; again changes nothing.

    Returns:
        How many runs were queued.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        values = {"name": name, "plan": dict(plan), "jobs": jobs, "status": "active"}
        if _locked(connection, sweep_id) is None:
            connection.execute(insert(SweepRow), {"id": sweep_id, "created_at": now, **values})
        else:
            connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))
        known = set(connection.execute(select(Run.launch_token).where(Run.sweep_id == sweep_id)).scalars())
        fresh = [run for run in runs if run.key not in known]
        for i, run in enumerate(fresh):
            row = {
                **new_run_values(connection, run.config, run.name),
                "target_steps": run.target_steps,
                "versions": dict(versions),
                "sweep_id": sweep_id,
                "launch_token": run.key,
                "created_at": now + timedelta(microseconds=i),  # the list keeps the order of the plan
            }
            connection.execute(insert(Run), row)
    return len(fresh)


def attach_scheduler(db: Database, sweep_id: str, worker: Worker, *, jobs: int) -> None:
    """Note which process starts the runs of a sweep, and how many at once.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        _get_locked(connection, sweep_id)
        values = {"pid": worker.pid, "pid_created_at": worker.pid_created_at, "host": worker.host, "jobs": jobs}
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))


def detach_scheduler(db: Database, sweep_id: str, worker: Worker) -> None:
    """Note that this process starts no more runs of a sweep; another's note stays."""
    with db.transaction() as connection:
        mine = (SweepRow.id == sweep_id, SweepRow.pid == worker.pid, SweepRow.host == worker.host)
        connection.execute(update(SweepRow).where(*mine).values(pid=None, pid_created_at=None, host=None))


def claim_run(
    db: Database,
    sweep_id: str,
    worker: Worker,
    *,
    jobs: int,
    has_trainer: Callable[[str], bool] = lambda run_id: False,
    leave: Collection[str] = (),
) -> Claim | None:
    """Claim the next run that is queued or lost, if fewer than `jobs` of the sweep are being worked on.

    Args:
        db: An open database.
        sweep_id: The sweep.
        worker: The process that claims.
        jobs: Runs of the sweep that may be worked on at once, by all schedulers together.
        has_trainer: Whether this machine has a trainer of a run whose claimer died before it could note it.
        leave: Runs that are not to be claimed.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        if _get_locked(connection, sweep_id).status == "stopped":
            return None
        columns = select(*Run.__table__.columns).where(
            Run.sweep_id == sweep_id, Run.status.in_(("queued", "running", "paused"))
        )
        rows = connection.execute(columns.order_by(Run.created_at, Run.id)).all()
        free = [row for row in rows if _is_free(row, has_trainer)]
        paused = [row for row in rows if row.status == "paused"]
        working = len(rows) - len({row.id for row in (*free, *paused)})
        chosen = next((row for row in free if row.id not in leave), None)
        if working >= jobs or chosen is None:
            return None
        token = _take(connection, chosen, worker)
    return Claim(chosen.id, resume=chosen.started_at is not None, token=token)


def stop_sweep(db: Database, sweep_id: str) -> tuple[int, list[str]]:
    """Start no further run of a sweep: what is queued becomes stopped.

    Returns:
        How many runs left the queue, and the runs that are being worked on; ask each of those to stop.

    Raises:
        StorageError: If there is no such sweep.
    """
    columns = select(*Run.__table__.columns).where(
        Run.sweep_id == sweep_id, Run.status.in_(("queued", "running", "paused"))
    )
    with db.transaction() as connection:
        _get_locked(connection, sweep_id)
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="stopped"))
        rows = connection.execute(columns).all()
        waiting = [row.id for row in rows if _is_unclaimed(row)]
        values = {"status": "stopped", "ended_at": datetime.now(UTC)}
        connection.execute(update(Run).where(Run.id.in_(waiting)).values(**values))
    return len(waiting), [row.id for row in rows if row.id not in waiting]


def requeue(db: Database, sweep_id: str, statuses: Collection[Literal["stopped", "failed"]]) -> int:
    """Queue ended runs of a sweep again; each goes on from its checkpoint where it has one.

    Returns:
        How many there were.
    """
    with db.transaction() as connection:
        _get_locked(connection, sweep_id)
        ended = select(Run.id).where(Run.sweep_id == sweep_id, Run.status.in_(statuses))
        ids = list(connection.execute(ended).scalars())
        forget_commands(connection, ids)
        values = {
            "status": "queued",
            "pid": None,
            "pid_created_at": None,
            "host": None,
            "owner_token": None,
            "claimed_at": None,
            "ended_at": None,
            "error": None,
        }
        connection.execute(update(Run).where(Run.id.in_(ids)).values(**values))
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="active"))
    return len(ids)


def _is_unclaimed(row: Any) -> bool:
    return row.status == "queued" and (row.pid is None or is_process_gone(row))


def _is_free(row: Any, has_trainer: Callable[[str], bool]) -> bool:
    """Whether nobody works on a run that is not over: never claimed, or its claimer or trainer has gone."""
    if row.status == "queued":
        if row.pid is None or is_start_overdue(row, datetime.now(UTC)):
            return True
        return is_process_gone(row) and not has_trainer(row.id)
    if is_process_gone(row):
        return not has_trainer(row.id)
    seen = row.heartbeat_at or row.started_at
    long_silent = seen is None or (datetime.now(UTC) - seen).total_seconds() > _SILENT_ELSEWHERE_S
    may_wake_up = is_process_alive(row)
    return long_silent and not may_wake_up and live_status(row, datetime.now(UTC)) == "lost"


def _take(connection: Connection, row: Any, worker: Worker) -> str:
    if row.status != "queued":  # what was asked of the trainer that died is obsolete
        forget_commands(connection, [row.id])
    owner = Owner(worker.pid, worker.pid_created_at, worker.host, secrets.token_hex(8))
    connection.execute(update(Run).where(Run.id == row.id).values(status="queued", **owner.columns()))
    return owner.token


def _locked(connection: Connection, sweep_id: str) -> Any:
    return connection.execute(
        select(*SweepRow.__table__.columns).where(SweepRow.id == sweep_id).with_for_update()
    ).one_or_none()


def _get_locked(connection: Connection, sweep_id: str) -> Any:
    row = _locked(connection, sweep_id)
    if row is None:
        raise StorageError(f'There is no sweep "{sweep_id}". List them with: emtc sweep --list')
    return row
