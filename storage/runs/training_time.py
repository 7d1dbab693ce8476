"""How long a run has trained: from its start to its end or last heartbeat, without its pauses.

A pause begins when the trainer acknowledges `pause`, and ends when it acknowledges `resume`. The time between an
acknowledged `stop` and the resume from a checkpoint is left out too. The time after a trainer
was killed and the time in which its machine slept are not recorded, so both count as training.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, literal, select, union_all

from storage.frames import in_parts
from storage.models import CommandRow, Resume

_RESUME = "resume"
_Event = tuple[datetime, str]
"""Time, and `pause`, `stop` or `resume`."""


def measure_training_s(connection: Connection, rows: Sequence[Any]) -> dict[str, float]:
    """Measure how long runs have trained [s], by id; without runs that were not started.

    Args:
        connection: The connection.
        rows: The columns `id`, `started_at`, `ended_at` and `heartbeat_at` of the runs.
    """
    started = [row for row in rows if row.started_at is not None]
    events: dict[str, list[_Event]] = {row.id: [] for row in started}
    for part in in_parts(list(events)):
        commands = select(CommandRow.run_id, CommandRow.acknowledged_at.label("at"), CommandRow.command).where(
            CommandRow.run_id.in_(part),
            CommandRow.command.in_(("pause", "stop", _RESUME)),
            CommandRow.acknowledged_at.is_not(None),
        )
        resumes = select(Resume.run_id, Resume.resumed_at, literal(_RESUME)).where(Resume.run_id.in_(part))
        row: Any
        for row in connection.execute(union_all(commands, resumes)):
            events[row.run_id].append((row.at, row.command))
    return {row.id: _subtract_pauses(row, events[row.id]) for row in started}


def _subtract_pauses(row: Any, events: list[_Event]) -> float:
    """Return the seconds from start to end without the times from a pause or stop to the next resume or the end."""
    end = row.ended_at or row.heartbeat_at or row.started_at
    inactive, since = timedelta(), None
    for at, event in sorted(events):
        if event != _RESUME:
            since = since or at
        elif since is not None:
            inactive, since = inactive + (at - since), None
    if since is not None:
        inactive += max(end - since, timedelta())
    return max((end - row.started_at - inactive).total_seconds(), 0.0)
