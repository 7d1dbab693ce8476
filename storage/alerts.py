"""Read the data from which alerts are computed, and store which alerts were read.

The keys of read alerts are in a small private file next to the database, so all users of the database share them. A
missing or damaged file, or one that cannot be read, counts as empty.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, false, func, or_, select

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import StorageError
from storage.engine import Database, check_not_read_only, files_root
from storage.frames import read_frame
from storage.models import Evaluation, MetricRow, Run
from storage.private_files import make_private_folder, read_tail
from storage.queries.gate_state import gate_states, idle_incentives
from storage.queries.search_terms import SearchContext
from storage.runs.rows import read_live_status
from storage.runs.status import NOT_ENDED, STATUS_COLUMNS, read_clock

MOST_RUNS = 200
"""Maximum number of runs for which alerts are computed."""
READ_FILE_NAME = "alerts-read.json"
"""Name of the file with the keys of the read alerts."""
_MAX_FILE_BYTES = 1 << 20
_MAX_KEYS = 2000
_NAN_METRICS = ("train/loss", "train/grad_norm", "train/q_taken")
_COLUMNS = (*(*STATUS_COLUMNS, Run.name, Run.env_steps, Run.target_steps, Run.ended_at, Run.win_rate, Run.error),)


@dataclass(frozen=True)
class RunFacts:
    """Data of one run from which alerts are computed."""

    id: str
    name: str
    status: str
    """The status that people see, see `runs.status`."""
    env_steps: int
    target_steps: int
    ended_at: datetime | None
    heartbeat_at: datetime | None
    claimed_at: datetime | None
    win_rate: float | None
    """None if there is no evaluation, or if a return threshold defines success."""
    error: str | None
    scores: tuple[tuple[int, float, float], ...] = ()
    """Env step, win rate and mean return of each evaluation of a running run, oldest first."""
    nan_metric: str | None = None
    """A metric of the training that was NaN."""
    nan_env_step: int = 0
    """Env step at which `nan_metric` was NaN for the first time."""
    gate_idle: str | None = None
    """Why the gate is idle; None if it is active or the run has no gate."""
    no_success: str | None = None
    """Why the incentive is 0, if no success was recorded yet."""


def alert_facts(db: Database, *, since: timedelta) -> list[RunFacts]:
    """Which data do alerts need of the newest runs that have not ended, or ended within `since`? At most 200 runs."""
    recent = or_(Run.status.in_(NOT_ENDED), Run.ended_at >= datetime.now(UTC) - since)
    _, rule, _ = SearchContext(db.dialect).setting("memory.success")
    is_threshold = func.coalesce(rule == "return_threshold", false()).label("has_return_threshold")
    newest = select(*_COLUMNS, is_threshold).where(recent).order_by(Run.created_at.desc(), Run.id).limit(MOST_RUNS)
    with db.read() as connection:
        rows = connection.execute(newest).all()
        now = read_clock(connection)
        statuses = {row.id: read_live_status(db, row, now)[0] for row in rows}
        ids = [row.id for row in rows]
        running = [run_id for run_id in ids if statuses[run_id] == "running"]
        scores, nans = _read_scores(connection, running), _find_first_nans(connection, running)
    gates, incentives = gate_states(db, running), idle_incentives(db, running)
    idle = {run_id: gate.sentence for run_id, gate in gates.items() if gate.state == "idle"}
    return [
        RunFacts(
            row.id,
            row.name,
            statuses[row.id],
            row.env_steps,
            row.target_steps,
            row.ended_at,
            row.heartbeat_at,
            row.claimed_at,
            None if row.has_return_threshold else row.win_rate,
            row.error,
            tuple(scores.get(row.id, ())),
            *nans.get(row.id, (None, 0)),
            idle.get(row.id),
            incentives.get(row.id),
        )
        for row in rows
    ]


def _read_scores(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[tuple[int, float, float]]]:
    columns = select(Evaluation.run_id, Evaluation.env_step, Evaluation.win_rate, Evaluation.return_mean)
    of_runs = columns.where(Evaluation.run_id.in_(run_ids)).order_by(Evaluation.run_id, Evaluation.env_step)
    scores: dict[str, list[tuple[int, float, float]]] = {}
    for run_id, env_step, win_rate, return_mean in read_frame(connection, of_runs).itertuples(index=False):
        scores.setdefault(run_id, []).append((env_step, win_rate, return_mean))
    return scores


def _find_first_nans(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Find the first NaN of each run: metric and env step. Answered from the index `ix_metrics_curve`."""
    is_nan = (MetricRow.run_id.in_(run_ids), MetricRow.name.in_(_NAN_METRICS), MetricRow.value.is_(None))
    columns = select(MetricRow.run_id, MetricRow.name, func.min(MetricRow.env_step).label("env_step"))
    frame = read_frame(connection, columns.where(*is_nan).group_by(MetricRow.run_id, MetricRow.name))
    frame = frame.sort_values("env_step", ascending=False)  # the earliest one overwrites the others below
    return {run_id: (name, int(env_step)) for run_id, name, env_step in frame.itertuples(index=False)}


def read_keys(db: Database) -> frozenset[str]:
    """Return the keys of the alerts that were read."""
    try:
        stored = json.loads(read_tail(files_root(db) / READ_FILE_NAME, _MAX_FILE_BYTES) or b"[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(key for key in stored if isinstance(key, str)) if isinstance(stored, list) else frozenset()


def mark_read(db: Database, keys: Collection[str], *, existing_keys: Collection[str]) -> None:
    """Mark alerts as read.

    Args:
        db: An open database.
        keys: Keys of the alerts that were read.
        existing_keys: Keys of the alerts that still exist. Earlier marks are kept only for these.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 is set, or the folder is a link.
        OSError: If the file cannot be written.
    """
    check_not_read_only("mark an alert as read")
    root = files_root(db)
    if root.is_symlink():
        raise StorageError(f"{root} is a link, so no file is written into it. Remove it if you know what it is.")
    make_private_folder(root)
    read = sorted((read_keys(db) & set(existing_keys)) | set(keys))[:_MAX_KEYS]
    with replace_atomically(root / READ_FILE_NAME, private=True) as file:
        file.write(json.dumps(read).encode())
