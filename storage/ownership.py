"""Who owns a run: a process that is named for good, and a token that only it was given."""

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil
from sqlalchemy import Connection, select, update

from emtc_core.errors import RunStateError
from storage.engine import Database
from storage.models import Run


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
        return {**process, "owner_token": self.token, "claimed_at": datetime.now(UTC)}


def this_process(token: str | None = None) -> Owner:
    """Name this process, with a token that it was given or a new one."""
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
    """Say who has a run that this process thought its own."""
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
