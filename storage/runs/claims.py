"""Who trains a run: claim a run, check its owner, return it to the queue.

The owner of a run is the process that has the token in `runs.owner_token`. `claim_run` writes a new token. From then
on every write of the former owner fails, because each write of a trainer names its token. A run without an owner has no
token.

A worker claims queued runs, runs whose start is overdue, and runs whose trainer has sent no heartbeat for
TAKEOVER_AFTER_S. After the worker itself could not reach the database, or its machine was suspended, it waits for as
long, because the trainers could not send heartbeats either.
"""

import secrets
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection, and_, or_, select, update

from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.rows import (
    RUN_COLUMNS,
    acknowledge_pending_commands,
    check_not_imported,
    get_locked_row,
    make_not_found_error,
    read_live_status,
)
from storage.runs.status import (
    NOT_ENDED,
    STATUS_COLUMNS,
    check_allowed,
    is_stop_requested,
    measure_silence_s,
    read_clock,
)

TAKEOVER_AFTER_S: Final = 60.0
"""A worker claims a run of another owner after this time without a heartbeat."""
NO_LIMIT = 1_000_000
"""Value of `jobs` without a limit."""
_COLUMNS = (*STATUS_COLUMNS, Run.sweep_id, Run.created_at, Run.started_at)


def make_token() -> str:
    """Make the token of a new owner."""
    return secrets.token_hex(8)


def owner_values(token: str, now: datetime) -> dict[str, Any]:
    """Return the column values of a run that the owner of a token claims now. Its trainer writes pid and host later."""
    return {"owner_token": token, "claimed_at": now, "pid": None}


def claim_run(connection: Connection, row: Any, token: str) -> bool:
    """Claim a run, unless it has changed since it was read. This is the only way to take over a run.

    The update names the status, the token and the heartbeat that were read. So of two processes that claim a run at the
    same time one succeeds, and a trainer that sends a heartbeat meanwhile keeps its run.

    Args:
        connection: The transaction.
        row: The run as read, with STATUS_COLUMNS. The caller has checked that it can be claimed.
        token: Token of the new owner.

    Returns:
        Whether the run was claimed.
    """
    is_unchanged = (
        Run.status == row.status,
        Run.owner_token.is_not_distinct_from(row.owner_token),
        Run.heartbeat_at.is_not_distinct_from(row.heartbeat_at),
    )
    values = {"status": "queued", "ended_at": None, "error": None, "archived_at": None}
    claim = update(Run).where(Run.id == row.id, *is_unchanged)
    result = connection.execute(claim.values(**values, **owner_values(token, read_clock(connection))))
    if result.rowcount != 1:
        return False
    acknowledge_pending_commands(connection, [row.id])  # the trainer that they were sent to no longer owns the run
    return True


def claim_to_train(db: Database, run_id: str, token: str) -> None:
    """Claim a run that a user starts or resumes. A lost run is taken over at once.

    Args:
        db: An open database.
        run_id: The run.
        token: Token of the new owner.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it was imported, or its status does not allow a start.
    """
    with db.transaction() as connection:
        for _ in range(2):  # the second time, the row contains the change that made the claim fail
            row = connection.execute(select(*RUN_COLUMNS).where(Run.id == run_id)).one_or_none()
            if row is None:
                raise make_not_found_error(run_id)
            check_not_imported(row, "be resumed")
            live_status, _ = read_live_status(db, row, read_clock(connection))
            check_allowed(run_id, live_status, "start" if live_status == "queued" else "resume")
            if claim_run(connection, row, token):
                return
    raise make_ownership_error(run_id)


def check_owner(row: Any, token: str | None) -> None:
    """Raise if the process with this token does not own a run. None: the run must not have an owner.

    Raises:
        RunStateError: If the run has another token.
    """
    if row.owner_token != token:
        raise make_ownership_error(row.id)


def check_owned(connection: Connection, run_id: str, token: str | None) -> None:
    """Raise if the process with this token does not own a run. Must be called in the transaction that writes.

    Args:
        connection: The connection of the transaction. It locks the row.
        run_id: The run.
        token: Token of this process; None: the run must not have an owner.

    Raises:
        RunNotFoundError: If the run was deleted.
        RunStateError: If the run has another token.
    """
    columns = select(Run.id, Run.owner_token).where(Run.id == run_id).with_for_update()
    row = connection.execute(columns).one_or_none()
    if row is None:
        raise make_deleted_error(run_id)
    check_owner(row, token)


