"""Commands to a trainer, what it answered to questions, and signs of life from it, all through the database.

The trainer never waits for the database here: a thread reads commands and writes acknowledgements and
status; another one writes heartbeats. A database that does not answer is tried again at the next tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from sqlalchemy import ColumnElement, insert, select, update

from emtc_core.control import Command, Question, QuestionKind
from emtc_core.errors import RunStateError, StorageError, UnheardError
from storage import clock
from storage.engine import Database
from storage.frames import read_frame
from storage.models import AskedEvaluation, CommandRow, EpisodeRow, Run, first_playback
from storage.retry import Outage
from storage.runs.changes import finish_run
from storage.runs.lifecycle import ANSWERS, HEARTBEAT_S, State
from storage.runs.rows import RunRow, find_run

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
POLL_S = 0.25
_HEARS = (State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING)
_WORDS: tuple[str, ...] = (*get_args(Command), *get_args(QuestionKind))
HEARD_WITHIN_S = 15.0

Stage = Literal["waiting", "playing", "answered", "unanswered"]
"""Not taken yet; taken; answered; or the trainer ended, or went back to an earlier step, and the answer with it."""


def ask_stop(db: Database, run_id: str, *, patience_s: float = HEARD_WITHIN_S) -> str:
    """Stop a run and wait until somebody has heard; a run that nobody has leaves the queue at once.

    Returns:
        One sentence: who heard it, and when.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it has ended, or nobody is there.
        UnheardError: If its owner took no notice within `patience_s`; the request stands.
    """
    row = find_run(db, run_id)
    if row.state == State.CREATED:
        finish_run(db, row.id, "stopped")
        return f"Run {row.id} was waiting for a trainer; it has left the queue."
    return ask(db, row.id, "stop", patience_s=patience_s)


def ask(db: Database, run_id: str, command: Command, *, patience_s: float = HEARD_WITHIN_S) -> str:
    """Ask a trainer for something and wait until it has heard.

    Returns:
        One sentence: who heard it, and after how long.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If nobody works on the run.
        UnheardError: If its owner took no notice within `patience_s`; the request stands.
    """
    return wait_until_heard(db, run_id, send_command(db, run_id, command), command, patience_s=patience_s)


def wait_until_heard(
    db: Database, run_id: str, command_id: int, command: Command | QuestionKind, *, patience_s: float = HEARD_WITHIN_S
) -> str:
    """Wait until a trainer has taken what it was sent; see `ask`."""
    started = time.monotonic()
    while (waited := time.monotonic() - started) < patience_s:
        row = find_run(db, run_id)
        if _is_heard(db, command_id) or row.state in (State.STOPPED, State.FINISHED, State.FAILED):
            return f"Run {row.id} has heard {command} after {waited:.1f} s."
        if row.state == State.LOST:
            raise UnheardError(
                f"Nobody has heard: the trainer of run {row.id} is gone. See: emtc show {row.id}",
                reason="trainer_gone",
                subject=row.id,
            )
        time.sleep(POLL_S)
    raise UnheardError(
        f"Nobody has heard within {patience_s:.0f} s: the trainer of run {run_id} is starting or busy. "
        f"It will {command} as soon as it listens. See: emtc show {run_id}",
        reason="timeout",
        subject=run_id,
    )


def _is_heard(db: Database, command_id: int) -> bool:
    with db.read() as connection:
        heard = select(CommandRow.acknowledged_at).where(CommandRow.id == command_id)
        return connection.execute(heard).scalar_one_or_none() is not None


def send_command(db: Database, run_id: str, command: Command | QuestionKind, *, episode: int | None = None) -> int:
    """Ask a trainer for something.

    Args:
        db: An open database.
        run_id: The run, or an unambiguous prefix of its id.
        command: `stop`, `pause` or `resume`; or a question, `evaluate` or `play`.
        episode: The recorded training episode whose start a `play` shall repeat.

    Returns:
        The id of the command, as in `command_log`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If nobody works on the run, or it has no such episode.
    """
    if command not in _WORDS:
        raise RunStateError(
            f"A command is one of {', '.join(_WORDS)}, got {command}.", reason="unknown_command", subject=command
        )
    row = find_run(db, run_id)
    if row.state == State.LOST:
        raise UnheardError(
            f"Nobody has heard: the trainer of run {row.id} is gone. See: emtc show {row.id}",
            reason="trainer_gone",
            subject=row.id,
        )
    if row.state not in (_HEARS if command in get_args(Command) else ANSWERS):
        raise RunStateError(
            f"Run {row.id} is {row.state.value}: no trainer is there to {command}.", reason="no_trainer", subject=row.id
        )
    if episode is not None:
        _check_episode(db, row.id, command, episode)
    values = {"run_id": row.id, "command": command, "requested_at": clock.now(), "episode": episode}
    with db.transaction() as connection:
        result = connection.execute(insert(CommandRow).returning(CommandRow.id), values)
        return result.scalar_one()


def _check_episode(db: Database, run_id: str, command: str, episode: int) -> None:
    if command != "play":
        raise RunStateError(
            f"Only a play repeats an episode, got {command} with episode {episode}.",
            reason="not_a_play",
            subject=command,
        )
    key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
    with db.read() as connection:
        if connection.execute(select(EpisodeRow.episode).where(*key)).first() is None:
            raise RunStateError(
                f"Run {run_id} has recorded no episode {episode}.", reason="no_episode", subject=episode
            )


def command_log(db: Database, run_id: str) -> pd.DataFrame:
    """List a run's commands, oldest first: id, command, requested_at, acknowledged_at."""
    columns = (CommandRow.id, CommandRow.command, CommandRow.requested_at, CommandRow.acknowledged_at)
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(CommandRow.run_id == run_id).order_by(CommandRow.id))


