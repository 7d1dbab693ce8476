"""The identity of a process that trains a run, starts runs or computes a projection.

Pids are reused, and a container can have the host name of its machine but other pids. So a process is identified by
its pid, its host and a key: the boot of the machine, the pid namespace, and the start of the process in clock ticks
since the boot. The key does not change if the system clock is corrected. The tables `runs`, `sweeps` and `jobs` store
the identity in the columns `pid`, `host`, `pid_created_at` and `process_key`.

Only the process table of the recorded boot and pid namespace proves that a process has ended.
"""

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

_PROC = Path("/proc")

Presence = Literal["alive", "ended", "unknown"]
"""`unknown`: the process belongs to another host, container or boot, is hidden from this user, or has no key."""


@dataclass(frozen=True)
class ProcessId:
    """A process of one host."""

    pid: int
    host: str
    created_at: float | None
    """Unix time [s] at which the process started, for information; it changes if the system clock is corrected."""
    key: str | None = None
    """Boot, pid namespace and start, as BOOT/NAMESPACE/START; None if it is unknown."""

    @property
    def is_local(self) -> bool:
        """Whether its host has the name of this host."""
        return self.host == socket.gethostname()


def get_process_id(pid: int | None = None) -> ProcessId:
    """Get the identity of a process of this host; None means this process.

    Raises:
        psutil.NoSuchProcess: If there is no such process.
    """
    process = psutil.Process(pid)
    created_at = process.create_time()
    space, start = _find_pid_space(), _read_start(process.pid)
    key = None if space is None or start is None else f"{space}/{start}"
    return ProcessId(process.pid, socket.gethostname(), created_at, key)


def observe_process(process_id: ProcessId) -> Presence:
    """Return whether a process exists, has ended, or cannot be observed by this process."""
    if not process_id.is_local or process_id.key is None:
        return "unknown"
    space, _, start = process_id.key.rpartition("/")
    if space != _find_pid_space():
        return "unknown"
    if not _has_pid(process_id.pid):
        return "ended"
    try:
        if psutil.Process(process_id.pid).status() == psutil.STATUS_ZOMBIE:
            return "ended"
        actual_start = _read_start(process_id.pid)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended, or is hidden from this user
        return "unknown"
    if actual_start is None:
        return "unknown"
    return "alive" if actual_start == start else "ended"


def process_columns(process_id: ProcessId | None) -> dict[str, Any]:
    """Return the column values that identify a process; None sets them to NULL."""
    if process_id is None:
        return dict.fromkeys(("pid", "pid_created_at", "host", "process_key"))
    return {
        "pid": process_id.pid,
        "pid_created_at": process_id.created_at,
        "host": process_id.host,
        "process_key": process_id.key,
    }


def read_process_id(row: Any) -> ProcessId | None:
    """Read the identity of a process from the columns pid, host, pid_created_at and process_key of a row.

    Returns None if there is no process or its host is not known.
    """
    if row.pid is None or row.host is None:
        return None
    return ProcessId(row.pid, row.host, row.pid_created_at, row.process_key)


def observe_owner(row: Any) -> Presence:
    """Return `observe_process` for the process of a row; `unknown` if it has none."""
    process_id = read_process_id(row)
    return "unknown" if process_id is None else observe_process(process_id)


def is_process_alive(row: Any) -> bool:
    """Return whether the process of a row is proven to exist."""
    return observe_owner(row) == "alive"


def is_process_gone(row: Any) -> bool:
    """Return whether the process of a row is proven to have ended."""
    return observe_owner(row) == "ended"


def is_process_missing(row: Any) -> bool:
    """Return whether the process of a row has the name of this host and is not found here.

    It may live in a container. So this is only for work that two processes may do at the same time.
    """
    process_id = read_process_id(row)
    return process_id is not None and process_id.is_local and observe_process(process_id) != "alive"


def _find_pid_space() -> str | None:
    """Find the boot and the pid namespace of this process; None if /proc does not show them."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        if (_PROC / "self").readlink().name != str(os.getpid()):  # a container that shows the processes of its machine
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _read_start(pid: int) -> str | None:
    """Read when a process started: clock ticks since the boot, elsewhere than on Linux the time; None if hidden."""
    if not sys.platform.startswith("linux"):
        return f"{psutil.Process(pid).create_time():.2f}"
    with suppress(OSError, IndexError):
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    return None


def _has_pid(pid: int) -> bool:
    """Return whether a process has this pid, also if /proc hides it from this user."""
    if not 0 < pid < 1 << 31:  # a foreign database may contain any number
        return False
    if not sys.platform.startswith("linux"):
        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
