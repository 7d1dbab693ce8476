"""Runs: made, found, started, ended, rewound, deleted; their states and the transitions between them.

What a run recorded is written by `storage.recorder`; who is asked to do what stands in `storage.control`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection, delete, func, insert, select, update

from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage import lifecycle
from storage.engine import Database
from storage.label_rules import check_labels
from storage.lifecycle import Event, State
from storage.liveness import LiveStatus, is_process_alive, live_status
from storage.models import CommandRow, Resume, Run
from storage.new_runs import new_run_values
from storage.ownership import Owner, check_token, taken_over
from storage.recorder_state import stall_reason
from storage.rewind import last_episode_end, rewind, why_not_rewind, why_thinned

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

_ENDINGS: Final[Mapping[str, Event]] = {"finished": Event.FINISH, "stopped": Event.STOP, "failed": Event.FAIL}
_DELETE_STEPS = 200_000  # transitions removed per transaction, so that a delete never blocks a trainer


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
    """Where its checkpoints and logs lie, as `storage.places` writes it; None: beside the database."""
    stall: str | None = None
    """Why its recorder waits (full disk, locked database), when it does."""


def create_run(
    db: Database,
    config: Mapping[str, Any],
    *,
    target_steps: int,
    versions: Mapping[str, Any],
    name: str | None = None,
    sweep_id: str | None = None,
    launch_token: str | None = None,
    device: str | None = None,
    owner: Owner | None = None,
) -> str:
    """Queue a run.

    Args:
        db: An open database.
        config: The full resolved configuration as plain JSON values, with `env`, `map`, `algo`, `seed`.
        target_steps: Env steps asked for.
        versions: Code and library versions.
        name: Shown name; made from algorithm, map and seed when missing.
        sweep_id: The sweep that the run belongs to.
        launch_token: Any text unique to one press of a button.
        device: Where it is meant to run, when known.
        owner: The process that starts it now; without one it waits until somebody does.

    Returns:
        The new id: 8 letters and digits without look-alikes.

    Raises:
        RunStateError: If the launch token was used before; see `find_launch`.
    """
    values = {
        "target_steps": target_steps,
        "versions": dict(versions),
        "device": device,
        "sweep_id": sweep_id,
        "launch_token": launch_token,
        **(owner.columns() if owner else {}),
    }
    try:
        with db.transaction() as connection:
            new = new_run_values(connection, config, name)
            connection.execute(insert(Run), new | values)
    except StorageError as error:
        if launch_token is not None and (known := find_launch(db, launch_token)) is not None:
            raise RunStateError(f"This launch has already made run {known}.") from error
        raise
    return str(new["id"])


def find_launch(db: Database, launch_token: str) -> str | None:
    """Find the run that a launch token made, or None."""
    with db.read() as connection:
        token = select(Run.id).where(Run.launch_token == launch_token)
        return connection.execute(token).scalar_one_or_none()


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
    """Say what the run's process does, and why its recorder waits if it does.

    A trainer that cannot write for want of disk space cannot send heartbeats either: as long as this host
    has its process, such a run is not lost.
    """
    status = live_status(row, datetime.now(UTC))
    if status != "lost" or not is_process_alive(row):
        return status, None
    stall = stall_reason(db, row.id)
    return (row.status if stall else status), stall


def claim_start(db: Database, run_id: str, owner: Owner) -> None:
    """Take a run for a trainer that is about to start; of two that try, one succeeds.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it is not in a state that a trainer may start from.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        state = state_now(row)
        lifecycle.check(run_id, state, Event.CLAIM)
        if state != State.CREATED:
            forget_commands(connection, [run_id])
        values = {"status": "queued", "ended_at": None, "error": None, "archived_at": None, **owner.columns()}
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def start_run(
    db: Database,
    run_id: str,
    *,
    pid: int,
    pid_created_at: float,
    host: str,
    device: str | None,
    token: str | None = None,
    files: str | None = None,
) -> None:
    """Begin a run in this process, which took it by `claim_start` or was handed the token of whoever did.

    Without a token it is taken in the same transaction. Of two processes that try, one succeeds. When it begins for
    the first time, `files` is recorded as the place of its files.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody else has it.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        if token is not None and row.owner_token != token:
            raise taken_over(row)
        if row.status != "queued" or (token is None and (row.pid, row.host) != (pid, host)):
            lifecycle.check(run_id, state_now(row), Event.CLAIM)
        if row.status != "queued":
            forget_commands(connection, [run_id])
        values = {"status": "running", "pid": pid, "pid_created_at": pid_created_at, "host": host}
        values |= {"device": device or row.device, "owner_token": token, "claimed_at": row.claimed_at or now}
        values |= {"started_at": row.started_at or now, "ended_at": None, "heartbeat_at": now, "error": None}
        values["archived_at"] = None  # what works is listed
        if row.started_at is None:
            values["files"] = files
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def finish_run(
    db: Database,
    run_id: str,
    status: Literal["finished", "stopped", "failed"],
    error: str | None = None,
    *,
    token: str | None = None,
) -> None:
    """Write how a run ended, as its owner, or take it out of the queue where nobody owns it.

    Raises:
        RunStateError: If the run cannot pass to that state, or belongs to another process.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        if token is not None or row.pid is not None:
            check_token(row, token)
        state = lifecycle.refine(row, row.status)  # its owner is here, however long it was silent
        leaves = state == State.CREATED and status == "stopped"
        lifecycle.check(run_id, state, Event.LEAVE_QUEUE if leaves else _ENDINGS[status])
        values = {"status": status, "error": error, "ended_at": now, "heartbeat_at": now}
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def start_again(db: Database, run_id: str, *, versions: Mapping[str, Any], owner: Owner | None = None) -> str:
    """Make a new run of the same configuration that starts from step 0 and names this one as its parent.

    The parent keeps all that it recorded. Its place in a sweep goes to the new run.

    Returns:
        The id of the new run.

    Raises:
        RunStateError: If somebody works on the parent.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        if (state := state_now(row)) != State.FINISHED:
            lifecycle.check(run_id, state, Event.CLAIM)
        values: dict[str, Any] = {
            **new_run_values(connection, row.config, row.name),
            "target_steps": row.target_steps,
            "versions": dict(versions),
            "device": row.device,
            "parent_id": run_id,
            **(owner.columns() if owner else {}),
        }
        if row.sweep_id is not None:
            values |= {"sweep_id": row.sweep_id, "launch_token": row.launch_token, "created_at": row.created_at}
            connection.execute(update(Run).where(Run.id == run_id).values(sweep_id=None, launch_token=None))
        connection.execute(insert(Run), values)
    return values["id"]


def edit_run(
    db: Database,
    run_id: str,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    notes: str | None = None,
) -> None:
    """Change what people say about a run; None leaves a field as it is.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a tag is none, the name is empty or the note too long.
    """
    values = check_labels(name, tags, notes)
    with db.transaction() as connection:
        locked_row(connection, run_id)
        if values:
            connection.execute(update(Run).where(Run.id == run_id).values(**values))


def rewind_run(
    db: Database,
    run_id: str,
    env_step: int,
    *,
    token: str | None = None,
    checkpoint: str | None = None,
    passed_over: Sequence[str] = (),
) -> None:
    """Supersede everything recorded after `env_step`, in one transaction, and note that it happened.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Where the trainer stands now: 0 or the last step of an episode.
        token: By which the caller owns the run.
        checkpoint: The file that was restored.
        passed_over: Why newer files were not.

    Raises:
        RunStateError: If the run has not come that far, an episode straddles the step, or somebody else has the run.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        check_token(row, token)
        episodes = rewind(connection, run_id, env_step, reached=row.env_steps)
        values = {
            "run_id": run_id,
            "env_step": env_step,
            "reached_env_step": row.env_steps,
            "resumed_at": datetime.now(UTC),
            "episodes": episodes,
            "checkpoint": checkpoint,
            "passed_over": " ".join(passed_over) or None,
        }
        connection.execute(insert(Resume), values)