class DatabaseControl:
    """Implements `emtc_core.control.Control`: a poll looks at a queue that a thread fills."""

    def __init__(self, db: Database, run_id: str, *, poll_s: float = POLL_S, token: str | None = None) -> None:
        """Start to listen, as the owner by `token` where there is one."""
        self._db, self._run_id, self._poll_s, self._token = db, run_id, poll_s, token
        self._outage = Outage(_log, f"run {run_id}: commands wait")
        self._commands: deque[tuple[int, Command | Question]] = deque()
        self._taken: deque[int] = deque()
        self._status: Literal["running", "paused"] | None = None
        self._last_id = 0
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"control-{run_id}", daemon=True)
        self._thread.start()

    def poll(self) -> Command | Question | None:
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
            self._outage.over()
        except StorageError as error:
            self._outage.failed(str(error))

    def _read(self) -> None:
        columns = select(CommandRow.id, CommandRow.command, CommandRow.episode).where(
            CommandRow.run_id == self._run_id,
            CommandRow.id > self._last_id,
            CommandRow.acknowledged_at.is_(None),
        )
        with self._db.read() as connection:
            rows = connection.execute(columns.order_by(CommandRow.id)).all()
        for command_id, word, episode in rows:  # send_command wrote them
            if word in get_args(QuestionKind):
                asked = Question(cast("QuestionKind", word), command_id, again_of=episode)
            else:
                asked = cast("Command", word)
            self._commands.append((command_id, asked))
            self._last_id = command_id

    def _publish(self) -> None:
        taken, status = list(self._taken), self._status
        if not taken and status is None:
            return
        with self._db.transaction() as connection:
            if taken:
                connection.execute(
                    update(CommandRow).where(CommandRow.id.in_(taken)).values(acknowledged_at=clock.now())
                )
            if status is not None:
                connection.execute(update(Run).where(*_at_work(self._run_id, self._token)).values(status=status))
        for _ in taken:
            self._taken.popleft()
        if self._status == status:
            self._status = None


class Heartbeat:
    """Says every HEARTBEAT_S that the trainer lives, from a thread of its own."""

    def __init__(self, db: Database, run_id: str, *, every_s: float = HEARTBEAT_S, token: str | None = None) -> None:
        """Start to beat at once, as the owner by `token` where there is one."""
        self._db, self._run_id, self._every_s, self._token = db, run_id, every_s, token
        self._outage = Outage(_log, f"run {run_id}: heartbeats wait")
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
                self._outage.over()
            except StorageError as error:
                self._outage.failed(str(error))
            if self._closing.wait(self._every_s):
                return

    def _beat(self) -> None:
        with self._db.transaction() as connection:
            connection.execute(update(Run).where(*_at_work(self._run_id, self._token)).values(heartbeat_at=clock.now()))


def _at_work(run_id: str, token: str | None) -> tuple[ColumnElement[bool], ...]:
    """Only a run that its owner still has: an earlier owner that wakes up says nothing of it."""
    mine = () if token is None else (Run.owner_token == token,)
    return (Run.id == run_id, Run.status.in_(("running", "paused")), *mine)


@dataclass(frozen=True)
class Answer:
    """What the greedy policy did; of a `play`, in one episode."""

    env_step: int
    episodes: int
    wins: int
    return_mean: float
    length_mean: float
    again_of: int | None
    """The training episode whose start was repeated."""
    playback: int
    """Number of its first episode among the playbacks of `env_step`."""


@dataclass(frozen=True)
class Asked:
    """One question, and how far it has come."""

    id: int
    kind: QuestionKind
    episode: int | None
    """The training episode that was to be repeated."""
    requested_at: datetime
    stage: Stage
    answer: Answer | None


def list_questions(db: Database, run: RunRow, limit: int = 3) -> list[Asked]:
    """What was asked of this run last? Newest first; answered from ix_commands_run_id."""
    asked = (CommandRow.run_id == run.id, CommandRow.command.in_(get_args(QuestionKind)))
    return _read(db, run, asked, limit)


def find_question(db: Database, run: RunRow, command_id: int) -> Asked | None:
    """How far has this question come?"""
    found = _read(db, run, (CommandRow.run_id == run.id, CommandRow.id == command_id), 1)
    return found[0] if found else None


def _read(db: Database, run: RunRow, wanted: Sequence[ColumnElement[bool]], limit: int) -> list[Asked]:
    answer = AskedEvaluation
    columns = (
        *(CommandRow.id, CommandRow.command, CommandRow.episode, CommandRow.requested_at),
        *(CommandRow.acknowledged_at, answer.env_step, answer.episodes, answer.wins, answer.return_mean),
        *(answer.length_mean, answer.again_of),
    )
    rows = (
        select(*columns)
        .outerjoin(answer, answer.command_id == CommandRow.id)
        .where(*wanted)
        .order_by(CommandRow.id.desc())
        .limit(limit)
    )
    with db.read() as connection:
        return [_asked(run, row) for row in connection.execute(rows)]


def _asked(run: RunRow, row: Any) -> Asked:
    answer = None
    if row.env_step is not None:
        outcome = (row.env_step, row.episodes, row.wins, row.return_mean, row.length_mean, row.again_of)
        answer = Answer(*outcome, playback=first_playback(row.id))
    return Asked(row.id, row.command, row.episode, row.requested_at, _stage(run, row, answer), answer)


def _stage(run: RunRow, row: Any, answer: Answer | None) -> Stage:
    if answer is not None:
        return "answered"
    of_this_owner = run.claimed_at is None or row.requested_at >= run.claimed_at
    if run.state not in ANSWERS or not of_this_owner:
        return "unanswered"
    return "waiting" if row.acknowledged_at is None else "playing"
