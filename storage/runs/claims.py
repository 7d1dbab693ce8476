"""Claim a queued or lost run for a worker, and return a run to the queue.

A run is lost if it has not ended, but its process sends no heartbeats, has exited or did not start in time.

Schedulers and workers on several machines may try to claim the same run, and each of them may be killed at any time. A
claim is one transaction that writes the worker's process into the row of the run. If that process ends, the run can be
claimed again. The caller starts the trainer.
"""

import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, and_, or_, select, update

from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage import clock
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.process_id import ProcessId, is_process_gone, observe_owner
from storage.runs import lifecycle
from storage.runs.lifecycle import (
    LOST_AFTER_S,
    START_LIMIT_S,
    Event,
    State,
    check_token,
    is_start_overdue,
    make_owner,
    owner_columns,
)
from storage.runs.rows import RunRow, acknowledge_pending_commands, find_run, get_locked_row

NO_LIMIT = 1_000_000
"""Value of `jobs` without a limit."""
_REMOTE_SILENCE_S = 120.0
"""A run whose process cannot be observed can be claimed only after it has sent no heartbeat for this time."""
_POLL_S = 0.5
_NOT_ENDED = ("queued", "running", "paused")
_COLUMNS = (*(Run.id, Run.sweep_id, Run.created_at, Run.started_at, Run.owner_token, *lifecycle.OWNED_COLUMNS),)


class _SilenceTimer:
    """Measures for how long the rows of runs have not changed, by this process's monotonic clock.

    The clocks of two machines may differ, so a heartbeat's time cannot be compared with the local time.
    """

    def __init__(self) -> None:
        """Start without any observation."""
        self._last_change: dict[str, tuple[tuple[Any, ...], float]] = {}
        self._soon_claimable: dict[str, float] = {}

    def observe(self, row: Any) -> float:
        """Record the state of a run; return for how long it has been unchanged [s]."""
        now = time.monotonic()
        current = (row.status, row.owner_token, row.heartbeat_at)
        previous, since = self._last_change.get(row.id, (None, now))
        if previous != current:
            self._last_change[row.id], since = (current, now), now
        return now - since

    def mark_soon_claimable(self, run_id: str) -> None:
        """Record that a run can be claimed soon if it does not change."""
        self._soon_claimable[run_id] = time.monotonic()

    def has_soon_claimable(self) -> bool:
        """Return whether `mark_soon_claimable` was called for a run within LOST_AFTER_S."""
        return any(time.monotonic() - at < LOST_AFTER_S for at in self._soon_claimable.values())


_SILENCE = _SilenceTimer()


def has_pending_lost_run() -> bool:
    """Return whether a run whose process cannot be observed seems lost and can be claimed soon."""
    return _SILENCE.has_soon_claimable()


def start_heartbeat_watch(db: Database, run_ids: Iterable[str]) -> None:
    """Start the timers of `wait_for_heartbeat` for all these runs, so that waiting for all takes no longer."""
    for run_id in run_ids:
        with suppress(RunNotFoundError):
            row = find_run(db, run_id)
            if _is_loss_uncertain(db, row):
                _SILENCE.observe(row)


def wait_for_heartbeat(db: Database, run_id: str) -> None:
    """Wait for a heartbeat of a run that seems lost, before a user resumes, thins or deletes it.

    It may be in training, unless its process is of this process table. In a SQLite file, heartbeats have the time of
    its machine, and the local clock may be ahead of it or have been corrected. On PostgreSQL all times come from the
    server, so this function returns at once.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a heartbeat was written.
    """
    row = find_run(db, run_id)
    first_heartbeat_at = row.heartbeat_at
    while _is_loss_uncertain(db, row) and _SILENCE.observe(row) < LOST_AFTER_S:
        time.sleep(_POLL_S)
        row = find_run(db, run_id)
        if row.heartbeat_at != first_heartbeat_at:
            cause = "the clocks of the two machines differ. Set the clocks right."
            if row.host == socket.gethostname():
                cause = "the clock of this machine was changed or its trainer was suspended."
            raise RunStateError(
                f"Run {run_id} is training on {row.host}: its trainer has just sent a heartbeat. The run seemed lost "
                f"because {cause}",
                reason="at_work",
                subject=run_id,
            )


def _is_loss_uncertain(db: Database, row: RunRow) -> bool:
    """Return whether a run seems lost but may be in training, because the clocks may differ."""
    return db.dialect == "sqlite" and row.state == State.LOST and observe_owner(row) == "unknown"


@dataclass(frozen=True)
class ClaimedRun:
    """A run that was claimed and that the claiming process must start."""

    run_id: str
    resume: bool
    token: str
    """Token by which the trainer owns the run."""
    host: str | None = None
    """The machine that trained the run before, which may have its checkpoints."""


