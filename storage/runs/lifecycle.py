"""The life of a run: its states, every way from one to another, who owns it, and whether that process is still there.

    created ─► starting ─► running ◄─► paused        finished
                  │           │           │             ▲
                  └──────► stopping ◄─────┘ ────────────┤
                              │                      stopped, failed ─► starting (resume) or created (queued again)
        whatever has an owner └─► lost, when that owner is silent or gone

Nothing else decides what may follow what. The table `runs` stores six words; the finer states follow from the word, the
owner (process, host, when it took the run), its heartbeat, and whether somebody asked it to stop. A process is named
for good by its id and when it was created; it owns a run by the token in `runs.owner_token`, which only it was given:
whoever takes the run over writes another one, and the earlier owner can write no more, whenever it wakes up. Whether it
lives is answered by heartbeats first, then by the process table of this host. A worker that has to leave its machine
gives its runs back: they are created again, and another worker goes on with them.
"""

import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

import psutil
from sqlalchemy import Connection, select, update

from emtc_core.errors import RunStateError
from storage import clock
from storage.engine import Database
from storage.models import Run

HEARTBEAT_S = 2.0
LOST_AFTER_S = 3 * HEARTBEAT_S
START_LIMIT_S = 300.0
"""How long a process may take from being given a run to its first heartbeat: it loads libraries meanwhile."""
_CREATE_TIME_TOLERANCE_S = 2.0  # clocks are corrected now and then
LiveStatus = Literal["queued", "running", "paused", "finished", "stopped", "failed", "lost"]


class OwnedRow(Protocol):
    """What liveness reads of a row of `runs`."""

    @property
    def status(self) -> str: ...
    @property
    def heartbeat_at(self) -> datetime | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def pid_created_at(self) -> float | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def claimed_at(self) -> datetime | None: ...


def live_status(row: OwnedRow, now: datetime) -> LiveStatus:
    """What the run's process really does.

    Args:
        row: The run as stored.
        now: An aware time.

    Returns:
        The stored status, or `lost` when the process is gone: it was silent for LOST_AFTER_S, did not begin
        within START_LIMIT_S, or this host's process table has no such process.
    """
    if row.status == "queued":
        return "lost" if row.pid is not None and (is_start_overdue(row, now) or is_process_gone(row)) else "queued"
    if row.status not in ("running", "paused"):
        return row.status  # pyright: ignore[reportReturnType] - the remaining states of the table
    silent = row.heartbeat_at is None or (now - row.heartbeat_at).total_seconds() > LOST_AFTER_S
    if silent or is_process_gone(row):
        return "lost"
    return "running" if row.status == "running" else "paused"


def is_start_overdue(row: OwnedRow, now: datetime) -> bool:
    """Whether the process that was given a queued run has had its time to begin."""
    return row.claimed_at is not None and (now - row.claimed_at).total_seconds() > START_LIMIT_S


def is_process_gone(row: OwnedRow) -> bool:
    """Whether this host certainly has no such process; False for another host's."""
    return _is_here(row) and not _exists(row)


def is_process_alive(row: OwnedRow) -> bool:
    """Whether this host certainly has the process; False for another host's."""
    return _is_here(row) and _exists(row)


def _is_here(row: OwnedRow) -> bool:
    return row.pid is not None and row.host == socket.gethostname()


