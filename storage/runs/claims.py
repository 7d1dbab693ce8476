"""Who takes a queued or lost run, and how it goes back to the queue.

Schedulers and workers on several machines may reach for the same run, and any of them may be killed at any moment: a
run is claimed in one transaction that leaves the claimer's process in the row, so a claim whose process has gone is
free again. Starting processes is the caller's business.
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
from storage.runs import lifecycle
from storage.runs.lifecycle import (
    LOST_AFTER_S,
    START_LIMIT_S,
    Event,
    Owner,
    State,
    check_token,
    is_process_alive,
    is_process_gone,
    is_start_overdue,
    live_status,
)
from storage.runs.rows import RunRow, find_run, forget_commands, locked_row

_SILENT_ELSEWHERE_S = 120.0  # another machine's trainer is left alone for so long
_LOOK_S = 0.5
NO_LIMIT = 1_000_000
_AT_WORK = ("queued", "running", "paused")
_COLUMNS = (
    *(Run.id, Run.sweep_id, Run.status, Run.created_at, Run.started_at, Run.heartbeat_at),
    *(Run.pid, Run.pid_created_at, Run.host, Run.owner_token, Run.claimed_at),
)


class _Watch:
    """How long this process has seen other machines' runs without a sign of life, whatever any clock says."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self._seen: dict[str, tuple[tuple[Any, ...], float]] = {}
        self._waiting: dict[str, float] = {}

    def look_at(self, row: Any) -> float:
        """Note how a run stands; return for how long it has stood so [seconds]."""
        stands, now = (row.status, row.owner_token, row.heartbeat_at), time.monotonic()
        before, since = self._seen.get(row.id, (None, now))
        if before != stands:
            self._seen[row.id], since = (stands, now), now
        return now - since

    def wait_for(self, run_id: str) -> bool:
        """Note that a run will be free unless it stirs; False, for it is not yet."""
        self._waiting[run_id] = time.monotonic()
        return False

    def is_waiting(self) -> bool:
        """Whether a run that was looked at just now is waited for."""
        return any(time.monotonic() - at < LOST_AFTER_S for at in self._waiting.values())


_WATCH = _Watch()


def is_watching() -> bool:
    """Whether a run of another machine seems lost, and is watched for a moment before it is taken."""
    return _WATCH.is_waiting()


def begin_watch(db: Database, run_ids: Iterable[str]) -> None:
    """Look at runs that `watch_elsewhere` will be asked for one after the other: they are watched at the same time."""
    for run_id in run_ids:
        with suppress(RunNotFoundError):
            if _may_be_misjudged(db, row := find_run(db, run_id)):
                _WATCH.look_at(row)


def watch_elsewhere(db: Database, run_id: str) -> None:
    """Watch another machine's run that seems lost for as long as that takes, before a person takes or deletes it.

    In a file, heartbeats tell that machine's time, and one's own clock may be fast; a server has one clock for all.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it gave a sign of life.
    """
    first = row = find_run(db, run_id)
    while _may_be_misjudged(db, row) and _WATCH.look_at(row) < LOST_AFTER_S:
        time.sleep(_LOOK_S)
        row = find_run(db, run_id)
        if row.heartbeat_at != first.heartbeat_at:
            raise RunStateError(
                f"Run {run_id} is at work on {row.host}: its trainer gave a sign of life just now. It seemed lost as "
                "the clocks of the two machines differ; set them right.",
                reason="at_work",
                subject=run_id,
            )


def _may_be_misjudged(db: Database, row: RunRow) -> bool:
    return db.dialect == "sqlite" and row.state == State.LOST and row.host != socket.gethostname()


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
    host: str | None = None
    """The machine that had the run before, where its checkpoints may lie."""


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
        if lock_sweep(connection, sweep_id).status == "stopped":
            return None
        wanted = select(*_COLUMNS).where(Run.sweep_id == sweep_id, Run.status.in_(_AT_WORK))
        free, working = _tell_apart(connection.execute(wanted.order_by(Run.created_at, Run.id)).all(), has_trainer)
        if working >= jobs:
            return None
        return _take_first(connection, [row for row in free if row.id not in leave], worker)


