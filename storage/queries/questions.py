"""What was asked of a living run, and what did it answer?"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, select

from emtc_core.control import QuestionKind
from storage.engine import Database
from storage.models import AskedEvaluation, CommandRow, first_playback
from storage.runs.lifecycle import ANSWERS
from storage.runs.rows import RunRow

Stage = Literal["waiting", "playing", "answered", "unanswered"]
"""Not taken yet; taken; answered; or the trainer ended, or went back to an earlier step, and the answer with it."""


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
