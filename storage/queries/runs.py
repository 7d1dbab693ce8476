"""Which runs are stored, how are they configured, and where were they resumed?

`run_search` searches, filters and sorts runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, String, or_, select

from storage.column_types import get_use
from storage.engine import Database
from storage.frames import FrameField, Statement, in_parts, make_frame, read_frame
from storage.models import RUN_TABLE_COLUMNS, Resume, Run
from storage.queries.gate_state import name_gate
from storage.runs.rows import RUN_COLUMNS, RunRow, make_run_row, read_live_status
from storage.runs.status import NOT_ENDED, STATUS_COLUMNS, STOP_ASKED_AT, read_clock
from storage.runs.training_time import measure_training_s

if TYPE_CHECKING:  # commands that list runs need no frame, and pandas takes longer to load than everything else
    import pandas as pd

_DERIVED = ("gate", "stall")
"""Columns that are not stored but computed for each row."""
_STATUS_SOURCES = frozenset({*(column.name for column in STATUS_COLUMNS), "gate_removed"})
"""Names of the columns from which the status and _DERIVED are computed."""
_LISTED = frozenset(column.name for column in RUN_TABLE_COLUMNS if get_use(column).is_listed)
_NOT_RETURNED = _STATUS_SOURCES - _LISTED
LISTED_COLUMNS: Final = (
    *(column for column in RUN_TABLE_COLUMNS if column.name in _LISTED | _STATUS_SOURCES),
    STOP_ASKED_AT,
)
"""The columns that `read_listed` needs."""
_ID_AND_NAME = select(Run.id, Run.name, Run.created_at)


def list_runs(db: Database, limit: int | None = 200) -> pd.DataFrame:
    """Which runs were created last?

    Source: table `runs`.

    Args:
        db: An open database.
        limit: Maximum number of rows; None reads all.

    Returns:
        One row per run, newest first, with the columns of `runs` except long ones, tokens and those of the trainer's
        process: id, name, env, map, algo, seed, status (see `runs.status`), …; units as in `models.py` [unit varies].
        Then gate (`active`, `idle` or None) and stall (why the recorder waits).
    """
    statement = select(*LISTED_COLUMNS).order_by(Run.created_at.desc(), Run.id).limit(limit)
    with db.read() as connection:
        return read_listed(db, connection, statement)


def read_listed(db: Database, connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a SELECT of LISTED_COLUMNS into the frame that `list_runs` describes.

    Source: table `runs`.

    Args:
        db: An open database.
        connection: A connection of `db`.
        statement: A SELECT of LISTED_COLUMNS.

    Returns:
        One row per run, in the statement's order; units as in `models.py` [unit varies].
    """
    return make_listed_frame(statement, read_listed_rows(db, connection, statement))


def make_listed_frame(statement: Statement, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Make the frame that `list_runs` describes.

    Source: table `runs`.

    Args:
        statement: A SELECT of LISTED_COLUMNS and possibly other columns.
        rows: Its rows, as `read_listed_rows` returns them.

    Returns:
        One row per run; units as in `models.py` [unit varies].
    """
    columns = [column for column in statement.selected_columns if column.name not in _NOT_RETURNED]
    fields = [FrameField(column.name, column.type) for column in columns]
    return make_frame(
        [*fields, *(FrameField(name, String()) for name in _DERIVED)], [tuple(row.values()) for row in rows]
    )


def read_listed_rows(db: Database, connection: Connection, statement: Statement) -> list[dict[str, Any]]:
    """Read a SELECT of LISTED_COLUMNS. Compute the status as `runs.status` does, and add the columns of _DERIVED.

    Args:
        db: An open database.
        connection: A connection of `db`.
        statement: A SELECT of LISTED_COLUMNS and possibly other columns.
    """
    rows: list[dict[str, Any]] = []
    now = read_clock(connection)
    row: Any
    for row in connection.execute(statement):
        status, stall = row.status, None
        if row.status in NOT_ENDED:
            status, stall = read_live_status(db, row, now)
        columns = {name: value for name, value in row._mapping.items() if name not in _NOT_RETURNED}
        rows.append(columns | {"status": status, "gate": name_gate(row.gate_removed), "stall": stall})
    return rows


def run_configs(db: Database, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How are these runs configured? Run id → configuration, without ids that do not exist."""
    configs: dict[str, dict[str, Any]] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            statement = select(Run.id, Run.config).where(Run.id.in_(part))
            configs |= {row.id: row.config for row in connection.execute(statement)}
    return configs


def list_resumes(db: Database, run_id: str) -> pd.DataFrame:
    """Where was this run resumed?

    Source: table `resumes`.

    Args:
        db: An open database.
        run_id: The run.

    Returns:
        One row per resume: env_step (of the checkpoint) [env steps], reached_env_step (before the resume) [env steps],
        resumed_at [UTC], episodes, checkpoint, passed_over (why newer checkpoints were not loaded). The episodes
        between the two env steps were deleted and trained again. `episodes` is their number; it is missing for resumes
        before schema 0003.
    """
    columns = (
        *(Resume.env_step, Resume.reached_env_step, Resume.resumed_at),
        *(Resume.episodes, Resume.checkpoint, Resume.passed_over),
    )
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(Resume.run_id == run_id).order_by(Resume.id))