def count_work(
    db: Database, sweep_id: str, *, has_trainer: Callable[[str], bool] = lambda run_id: False
) -> tuple[int, int]:
    """Count a sweep's runs that a worker could claim now, and those that are being worked on.

    Raises:
        StorageError: If the database does not answer.
    """
    wanted = select(*_COLUMNS).where(Run.sweep_id == sweep_id, Run.status.in_(_AT_WORK))
    with db.read() as connection:
        rows = connection.execute(wanted).all()
    free, working = _tell_apart(rows, has_trainer)
    return len(free), working


def claim_any(
    db: Database,
    worker: Worker,
    *,
    has_trainer: Callable[[str], bool] = lambda run_id: False,
    leave: Collection[str] = (),
) -> Claim | None:
    """Claim the next run that waits: queued or lost in a sweep that is not stopped, or queued without a sweep.

    A lost run without a sweep is left to the person who started it. Arguments are those of `claim_run`.
    """
    free = [row for row in _list_waiting(db) if row.id not in leave and _is_free(row, has_trainer)]
    for sweep_id in dict.fromkeys(row.sweep_id for row in free):
        if sweep_id is None:
            with db.transaction() as connection:
                claim = _take_first(connection, [row for row in free if row.sweep_id is None], worker)
        else:
            claim = claim_run(db, sweep_id, worker, jobs=NO_LIMIT, has_trainer=has_trainer, leave=leave)
        if claim is not None:
            return claim
    return None


def give_back(
    db: Database, run_id: str, *, token: str, claim: Claim | None = None
) -> Literal["queued", "stopped"] | None:
    """Give a run back to the queue because its machine is needed for something else, as its owner.

    Nobody's wish is undone by it: a run that somebody has asked to stop or has paused, or whose sweep was stopped
    meanwhile, is stopped.

    Args:
        db: An open database.
        run_id: The run.
        token: By which the caller owns it.
        claim: What its launcher knows of it. A trainer, which has no claim, leaves a run that it has not begun to
            its launcher.

    Returns:
        What became of it, None if it was left.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the run belongs to somebody else or has ended.
    """
    with db.transaction() as connection:
        sweep_id = connection.execute(select(Run.sweep_id).where(Run.id == run_id)).scalar_one_or_none()
        sweep = find_sweep_locked(connection, sweep_id) if sweep_id else None  # before the run, as everywhere
        row = locked_row(connection, run_id)
        check_token(row, token)
        state = lifecycle.refine(row, row.status)
        stays = state in (State.STOPPING, State.PAUSED) or (sweep is not None and sweep.status == "stopped")
        lifecycle.check(run_id, state, Event.STOP if stays else Event.GIVE_BACK)
        if row.status == "queued" and claim is None:
            return None
        if stays:
            paused = f"It was paused when its worker had to go. Go on with: emtc resume {run_id}"
            error = paused if state == State.PAUSED else None
            values = {"status": "stopped", "ended_at": clock.now(), "error": error}
        else:
            forget_commands(connection, [run_id])
            before = {"host": claim.host} if claim is not None and row.status == "queued" else {}
            values = ownerless() | before
        connection.execute(update(Run).where(Run.id == run_id).values(**values))
    return "stopped" if stays else "queued"


def ownerless() -> dict[str, Any]:
    """Fill the columns of a run that waits for whoever claims it; the machine that had it stays noted.

    An earlier owner that wakes up must not take a run without an owner for its own: the token is one that nobody has.
    """
    gone = dict.fromkeys(("pid", "pid_created_at", "claimed_at", "ended_at", "error"))
    return {"status": "queued", **gone, "owner_token": secrets.token_hex(8)}


