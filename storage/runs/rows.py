"""Runs as they stand in the table: found by their id, with what their process does and where they are in their life."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection, func, select, update

from emtc_core.errors import RunNotFoundError
from storage import clock
from storage.engine import Database
from storage.files.trainer_files import stall_reason
from storage.models import CommandRow, Run
from storage.runs import lifecycle
from storage.runs.lifecycle import LiveStatus, State, is_process_alive, live_status

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
STOP_ASKED_AT: Final = (
    select(func.max(CommandRow.requested_at))
    .where(CommandRow.run_id == Run.id, CommandRow.command == "stop")
    .scalar_subquery()
    .label("stop_asked_at")
)
"""When somebody last asked a run to stop."""
RUN_COLUMNS: Final = (*Run.__table__.columns, STOP_ASKED_AT)
"""What `make_run_row` needs of a row."""
STATE_COLUMNS: Final = (
    *(Run.id, Run.status, Run.heartbeat_at, Run.pid, Run.pid_created_at, Run.host, Run.claimed_at, Run.started_at),
    STOP_ASKED_AT,
)
"""What `observe` and `state_now` need of a row."""


@dataclass(frozen=True)
class RunRow:
    """One run as it stands in the table, and what its process really does (`live_status`)."""

    id: str
    name: str
    env: str
    map: str
    algo: str
    seed: int
    status: Status
    live_status: LiveStatus
    state: State
    env_steps: int
    target_steps: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    heartbeat_at: datetime | None
    pid: int | None
    pid_created_at: float | None
    host: str | None
    device: str | None
    sweep_id: str | None
    launch_token: str | None
    parent_id: str | None
    owner_token: str | None
    claimed_at: datetime | None
    stop_asked_at: datetime | None
    win_rate: float | None
    return_mean: float | None
    tags: list[str]
    notes: str
    error: str | None
    versions: dict[str, Any]
    config: dict[str, Any]
    mu_w: float | None
    gate_removed: float | None
    hidden_at: datetime | None
    archived_at: datetime | None
    files: str | None
    """Where its checkpoints and logs lie, as `storage.files.places` writes it; None: beside the database."""
    stall: str | None = None
    """Why its recorder waits (full disk, locked database), when it does."""


def find_run(db: Database, prefix: str) -> RunRow:
    """Get the run whose id starts with `prefix`.

    Raises:
        RunNotFoundError: If there is none, or more than one and none is exactly `prefix`.
    """
    wanted = prefix.strip().lower()
    if not wanted:
        raise RunNotFoundError("A run id must not be empty. List the runs with: emtc runs")
    with db.read() as connection:
        starts = Run.id.startswith(wanted, autoescape=True)
        rows = connection.execute(select(*RUN_COLUMNS).where(starts).order_by(Run.id).limit(6)).all()
    exact = [row for row in rows if row.id == wanted]
    if len(rows) == 1 or exact:
        return make_run_row(db, (exact or rows)[0])
    if not rows:
        raise RunNotFoundError(f'No run starts with "{prefix}". List them with: emtc runs')
    ids = ", ".join(row.id for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    raise RunNotFoundError(f'More than one run starts with "{prefix}": {ids}. Write more of the id.')


def make_run_row(db: Database, row: Any) -> RunRow:
    """Turn a row of `runs` into a record with its live status."""
    status, stall = observe(db, row)
    return RunRow(**row._mapping, live_status=status, state=lifecycle.refine(row, status), stall=stall)


def observe(db: Database, row: Any) -> tuple[LiveStatus, str | None]:
    """What the run's process does, and why its recorder waits if it does.

    A trainer that cannot write for want of disk space cannot send heartbeats either: as long as this host
    has its process, such a run is not lost.
    """
    status = live_status(row, clock.now())
    if status != "lost" or not is_process_alive(row):
        return status, None
    stall = stall_reason(db, row.id)
    return (row.status if stall else status), stall


def state_now(row: Any) -> State:
    """Where a run is in its life, for whoever wants to change it.

    A silent process that this host still has may wake up: its run is not free.
    """
    state = lifecycle.state_of(row, clock.now())
    if state == State.LOST and row.status != "queued" and is_process_alive(row):
        return lifecycle.refine(row, row.status)
    return state


def forget_commands(connection: Connection, run_ids: Sequence[str]) -> None:
    """Acknowledge what was asked of earlier owners, which nobody will obey."""
    pending = (CommandRow.run_id.in_(run_ids), CommandRow.acknowledged_at.is_(None))
    connection.execute(update(CommandRow).where(*pending).values(acknowledged_at=clock.now()))


def locked_row(connection: Connection, run_id: str) -> Any:
    """Get a run's row for writing.

    Raises:
        RunNotFoundError: If there is no such run.
    """
    columns = select(*RUN_COLUMNS).where(Run.id == run_id).with_for_update(of=Run)
    row = connection.execute(columns).one_or_none()
    if row is None:
        raise RunNotFoundError(f'There is no run "{run_id}". List them with: emtc runs')
    return row