def get_rows(db: Database, run_ids: Sequence[str]) -> list[RunRow]:
    """What is stored about these runs? In the order of the ids, without ids that do not exist."""
    rows: dict[str, RunRow] = {}
    with db.read() as connection:
        now = read_clock(connection)
        for part in in_parts(run_ids):
            statement = select(*RUN_COLUMNS).where(Run.id.in_(part))
            rows |= {row.id: make_run_row(db, row, now) for row in connection.execute(statement).all()}
    return [rows[run_id] for run_id in dict.fromkeys(run_ids) if run_id in rows]


def read_training_s(db: Database, run_ids: Sequence[str]) -> dict[str, float]:
    """How long have these runs trained, without pauses [s]? Run id → time, without runs that were not started."""
    seconds: dict[str, float] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            columns = select(Run.id, Run.started_at, Run.ended_at, Run.heartbeat_at)
            seconds |= measure_training_s(connection, connection.execute(columns.where(Run.id.in_(part))).all())
    return seconds


def find_unused_seed(db: Database, run: RunRow) -> int:
    """Which is the smallest seed from 1 that no run with the other settings of this run has?

    Source: table `runs`.
    """
    same_task = select(Run.config).where(Run.env == run.env, Run.map == run.map, Run.algo == run.algo)
    with db.read() as connection:
        configs = connection.execute(same_task).scalars().all()
    used_seeds = {config.get("seed") for config in configs if {**config, "seed": None} == {**run.config, "seed": None}}
    return next(seed for seed in range(1, len(used_seeds) + 2) if seed not in used_seeds)


def list_speeds(db: Database, *, env: str, map: str, algo: str, host: str, limit: int = 20) -> list[tuple[str, float]]:
    """How fast did finished runs of an environment and algorithm train on a machine?

    A resumed run is left out, because the time in which it did not train is not recorded.

    Args:
        db: An open database.
        env: Name of the environment.
        map: The runs of this map are listed first, then the newest.
        algo: Name of the algorithm.
        host: Name of the machine.
        limit: Maximum number of runs.

    Returns:
        Map and speed [env steps/s] of each run.
    """
    is_resumed = select(Resume.id).where(Resume.run_id == Run.id).exists()
    is_comparable = (Run.env == env, Run.algo == algo, Run.host == host, Run.status == "finished", ~is_resumed)
    columns = (Run.id, Run.map, Run.env_steps, Run.started_at, Run.ended_at, Run.heartbeat_at)
    newest = select(*columns).where(*is_comparable, Run.env_steps > 0).order_by(Run.map != map, Run.created_at.desc())
    with db.read() as connection:
        rows = connection.execute(newest.limit(limit)).all()
        seconds = measure_training_s(connection, rows)
    return [(row.map, row.env_steps / seconds[row.id]) for row in rows if seconds.get(row.id)]


def find_run_names(db: Database, prefixes: Sequence[str]) -> dict[str, str]:
    """What are the names of the runs whose ids start with one of these prefixes? Id → name, newest first.

    Archived runs are included. A prefix that is a complete id matches only that run.
    """
    runs: dict[str, Any] = {}
    with db.read() as connection:
        for part in in_parts(prefixes):
            ids = [prefix.lower() for prefix in part]
            exact = connection.execute(_ID_AND_NAME.where(Run.id.in_(ids))).all()
            runs |= {row.id: row for row in exact}
            others = set(ids) - {row.id for row in exact}
            starts = [Run.id.startswith(prefix, autoescape=True) for prefix in others if prefix]
            if starts:
                runs |= {row.id: row for row in connection.execute(_ID_AND_NAME.where(or_(*starts)))}
    newest = sorted(sorted(runs), key=lambda run_id: runs[run_id].created_at, reverse=True)
    return {run_id: runs[run_id].name for run_id in newest}
