"""Create, start, finish and restart runs, and add the results of `emtc evaluate`.

`storage.runs.claims` claims them, `storage.recording` writes what a trainer records, `storage.runs.control` sends
commands to it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, insert, select, update

from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.guards import MAX_NAME_LENGTH
from storage.models import PolicyEvaluation, Run
from storage.runs.claims import check_owned, check_owner, ended_values, owner_values
from storage.runs.rows import check_not_imported, get_locked_row, lock_for_action
from storage.runs.status import NOT_ENDED, read_clock

if TYPE_CHECKING:  # the recorder loads numpy, which commands that change the row of a run do not need
    from emtc_core.recorder import EvaluationRecord

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
    token: str | None = None,
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
        token: Token of the owner that starts the run now; None leaves it in the queue.

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
    }
    try:
        with db.transaction() as connection:
            new = new_run_values(connection, config, name)
            owner = {} if token is None else owner_values(token, new["created_at"])
            connection.execute(insert(Run), new | values | owner)
    except StorageError as error:
        if launch_token is not None and (existing := find_launch(db, launch_token)) is not None:
            raise RunStateError(f"This launch has already created run {existing}.") from error
        raise
    return str(new["id"])


def find_launch(db: Database, launch_token: str) -> str | None:
    """Find the run that was created with a launch token, or return None."""
    with db.read() as connection:
        token = select(Run.id).where(Run.launch_token == launch_token)
        return connection.execute(token).scalar_one_or_none()


def start_run(
    db: Database,
    run_id: str,
    *,
    device: str | None,
    token: str | None = None,
) -> None:
    """Set a claimed run to running, in the process that trains it.

    Args:
        db: An open database.
        run_id: The run.
        device: `cpu` or `cuda`; None keeps the stored device.
        token: Token of the owner; None for a run without an owner.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If another process owns the run, or it is not queued.
    """
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        check_owner(row, token)
        if row.status != "queued":
            message = f"Run {run_id} is {row.status} and not queued, so its training cannot start."
            raise RunStateError(message)
        now = read_clock(connection)
        values: dict[str, Any] = {
            "status": "running",
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "device": device or row.device,
            "started_at": row.started_at or now,
            "heartbeat_at": now,
        }
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def finish_run(
    db: Database,
    run_id: str,
    status: Literal["finished", "stopped", "failed"],
    error: str | None = None,
    *,
    token: str | None = None,
) -> None:
    """Set the final status of a run, as its owner. It has no owner afterwards.

    Args:
        db: An open database.
        run_id: The run.
        status: The final status.
        error: Text of the error of a failed run.
        token: Token of the owner; None for a run without an owner.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If another process owns the run, or it has ended.
    """
    with db.transaction() as connection:
        row = get_locked_row(connection, run_id)
        check_owner(row, token)
        if row.status not in NOT_ENDED:
            message = f"Run {run_id} has already ended. Its status is {row.status}."
            raise RunStateError(message)
        now = read_clock(connection)
        values = ended_values(status, now, error=error) | {"heartbeat_at": now}
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
        check_owned(connection, run_id, token)
        connection.execute(update(Run).where(Run.id == run_id).values(versions=dict(versions)))


def start_again(db: Database, run_id: str, *, versions: Mapping[str, Any], token: str | None = None) -> str:
    """Create a run with the same configuration that starts at env step 0 and has this run as its parent.

    The data of the parent is kept. If the parent belongs to a sweep, the new run replaces it there.

    Args:
        db: An open database.
        run_id: The parent.
        versions: Versions of code and libraries.
        token: Token of the owner that starts the new run now; None leaves it in the queue.

    Returns:
        The id of the new run.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the parent was imported or has a trainer.
    """
    with db.transaction() as connection:
        check_not_imported(get_locked_row(connection, run_id), "be trained again")
        row = lock_for_action(db, connection, run_id, "start_again")
        new = new_run_values(connection, row.config, row.name)
        values: dict[str, Any] = {
            **new,
            "target_steps": row.target_steps,
            "versions": dict(versions),
            "device": row.device,
            "parent_id": run_id,
            **({} if token is None else owner_values(token, new["created_at"])),
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
        name: Name of the run; None: that of `make_run_name`.
    """
    env = config.get("env", "")
    nested = env if isinstance(env, Mapping) else {}
    env_name = nested.get("name", nested.get("env", "")) if nested else env
    return {
        "id": _new_id(connection),
        "name": (name or make_run_name(config))[:MAX_NAME_LENGTH],
        "env": str(env_name),
        "map": _get_map(config),
        "algo": str(config.get("algo", "")),
        "seed": int(config.get("seed", 0)),
        "config": dict(config),
        "status": "queued",
        "env_steps": 0,
        "created_at": read_clock(connection),
        "tags": [],
        "notes": "",
    }


def make_run_name(config: Mapping[str, Any]) -> str:
    """Make the automatic name of a run from its algorithm, map and seed: "emtc-qplex 3m seed 1"."""
    return f"{config.get('algo', '')} {_get_map(config)} seed {int(config.get('seed', 0))}"


def _get_map(config: Mapping[str, Any]) -> str:
    env = config.get("env")
    return str(config.get("map") or (env.get("map", "") if isinstance(env, Mapping) else ""))


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

    values: dict[str, Any] = {
        "run_id": run_id,
        "env_step": record.env_step,
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
        values["created_at"] = read_clock(connection)
        return connection.execute(insert(PolicyEvaluation).values(values).returning(PolicyEvaluation.id)).scalar_one()
