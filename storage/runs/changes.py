"""Create, claim, start, finish and restart runs, and add the results of `emtc evaluate`.

`storage.recording` writes what a trainer records, `storage.runs.control` sends commands to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, insert, select, update

from emtc_core.errors import RunStateError, StorageError
from storage import clock
from storage.engine import Database
from storage.guards import MAX_NAME_LENGTH
from storage.models import PolicyEvaluation, Run
from storage.process_id import ProcessId, process_columns, read_process_id
from storage.runs import lifecycle
from storage.runs.lifecycle import Event, Owner, State, check_token, make_ownership_error
from storage.runs.rows import acknowledge_pending_commands, check_not_imported, get_locked_row, get_state

if TYPE_CHECKING:  # the recorder loads numpy, which commands that change the row of a run do not need
    from emtc_core.recorder import EvaluationRecord

_END_EVENTS: Final[Mapping[str, Event]] = {"finished": Event.FINISH, "stopped": Event.STOP, "failed": Event.FAIL}
_ALPHABET: Final = "23456789abcdefghjkmnpqrstuvwxyz"
"""Characters of run ids, without those that look alike: 0 and o, 1, l and i."""
_ID_LENGTH: Final = 8


def create_run(
    db: Database,
    config: Mapping[str, Any],
    *,
    target_steps: int,
    versions: Mapping[str, Any],
    name: str | None = None,
    sweep_id: str | None = None,
    launch_token: str | None = None,
    owner: Owner | None = None,
) -> str:
    """Create a run with the status queued.

    Args:
        db: An open database.
        config: The full resolved configuration as plain JSON values, with `env`, `map`, `algo`, `seed`.
        target_steps: Env steps to train.
        versions: Versions of code and libraries.
        name: Name of the run; None makes one from algorithm, map and seed.
        sweep_id: The sweep that the run belongs to.
        launch_token: Any text that is unique to one click, so that it cannot start two runs.
        owner: The process that starts the run now; None leaves it in the queue.

    Returns:
        The new id: 8 letters and digits.

    Raises:
        RunStateError: If the launch token was used before; `find_launch` returns that run.
    """
    values = {
        "target_steps": target_steps,
        "versions": dict(versions),
        "sweep_id": sweep_id,
        "launch_token": launch_token,
        **(lifecycle.owner_columns(owner) if owner else {}),
    }
    try:
        with db.transaction() as connection:
            new = new_run_values(connection, config, name)
            connection.execute(insert(Run), new | values)
    except StorageError as error:
        if launch_token is not None and (existing := find_launch(db, launch_token)) is not None:
            raise RunStateError(
                f"This launch has already created run {existing}.", reason="launched", subject=existing
            ) from error
        raise
    return str(new["id"])


def find_launch(db: Database, launch_token: str) -> str | None:
    """Find the run that was created with a launch token, or return None."""
    with db.read() as connection:
        token = select(Run.id).where(Run.launch_token == launch_token)
        return connection.execute(token).scalar_one_or_none()


def claim_start(db: Database, run_id: str, owner: Owner) -> None:
    """Claim a run for a trainer that is about to start. If two processes try, one succeeds.

    Args:
        db: An open database.
        run_id: The run.
        owner: The process that claims the run.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it was imported, or a trainer cannot start in its state.
    """
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        check_not_imported(row, "be resumed")
        state = get_state(row)
        lifecycle.check_allowed(run_id, state, Event.CLAIM)
        if state != State.CREATED:
            acknowledge_pending_commands(connection, [run_id])
        values = {
            "status": "queued",
            "ended_at": None,
            "error": None,
            "archived_at": None,
            **lifecycle.owner_columns(owner),
        }
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def start_run(
    db: Database,
    run_id: str,
    process: ProcessId,
    *,
    device: str | None,
    token: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Set a run to running, in the process that trains it. If two processes try, one succeeds.

    Args:
        db: An open database.
        run_id: The run.
        process: This process.
        device: `cpu` or `cuda`; None keeps the stored device.
        token: The token of `claim_start`. None claims the run in the same transaction.
        config: The resolved configuration, if settings depend on this machine; None keeps the stored configuration.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If another process owns the run.
    """
    now = clock.now()
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        if token is not None and row.owner_token != token:
            raise make_ownership_error(row)
        if row.status != "queued" or (token is None and read_process_id(row) != process):
            lifecycle.check_allowed(run_id, get_state(row), Event.CLAIM)
        if row.status != "queued":
            acknowledge_pending_commands(connection, [run_id])
        values: dict[str, Any] = {"status": "running", **process_columns(process)}
        values |= {"device": device or row.device, "owner_token": token, "claimed_at": row.claimed_at or now}
        values |= {"started_at": row.started_at or now, "ended_at": None, "heartbeat_at": now, "error": None}
        values["archived_at"] = None  # a run in training is always listed
        if config is not None:
            values["config"] = dict(config)
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def finish_run(
    db: Database,
    run_id: str,
    status: Literal["finished", "stopped", "failed"],
    error: str | None = None,
    *,
    token: str | None = None,
) -> None:
    """Set the final status of a run, as its owner. A queued run without an owner can be set to stopped.

    Args:
        db: An open database.
        run_id: The run.
        status: The final status.
        error: Text of the error of a failed run.
        token: Token of the owner; None for a run without an owner.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If its state does not allow this status, or another process owns the run.
    """
    now = clock.now()
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        if token is not None or row.pid is not None:
            check_token(row, token)
        state = lifecycle.refine(row, row.status)  # the caller is the owner, so the heartbeat does not matter
        leaves_queue = state == State.CREATED and status == "stopped"
        lifecycle.check_allowed(run_id, state, Event.LEAVE_QUEUE if leaves_queue else _END_EVENTS[status])
        values = {"status": status, "error": error, "ended_at": now, "heartbeat_at": now}
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def update_versions(db: Database, run_id: str, versions: Mapping[str, Any], *, token: str | None) -> None:
    """Store the versions of code and libraries that train a run, as its owner.

    Args:
        db: An open database.
        run_id: The run.
        versions: Name → version.
        token: Token of the owner; None for a run without an owner.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If another process owns the run.
    """
    with db.transaction() as connection:
        check_token(get_locked_row(connection, run_id), token)
        connection.execute(update(Run).where(Run.id == run_id).values(versions=dict(versions)))


