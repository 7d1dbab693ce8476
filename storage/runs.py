"""Runs: made, found, started, ended, rewound, deleted; their states and the transitions between them.

What a run recorded is written by `storage.recorder`; who is asked to do what stands in `storage.control`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import psutil
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage.engine import Database
from storage.liveness import LiveStatus, is_process_alive, live_status
from storage.models import (
    SUMMARY_STEPS,
    CommandRow,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    Resume,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.recorder_state import stall_reason
from storage.summary import summarize_bucket

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]

_MOVES: Final[Mapping[str, frozenset[str]]] = {
    "queued": frozenset({"running", "stopped", "failed"}),
    "running": frozenset({"paused", "finished", "stopped", "failed"}),
    "paused": frozenset({"running", "finished", "stopped", "failed"}),
    "finished": frozenset({"running"}),
    "stopped": frozenset({"running"}),
    "failed": frozenset({"running"}),
}
"""The states that may follow each state; an ended run runs again when it is resumed."""

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/l/i
_ID_LENGTH = 8
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
    win_rate: float | None
    return_mean: float | None
    tags: list[str]
    notes: str
    error: str | None
    versions: dict[str, Any]
    config: dict[str, Any]
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

    Returns:
        The new id: 8 letters and digits without look-alikes.

    Raises:
        RunStateError: If the launch token was used before; see `find_launch`.
    """
    values = {
        **_new_values(config, name),
        "target_steps": target_steps,
        "versions": dict(versions),
        "device": device,
        "sweep_id": sweep_id,
        "launch_token": launch_token,
    }
    try:
        with db.transaction() as connection:
            run_id = _new_id(connection)
            connection.execute(insert(Run), {"id": run_id, **values})
    except StorageError as error:
        if launch_token is not None and (known := find_launch(db, launch_token)) is not None:
            raise RunStateError(f"This launch has already made run {known}.") from error
        raise
    return run_id


def new_run_values(connection: Connection, config: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Fill the columns of a queued run that follow from its configuration, with an id that no run has."""
    return {"id": _new_id(connection), **_new_values(config, name)}


def describe_config(config: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Read env, map, algorithm and seed from a resolved configuration."""
    env = config.get("env", "")
    nested = env if isinstance(env, Mapping) else {}
    name = nested.get("name", nested.get("env", "")) if nested else env
    map_name = config.get("map") or nested.get("map", "")
    return str(name), str(map_name), str(config.get("algo", "")), int(config.get("seed", 0))


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
        rows = connection.execute(select(Run.__table__).where(starts).order_by(Run.id).limit(6)).all()
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
    return RunRow(**row._mapping, live_status=status, stall=stall)


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


def mark_launched(db: Database, run_id: str, *, pid: int, pid_created_at: float, host: str) -> None:
    """Note the process that was started for a queued run, so that its early death is seen."""
    with db.transaction() as connection:
        connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.status == "queued")
            .values(pid=pid, pid_created_at=pid_created_at, host=host)
        )


def start_run(db: Database, run_id: str, *, pid: int, pid_created_at: float, host: str, device: str | None) -> None:
    """Take a run for this process. Of two processes that try, one succeeds.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a live process works on it.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        row = _locked_row(connection, run_id)
        if _is_worked_on(row):
            raise RunStateError(f"Run {run_id} is already {row.status} (process {row.pid} on {row.host}).")
        if row.status != "queued":  # what was asked of an earlier process is obsolete
            pending = (CommandRow.run_id == run_id, CommandRow.acknowledged_at.is_(None))
            connection.execute(update(CommandRow).where(*pending).values(acknowledged_at=now))
        connection.execute(
            update(Run)
            .where(Run.id == run_id)
            .values(
                status="running",
                pid=pid,
                pid_created_at=pid_created_at,
                host=host,
                device=device or row.device,
                started_at=row.started_at or now,
                ended_at=None,
                heartbeat_at=now,
                error=None,
            )
        )


def finish_run(
    db: Database, run_id: str, status: Literal["finished", "stopped", "failed"], error: str | None = None
) -> None:
    """Write how a run ended.

    Raises:
        RunStateError: If the run cannot pass to that state.
    """
    now = datetime.now(UTC)
    with db.transaction() as connection:
        row = _locked_row(connection, run_id)
        if status not in _MOVES[row.status]:
            raise RunStateError(f"Run {run_id} is {row.status}; it cannot become {status}.")
        values = {"status": status, "error": error, "ended_at": now, "heartbeat_at": now}
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


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
    """
    changes = {"name": name, "tags": None if tags is None else sorted(set(tags)), "notes": notes}
    values = {key: value for key, value in changes.items() if value is not None}
    with db.transaction() as connection:
        _locked_row(connection, run_id)
        if values:
            connection.execute(update(Run).where(Run.id == run_id).values(**values))


