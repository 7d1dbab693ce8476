"""Who owns a run, and is that process still there?

A process is named for good by its id and when it was created; it owns a run by a token that only it was given. Whether
it lives is answered by heartbeats first, then by the process table of this host.
"""

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

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
    return RunStateError(f"Run {row.id} belongs to {owner} now; this process may not write for it.")


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
