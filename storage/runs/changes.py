"""A run's way through its life: created, claimed, started, ended, started again.

What it recorded is written by `storage.recording`; who is asked to do what stands in `control`. What a stored policy
did in greedy episodes of its own is written here, once, by whoever played them, and is on no curve.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, insert, select, update

from emtc_core.errors import RunStateError, StorageError
from storage import clock
from storage.engine import Database
from storage.guards import LONGEST_NAME
from storage.models import PolicyEvaluation, Run
from storage.runs import lifecycle
from storage.runs.lifecycle import Event, Owner, State, check_token, taken_over
from storage.runs.rows import forget_commands, locked_row, refuse_imported, state_now

if TYPE_CHECKING:  # with it comes numpy, which a command that changes a run's row does without
    from emtc_core.recorder import EvaluationRecord

_ENDINGS: Final[Mapping[str, Event]] = {"finished": Event.FINISH, "stopped": Event.STOP, "failed": Event.FAIL}


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
    """Queue a run.

    Args:
        db: An open database.
        config: The full resolved configuration as plain JSON values, with `env`, `map`, `algo`, `seed`.
        target_steps: Env steps asked for.
        versions: Code and library versions.
        name: Shown name; made from algorithm, map and seed when missing.
        sweep_id: The sweep that the run belongs to.
        launch_token: Any text unique to one press of a button.
        owner: The process that starts it now; without one it waits until somebody does.

    Returns:
        The new id: 8 letters and digits without look-alikes.

    Raises:
        RunStateError: If the launch token was used before; see `find_launch`.
    """
    values = {
        "target_steps": target_steps,
        "versions": dict(versions),
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
            raise RunStateError(
                f"This launch has already made run {known}.", reason="launched", subject=known
            ) from error
        raise
    return str(new["id"])


def find_launch(db: Database, launch_token: str) -> str | None:
    """Find the run that a launch token made, or None."""
    with db.read() as connection:
        token = select(Run.id).where(Run.launch_token == launch_token)
        return connection.execute(token).scalar_one_or_none()


def claim_start(db: Database, run_id: str, owner: Owner) -> None:
    """Take a run for a trainer that is about to start; of two that try, one succeeds.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If it is not in a state that a trainer may start from.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        refuse_imported(row, "go on")
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
    config: Mapping[str, Any] | None = None,
) -> None:
    """Begin a run in this process, which took it by `claim_start` or was handed the token of whoever did.

    Without a token it is taken in the same transaction. Of two processes that try, one succeeds. When it begins for
    the first time, `files` is recorded as the place of its files. `config` is what the run's settings came to in this
    process, where they leave something to it.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody else has it.
    """
    now = clock.now()
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
    """Write how a run ended, as its owner, or take it out of the queue where nobody owns it.

    Raises:
        RunStateError: If the run cannot pass to that state, or belongs to another process.
    """
    now = clock.now()
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        if token is not None or row.pid is not None:
            check_token(row, token)
        state = lifecycle.refine(row, row.status)  # its owner is here, however long it was silent
        leaves = state == State.CREATED and status == "stopped"
        lifecycle.check(run_id, state, Event.LEAVE_QUEUE if leaves else _ENDINGS[status])
        values = {"status": status, "error": error, "ended_at": now, "heartbeat_at": now}
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def update_versions(db: Database, run_id: str, versions: Mapping[str, Any], *, token: str | None) -> None:
    """Write by which code a run is trained, as its owner.

    Raises:
        RunStateError: If somebody else has the run.
    """
    with db.transaction() as connection:
        check_token(locked_row(connection, run_id), token)
        connection.execute(update(Run).where(Run.id == run_id).values(versions=dict(versions)))


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
        refuse_imported(row, "be trained again")
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


_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/l/i


_ID_LENGTH = 8


def new_run_values(connection: Connection, config: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Fill the columns of a queued run that follow from its configuration, with an id that no run has."""
    env, map_name, algo, seed = _describe(config)
    return {
        "id": _new_id(connection),
        "name": (name or f"{algo} {map_name} seed {seed}")[:LONGEST_NAME],
        "env": env,
        "map": map_name,
        "algo": algo,
        "seed": seed,
        "config": dict(config),
        "status": "queued",
        "env_steps": 0,
        "created_at": clock.now(),
        "tags": [],
        "notes": "",
    }


def _describe(config: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Read env, map, algorithm and seed from a resolved configuration."""
    env = config.get("env", "")
    nested = env if isinstance(env, Mapping) else {}
    name = nested.get("name", nested.get("env", "")) if nested else env
    map_name = config.get("map") or nested.get("map", "")
    return str(name), str(map_name), str(config.get("algo", "")), int(config.get("seed", 0))


def _new_id(connection: Connection) -> str:
    while True:
        run_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        if connection.execute(select(Run.id).where(Run.id == run_id)).first() is None:
            return run_id


def add_policy_evaluation(
    db: Database, run_id: str, record: EvaluationRecord, *, seed: int, settings: Mapping[str, Any]
) -> int:
    """Write down what a checkpoint's greedy policy did.

    Args:
        db: An open database.
        run_id: Whose policy.
        record: Its episodes; `env_step` is that of the checkpoint.
        seed: Of the episodes.
        settings: What was set otherwise than in training, by dotted key; empty for the policy in its own game.

    Returns:
        The id of the row.

    Raises:
        RunNotFoundError: If the run was deleted meanwhile.
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
        locked_row(connection, run_id)
        new = insert(PolicyEvaluation).values(values).returning(PolicyEvaluation.id)
        return connection.execute(new).scalar_one()
