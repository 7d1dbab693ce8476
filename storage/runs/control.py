"""Send commands and requests for evaluations to a trainer through the database, and write its heartbeats.

In the trainer, one thread reads commands and writes acknowledgements and the status, and a second thread writes
heartbeats, so the training never waits for the database here. If the database fails, both threads try again later.

A request for an evaluation is a command, too; `emtc_core.control` calls it a `Question`, and its result is the answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from sqlalchemy import ColumnElement, and_, insert, select, update

from emtc_core.control import Command, Question, QuestionKind
from emtc_core.errors import CommandTimeoutError, RunNotFoundError, RunStateError, StorageError
from storage.engine import Database
from storage.frames import read_frame
from storage.models import CommandRow, EpisodeRow, RequestedEvaluationRow, Run, get_first_playback
from storage.retry import Outage
from storage.runs.changes import finish_run
from storage.runs.claims import check_owned, check_owner, make_deleted_error
from storage.runs.rows import RunRow, find_run
from storage.runs.status import HEARTBEAT_S, Action, allows, check_allowed, read_clock

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
POLL_S = 0.25
"""Interval at which a trainer reads its commands."""
ACKNOWLEDGE_S = 15.0
"""Default time to wait until a trainer acknowledges a command."""
_ACTIONS: Mapping[str, Action] = {
    "stop": "stop",
    "pause": "pause",
    "resume": "continue",
    "evaluate": "evaluate",
    "play": "evaluate",
}
"""Command → the action that the status of the run must allow."""

Stage = Literal["waiting", "playing", "answered", "unanswered"]
"""`waiting`: not read by the trainer yet. `playing`: read, without a result. `answered`: the result is stored.