def is_unclaimed(row: Any) -> bool:
    """Whether nobody has a queued run."""
    return row.status == "queued" and (row.pid is None or is_process_gone(row))


def find_sweep_locked(connection: Connection, sweep_id: str) -> Any:
    """Find a sweep's row for writing: whoever moves runs of a sweep in or out of the queue holds it first."""
    return connection.execute(
        select(*SweepRow.__table__.columns).where(SweepRow.id == sweep_id).with_for_update()
    ).one_or_none()


def lock_sweep(connection: Connection, sweep_id: str) -> Any:
    """Get a sweep's row for writing.

    Raises:
        StorageError: If there is no such sweep.
    """
    row = find_sweep_locked(connection, sweep_id)
    if row is None:
        raise StorageError(
            f'There is no sweep "{sweep_id}". List them with: emtc sweep --list', reason="not_found", subject=sweep_id
        )
    return row


def _list_waiting(db: Database) -> Sequence[Any]:
    """Which runs may wait for a worker? Those of active sweeps come as planned, the others in between by their age."""
    of_a_sweep = SweepRow.status == "active"
    alone = and_(Run.sweep_id.is_(None), Run.status == "queued", Run.pid.is_(None))
    wanted = select(*_COLUMNS).outerjoin(SweepRow, SweepRow.id == Run.sweep_id)
    waiting = wanted.where(Run.status.in_(_AT_WORK), or_(of_a_sweep, alone)).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        return connection.execute(waiting).all()


def _tell_apart(rows: Sequence[Any], has_trainer: Callable[[str], bool]) -> tuple[list[Any], int]:
    """List the free ones of runs that are not over, and count those that are being worked on; a paused one is not."""
    free = [row for row in rows if _is_free(row, has_trainer)]
    paused = [row for row in rows if row.status == "paused"]
    return free, len(rows) - len({row.id for row in (*free, *paused)})


def _is_free(row: Any, has_trainer: Callable[[str], bool]) -> bool:
    """Whether nobody works on a run that is not over: never claimed, or its claimer or trainer has gone."""
    if row.pid is None and row.status == "queued":
        return True
    is_overdue = row.status == "queued" and is_start_overdue(row, clock.now())
    if is_process_gone(row):
        return is_overdue or not has_trainer(row.id)
    if is_process_alive(row):  # it may wake up
        return is_overdue
    watched_s = _WATCH.look_at(row)
    if row.status == "queued":  # its claimer's clock may be behind, and the claim a minute old
        return watched_s >= START_LIMIT_S or (is_overdue and _WATCH.wait_for(row.id))
    seen = row.heartbeat_at or row.started_at
    long_silent = seen is None or (clock.now() - seen).total_seconds() > _SILENT_ELSEWHERE_S
    if long_silent and live_status(row, clock.now()) == "lost":
        return watched_s >= LOST_AFTER_S or _WATCH.wait_for(row.id)
    return watched_s > _SILENT_ELSEWHERE_S  # its clock may have been ahead


def _take_first(connection: Connection, rows: Sequence[Any], worker: Worker) -> Claim | None:
    """Take the first run that is still as it was seen: somebody may have taken, stopped or begun it since."""
    for seen in rows:
        row = connection.execute(select(*_COLUMNS).where(Run.id == seen.id).with_for_update(of=Run)).one_or_none()
        if row is None or (row.status, row.owner_token, row.heartbeat_at) != (
            seen.status,
            seen.owner_token,
            seen.heartbeat_at,
        ):
            continue
        if row.status != "queued":  # what was asked of the trainer that died is obsolete
            forget_commands(connection, [row.id])
        owner = Owner(worker.pid, worker.pid_created_at, worker.host, secrets.token_hex(8))
        connection.execute(update(Run).where(Run.id == row.id).values(status="queued", **owner.columns()))
        return Claim(row.id, resume=row.started_at is not None, token=owner.token, host=row.host)
    return None