def start_again(db: Database, run_id: str, *, versions: Mapping[str, Any], owner: Owner | None = None) -> str:
    """Create a run with the same configuration that starts at env step 0 and has this run as its parent.

    The data of the parent is kept. If the parent belongs to a sweep, the new run replaces it there.

    Args:
        db: An open database.
        run_id: The parent.
        versions: Versions of code and libraries.
        owner: The process that starts the new run now; None leaves it in the queue.

    Returns:
        The id of the new run.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the parent was imported or has a trainer.
    """
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        check_not_imported(row, "be trained again")
        if (state := get_state(row)) != State.FINISHED:
            lifecycle.check_allowed(run_id, state, Event.CLAIM)
        values: dict[str, Any] = {
            **new_run_values(connection, row.config, row.name),
            "target_steps": row.target_steps,
            "versions": dict(versions),
            "device": row.device,
            "parent_id": run_id,
            **(lifecycle.owner_columns(owner) if owner else {}),
        }
        if row.sweep_id is not None:
            values |= {"sweep_id": row.sweep_id, "launch_token": row.launch_token, "created_at": row.created_at}
            connection.execute(update(Run).where(Run.id == run_id).values(sweep_id=None, launch_token=None))
        connection.execute(insert(Run), values)
    return values["id"]


def new_run_values(connection: Connection, config: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the column values of a queued run that follow from its configuration, with a new id.

    Args:
        connection: The connection, to find an id that is not used.
        config: The resolved configuration.
        name: Name of the run; None: made from algorithm, map and seed.
    """
    env = config.get("env", "")
    nested = env if isinstance(env, Mapping) else {}
    env_name = nested.get("name", nested.get("env", "")) if nested else env
    map_name = config.get("map") or nested.get("map", "")
    algo, seed = config.get("algo", ""), int(config.get("seed", 0))
    return {
        "id": _new_id(connection),
        "name": (name or f"{algo} {map_name} seed {seed}")[:MAX_NAME_LENGTH],
        "env": str(env_name),
        "map": str(map_name),
        "algo": str(algo),
        "seed": seed,
        "config": dict(config),
        "status": "queued",
        "env_steps": 0,
        "created_at": clock.now(),
        "tags": [],
        "notes": "",
    }


def _new_id(connection: Connection) -> str:
    while True:
        run_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        if connection.execute(select(Run.id).where(Run.id == run_id)).first() is None:
            return run_id


def add_policy_evaluation(
    db: Database, run_id: str, record: EvaluationRecord, *, seed: int, settings: Mapping[str, Any]
) -> int:
    """Store the result of evaluating a checkpoint's greedy policy outside of training.

    Args:
        db: An open database.
        run_id: The run of the checkpoint.
        record: The episodes; `env_step` is that of the checkpoint.
        seed: Seed of the episodes.
        settings: The settings that differ from the training, by dotted key; empty if none differs.

    Returns:
        The id of the row.

    Raises:
        RunNotFoundError: If the run was deleted in the meantime.
    """
    import numpy as np

    values = {
        "run_id": run_id,
        "env_step": record.env_step,
        "created_at": clock.now(),
        "seed": seed,
        "episodes": len(record.won),
        "wins": record.wins,
        "win_rate": record.win_rate,
        "return_mean": record.return_mean,
        "return_std": float(np.std(record.returns, dtype=np.float64)),
        "length_mean": float(np.mean(record.lengths)),
        "distinct": record.distinct,
        "settings": dict(settings),
    }
    with db.transaction() as connection:
        get_locked_row(connection, run_id)
        new = insert(PolicyEvaluation).values(values).returning(PolicyEvaluation.id)
        return connection.execute(new).scalar_one()