`unanswered`: there will be no result, because the trainer has ended, or has gone back to an earlier env step.
"""


def request_stop(db: Database, run_id: str, *, patience_s: float = ACKNOWLEDGE_S) -> str:
    """Request a stop and wait until the trainer acknowledges it.

    A queued run, which no process has claimed, is stopped at once.

    Args:
        db: An open database.
        run_id: The run.
        patience_s: Time to wait for the trainer [s].

    Returns:
        One sentence for the user: what happened, and after how long.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If its status does not allow a stop.
        CommandTimeoutError: If the trainer does not acknowledge within `patience_s`. The request stays in the database.
    """
    row = find_run(db, run_id)
    command_id = stop_run(db, row.id)
    if command_id is None:
        return f"Run {row.id} was queued. It was removed from the queue."
    return wait_for_acknowledgement(db, row.id, command_id, "stop", patience_s=patience_s)


def stop_run(db: Database, run_id: str) -> int | None:
    """Stop a queued run, or send a stop command to the trainer of another run without waiting for it.

    Args:
        db: An open database.
        run_id: The run.

    Returns:
        The id of the command; None for a queued run.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If its status does not allow a stop.
    """
    row = find_run(db, run_id)
    if row.live_status == "queued":
        try:
            finish_run(db, row.id, "stopped")
        except RunStateError:  # a process has just claimed it, or another user has stopped it
            row = find_run(db, row.id)
        else:
            return None
    return send_command(db, row.id, "stop")


def send_and_wait(db: Database, run_id: str, command: Command, *, patience_s: float = ACKNOWLEDGE_S) -> str:
    """Send a command to a trainer and wait until the trainer acknowledges it.

    Args:
        db: An open database.
        run_id: The run.
        command: The command.
        patience_s: Time to wait for the trainer [s].

    Returns:
        One sentence for the user: what happened, and after how long.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If its status does not allow the command.
        CommandTimeoutError: If the trainer does not acknowledge within `patience_s`. The request stays in the database.
    """
    return wait_for_acknowledgement(db, run_id, send_command(db, run_id, command), command, patience_s=patience_s)


def wait_for_acknowledgement(
    db: Database, run_id: str, command_id: int, command: Command | QuestionKind, *, patience_s: float = ACKNOWLEDGE_S
) -> str:
    """Wait until a trainer acknowledges a command that was sent by `send_command`.

    Args:
        db: An open database.
        run_id: The run.
        command_id: Id of the command.
        command: The command, for the messages.
        patience_s: Maximum time to wait [s].

    Returns:
        One sentence for the user, with the time until the acknowledgement, or until the run ended without reading the
        command.

    Raises:
        RunNotFoundError: If there is no such run.
        CommandTimeoutError: If the trainer has exited or does not acknowledge in time. The request stays in the
            database.
    """
    started = time.monotonic()
    acknowledged = select(CommandRow.acknowledged_at).where(CommandRow.id == command_id)
    while (waited := time.monotonic() - started) < patience_s:
        row = find_run(db, run_id)
        with db.read() as connection:
            acknowledged_at = connection.execute(acknowledged).scalar_one_or_none()
        if acknowledged_at is not None:
            return f"Run {row.id} acknowledged {command} after {waited:.1f} s."
        if row.live_status in ("stopped", "finished", "failed"):
            return f"Run {row.id} is {row.live_status}: it ended before it acknowledged {command}."
        if row.live_status == "lost":
            message = f"No response: the trainer of run {row.id} sends no heartbeat. See: emtc show {row.id}"
            raise CommandTimeoutError(message)
        time.sleep(POLL_S)
    raise CommandTimeoutError(
        f"No response within {patience_s:.0f} s: the trainer of run {run_id} is starting or busy. "
        f"It will {command} when it reads the command. See: emtc show {run_id}"
    )


def send_command(db: Database, run_id: str, command: Command | QuestionKind, *, episode: int | None = None) -> int:
    """Send a command or a request for an evaluation to a trainer.

    Args:
        db: An open database.
        run_id: Id of the run, or an unambiguous prefix of it.
        command: `stop`, `pause` or `resume`; or a request for an evaluation, `evaluate` or `play`.
        episode: For `play`: the recorded training episode whose start state is repeated.

    Returns:
        The id of the command, as in `command_log`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the status of the run does not allow the command, or it has no such episode.
    """
    if command not in _ACTIONS:
        raise RunStateError(f"A command is one of {', '.join(_ACTIONS)} (got {command}).")
    row = find_run(db, run_id)
    check_allowed(row.id, row.live_status, _ACTIONS[command])
    if row.live_status == "queued":  # `stop_run` stops it
        raise RunStateError(f"Run {row.id} is queued. No trainer reads its commands.")
    if episode is not None:
        if command != "play":
            raise RunStateError(f"Only play can repeat an episode (got {command} with episode {episode}).")
        key = (EpisodeRow.run_id == row.id, EpisodeRow.episode == episode)
        with db.read() as connection:
            if connection.execute(select(EpisodeRow.episode).where(*key)).first() is None:
                raise RunStateError(f"Run {row.id} has no recorded episode {episode}.")
    values: dict[str, Any] = {"run_id": row.id, "command": command, "episode": episode}
    with db.transaction() as connection:
        values["requested_at"] = read_clock(connection)
        result = connection.execute(insert(CommandRow).returning(CommandRow.id), values)
        return result.scalar_one()


def command_log(db: Database, run_id: str) -> pd.DataFrame:
    """Which commands were sent to a run?

    Source: table `commands`.

    Args:
        db: An open database.
        run_id: The run.

    Returns:
        One row per command, oldest first: id, command, requested_at [UTC], acknowledged_at [UTC].
    """
    columns = (CommandRow.id, CommandRow.command, CommandRow.requested_at, CommandRow.acknowledged_at)
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(CommandRow.run_id == run_id).order_by(CommandRow.id))


class DatabaseControl:
    """Implements `emtc_core.control.Control`. A thread reads commands into a queue, and `poll` reads the queue.

    If another process owns the run, the thread ends, and `poll` raises an error that ends the training.
    """

    def __init__(self, db: Database, run_id: str, *, poll_s: float = POLL_S, token: str | None = None) -> None:
        """Start the thread.

        Args:
            db: An open database.
            run_id: The run.
            poll_s: Interval between reads of the commands [s].
            token: Owner token of this process; None for a run without an owner.
        """
        self._db, self._run_id, self._poll_s, self._token = db, run_id, poll_s, token
        self._failure: StorageError | None = None
        self._outage = Outage(_log, f"run {run_id}: cannot read commands")
        self._commands: deque[tuple[int, Command | Question]] = deque()
        self._acknowledged: deque[int] = deque()
        self._status: Literal["running", "paused"] | None = None
        self._last_id = 0
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"control-{run_id}", daemon=True)
        self._thread.start()

    def poll(self) -> Command | Question | None:
        """Return the oldest command that was not returned yet, or None. Reads only the queue, not the database.

        Raises:
            RunStateError: If another process owns the run.
            RunNotFoundError: If the run was deleted.
        """
        if self._failure is not None:
            raise self._failure
        if not self._commands:
            return None
        command_id, command = self._commands.popleft()
        self._acknowledged.append(command_id)
        self._wake.set()
        return command

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Set the status of the run. The thread writes it to the database."""
        self._status = status
        self._wake.set()

    def close(self) -> None:
        """Write pending acknowledgements and the status, and stop the thread. Can be called several times."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._closing and self._failure is None:
            self._tick()
            self._wake.wait(self._poll_s)
            self._wake.clear()
        if self._failure is None:
            self._tick()

    def _tick(self) -> None:
        """Write, then read. A failed write is repeated before further commands are read."""
        try:
            self._write()
            self._read()
            self._outage.recovered()
        except (RunStateError, RunNotFoundError) as error:
            self._failure = error
        except StorageError as error:
            self._outage.failed(str(error))

    def _read(self) -> None:
        is_new = and_(CommandRow.run_id == Run.id, CommandRow.id > self._last_id, CommandRow.acknowledged_at.is_(None))
        columns = select(Run.id, Run.owner_token, CommandRow.id.label("command_id"), CommandRow.command)
        statement = columns.add_columns(CommandRow.episode).outerjoin(CommandRow, is_new).where(Run.id == self._run_id)
        with self._db.read() as connection:
            rows = connection.execute(statement.order_by(CommandRow.id)).all()
        if not rows:
            raise make_deleted_error(self._run_id)
        check_owner(rows[0], self._token)
        for _, _, command_id, name, episode in rows:  # send_command allows only valid names
            if command_id is None:
                return  # there is no new command
            if name in get_args(QuestionKind):
                command = Question(cast("QuestionKind", name), command_id, repeats_episode=episode)
            else:
                command = cast("Command", name)
            self._commands.append((command_id, command))
            self._last_id = command_id

    def _write(self) -> None:
        acknowledged, status = list(self._acknowledged), self._status
        if not acknowledged and status is None:
            return
        with self._db.transaction() as connection:
            check_owned(connection, self._run_id, self._token)
            if acknowledged:
                commands = update(CommandRow).where(CommandRow.id.in_(acknowledged))
                connection.execute(commands.values(acknowledged_at=read_clock(connection)))
            if status is not None:
                is_training = (Run.id == self._run_id, Run.status.in_(("running", "paused")))
                connection.execute(update(Run).where(*is_training).values(status=status))
        for _ in acknowledged:
            self._acknowledged.popleft()
        if self._status == status:
            self._status = None


class Heartbeat:
    """Writes the time to `runs.heartbeat_at` every HEARTBEAT_S, in a separate thread, until the run has another owner.

    `DatabaseControl.poll` ends the training then.
    """

    def __init__(self, db: Database, run_id: str, *, every_s: float = HEARTBEAT_S, token: str | None = None) -> None:
        """Start the thread.

        Args:
            db: An open database.
            run_id: The run.
            every_s: Interval [s].
            token: Owner token of this process; None for a run without an owner.
        """
        self._db, self._run_id, self._every_s, self._token = db, run_id, every_s, token
        self._outage = Outage(_log, f"run {run_id}: cannot write heartbeats")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{run_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Can be called several times."""
        self._closing.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            try:
                if not write_heartbeat(self._db, self._run_id, self._token):
                    return
                self._outage.recovered()
            except StorageError as error:
                self._outage.failed(str(error))
            if self._closing.wait(self._every_s):
                return


