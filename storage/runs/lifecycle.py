"""The life of a run: its states, and every way from one to another. Nothing else decides what may follow what.

    created ─► starting ─► running ◄─► paused        finished
                  │           │           │             ▲
                  └──────► stopping ◄─────┘ ────────────┤
                              │                      stopped, failed ─► starting (resume) or created (queued again)
        whatever has an owner └─► lost, when that owner is silent or gone

The table `runs` stores six words; the finer states follow from the word, the owner (process, host, when it took the
run), its heartbeat, and whether somebody asked it to stop. A process owns a run by the token in `runs.owner_token`:
whoever takes the run over writes another one, and the earlier owner can write no more, whenever it wakes up. A worker
that has to leave its machine gives its runs back: they are created again, and another worker goes on with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from emtc_core.errors import RunStateError
from storage.runs.ownership import LiveStatus, OwnedRow, live_status


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
            f"Run {run_id} is {state.value}; only a run that is {fit} can {event.value}. See: emtc show {run_id}"
        )


def _is_asked_to_stop(row: Observed) -> bool:
    since = row.claimed_at or row.started_at
    return row.stop_asked_at is not None and (since is None or row.stop_asked_at >= since)
