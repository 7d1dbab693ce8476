"""Is the process that works on a run still there? Heartbeats first, then the process table of this host."""

import socket
from datetime import datetime
from typing import Literal, Protocol

import psutil

HEARTBEAT_S = 2.0
LOST_AFTER_S = 3 * HEARTBEAT_S
START_LIMIT_S = 300.0
"""How long a process may take from being given a run to its first heartbeat: it loads libraries meanwhile."""

_CREATE_TIME_TOLERANCE_S = 2.0  # clocks are corrected now and then

LiveStatus = Literal["queued", "running", "paused", "finished", "stopped", "failed", "lost"]


class Worker(Protocol):
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


def live_status(row: Worker, now: datetime) -> LiveStatus:
    """Say what the run's process really does.

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


def is_start_overdue(row: Worker, now: datetime) -> bool:
    """Tell whether the process that was given a queued run has had its time to begin."""
    return row.claimed_at is not None and (now - row.claimed_at).total_seconds() > START_LIMIT_S


def is_process_gone(row: Worker) -> bool:
    """Tell whether this host certainly has no such process; False for another host's."""
    return _is_here(row) and not _exists(row)


def is_process_alive(row: Worker) -> bool:
    """Tell whether this host certainly has the process; False for another host's."""
    return _is_here(row) and _exists(row)


def _is_here(row: Worker) -> bool:
    return row.pid is not None and row.host == socket.gethostname()


def _exists(row: Worker) -> bool:
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