def write_heartbeat(db: Database, run_id: str, token: str | None) -> bool:
    """Write the time to `runs.heartbeat_at`; return False if the run is not in training or has another owner.

    Args:
        db: An open database.
        run_id: The run.
        token: Owner token of this process; None for a run without an owner.

    Raises:
        StorageError: If the database cannot be written.
    """
    is_owned = (
        Run.id == run_id,
        Run.owner_token.is_not_distinct_from(token),
        Run.status.in_(("running", "paused")),
    )
    with db.transaction() as connection:
        heartbeat = update(Run).where(*is_owned).values(heartbeat_at=read_clock(connection))
        return connection.execute(heartbeat).rowcount == 1


@dataclass(frozen=True)
class RequestedEvaluation:
    """Result of a requested evaluation. For the kind `play`, the evaluation has one episode."""

    env_step: int
    episodes: int
    wins: int
    return_mean: float
    length_mean: float
    repeated_episode: int | None
    """Training episode whose start state was repeated."""
    playback: int
    """Index of the first episode of this evaluation among the stored playbacks at `env_step`."""


@dataclass(frozen=True)
class EvaluationRequest:
    """A request for an evaluation, and its result if there is one."""

    id: int
    kind: QuestionKind
    episode: int | None
    """Training episode whose start state was to be repeated."""
    requested_at: datetime
    stage: Stage
    answer: RequestedEvaluation | None


