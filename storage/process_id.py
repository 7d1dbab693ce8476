"""The identity of a process that trains a run, starts runs or computes a projection.

Pids are reused, so a process is identified by its pid, its host and the time at which it started. The tables `runs`,
`sweeps` and `jobs` store these in the columns `pid`, `host` and `pid_created_at`.
"""

import socket
from dataclasses import dataclass
from typing import Any

import psutil

_CREATE_TIME_TOLERANCE_S = 2.0  # the system clock may be corrected


@dataclass(frozen=True)
class ProcessId:
    """A process of one host."""

    pid: int
    host: str
    created_at: float | None
    """Unix time [s] at which the process started; None if it is unknown. Then the pid is assumed not to be reused."""

    @property
    def is_local(self) -> bool:
        """Whether it is, or was, a process of this host."""
        return self.host == socket.gethostname()


def get_process_id(pid: int | None = None) -> ProcessId:
    """Get the identity of a process of this host; None means this process.

    Raises:
        psutil.NoSuchProcess: If there is no such process.
    """
    process = psutil.Process(pid)
    return ProcessId(process.pid, socket.gethostname(), process.create_time())


def find_process(process_id: ProcessId) -> psutil.Process | None:
    """Find a process of this host. Return None if it has ended or belongs to another host."""
    if not process_id.is_local:
        return None
    try:
        process = psutil.Process(process_id.pid)
    except (psutil.NoSuchProcess, ValueError):  # a foreign database may contain a negative pid
        return None
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        created_at = process.create_time()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return process
    is_same = process_id.created_at is None or abs(created_at - process_id.created_at) <= _CREATE_TIME_TOLERANCE_S
    return process if is_same else None


def process_columns(process_id: ProcessId | None) -> dict[str, Any]:
    """Return the column values that identify a process; None sets them to NULL."""
    if process_id is None:
        return {"pid": None, "pid_created_at": None, "host": None}
    return {"pid": process_id.pid, "pid_created_at": process_id.created_at, "host": process_id.host}


def read_process_id(row: Any) -> ProcessId | None:
    """Read the identity of a process from the columns pid, host and pid_created_at of a row.

    Returns None if there is no process or its host is not known.
    """
    if row.pid is None or row.host is None:
        return None
    return ProcessId(row.pid, row.host, row.pid_created_at)


def is_process_alive(row: Any) -> bool:
    """Return whether the process of a row belongs to this host and still exists."""
    process_id = read_process_id(row)
    return process_id is not None and find_process(process_id) is not None


def is_process_gone(row: Any) -> bool:
    """Return whether the process of a row belongs to this host and no longer exists."""
    process_id = read_process_id(row)
    return process_id is not None and process_id.is_local and find_process(process_id) is None
