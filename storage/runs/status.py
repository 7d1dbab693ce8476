"""The status of a run, and which actions each status allows.

`runs.status` stores one of six values. `status` computes the status that people see from the stored one, the owner
token, the last heartbeat, the time of the claim and the last request to stop. ALLOWED is the only table of allowed
actions: the pages, the commands and the functions that change a run read it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from sqlalchemy import Connection, func, select

from emtc_core.errors import RunStateError
from storage.models import CommandRow, Run

HEARTBEAT_S: Final = 2.0
"""Interval of heartbeats."""
LOST_AFTER_S: Final = 8.0
"""A run in training without a heartbeat for this time is lost."""
START_LIMIT_S: Final = 300.0
"""A claimed run that does not start within this time is lost. Most of the time is used to load libraries."""

NOT_ENDED: Final = ("queued", "running", "paused")
"""The stored statuses of a run that waits or is trained."""
Status = Literal["queued", "starting", "running", "paused", "stopping", "finished", "stopped", "failed", "lost"]
Action = Literal[
    "start",
    "resume",
    "start_again",
    "pause",
    "continue",
    "stop",
    "evaluate",
    "requeue",
    "thin",
    "archive",
    "delete",
    "kill",
]
"""What a user, or a worker for a user, can do with a run.

`start`: train a queued run. `resume`: train it from its last checkpoint. `start_again`: make a new run from it that
starts at step 0. `continue`: end a pause. `evaluate`: request greedy episodes. `requeue`: return it to the queue of its
sweep. `kill`: end its process.
"""

ALLOWED: Final[Mapping[Status, tuple[Action, ...]]] = {
    "queued": ("start", "start_again", "stop", "archive", "delete"),
    "starting": ("stop", "evaluate"),
    "running": ("pause", "stop", "evaluate", "kill"),
    "paused": ("continue", "stop", "evaluate", "kill"),
    "stopping": ("kill",),
    "finished": ("start_again", "thin", "archive", "delete"),
    "stopped": ("resume", "start_again", "requeue", "thin", "archive", "delete"),
    "failed": ("resume", "start_again", "requeue", "thin", "archive", "delete"),
    "lost": ("resume", "start_again", "thin", "archive", "delete", "kill"),
}
"""Status → the actions that it allows."""
_PARTICIPLES: Final[Mapping[Action, str]] = {
    "start": "be started",
    "resume": "be resumed",
    "start_again": "be started again",
    "pause": "be paused",
    "continue": "be continued",
    "stop": "be stopped",
    "evaluate": "play episodes on request",
    "requeue": "be queued again",
    "thin": "be thinned",
    "archive": "be archived",
    "delete": "be deleted",
    "kill": "have its process ended",
}
"""Action → how it completes "can …"."""

STOP_ASKED_AT: Final = (
    select(func.max(CommandRow.requested_at))
    .where(CommandRow.run_id == Run.id, CommandRow.command == "stop")
    .scalar_subquery()
    .label("stop_asked_at")
)
"""Time of the last request to stop the run."""
STATUS_COLUMNS: Final = (
    *(Run.id, Run.status, Run.owner_token, Run.heartbeat_at, Run.claimed_at),
    STOP_ASKED_AT,
)
"""The columns from which the status is computed, and the id."""


class StatusRow(Protocol):
    """A row with STATUS_COLUMNS."""

    @property
    def status(self) -> str:
        """Stored status."""
        ...

    @property
    def owner_token(self) -> str | None:
        """Token of the process that may write the run; None if it has no owner."""

    @property
    def heartbeat_at(self) -> datetime | None:
        """Time of the last heartbeat [UTC]."""

    @property
    def claimed_at(self) -> datetime | None:
        """When the owner claimed the run [UTC]."""

    @property
    def stop_asked_at(self) -> datetime | None:
        """Time of the last request to stop [UTC]."""


def status(row: StatusRow, now: datetime) -> Status:
    """Compute the status of a run.

    Args:
        row: The run as stored.
        now: The time, as `read_clock` returns it.

    Returns:
        The stored status of a run that has ended. Otherwise `lost` if the owner has sent no heartbeat for LOST_AFTER_S,
        or has not started within START_LIMIT_S; `stopping` if a stop was requested from this owner.
    """
    if row.status not in NOT_ENDED:
        return row.status  # pyright: ignore[reportReturnType] - finished, stopped or failed
    if row.status == "queued" and row.owner_token is None:
        return "queued"
    limit_s = START_LIMIT_S if row.status == "queued" else LOST_AFTER_S
    if measure_silence_s(row, now) > limit_s:
        return "lost"
    if is_stop_requested(row):
        return "stopping"
    if row.status == "queued":
        return "starting"
    return "running" if row.status == "running" else "paused"


def measure_silence_s(row: StatusRow, now: datetime) -> float:
    """Measure the time since the last heartbeat of a run in training, or since the claim of a starting one [s]."""
    last = row.claimed_at if row.status == "queued" else row.heartbeat_at
    return float("inf") if last is None else (now - last).total_seconds()


def is_stop_requested(row: StatusRow) -> bool:
    """Return whether a stop was requested from the present owner, not from an earlier one."""
    if row.stop_asked_at is None:
        return False
    return row.claimed_at is None or row.stop_asked_at >= row.claimed_at


def read_clock(connection: Connection) -> datetime:
    """Read the time by which heartbeats and claims are dated: the server's, or this machine's for a SQLite file."""
    if connection.dialect.name == "postgresql":
        return connection.execute(select(func.now())).scalar_one().astimezone(UTC)
    return datetime.now(UTC)


def allows(status: Status, action: Action) -> bool:
    """Return whether a status allows an action."""
    return action in ALLOWED[status]


def check_allowed(run_id: str, status: Status, action: Action) -> None:
    """Raise if the status of a run does not allow an action.

    Args:
        run_id: The run, for the message.
        status: Its status.
        action: The action.

    Raises:
        RunStateError: If ALLOWED does not contain the action.
    """
    if allows(status, action):
        return
    *others, last = [name for name, actions in ALLOWED.items() if action in actions]
    names = f"{', '.join(others)} or {last}" if others else last
    raise RunStateError(
        f"Run {run_id} is {status}; only a run that is {names} can {_PARTICIPLES[action]}. See: emtc show {run_id}"
    )