def claim_run(
    db: Database,
    sweep_id: str,
    worker: ProcessId,
    *,
    jobs: int,
    has_trainer: Callable[[str], bool] = lambda run_id: False,
    excluded_ids: Collection[str] = (),
) -> ClaimedRun | None:
    """Claim the next queued or lost run of a sweep, if fewer than `jobs` of its runs are in training.

    Args:
        db: An open database.
        sweep_id: The sweep.
        worker: The process that claims.
        jobs: Maximum number of runs of the sweep in training, over all schedulers.
        has_trainer: Returns whether this machine has a trainer of a run, by run id. A trainer may be unknown to the
            database, if the claiming process ended before it recorded the trainer.
        excluded_ids: Ids of runs that must not be claimed.

    Returns:
        The claim, or None if the sweep was stopped, `jobs` runs are in training, or no run can be claimed.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        if lock_sweep(connection, sweep_id).status == "stopped":
            return None
        not_ended = select(*_COLUMNS).where(Run.sweep_id == sweep_id, Run.status.in_(_NOT_ENDED))
        rows = connection.execute(not_ended.order_by(Run.created_at, Run.id)).all()
        free, n_active = _split_free_and_active(rows, has_trainer)
        if n_active >= jobs:
            return None
        return _claim_first(connection, [row for row in free if row.id not in excluded_ids], worker)


def count_claimable_and_active(
    db: Database, sweep_id: str, *, has_trainer: Callable[[str], bool] = lambda run_id: False
) -> tuple[int, int]:
    """Count the runs of a sweep that can be claimed now, and the runs in training.

    Args:
        db: An open database.
        sweep_id: The sweep.
        has_trainer: As in `claim_run`.

    Raises:
        StorageError: If the database cannot be read.
    """
    not_ended = select(*_COLUMNS).where(Run.sweep_id == sweep_id, Run.status.in_(_NOT_ENDED))
    with db.read() as connection:
        rows = connection.execute(not_ended).all()
    free, n_active = _split_free_and_active(rows, has_trainer)
    return len(free), n_active


def claim_next_run(
    db: Database,
    worker: ProcessId,
    *,
    has_trainer: Callable[[str], bool] = lambda run_id: False,
    excluded_ids: Collection[str] = (),
) -> ClaimedRun | None:
    """Claim the oldest run that is queued or lost in an active sweep, or queued without a sweep.

    A lost run without a sweep is not claimed, because the user who started it decides whether to resume it. If no run
    of a sweep can be claimed, the next sweep is tried.

    Args:
        db: An open database.
        worker: The process that claims.
        has_trainer: As in `claim_run`.
        excluded_ids: Ids of runs that must not be claimed.

    Returns:
        The claim, or None if no run can be claimed.
    """
    in_sweep = and_(SweepRow.status == "active", Run.status.in_(_NOT_ENDED))
    without_sweep = and_(Run.sweep_id.is_(None), Run.status == "queued", Run.pid.is_(None))
    runs = select(*_COLUMNS).outerjoin(SweepRow, SweepRow.id == Run.sweep_id)
    with db.read() as connection:
        rows = connection.execute(runs.where(or_(in_sweep, without_sweep)).order_by(Run.created_at, Run.id)).all()
    free = [row for row in rows if row.id not in excluded_ids and _is_free(row, has_trainer)]
    for sweep_id in dict.fromkeys(row.sweep_id for row in free):
        if sweep_id is None:
            with db.transaction() as connection:
                claim = _claim_first(connection, [row for row in free if row.sweep_id is None], worker)
        else:
            claim = claim_run(db, sweep_id, worker, jobs=NO_LIMIT, has_trainer=has_trainer, excluded_ids=excluded_ids)
        if claim is not None:
            return claim
    return None


def return_to_queue(
    db: Database, run_id: str, *, token: str, claim: ClaimedRun | None = None
) -> Literal["queued", "stopped"] | None:
    """Return a run to the queue because the machine is needed for something else. Only its owner can do this.

    A run is stopped instead of queued if a stop was requested, if it is paused, or if its sweep was stopped.

    Args:
        db: An open database.
        run_id: The run.
        token: Token by which the caller owns the run.
        claim: The claim of the process that starts trainers. A trainer passes None; then a run that is still
            queued is not changed, because the process that claimed it returns it.

    Returns:
        The new status, or None if the run was not changed.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If another process owns the run, or it has ended.
    """
    with db.transaction() as connection:
        sweep_id = connection.execute(select(Run.sweep_id).where(Run.id == run_id)).scalar_one_or_none()
        sweep = find_sweep_locked(connection, sweep_id) if sweep_id else None  # lock the sweep before the run
        row = get_locked_row(connection, run_id)
        check_token(row, token)
        state = lifecycle.refine(row, row.status)
        stops = state in (State.STOPPING, State.PAUSED) or (sweep is not None and sweep.status == "stopped")
        lifecycle.check_allowed(run_id, state, Event.STOP if stops else Event.RETURN_TO_QUEUE)
        if row.status == "queued" and claim is None:
            return None
        if stops:
            reason = f"It was paused when its worker had to leave the machine. Resume with: emtc resume {run_id}"
            error = reason if state == State.PAUSED else None
            values = {"status": "stopped", "ended_at": clock.now(), "error": error}
        else:
            acknowledge_pending_commands(connection, [run_id])
            values = ownerless()
            if claim is not None and row.status == "queued":
                values["host"] = claim.host  # the machine that may have the checkpoints; the claim replaced it
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
    return "stopped" if stops else "queued"


def ownerless() -> dict[str, Any]:
    """Return the column values of a queued run without an owner. The host of the last owner is kept.

    The token is new, so that an earlier owner that was suspended and continues no longer owns the run.
    """
    cleared = dict.fromkeys(("pid", "pid_created_at", "process_key", "claimed_at", "ended_at", "error"))
    return {"status": "queued", **cleared, "owner_token": secrets.token_hex(8)}


def is_unclaimed(row: Any) -> bool:
    """Return whether a run is queued and no process has claimed it."""
    return row.status == "queued" and (row.pid is None or is_process_gone(row))


def find_sweep_locked(connection: Connection, sweep_id: str) -> Any:
    """Find the row of a sweep and lock it. Code that changes the queue of a sweep locks the sweep before its runs."""
    return connection.execute(
        select(*SweepRow.__table__.columns).where(SweepRow.id == sweep_id).with_for_update()
    ).one_or_none()


def lock_sweep(connection: Connection, sweep_id: str) -> Any:
    """Read the row of a sweep and lock it until the end of the transaction.

    Raises:
        StorageError: If there is no such sweep.
    """
    row = find_sweep_locked(connection, sweep_id)
    if row is None:
        raise StorageError(
            f'There is no sweep "{sweep_id}". List them with: emtc sweep --list', reason="not_found", subject=sweep_id
        )
    return row


def _split_free_and_active(rows: Sequence[Any], has_trainer: Callable[[str], bool]) -> tuple[list[Any], int]:
    """List the runs that can be claimed, and count the runs in training. A paused run is neither."""
    free = [row for row in rows if _is_free(row, has_trainer)]
    paused = [row for row in rows if row.status == "paused"]
    return free, len(rows) - len({row.id for row in (*free, *paused)})


def _is_free(row: Any, has_trainer: Callable[[str], bool]) -> bool:
    """Return whether a run that has not ended can be claimed."""
    if row.status == "queued" and row.pid is None:
        return True
    is_overdue = row.status == "queued" and is_start_overdue(row, clock.now())
    presence = observe_owner(row)
    if presence == "ended":  # the trainer that it started may be unknown to the database
        return is_overdue or not has_trainer(row.id)
    if presence == "alive":  # it may be in training, even without heartbeats
        return is_overdue
    # The process cannot be observed, and its clock may be ahead or behind. So the row must not change for some time.
    unchanged_s = _SILENCE.observe(row)
    if row.status == "queued":
        seems_lost, needed_s = is_overdue, START_LIMIT_S
    else:
        last = row.heartbeat_at or row.started_at
        seems_lost = last is None or (clock.now() - last).total_seconds() > _REMOTE_SILENCE_S
        needed_s = LOST_AFTER_S if seems_lost else _REMOTE_SILENCE_S
    if seems_lost and unchanged_s < needed_s:
        _SILENCE.mark_soon_claimable(row.id)
    return unchanged_s >= needed_s


def _claim_first(connection: Connection, rows: Sequence[Any], worker: ProcessId) -> ClaimedRun | None:
    """Claim the first run that has not changed since it was read. Another process may have claimed or stopped it."""
    for candidate in rows:
        row = connection.execute(select(*_COLUMNS).where(Run.id == candidate.id).with_for_update(of=Run)).one_or_none()
        if row is None or (row.status, row.owner_token, row.heartbeat_at) != (
            candidate.status,
            candidate.owner_token,
            candidate.heartbeat_at,
        ):
            continue
        if row.status != "queued":  # commands to the trainer that has ended are obsolete
            acknowledge_pending_commands(connection, [row.id])
        owner = make_owner(worker)
        connection.execute(update(Run).where(Run.id == row.id).values(status="queued", **owner_columns(owner)))
        return ClaimedRun(row.id, resume=row.started_at is not None, token=owner.token, host=row.host)
    return None