def rewind_run(db: Database, run_id: str, env_step: int) -> None:
    """Remove everything recorded after `env_step`, in one transaction, so that a resume writes it anew.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Where the checkpoint stands: 0 or the last step of an episode.

    Raises:
        RunStateError: If the run has not come that far, or an episode straddles the step.
    """
    with db.transaction() as connection:
        row = _locked_row(connection, run_id)
        _rewind(connection, run_id, env_step, reached=row.env_steps)
        values = {"run_id": run_id, "env_step": env_step, "reached_env_step": row.env_steps}
        connection.execute(insert(Resume), {**values, "resumed_at": datetime.now(UTC)})


def delete_run(db: Database, run_id: str) -> None:
    """Remove a run and all it recorded, from its end backwards in bounded transactions.

    Between two of them the run is a shorter but valid one. Its folder of logs and checkpoints is the
    caller's to remove.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a live process works on it.
    """
    while True:
        with db.transaction() as connection:
            row = _locked_row(connection, run_id)
            if _is_worked_on(row):
                raise RunStateError(f"Run {run_id} is {row.status}. Stop it first with: emtc stop {run_id}")
            keep = _last_episode_end(connection, run_id, row.env_steps - _DELETE_STEPS)
            _rewind(connection, run_id, keep, reached=row.env_steps)
            if keep == 0:
                connection.execute(delete(Run).where(Run.id == run_id))
                return


def get_process_created_at(pid: int) -> float:
    """Read when a process was created, which with its id names it for good [Unix seconds]."""
    return psutil.Process(pid).create_time()


def _new_values(config: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    env, map_name, algo, seed = describe_config(config)
    return {
        "name": name or f"{algo} {map_name} seed {seed}",
        "env": env,
        "map": map_name,
        "algo": algo,
        "seed": seed,
        "config": dict(config),
        "status": "queued",
        "env_steps": 0,
        "created_at": datetime.now(UTC),
        "tags": [],
        "notes": "",
    }


def _new_id(connection: Connection) -> str:
    while True:
        run_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        if connection.execute(select(Run.id).where(Run.id == run_id)).first() is None:
            return run_id


def _locked_row(connection: Connection, run_id: str) -> Row[Any]:
    row = connection.execute(select(Run.__table__).where(Run.id == run_id).with_for_update()).one_or_none()
    if row is None:
        raise RunNotFoundError(f'There is no run "{run_id}". List them with: emtc runs')
    return row


def _is_worked_on(row: Any) -> bool:
    """A silent process that this host still has may wake up: two trainers must never share a run."""
    if row.status not in ("running", "paused"):
        return False
    return is_process_alive(row) or live_status(row, datetime.now(UTC)) != "lost"


def _last_episode_end(connection: Connection, run_id: str, env_step: int) -> int:
    """Find the last step, at most `env_step`, that ends an episode; 0 when there is none."""
    if env_step <= 0:
        return 0
    ends = select(func.max(EpisodeRow.first_env_step + EpisodeRow.length - 1)).where(
        EpisodeRow.run_id == run_id, EpisodeRow.first_env_step + EpisodeRow.length - 1 <= env_step
    )
    return connection.execute(ends).scalar_one() or 0


def _rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> None:
    if not 0 <= env_step <= reached:
        raise RunStateError(f"Run {run_id} has {reached} env steps; it cannot go back to {env_step}.")
    if _last_episode_end(connection, run_id, env_step) != env_step:
        raise RunStateError(f"Run {run_id} can go back to the end of an episode only; {env_step} is inside one.")
    connection.execute(delete(EpisodeRow).where(EpisodeRow.run_id == run_id, EpisodeRow.first_env_step > env_step))
    for table in (Transition, EvalEpisode, GateStats, MetricRow, Evaluation, SnapshotRow):
        connection.execute(delete(table).where(table.run_id == run_id, table.env_step > env_step))
    first_bucket = env_step // SUMMARY_STEPS  # the first that holds a removed step
    connection.execute(
        delete(TransitionSummary).where(TransitionSummary.run_id == run_id, TransitionSummary.bucket >= first_bucket)
    )
    summarize_bucket(connection, run_id, first_bucket)
    last = select(Evaluation.win_rate, Evaluation.return_mean).where(Evaluation.run_id == run_id)
    kept = connection.execute(last.order_by(Evaluation.env_step.desc()).limit(1)).one_or_none()
    win_rate, return_mean = kept or (None, None)
    connection.execute(
        update(Run).where(Run.id == run_id).values(env_steps=env_step, win_rate=win_rate, return_mean=return_mean)
    )
