"""Alerts: what follows from the runs at work and those that ended lately, and which of them were read.

Read ones are kept in a small private file beside the database, for everybody who shares it. It holds keys and nothing
else; one that is missing, damaged or somebody else's is an empty one.
"""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, false, func, or_, select

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, refuse_when_read_only
from storage.frames import read_frame
from storage.models import Evaluation, MetricRow, Run
from storage.private_files import FILE_MODE, make_private_folder, read_tail
from storage.queries.gate import gate_states, idle_incentives
from storage.queries.search_terms import SearchContext
from storage.runs.rows import STOP_ASKED_AT, observe

MOST_RUNS = 200
_WATCHED = ("train/loss", "train/grad_norm", "train/q_taken")
_ALIVE = ("queued", "running", "paused")
_COLUMNS = (
    *(Run.id, Run.name, Run.status, Run.env_steps, Run.target_steps, Run.started_at, Run.ended_at, Run.heartbeat_at),
    *(Run.claimed_at, Run.win_rate, Run.error, Run.pid, Run.pid_created_at, Run.host, STOP_ASKED_AT),
)


@dataclass(frozen=True)
class RunFacts:
    """What alerts follow from, of one run."""

    id: str
    name: str
    status: str
    """As it really is: `lost` included."""
    env_steps: int
    target_steps: int
    ended_at: datetime | None
    heartbeat_at: datetime | None
    claimed_at: datetime | None
    win_rate: float | None
    """None, too, where a return decides what a success is."""
    error: str | None
    scores: tuple[tuple[int, float, float], ...] = ()
    """Of a run at work: env step, win rate and mean return of each evaluation, oldest first."""
    nan_metric: str | None = None
    nan_env_step: int = 0
    """Where that metric was no number for the first time."""
    gate_idle: str | None = None
    """Why its gate removes nothing; None while it does, or for a run without one."""
    no_success: str | None = None
    """Why there is no incentive, where nothing was a success yet."""


def alert_facts(db: Database, *, since: timedelta) -> list[RunFacts]:
    """What is known of the newest runs that are at work or ended within `since`? At most 200."""
    recent = or_(Run.status.in_(_ALIVE), Run.ended_at >= datetime.now(UTC) - since)
    _, rule, _ = SearchContext(db.dialect).setting("memory.success")
    decided = func.coalesce(rule == "return_threshold", false()).label("decided_by_return")
    newest = select(*_COLUMNS, decided).where(recent).order_by(Run.created_at.desc(), Run.id).limit(MOST_RUNS)
    with db.read() as connection:
        rows = connection.execute(newest).all()
        states = {row.id: observe(db, row)[0] for row in rows}
        ids = [row.id for row in rows]
        running = [run_id for run_id in ids if states[run_id] == "running"]
        scores, nans = _scores(connection, running), _nans(connection, running)
    gates, incentives = gate_states(db, running), idle_incentives(db, running)
    idle = {run_id: gate.sentence for run_id, gate in gates.items() if gate.state == "idle"}
    return [
        RunFacts(
            row.id,
            row.name,
            states[row.id],
            row.env_steps,
            row.target_steps,
            row.ended_at,
            row.heartbeat_at,
            row.claimed_at,
            None if row.decided_by_return else row.win_rate,
            row.error,
            tuple(scores.get(row.id, ())),
            *nans.get(row.id, (None, 0)),
            idle.get(row.id),
            incentives.get(row.id),
        )
        for row in rows
    ]


def _scores(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[tuple[int, float, float]]]:
    columns = select(Evaluation.run_id, Evaluation.env_step, Evaluation.win_rate, Evaluation.return_mean)
    wanted = columns.where(Evaluation.run_id.in_(run_ids)).order_by(Evaluation.run_id, Evaluation.env_step)
    found: dict[str, list[tuple[int, float, float]]] = {}
    for run_id, *score in read_frame(connection, wanted).itertuples(index=False):
        found.setdefault(run_id, []).append((score[0], score[1], score[2]))
    return found


def _nans(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Find the first losses that were no number, answered from the index `ix_metrics_curve`."""
    missing = (MetricRow.run_id.in_(run_ids), MetricRow.name.in_(_WATCHED), MetricRow.value.is_(None))
    columns = select(MetricRow.run_id, MetricRow.name, func.min(MetricRow.env_step).label("env_step"))
    frame = read_frame(connection, columns.where(*missing).group_by(MetricRow.run_id, MetricRow.name))
    frame = frame.sort_values("env_step", ascending=False)  # the earliest is written last
    return {run_id: (name, int(env_step)) for run_id, name, env_step in frame.itertuples(index=False)}


NAME = "alerts-read.json"


_MOST_BYTES = 1 << 20


_MOST_KEYS = 2000


def read_keys(db: Database) -> frozenset[str]:
    """List the keys of the alerts that were read."""
    try:
        stored = json.loads(read_tail(files_root(db) / NAME, _MOST_BYTES) or b"[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(key for key in stored if isinstance(key, str)) if isinstance(stored, list) else frozenset()


def mark_read(db: Database, keys: Collection[str], *, known: Collection[str]) -> None:
    """Mark alerts as read; of the marks that are there, those of the `known` alerts stay.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 forbids it, or the folder leads elsewhere.
        OSError: If the file cannot be written.
    """
    refuse_when_read_only("mark an alert as read")
    root = files_root(db)
    if root.is_symlink():
        raise StorageError(f"{root} is a link: nothing is written into it. Remove it if you know what it is.")
    make_private_folder(root)
    kept = sorted((read_keys(db) & set(known)) | set(keys))[:_MOST_KEYS]
    begun = root / f"{NAME}.{os.getpid()}.partial"
    with os.fdopen(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "w") as file:
        json.dump(kept, file)
    begun.replace(root / NAME)  # a link in its place is replaced, not followed