def _exists(row: OwnedRow) -> bool:
    try:
        process = psutil.Process(row.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        created_at = process.create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return row.pid_created_at is None or abs(created_at - row.pid_created_at) <= _CREATE_TIME_TOLERANCE_S


@dataclass(frozen=True)
class Owner:
    """A process and the token by which it owns a run. It may hand the token to the process that it starts."""

    pid: int
    pid_created_at: float
    host: str
    token: str

    def columns(self) -> dict[str, Any]:
        """Fill the columns of a run that it takes now."""
        process = {"pid": self.pid, "pid_created_at": self.pid_created_at, "host": self.host}
        return {**process, "owner_token": self.token, "claimed_at": clock.now()}


def this_process(token: str | None = None) -> Owner:
    """This process as an owner, with a token that it was given or a new one."""
    pid = os.getpid()
    return Owner(pid, get_process_created_at(pid), socket.gethostname(), token or secrets.token_hex(8))


def get_process_created_at(pid: int) -> float:
    """Read when a process was created, which with its id names it for good [Unix seconds]."""
    return psutil.Process(pid).create_time()


def check_token(row: Any, token: str | None) -> None:
    """Refuse a process that no longer owns a run.

    Raises:
        RunStateError: If the run's token is another one.
    """
    if row.owner_token is not None and row.owner_token != token:
        raise taken_over(row)


def taken_over(row: Any) -> RunStateError:
    """The error that says who has a run that this process thought its own."""
    owner = f"process {row.pid} on {row.host}" if row.pid is not None else "nobody"
    return RunStateError(
        f"Run {row.id} belongs to {owner} now; this process may not write for it.", reason="other_owner", subject=row.id
    )


def check_owned(connection: Connection, run_id: str, token: str) -> None:
    """Refuse to write for a run that somebody else has taken over; call it in the writing transaction.

    Raises:
        RunStateError: If the run's token is another one.
    """
    columns = (Run.id, Run.owner_token, Run.pid, Run.host)
    row = connection.execute(select(*columns).where(Run.id == run_id).with_for_update()).one_or_none()
    if row is not None:
        check_token(row, token)


def mark_launched(
    db: Database, run_id: str, *, pid: int, pid_created_at: float, host: str, token: str | None = None
) -> None:
    """Note the process that was started for a queued run, so that its early death is seen."""
    mine = (Run.id == run_id, Run.status == "queued", Run.owner_token == token)
    with db.transaction() as connection:
        values = {"pid": pid, "pid_created_at": pid_created_at, "host": host}
        connection.execute(update(Run).where(*mine).values(**values))


class State(StrEnum):
    """Where a run is in its life."""

    CREATED = "created"  # nobody has it: it waits for a scheduler or a person
    STARTING = "starting"  # a process has it and loads its libraries
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"  # asked to stop, and not yet stopped
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"  # its owner is silent, gone, or did not begin in time


class Event(StrEnum):
    """What may happen to a run."""

    CLAIM = "be started"
    BEGIN = "begin"
    PAUSE = "pause"
    GO_ON = "go on"
    ASK_STOP = "be asked to stop"
    LEAVE_QUEUE = "leave the queue"
    STOP = "stop"
    FINISH = "finish"
    FAIL = "fail"
    VANISH = "vanish"
    WAKE = "wake"
    REQUEUE = "be queued again"
    GIVE_BACK = "be given back"
    THIN = "be thinned"
    DELETE = "be deleted"


class Actor(StrEnum):
    """Who makes a transition."""

    PERSON = "a person, by page or command"
    LAUNCHER = "whoever starts a trainer: a command, the app, a scheduler"
    OWNER = "the process whose token the run carries"
    CLOCK = "nobody: time passes, or a process ends"


@dataclass(frozen=True)
class Transition:
    """One way from a state to another; `after` is None when the run is no more."""

    before: State
    event: Event
    after: State | None
    actor: Actor
    undone_by: str


def _ways(
    event: Event, befores: Iterable[State], after: State | None, actor: Actor, undone_by: str
) -> tuple[Transition, ...]:
    return tuple(Transition(before, event, after, actor, undone_by) for before in befores)


_S = State
_OWNED: Final = (_S.STARTING, _S.RUNNING, _S.PAUSED, _S.STOPPING)
_RESUMABLE: Final = (_S.STOPPED, _S.FAILED, _S.LOST)
_AT_WORK: Final = (_S.RUNNING, _S.PAUSED, _S.STOPPING)

TRANSITIONS: Final[tuple[Transition, ...]] = (
    *_ways(Event.CLAIM, (_S.CREATED, *_RESUMABLE), _S.STARTING, Actor.LAUNCHER, "stop; it is lost if it never begins"),
    *_ways(Event.BEGIN, (_S.STARTING,), _S.RUNNING, Actor.OWNER, "stop"),
    *_ways(Event.PAUSE, (_S.RUNNING,), _S.PAUSED, Actor.OWNER, "go on"),
    *_ways(Event.GO_ON, (_S.PAUSED,), _S.RUNNING, Actor.OWNER, "pause"),
    *_ways(Event.ASK_STOP, _OWNED, _S.STOPPING, Actor.PERSON, "resume, once it stopped"),
    *(
        Transition(_S.STOPPING, event, _S.STOPPING, Actor.OWNER, "nothing: the stop stands")
        for event in (Event.BEGIN, Event.PAUSE, Event.GO_ON)
    ),
    *_ways(Event.LEAVE_QUEUE, (_S.CREATED,), _S.STOPPED, Actor.PERSON, "resume, or queue again"),
    *_ways(Event.STOP, _OWNED, _S.STOPPED, Actor.OWNER, "resume"),
    *_ways(Event.FINISH, _AT_WORK, _S.FINISHED, Actor.OWNER, "nothing: what it recorded stays"),
    *_ways(Event.FAIL, (_S.CREATED, *_OWNED), _S.FAILED, Actor.OWNER, "resume"),
    *_ways(Event.VANISH, _OWNED, _S.LOST, Actor.CLOCK, "its owner's next sign of life, or resume"),
    *(Transition(_S.LOST, Event.WAKE, after, Actor.OWNER, "silence") for after in _OWNED),
    *_ways(Event.REQUEUE, (_S.STOPPED, _S.FAILED), _S.CREATED, Actor.PERSON, "stop"),
    *_ways(Event.GIVE_BACK, (_S.STARTING, _S.RUNNING), _S.CREATED, Actor.OWNER, "the next worker that claims it"),
    *(
        Transition(state, Event.THIN, state, Actor.PERSON, "nothing: what was thinned is gone; its curves stay")
        for state in (_S.FINISHED, *_RESUMABLE)
    ),
    *_ways(Event.DELETE, (_S.CREATED, _S.FINISHED, *_RESUMABLE), None, Actor.PERSON, "nothing: it is gone for good"),
)
"""Every transition. To start again from step 0 is none: it makes another run, which names this one as its parent."""

ANSWERS: Final = (_S.STARTING, _S.RUNNING, _S.PAUSED)
"""Where a trainer answers questions: one that stops has no time for them."""

_ALLOWED: Final = {(way.before, way.event) for way in TRANSITIONS}


class Observed(OwnedRow, Protocol):
    """What the state of a run follows from."""

    @property
    def stop_asked_at(self) -> datetime | None: ...
    @property
    def started_at(self) -> datetime | None: ...


def state_of(row: Observed, now: datetime) -> State:
    """Where a run is in its life."""
    return refine(row, live_status(row, now))


def refine(row: Observed, status: LiveStatus) -> State:
    """The state behind a status: created or starting, and stopping instead of running or paused."""
    if status not in ("queued", "running", "paused"):
        return State(status)
    if row.pid is not None and _is_asked_to_stop(row):
        return State.STOPPING
    if status == "queued":
        return State.CREATED if row.pid is None else State.STARTING
    return State(status)


def allows(state: State, event: Event) -> bool:
    """Whether something may happen to a run in this state."""
    return (state, event) in _ALLOWED


def check(run_id: str, state: State, event: Event) -> None:
    """Refuse what the table does not hold.

    Raises:
        RunStateError: If it does not.
    """
    if not allows(state, event):
        can = sorted({way.before.value for way in TRANSITIONS if way.event == event})
        fit = " or ".join([", ".join(can[:-1]), can[-1]] if can[1:] else can)
        raise RunStateError(
            f"Run {run_id} is {state.value}; only a run that is {fit} can {event.value}. See: emtc show {run_id}",
            reason=state.value,
            subject=run_id,
        )


def _is_asked_to_stop(row: Observed) -> bool:
    since = row.claimed_at or row.started_at
    return row.stop_asked_at is not None and (since is None or row.stop_asked_at >= since)
