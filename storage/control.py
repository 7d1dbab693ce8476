"""Commands to a trainer and signs of life from it, both through the database.

The trainer never waits for the database here: a thread reads commands and writes acknowledgements and
status; another one writes heartbeats. A database that does not answer is tried again at the next tick.
"""

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Literal, cast, get_args

import pandas as pd
from sqlalchemy import insert, select, update

from emtc_core.control import Command
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.frames import read_frame
from storage.liveness import HEARTBEAT_S
from storage.models import CommandRow, Run
from storage.runs import find_run

_log = logging.getLogger(__name__)
POLL_S = 0.25
_ENDED = ("finished", "stopped", "failed", "lost")


def send_command(db: Database, run_id: str, command: Command) -> int:
    """Ask a trainer for something.

    Args:
        db: An open database.
        run_id: The run, or an unambiguous prefix of its id.
        command: `stop`, `pause`, `resume` or `evaluate`.

    Returns:
        The id of the command, as in `command_log`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If nobody works on the run.
    """
    if command not in get_args(Command):
        raise RunStateError(f"A command is one of {', '.join(get_args(Command))}, got {command}.")
    row = find_run(db, run_id)
    if row.live_status in _ENDED:
        raise RunStateError(f"Run {row.id} is {row.live_status}: no trainer is there to {command}.")
    values = {"run_id": row.id, "command": command, "requested_at": datetime.now(UTC)}
    with db.transaction() as connection:
        result = connection.execute(insert(CommandRow).returning(CommandRow.id), values)
        return result.scalar_one()


def command_log(db: Database, run_id: str) -> pd.DataFrame:
    """List a run's commands, oldest first: id, command, requested_at, acknowledged_at."""
    columns = (CommandRow.id, CommandRow.command, CommandRow.requested_at, CommandRow.acknowledged_at)
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(CommandRow.run_id == run_id).order_by(CommandRow.id))


class DatabaseControl:
    """Implements `emtc_core.control.Control`: a poll looks at a queue that a thread fills."""

    def __init__(self, db: Database, run_id: str, *, poll_s: float = POLL_S) -> None:
        """Start to listen."""
        self._db, self._run_id, self._poll_s = db, run_id, poll_s
        self._commands: deque[tuple[int, Command]] = deque()
        self._taken: deque[int] = deque()
        self._status: Literal["running", "paused"] | None = None
        self._last_id = 0
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"control-{run_id}", daemon=True)
        self._thread.start()

    def poll(self) -> Command | None:
        """Take the oldest unacknowledged command, or None; costs a look at an empty queue."""
        if not self._commands:
            return None
        command_id, command = self._commands.popleft()
        self._taken.append(command_id)
        self._wake.set()
        return command

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Publish that the trainer obeyed; the thread writes it."""
        self._status = status
        self._wake.set()

    def close(self) -> None:
        """Write what is due and stop listening; idempotent."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._closing:
            self._tick()
            self._wake.wait(self._poll_s)
            self._wake.clear()
        self._tick()

    def _tick(self) -> None:
        try:
            self._publish()
            self._read()
        except StorageError as error:
            _log.warning("run %s: commands wait: %s", self._run_id, error)

    def _read(self) -> None:
        columns = select(CommandRow.id, CommandRow.command).where(
            CommandRow.run_id == self._run_id,
            CommandRow.id > self._last_id,
            CommandRow.acknowledged_at.is_(None),
        )
        with self._db.read() as connection:
            rows = connection.execute(columns.order_by(CommandRow.id)).all()
        for command_id, command in rows:
            self._commands.append((command_id, cast("Command", command)))  # send_command wrote it
            self._last_id = command_id

    def _publish(self) -> None:
        taken, status = list(self._taken), self._status
        if not taken and status is None:
            return
        with self._db.transaction() as connection:
            if taken:
                connection.execute(
                    update(CommandRow).where(CommandRow.id.in_(taken)).values(acknowledged_at=datetime.now(UTC))
                )
            if status is not None:
                connection.execute(
                    update(Run)
                    .where(Run.id == self._run_id, Run.status.in_(("running", "paused")))
                    .values(status=status)
                )
        for _ in taken:
            self._taken.popleft()
        if self._status == status:
            self._status = None


class Heartbeat:
    """Says every HEARTBEAT_S that the trainer lives, from a thread of its own."""

    def __init__(self, db: Database, run_id: str, *, every_s: float = HEARTBEAT_S) -> None:
        """Start to beat at once."""
        self._db, self._run_id, self._every_s = db, run_id, every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{run_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop beating; idempotent."""
        self._closing.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            try:
                self._beat()
            except StorageError as error:
                _log.warning("run %s: no heartbeat written: %s", self._run_id, error)
            if self._closing.wait(self._every_s):
                return

    def _beat(self) -> None:
        with self._db.transaction() as connection:
            connection.execute(
                update(Run)
                .where(Run.id == self._run_id, Run.status.in_(("running", "paused")))
                .values(heartbeat_at=datetime.now(UTC))
            )