def make_ownership_error(run_id: str) -> RunStateError:
    """Make the error of a process that does not own a run."""
    message = f"Run {run_id} belongs to another process now, so this process must not write to it."
    return RunStateError(message)


def make_deleted_error(run_id: str) -> RunNotFoundError:
    """Make the error of a trainer whose run was deleted."""
    return RunNotFoundError(f"Run {run_id} was deleted while it was trained.")


def remove_owner(connection: Connection, row: Any) -> None:
    """Mark a run as stopped before its data are removed, so that no trainer writes to it and no worker claims it.

    Args:
        connection: The transaction, in which the row is locked.
        row: The run as read. Nothing happens if it has ended.
    """
    if row.status not in NOT_ENDED:
        return
    values = ended_values("stopped", row.heartbeat_at or read_clock(connection), error=row.error)
    connection.execute(update(Run).where(Run.id == row.id).values(**values))


@dataclass(frozen=True)
class ClaimedRun:
    """A run that was claimed and that the claiming process must start."""

    run_id: str
    resume: bool
    token: str
    """Token by which the trainer owns the run."""


class RunClaimer:
    """Claims queued and lost runs for one worker."""

    def __init__(
        self,
        db: Database,
        *,
        takeover_after_s: float = TAKEOVER_AFTER_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Claim runs of a database.

        Args:
            db: An open database.
            takeover_after_s: Time without a heartbeat after which a run is claimed; also the time without a takeover
                after the database could not be reached [s].
            monotonic: Clock that measures the time since the database could not be reached [s].
        """
        self._db, self._takeover_after_s, self._monotonic = db, takeover_after_s, monotonic
        self._unreachable_at: float | None = None
        self._looked_at: datetime | None = None
        self.has_pending_lost_run = False
        """Whether the last call found a lost run that can be claimed soon."""

    def check_database(self) -> None:
        """Read from the database, so that an outage is noticed while no run is claimed.

        Raises:
            StorageError: If the database does not answer.
        """
        with self._noting_outages(), self._db.read() as connection:
            self._note_look(read_clock(connection))

    def claim_in_sweep(self, sweep_id: str, *, jobs: int, excluded_ids: Collection[str] = ()) -> ClaimedRun | None:
        """Claim the next queued or lost run of a sweep, if fewer than `jobs` of its runs are in training.

        Args:
            sweep_id: The sweep.
            jobs: Maximum number of runs of the sweep in training, over all workers.
            excluded_ids: Ids of runs that must not be claimed.

        Returns:
            The claim, or None if the sweep was stopped, `jobs` runs are in training, or no run can be claimed.

        Raises:
            StorageError: If there is no such sweep, or the database does not answer.
        """
        with self._noting_outages(), self._db.transaction() as connection:
            if lock_sweep(connection, sweep_id).status == "stopped":
                return None
            free, n_active = self._split_free_and_active(connection, sweep_id)
            if n_active >= jobs:
                return None
            for row in free:
                token = make_token()
                if row.id not in excluded_ids and claim_run(connection, row, token):
                    return ClaimedRun(row.id, resume=row.started_at is not None, token=token)
        return None

    def claim_next(self, *, excluded_ids: Collection[str] = ()) -> ClaimedRun | None:
        """Claim the oldest run that is queued or lost in an active sweep, or queued without a sweep.

        A lost run without a sweep is not claimed, because the user who started it decides whether to resume it.

        Args:
            excluded_ids: Ids of runs that must not be claimed.

        Returns:
            The claim, or None if no run can be claimed.

        Raises:
            StorageError: If the database does not answer.
        """
        in_sweep = and_(SweepRow.status == "active", Run.status.in_(NOT_ENDED))
        without_sweep = and_(Run.sweep_id.is_(None), Run.status == "queued", Run.owner_token.is_(None))
        runs = select(*_COLUMNS).outerjoin(SweepRow, SweepRow.id == Run.sweep_id)
        with self._noting_outages():
            with self._db.read() as connection:
                statement = runs.where(or_(in_sweep, without_sweep)).order_by(Run.created_at, Run.id)
                free = self._list_free(connection.execute(statement).all(), read_clock(connection))
            for row in free:
                if row.id in excluded_ids:
                    continue
                token = make_token()
                with self._db.transaction() as connection:
                    if row.sweep_id is not None and lock_sweep(connection, row.sweep_id).status == "stopped":
                        continue
                    if claim_run(connection, row, token):
                        return ClaimedRun(row.id, resume=row.started_at is not None, token=token)
        return None

    @contextmanager
    def _noting_outages(self) -> Generator[None]:
        try:
            yield
        except StorageError:
            self._unreachable_at = self._monotonic()
            raise

    def _note_look(self, now: datetime) -> None:
        """Treat a long time without a look at the database as an outage: this machine was suspended."""
        if self._looked_at is not None and (now - self._looked_at).total_seconds() >= self._takeover_after_s:
            self._unreachable_at = self._monotonic()
        self._looked_at = now

    def _split_free_and_active(self, connection: Connection, sweep_id: str) -> tuple[list[Any], int]:
        """List the runs of a sweep that can be claimed, and count those in training. A paused run is neither."""
        not_ended = select(*_COLUMNS).where(Run.sweep_id == sweep_id, Run.status.in_(NOT_ENDED))
        rows = connection.execute(not_ended.order_by(Run.created_at, Run.id)).all()
        free = self._list_free(rows, read_clock(connection))
        paused = [row for row in rows if row.status == "paused"]
        return free, len(rows) - len({row.id for row in (*free, *paused)})

    def _list_free(self, rows: Sequence[Any], now: datetime) -> list[Any]:
        self._note_look(now)
        self.has_pending_lost_run = False
        return [row for row in rows if self._is_free(row, now)]

    def _is_free(self, row: Any, now: datetime) -> bool:
        """Return whether a run can be claimed, and note a lost run that can be claimed soon."""
        live_status, _ = read_live_status(self._db, row, now)
        if live_status != "lost":
            return live_status == "queued"
        was_silent = row.status == "queued" or measure_silence_s(row, now) >= self._takeover_after_s
        last = self._unreachable_at
        was_reachable = last is None or self._monotonic() - last >= self._takeover_after_s
        self.has_pending_lost_run |= not (was_silent and was_reachable)
        return was_silent and was_reachable


def return_to_queue(
    db: Database, run_id: str, *, token: str, is_launcher: bool = False
) -> Literal["queued", "stopped"] | None:
    """Return a run to the queue because the machine is needed for something else. Only its owner can do this.

    A run is stopped instead of queued if a stop was requested, if it is paused, or if its sweep was stopped.

    Args:
        db: An open database.
        run_id: The run.
        token: Token by which the caller owns the run.
        is_launcher: The caller starts trainers. A trainer does not change a run that has not started, because its
            launcher returns it.

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
        check_owner(row, token)
        is_paused = row.status == "paused"
        stops = is_paused or is_stop_requested(row) or (sweep is not None and sweep.status == "stopped")
        if row.status == "queued" and not is_launcher:
            return None
        if stops:
            reason = f"It was paused when its worker had to leave the machine. Resume with: emtc resume {run_id}"
            values = ended_values("stopped", read_clock(connection), error=reason if is_paused else None)
        else:
            acknowledge_pending_commands(connection, [run_id])
            values = queued_values()
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
    return "stopped" if stops else "queued"


def queued_values() -> dict[str, Any]:
    """Return the column values of a queued run without an owner. The host of the last trainer is kept."""
    return {"status": "queued", **dict.fromkeys(("owner_token", "claimed_at", "pid", "ended_at", "error"))}


def ended_values(
    status: Literal["finished", "stopped", "failed"], ended_at: datetime, *, error: str | None
) -> dict[str, Any]:
    """Return the column values of a run that has ended. It has no owner.

    Args:
        status: The final status.
        ended_at: The time of its end.
        error: Text of the error, or None.
    """
    return {"status": status, "error": error, "ended_at": ended_at, "owner_token": None, "pid": None}


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
        raise StorageError(f'There is no sweep "{sweep_id}". List them with: emtc sweep --list')
    return row
