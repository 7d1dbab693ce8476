"""Sweeps: planned, queued, stopped, continued. Who takes their runs stands in `claims`.

A sweep's runs are rows of `runs` that carry its id.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import insert, select, update

from storage import clock
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.changes import new_run_values
from storage.runs.claims import Worker, find_sweep_locked, is_unclaimed, lock_sweep, ownerless
from storage.runs.rows import forget_commands

SweepStatus = Literal["active", "stopped"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan: `key` tells it from every other run of all sweeps."""

    key: str
    name: str
    config: Mapping[str, Any]
    target_steps: int


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

    A finished run of the sweep that came out of a bundle counts as that of its settings, so that a study can go on
    elsewhere.

    Returns:
        How many runs were queued.
    """
    now = clock.now()
    with db.transaction() as connection:
        values = {"name": name, "plan": dict(plan), "jobs": jobs, "status": "active"}
        if find_sweep_locked(connection, sweep_id) is None:
            connection.execute(insert(SweepRow), {"id": sweep_id, "created_at": now, **values})
        else:
            connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))
        there = connection.execute(
            select(Run.launch_token, Run.status, Run.config).where(Run.sweep_id == sweep_id)
        ).all()
        known = {row.launch_token for row in there}
        imported = [row.config for row in there if row.launch_token is None and row.status == "finished"]
        fresh = [run for run in runs if run.key not in known and not any(_agree(run.config, each) for each in imported)]
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


def _agree(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configurations are equal in every setting that both know; versions may know more of them."""
    for key in config.keys() & other.keys():
        ours, theirs = config[key], other[key]
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            if not _agree(ours, theirs):
                return False
        elif ours != theirs:
            return False
    return True


def attach_scheduler(db: Database, sweep_id: str, worker: Worker, *, jobs: int) -> None:
    """Note which process starts the runs of a sweep, and how many at once.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        values = {"pid": worker.pid, "pid_created_at": worker.pid_created_at, "host": worker.host, "jobs": jobs}
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))


def detach_scheduler(db: Database, sweep_id: str, worker: Worker) -> None:
    """Note that this process starts no more runs of a sweep; another's note stays."""
    with db.transaction() as connection:
        mine = (SweepRow.id == sweep_id, SweepRow.pid == worker.pid, SweepRow.host == worker.host)
        connection.execute(update(SweepRow).where(*mine).values(pid=None, pid_created_at=None, host=None))


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
        lock_sweep(connection, sweep_id)
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="stopped"))
        rows = connection.execute(columns).all()
        waiting = [row.id for row in rows if is_unclaimed(row)]
        values = {"status": "stopped", "ended_at": clock.now()}
        connection.execute(update(Run).where(Run.id.in_(waiting)).values(**values))
    return len(waiting), [row.id for row in rows if row.id not in waiting]


def requeue(db: Database, sweep_id: str, statuses: Collection[Literal["stopped", "failed"]]) -> int:
    """Queue ended runs of a sweep again; each goes on from its checkpoint where it has one.

    Returns:
        How many there were.
    """
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        ended = select(Run.id).where(Run.sweep_id == sweep_id, Run.status.in_(statuses))
        ids = list(connection.execute(ended).scalars())
        forget_commands(connection, ids)
        connection.execute(update(Run).where(Run.id.in_(ids)).values(**ownerless()))
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="active"))
    return len(ids)
