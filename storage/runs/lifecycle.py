"""The states of a run, the allowed transitions between them, and the owner of a run.

    created ─► starting ─► running ◄─► paused        finished
                  │           │           │             ▲
                  └──────► stopping ◄─────┘ ────────────┤
                              │                      stopped, failed ─► starting (resume) or created (queued again)
        any state with an owner └─► lost, if the owner sends no heartbeat or its process has ended

TRANSITIONS is the only definition of the allowed transitions. The table `runs` stores one of six statuses. The state is
computed from the status, the owner (process, host, time of the claim), its heartbeat, and a request to stop.

`storage.process_id` identifies a process. A process owns a run if it has the token in `runs.owner_token`. A
process that takes over a run writes a new token, so the earlier owner can no longer write, even if it continues later.
An owner is alive if it sends heartbeats. The process table only shortens the wait: a run is lost at once if the table
in which its process was recorded no longer has this process. A worker that must leave its machine gives its runs back:
their state is created again, and another worker resumes them.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

from sqlalchemy import Connection, select, update

from emtc_core.errors import RunStateError
from storage import clock
from storage.engine import Database
from storage.models import Run
from storage.process_id import ProcessId, get_process_id, is_process_gone, process_columns

HEARTBEAT_S = 2.0
"""Interval of heartbeats."""
LOST_AFTER_S = 3 * HEARTBEAT_S
"""A run without a heartbeat for this time is lost."""
START_LIMIT_S = 300.0
"""Maximum time from the claim of a run to the first heartbeat. Most of it is used to load libraries."""
OTHER_OWNER: Final = "other_owner"
"""The `reason` of an error if another process has taken the run."""
LiveStatus = Literal["queued", "running", "paused", "finished", "stopped", "failed", "lost"]


class OwnedRow(Protocol):
    """The columns of `runs` that describe the owner and its last heartbeat."""

    @property
    def status(self) -> str:
        """Stored status."""
        ...

    @property
    def heartbeat_at(self) -> datetime | None:
        """Time of the last heartbeat [UTC]."""

    @property
    def pid(self) -> int | None:
        """Process id of the trainer."""

    @property
    def pid_created_at(self) -> float | None:
        """Start of that process [Unix time in s]."""

    @property
    def process_key(self) -> str | None:
        """Boot, pid namespace and start of that process."""

    @property
    def host(self) -> str | None:
        """Host of that process."""

    @property
    def claimed_at(self) -> datetime | None:
        """Time of the claim [UTC]."""


OWNED_COLUMNS: Final = (
    *(Run.status, Run.heartbeat_at, Run.pid, Run.pid_created_at, Run.process_key, Run.host, Run.claimed_at),
)
"""The columns of an OwnedRow."""


def live_status(row: OwnedRow, now: datetime) -> LiveStatus:
    """Return the status of a run, or `lost` if its process has gone.

    Args:
        row: The run as stored.
        now: The time, with a time zone.

    Returns:
        `lost` if the last heartbeat is older than LOST_AFTER_S, if the process did not start training within
        START_LIMIT_S, or if it is proven that the process has ended. Otherwise the stored status.
    """
    if row.status == "queued":
        return "lost" if row.pid is not None and (is_start_overdue(row, now) or is_process_gone(row)) else "queued"
    if row.status not in ("running", "paused"):
        return row.status  # pyright: ignore[reportReturnType] - finished, stopped or failed
    is_silent = row.heartbeat_at is None or (now - row.heartbeat_at).total_seconds() > LOST_AFTER_S
    if is_silent or is_process_gone(row):
        return "lost"
    return "running" if row.status == "running" else "paused"


def is_start_overdue(row: OwnedRow, now: datetime) -> bool:
    """Return whether the process that claimed a queued run has exceeded START_LIMIT_S."""
    return row.claimed_at is not None and (now - row.claimed_at).total_seconds() > START_LIMIT_S


@dataclass(frozen=True)
class Owner:
    """A process and the token by which it owns a run. It can pass the token to a process that it starts."""

    process: ProcessId
    token: str


def make_owner(process: ProcessId | None = None) -> Owner:
    """Make an owner with a new token; None means this process."""
    return Owner(process or get_process_id(), secrets.token_hex(8))


def owner_columns(owner: Owner) -> dict[str, Any]:
    """Return the column values of a run that an owner claims now."""
    return {**process_columns(owner.process), "owner_token": owner.token, "claimed_at": clock.now()}


def check_token(row: Any, token: str | None) -> None:
    """Raise if the process with this token no longer owns a run.

    Raises:
        RunStateError: If the run has another token.
    """
    if row.owner_token is not None and row.owner_token != token:
        raise make_ownership_error(row)


def make_ownership_error(row: Any) -> RunStateError:
    """Make the error that names the process that owns a run now."""
    owner = f"process {row.pid} on {row.host}" if row.pid is not None else "no process"
    message = f"Run {row.id} belongs to {owner} now, so this process must not write to it."
    return RunStateError(message, reason=OTHER_OWNER, subject=row.id)


def check_owned(connection: Connection, run_id: str, token: str) -> None:
    """Raise if another process has taken over a run. Must be called in the transaction that writes.

    Args:
        connection: The connection of the transaction.
        run_id: The run.
        token: Token of this process.

    Raises:
        RunStateError: If the run has another token.
    """
    columns = (Run.id, Run.owner_token, Run.pid, Run.host)
    row = connection.execute(select(*columns).where(Run.id == run_id).with_for_update()).one_or_none()
    if row is not None:
        check_token(row, token)


def mark_launched(db: Database, run_id: str, process: ProcessId, *, token: str | None = None) -> None:
    """Record the process that was started for a queued run, so that its end is detected before the first heartbeat.

    Does nothing if the run is no longer queued or has another token.

    Args:
        db: An open database.
        run_id: The run.
        process: The process.
        token: The owner token of the run.
    """
    is_owner = (Run.id == run_id, Run.status == "queued", Run.owner_token == token)
    with db.transaction() as connection:
        connection.execute(update(Run).where(*is_owner).values(**process_columns(process)))


class State(StrEnum):
    """State of a run, finer than its status."""

    CREATED = "created"  # queued and not claimed
    STARTING = "starting"  # claimed by a process that does not train yet
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"  # a stop was requested
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"  # the owner sends no heartbeats, has ended, or did not start in time


class Event(StrEnum):
    """An event in the life of a run. The value completes "only a run that is … can …"."""

    CLAIM = "be started"
    BEGIN = "start training"
    PAUSE = "pause"
    CONTINUE = "continue"
    REQUEST_STOP = "receive a stop request"
    LEAVE_QUEUE = "leave the queue"
    STOP = "stop"
    FINISH = "finish"
    FAIL = "fail"
    LOSE = "become lost"
    WAKE = "send a heartbeat again"
    REQUEUE = "be queued again"
    RETURN_TO_QUEUE = "be given back"
    THIN = "be thinned"
    DELETE = "be deleted"


class Cause(StrEnum):
    """Who causes a transition."""

    PERSON = "a user, on a page or by a command"
    LAUNCHER = "the command, app or scheduler that starts a trainer"
    OWNER = "the process that owns the run"
    CLOCK = "a time limit, or the end of a process"


@dataclass(frozen=True)
class StateTransition:
    """A transition from one state to another. `after` is None if the run is deleted."""

    before: State
    event: Event
    after: State | None
    actor: Cause
    undone_by: str
    """How a user or a process can reverse it."""


def _from_each(
    event: Event, befores: Iterable[State], after: State | None, actor: Cause, undone_by: str
) -> tuple[StateTransition, ...]:
    """Make the transitions by one event from several states to one."""
    return tuple(StateTransition(before, event, after, actor, undone_by) for before in befores)


_OWNED: Final = (State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING)
_RESUMABLE: Final = (State.STOPPED, State.FAILED, State.LOST)
_AT_WORK: Final = (State.RUNNING, State.PAUSED, State.STOPPING)

TRANSITIONS: Final[tuple[StateTransition, ...]] = (
    *_from_each(Event.CLAIM, (State.CREATED, *_RESUMABLE), State.STARTING, Cause.LAUNCHER, "stop"),
    *_from_each(Event.BEGIN, (State.STARTING,), State.RUNNING, Cause.OWNER, "stop"),
    *_from_each(Event.PAUSE, (State.RUNNING,), State.PAUSED, Cause.OWNER, "continue"),
    *_from_each(Event.CONTINUE, (State.PAUSED,), State.RUNNING, Cause.OWNER, "pause"),
    *_from_each(Event.REQUEST_STOP, _OWNED, State.STOPPING, Cause.PERSON, "resume after the stop"),
    *(
        StateTransition(State.STOPPING, event, State.STOPPING, Cause.OWNER, "nothing: the stop is still requested")
        for event in (Event.BEGIN, Event.PAUSE, Event.CONTINUE)
    ),
    *_from_each(Event.LEAVE_QUEUE, (State.CREATED,), State.STOPPED, Cause.PERSON, "resume, or queue again"),
    *_from_each(Event.STOP, _OWNED, State.STOPPED, Cause.OWNER, "resume"),
    *_from_each(Event.FINISH, _AT_WORK, State.FINISHED, Cause.OWNER, "nothing: its data is complete"),
    *_from_each(Event.FAIL, (State.CREATED, *_OWNED), State.FAILED, Cause.OWNER, "resume"),
    *_from_each(Event.LOSE, _OWNED, State.LOST, Cause.CLOCK, "the next heartbeat of the owner, or resume"),
    *(StateTransition(State.LOST, Event.WAKE, after, Cause.OWNER, "no further heartbeats") for after in _OWNED),
    *_from_each(Event.REQUEUE, (State.STOPPED, State.FAILED), State.CREATED, Cause.PERSON, "stop"),
    *_from_each(Event.RETURN_TO_QUEUE, (State.STARTING, State.RUNNING), State.CREATED, Cause.OWNER, "the next claim"),
    *(
        StateTransition(state, Event.THIN, state, Cause.PERSON, "nothing: the data is deleted, the curves are kept")
        for state in (State.FINISHED, *_RESUMABLE)
    ),
    *_from_each(
        Event.DELETE,
        (State.CREATED, State.FINISHED, *_RESUMABLE),
        None,
        Cause.PERSON,
        "nothing: the data is deleted",
    ),
)
"""All transitions. To start again from step 0 is not one of them: it creates another run with this one as parent."""

ANSWERING_STATES: Final = (State.STARTING, State.RUNNING, State.PAUSED)
"""States in which a trainer answers requests for evaluations. A trainer that is stopping does not."""

_ALLOWED: Final = {(transition.before, transition.event) for transition in TRANSITIONS}


class Observed(OwnedRow, Protocol):
    """The columns from which the state of a run is computed."""

    @property
    def stop_asked_at(self) -> datetime | None:
        """Time of the last request to stop [UTC]."""

    @property
    def started_at(self) -> datetime | None:
        """Start of the training [UTC]."""


def state_of(row: Observed, now: datetime) -> State:
    """Return the state of a run."""
    return refine(row, live_status(row, now))


def refine(row: Observed, status: LiveStatus) -> State:
    """Return the state for a live status: created, starting or stopping instead of queued, running or paused."""
    if status not in ("queued", "running", "paused"):
        return State(status)
    if row.pid is not None and _is_stop_requested(row):
        return State.STOPPING
    if status == "queued":
        return State.CREATED if row.pid is None else State.STARTING
    return State(status)


def allows(state: State, event: Event) -> bool:
    """Return whether an event is allowed in a state."""
    return (state, event) in _ALLOWED


def check_allowed(run_id: str, state: State, event: Event) -> None:
    """Raise if an event is not allowed in the state of a run.

    Args:
        run_id: The run, for the message.
        state: Its state.
        event: The event.

    Raises:
        RunStateError: If TRANSITIONS does not contain it.
    """
    if not allows(state, event):
        *others, last = sorted({transition.before.value for transition in TRANSITIONS if transition.event == event})
        states = f"{', '.join(others)} or {last}" if others else last
        raise RunStateError(
            f"Run {run_id} is {state.value}; only a run that is {states} can {event.value}. See: emtc show {run_id}",
            reason=state.value,
            subject=run_id,
        )


def _is_stop_requested(row: Observed) -> bool:
    """Return whether a stop was requested from the present owner, not from an earlier one."""
    since = row.claimed_at or row.started_at
    return row.stop_asked_at is not None and (since is None or row.stop_asked_at >= since)