def list_evaluation_requests(db: Database, run: RunRow, limit: int = 3) -> list[EvaluationRequest]:
    """Which evaluations were requested from this run? Newest first. The index ix_commands_run_id makes this query fast.

    Args:
        db: An open database.
        run: The run.
        limit: Maximum number of requests.
    """
    conditions = (CommandRow.run_id == run.id, CommandRow.command.in_(get_args(QuestionKind)))
    return _list_requests(db, run, conditions, limit)


def find_evaluation_request(db: Database, run: RunRow, command_id: int) -> EvaluationRequest | None:
    """What is the stage of this requested evaluation? None if there is no such request.

    Args:
        db: An open database.
        run: The run.
        command_id: Id of the command.
    """
    requests = _list_requests(db, run, (CommandRow.run_id == run.id, CommandRow.id == command_id), 1)
    return requests[0] if requests else None


def _list_requests(
    db: Database, run: RunRow, conditions: Sequence[ColumnElement[bool]], limit: int
) -> list[EvaluationRequest]:
    result = RequestedEvaluationRow
    columns = (
        *(CommandRow.id, CommandRow.command, CommandRow.episode, CommandRow.requested_at),
        *(CommandRow.acknowledged_at, result.env_step, result.episodes, result.wins, result.return_mean),
        *(result.length_mean, result.again_of),
    )
    newest = (
        select(*columns)
        .outerjoin(result, result.command_id == CommandRow.id)
        .where(*conditions)
        .order_by(CommandRow.id.desc())
        .limit(limit)
    )
    with db.read() as connection:
        return [_make_request(run, row) for row in connection.execute(newest)]


def _make_request(run: RunRow, row: Any) -> EvaluationRequest:
    answer = None
    is_for_present_owner = run.claimed_at is None or row.requested_at >= run.claimed_at
    if row.env_step is not None:
        outcome = (row.env_step, row.episodes, row.wins, row.return_mean, row.length_mean, row.again_of)
        answer = RequestedEvaluation(*outcome, playback=get_first_playback(row.id))
        stage = "answered"
    elif not allows(run.live_status, "evaluate") or not is_for_present_owner:
        stage = "unanswered"
    else:
        stage = "waiting" if row.acknowledged_at is None else "playing"
    return EvaluationRequest(row.id, row.command, row.episode, row.requested_at, stage, answer)