def why_not_resume_at(db: Database, run_id: str, env_step: int) -> str | None:
    """Say why the recorded rows do not fit a checkpoint at a step, or None if they do."""
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
        thinned = why_thinned(connection, run_id, reached=reached)
        return thinned or why_not_rewind(connection, run_id, env_step, reached=reached)


def delete_run(db: Database, run_id: str) -> None:
    """Remove a run and all it recorded, from its end backwards in bounded transactions.

    Between two of them the run is a shorter but valid one. Its folder of logs and checkpoints is not touched here;
    see `removal`.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a live process works on it.
    """
    while True:
        with db.transaction() as connection:
            row = locked_row(connection, run_id)
            lifecycle.check(run_id, state_now(row), Event.DELETE)
            keep = last_episode_end(connection, run_id, row.env_steps - _DELETE_STEPS)
            rewind(connection, run_id, keep, reached=row.env_steps)
            if keep == 0:
                connection.execute(delete(Run).where(Run.id == run_id))
                return


def state_now(row: Any) -> State:
    """Say where a run is, for whoever wants to change it.

    A silent process that this host still has may wake up: its run is not free.
    """
    state = lifecycle.state_of(row, datetime.now(UTC))
    if state == State.LOST and row.status != "queued" and is_process_alive(row):
        return lifecycle.refine(row, row.status)
    return state


def forget_commands(connection: Connection, run_ids: Sequence[str]) -> None:
    """Acknowledge what was asked of earlier owners, which nobody will obey."""
    pending = (CommandRow.run_id.in_(run_ids), CommandRow.acknowledged_at.is_(None))
    connection.execute(update(CommandRow).where(*pending).values(acknowledged_at=datetime.now(UTC)))


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
