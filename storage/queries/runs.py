"""Which runs are there, and what is one of them?"""

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
from sqlalchemy import Connection, select

from storage.engine import Database
from storage.frames import Statement, in_parts, read_frame
from storage.models import Resume, Run
from storage.queries.gate_state import name_gate
from storage.runs import lifecycle
from storage.runs.rows import RUN_COLUMNS, STOP_ASKED_AT, RunRow, make_run_row, observe

LISTED: Final = (
    *(Run.id, Run.name, Run.env, Run.map, Run.algo, Run.seed, Run.status, Run.env_steps, Run.target_steps),
    *(Run.created_at, Run.started_at, Run.ended_at, Run.heartbeat_at, Run.device, Run.win_rate),
    *(Run.return_mean, Run.tags, Run.notes, Run.error, Run.sweep_id, Run.pid, Run.pid_created_at, Run.host),
    *(Run.claimed_at, Run.parent_id, Run.mu_w, Run.gate_removed, Run.hidden_at, Run.archived_at, STOP_ASKED_AT),
)
"""What `read_listed` needs of a row of `runs`."""
_WORKER = ("pid", "pid_created_at", "host", "claimed_at", "stop_asked_at", "gate_removed")


def list_runs(db: Database, limit: int | None = 200) -> pd.DataFrame:
    """Which runs were made last?

    Args:
        db: An open database.
        limit: Rows at most; None reads all.

    Returns:
        Newest first: id, name, env, map, algo, seed, status (live: may be `lost`), env_steps, target_steps,
        created_at, started_at, ended_at, heartbeat_at, device, win_rate and return_mean (of the last
        evaluation), tags, notes, error, sweep_id, parent_id, mu_w (up to the last evaluation), hidden_at,
        archived_at, gate (`active`, `idle` or None), state (the same as status, told finer: see `lifecycle`),
        stall (why its recorder waits).
    """
    statement = select(*LISTED).order_by(Run.created_at.desc(), Run.id).limit(limit)
    with db.read() as connection:
        return read_listed(db, connection, statement)


def read_listed(db: Database, connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a statement of the columns LISTED into the frame that `list_runs` describes, in its order."""
    frame = read_frame(connection, statement)
    pending = statement.where(Run.status.in_(("queued", "running", "paused")))
    observed = {row.id: _describe(db, row) for row in connection.execute(pending)}
    ids, stored = frame["id"].tolist(), frame["status"].tolist()
    known = [observed.get(run_id, (status, status, None)) for run_id, status in zip(ids, stored, strict=True)]
    frame["gate"] = pd.Series([name_gate(removed) for removed in frame["gate_removed"]], dtype="object")
    for place, name in enumerate(("status", "state", "stall")):
        frame[name] = pd.Series([each[place] for each in known], dtype="object")
    return frame.drop(columns=list(_WORKER))


def _describe(db: Database, row: Any) -> tuple[str, str, str | None]:
    status, stall = observe(db, row)
    return status, lifecycle.refine(row, status).value, stall


def run_configs(db: Database, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How were these runs configured? Ids that are not there are left out."""
    found: dict[str, dict[str, Any]] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            wanted = Run.id.in_(part)
            found |= {row.id: row.config for row in connection.execute(select(Run.id, Run.config).where(wanted))}
    return found


def latest_run_id(db: Database) -> str | None:
    """Which run was made last?"""
    with db.read() as connection:
        newest = select(Run.id).order_by(Run.created_at.desc(), Run.id).limit(1)
        return connection.execute(newest).scalar_one_or_none()


def list_resumes(db: Database, run_id: str) -> pd.DataFrame:
    """Where was this run resumed? env_step, reached_env_step (before), resumed_at, episodes, checkpoint, passed_over.

    What was recorded between the two steps was superseded: so many episodes, unknown before schema 0003.
    """
    columns = (
        *(Resume.env_step, Resume.reached_env_step, Resume.resumed_at),
        *(Resume.episodes, Resume.checkpoint, Resume.passed_over),
    )
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(Resume.run_id == run_id).order_by(Resume.id))


def get_rows(db: Database, run_ids: Sequence[str]) -> list[RunRow]:
    """What are these runs? In the order of their ids as given; ids that are not there are left out."""
    found: dict[str, RunRow] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            wanted = Run.id.in_(part)
            rows = connection.execute(select(*RUN_COLUMNS).where(wanted)).all()
            found |= {row.id: make_run_row(db, row) for row in rows}
    return [found[run_id] for run_id in run_ids if run_id in found]
