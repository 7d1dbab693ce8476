"""Save, stop and continue sweeps, and read their progress.

The runs of a sweep are rows of `runs` with its id in `sweep_id`. `storage.runs.claims` claims them for workers. A
worker writes a heartbeat to the sweeps whose runs it claims, so that a page can show whether queued runs have a worker.

One process at a time asks Optuna for the trials of a search. It owns the search by `sweeps.owner_token`, as a trainer
owns its run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import insert, or_, select, update

from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import StorageError
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.changes import new_run_values
from storage.runs.claims import ended_values, find_sweep_locked, lock_sweep, queued_values
from storage.runs.rows import (
    PRUNED,
    RUN_COLUMNS,
    RunRow,
    acknowledge_pending_commands,
    make_run_row,
    read_live_status,
    shown_status,
)
from storage.runs.status import LOST_AFTER_S, NOT_ENDED, STATUS_COLUMNS, Status, allows, read_clock
from storage.runs.training_time import measure_training_s

SweepStatus = Literal["active", "stopped"]
ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan. `key` is unique over all sweeps."""

    key: str
    name: str
    config: Mapping[str, Any]
    target_steps: int
    settings: frozenset[str] = frozenset({"seed"})
    """Dotted keys of the settings in which the runs of the sweep differ."""


def save_sweep(
    db: Database,
    sweep_id: str,
    *,
    name: str,
    plan: Mapping[str, Any],
    runs: Sequence[PlannedRun],
    versions: Mapping[str, Any],
    jobs: int,
) -> int:
    """Store a sweep and queue the planned runs that do not exist yet, in one transaction.

    A second call with the same plan queues nothing. A finished run that was imported from a bundle replaces a planned
    run (`match_imported`), so that a study can be continued on another machine.

    Args:
        db: An open database.
        sweep_id: The sweep.
        name: Name of the sweep.
        plan: The sweep file and the planned runs, as plain JSON values.
        runs: The planned runs.
        versions: Versions of code and libraries.
        jobs: Maximum number of runs in training at the same time.

    Returns:
        Number of runs that were queued.
    """
    with db.transaction() as connection:
        now = read_clock(connection)
        values = {"name": name, "plan": dict(plan), "jobs": jobs, "status": "active"}
        if find_sweep_locked(connection, sweep_id) is None:
            connection.execute(insert(SweepRow), {"id": sweep_id, "created_at": now, **values})
        else:
            connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))
        existing = connection.execute(
            select(Run.launch_token, Run.status, Run.config).where(Run.sweep_id == sweep_id)
        ).all()
        keys = {row.launch_token for row in existing} | match_imported(runs, existing)
        missing = [run for run in runs if run.key not in keys]
        for i, run in enumerate(missing):
            row = {
                **new_run_values(connection, run.config, run.name),
                "target_steps": run.target_steps,
                "versions": dict(versions),
                "sweep_id": sweep_id,
                "launch_token": run.key,
                "created_at": now + timedelta(microseconds=i),  # so that lists have the order of the plan
            }
            connection.execute(insert(Run), row)
    return len(missing)


def queue_run(db: Database, sweep_id: str, run: PlannedRun, *, versions: Mapping[str, Any]) -> str | None:
    """Queue the next run of a sweep whose runs depend on earlier results (a hyperparameter search).

    Args:
        db: An open database.
        sweep_id: The sweep.
        run: The run to queue.
        versions: Versions of code and libraries.

    Returns:
        The id of the run, or of the existing run with the same key; None if the sweep was stopped.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        if lock_sweep(connection, sweep_id).status == "stopped":
            return None
        existing = connection.execute(select(Run.id).where(Run.launch_token == run.key)).scalar_one_or_none()
        if existing is not None:
            return existing
        row = {
            **new_run_values(connection, run.config, run.name),
            "target_steps": run.target_steps,
            "versions": dict(versions),
            "sweep_id": sweep_id,
            "launch_token": run.key,
        }
        connection.execute(insert(Run), row)
    return str(row["id"])


def match_imported(planned: Iterable[PlannedRun], runs: Iterable[Any]) -> frozenset[str]:
    """Find the planned runs of a sweep for which a finished run was imported from a bundle.

    A bundle does not contain the launch token, which is the key of a planned run. An imported run is therefore matched
    by the settings in which the sweep's runs differ. Its other settings may differ from the plan, because the values of
    a preset may have changed since the run was trained.

    Args:
        planned: The planned runs.
        runs: The runs of the sweep in the database, with launch_token, status and config.

    Returns:
        Keys of the planned runs that have a finished run.
    """
    imported = [flatten_tree(run.config) for run in runs if run.launch_token is None and run.status == "finished"]
    done: set[str] = set()
    for run in planned if imported else ():
        config = flatten_tree(run.config)
        match = next((other for other in imported if _is_equal(config, other, run.settings)), None)
        if match is not None:
            imported.remove(match)
            done.add(run.key)
    return frozenset(done)


def _is_equal(config: Mapping[str, Any], other: Mapping[str, Any], settings: Iterable[str]) -> bool:
    """Return whether two flat configurations are equal in the given settings."""
    return all(config.get(key) == other.get(key) for key in settings)


def write_worker_heartbeat(db: Database, sweep_id: str | None = None) -> None:
    """Record that a worker claims the runs of a sweep, or with None of all active sweeps.

    A search with an owner is left out: `write_search_heartbeat` writes its heartbeats.

    Args:
        db: An open database.
        sweep_id: The sweep.

    Raises:
        StorageError: If the database cannot be written.
    """
    has_open_runs = SweepRow.id.in_(select(Run.sweep_id).where(Run.status.in_(NOT_ENDED)))
    claims = has_open_runs if sweep_id is None else SweepRow.id == sweep_id
    is_active = (SweepRow.status == "active", SweepRow.owner_token.is_(None), claims)
    with db.transaction() as connection:
        connection.execute(update(SweepRow).where(*is_active).values(heartbeat_at=read_clock(connection)))


def clear_worker_heartbeat(db: Database, sweep_id: str) -> None:
    """Record that a worker of a sweep ends. Another worker of the sweep writes its next heartbeat soon.

    Raises:
        StorageError: If the database cannot be written.
    """
    with db.transaction() as connection:
        is_worker = (SweepRow.id == sweep_id, SweepRow.owner_token.is_(None))
        connection.execute(update(SweepRow).where(*is_worker).values(heartbeat_at=None))


def claim_search(db: Database, sweep_id: str, token: str) -> bool:
    """Claim a search, so that only this process asks Optuna for its trials.

    Args:
        db: An open database.
        sweep_id: The sweep.
        token: Token of this process.

    Returns:
        Whether the search was claimed. It cannot while its owner sends heartbeats.

    Raises:
        StorageError: If the database cannot be written.
    """
    with db.transaction() as connection:
        now = read_clock(connection)
        oldest = now - timedelta(seconds=LOST_AFTER_S)
        is_free = or_(SweepRow.owner_token.is_(None), SweepRow.heartbeat_at.is_(None), SweepRow.heartbeat_at < oldest)
        claim = update(SweepRow).where(SweepRow.id == sweep_id, is_free)
        return connection.execute(claim.values(owner_token=token, heartbeat_at=now)).rowcount == 1


def write_search_heartbeat(db: Database, sweep_id: str, token: str) -> bool:
    """Record that the owner of a search works; return False if another process owns it.

    Args:
        db: An open database.
        sweep_id: The sweep.
        token: Token of this process.

    Raises:
        StorageError: If the database cannot be written.
    """
    is_owned = (SweepRow.id == sweep_id, SweepRow.owner_token == token)
    with db.transaction() as connection:
        heartbeat = update(SweepRow).where(*is_owned).values(heartbeat_at=read_clock(connection))
        return connection.execute(heartbeat).rowcount == 1


def release_search(db: Database, sweep_id: str, token: str) -> None:
    """End the ownership of a search, unless another process owns it.

    Args:
        db: An open database.
        sweep_id: The sweep.
        token: Token of this process.

    Raises:
        StorageError: If the database cannot be written.
    """
    is_owned = (SweepRow.id == sweep_id, SweepRow.owner_token == token)
    with db.transaction() as connection:
        connection.execute(update(SweepRow).where(*is_owned).values(owner_token=None, heartbeat_at=None))


def stop_sweep(db: Database, sweep_id: str) -> tuple[int, list[str]]:
    """Stop a sweep: no further run is started, and its queued runs get the status stopped.

    Returns:
        Number of runs that were stopped, and the ids of the runs in training. The caller sends them a stop command.

    Raises:
        StorageError: If there is no such sweep.
    """
    columns = select(Run.id, Run.status, Run.owner_token).where(Run.sweep_id == sweep_id, Run.status.in_(NOT_ENDED))
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="stopped"))
        rows = connection.execute(columns).all()
        queued = [row.id for row in rows if row.status == "queued" and row.owner_token is None]
        values = ended_values("stopped", read_clock(connection), error=None)
        connection.execute(update(Run).where(Run.id.in_(queued)).values(**values))
    return len(queued), [row.id for row in rows if row.id not in queued]


def requeue(
    db: Database,
    sweep_id: str,
    statuses: Collection[Literal["stopped", "failed"]],
    *,
    without: Collection[str] = (),
) -> int:
    """Queue ended runs of a sweep again, except pruned ones. A run with a checkpoint is resumed from it.

    Args:
        db: An open database.
        sweep_id: The sweep.
        statuses: Statuses of the runs to queue.
        without: Ids of runs that are not queued.

    Returns:
        Number of runs that were queued.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        ended = select(Run.id, Run.status, Run.tags).where(Run.sweep_id == sweep_id, Run.status.in_(statuses))
        ids = [
            row.id
            for row in connection.execute(ended)
            if allows(row.status, "requeue") and PRUNED not in row.tags and row.id not in without
        ]
        acknowledge_pending_commands(connection, ids)
        connection.execute(update(Run).where(Run.id.in_(ids)).values(**queued_values()))
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="active"))
    return len(ids)


@dataclass(frozen=True)
class Progress:
    """Progress of one run of a sweep."""

    run_id: str
    status: Status
    env_steps: int
    target_steps: int
    trained_s: float = 0.0
    """How long it has trained [s], without pauses."""
    pruned: bool = False
    """Whether a hyperparameter search stopped it early."""


@dataclass(frozen=True)
class Sweep:
    """One sweep with the progress of its runs."""

    id: str
    name: str
    status: SweepStatus
    created_at: datetime
    jobs: int
    has_worker: bool
    """Whether a worker claims its queued and lost runs and, for a search, queues its trials."""
    plan: Mapping[str, Any]
    runs: tuple[Progress, ...]

    @property
    def counts(self) -> Counter[str]:
        """Status → number of runs. Pruned runs are counted as `pruned`."""
        return Counter(PRUNED if run.pruned else run.status for run in self.runs)

    @property
    def n_active(self) -> int:
        """Number of runs whose trainer works: starting, running and stopping ones."""
        return sum(self.counts[status] for status in ("starting", "running", "stopping"))

    @property
    def trials(self) -> int:
        """Number of trials of a hyperparameter search; 0 for another sweep."""
        return _count_trials(self.plan)

    @property
    def steps_saved(self) -> float:
        """Fraction of the env steps of all runs that were not trained because of pruning."""
        saved = sum(max(0, run.target_steps - run.env_steps) for run in self.runs if run.pruned)
        return saved / max(1, sum(run.target_steps for run in self.runs))

    @property
    def progress(self) -> float:
        """Fraction of all env steps that are trained. Finished and pruned runs count completely.

        The trials of a search that do not exist yet count with the mean number of env steps of the existing ones.
        """
        trained = sum(
            run.target_steps if run.status == "finished" or run.pruned else run.env_steps for run in self.runs
        )
        planned = sum(run.target_steps for run in self.runs) * max(1.0, self.trials / max(1, len(self.runs)))
        return min(1.0, trained / planned) if planned else 0.0

    @property
    def state(self) -> Literal["running", "paused", "finished", "stopped", "failed", "waiting"]:
        """State of the sweep; `waiting` means that runs are left and no worker starts them."""
        counts = self.counts
        if self.n_active:
            return "running"
        if self.is_over:
            return "failed" if counts["failed"] else "stopped" if counts["stopped"] else "finished"
        if self.status == "stopped":
            return "stopped"
        return "running" if self.has_worker else "paused" if counts["paused"] else "waiting"

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended, and all trials of a search exist."""
        return len(self.runs) >= self.trials and all(run.status in ENDED for run in self.runs)

    @property
    def has_nothing_to_start(self) -> bool:
        """Whether it is over, or is stopped and each of its trainers has read its stop command."""
        is_active = any(run.status not in ENDED and run.status != "lost" for run in self.runs)
        return self.is_over or (self.status == "stopped" and not is_active)

    def seconds_left(self) -> float | None:
        """Estimate the remaining time [s] from the mean speed of the runs so far, with `jobs` runs at the same time.

        Returns None if no run has trained yet, or if the sweep is paused.
        """
        steps = sum(run.env_steps for run in self.runs)
        seconds = sum(run.trained_s for run in self.runs)
        left = sum(max(0, run.target_steps - run.env_steps) for run in self.runs if run.status not in ENDED)
        if not left:
            return 0.0
        if not steps or seconds <= 0 or self.state == "paused":
            return None
        parallel = min(self.jobs, sum(run.status not in ENDED for run in self.runs))
        return left * seconds / steps / max(1, parallel)


def list_sweeps(db: Database, limit: int = 100) -> list[Sweep]:
    """Which sweeps were created last? Newest first."""
    newest = select(*SweepRow.__table__.columns).order_by(SweepRow.created_at.desc(), SweepRow.id).limit(limit)
    with db.read() as connection:
        rows = connection.execute(newest).all()
    return _with_progress(db, rows)


def get_sweep(db: Database, sweep_id: str) -> Sweep:
    """What are the plan and the progress of a sweep? An unambiguous prefix of its id is sufficient.

    Raises:
        StorageError: If no sweep matches, or more than one.
    """
    starts = SweepRow.id.startswith(sweep_id.strip().lower(), autoescape=True)
    with db.read() as connection:
        rows = connection.execute(select(*SweepRow.__table__.columns).where(starts).limit(2)).all()
    if len(rows) != 1 or not sweep_id.strip():
        count = "More than one" if len(rows) > 1 else "No"
        raise StorageError(f'{count} sweep starts with "{sweep_id}". List them with: emtc sweep --list')
    return _with_progress(db, rows)[0]


def find_sweep_names(db: Database, sweep_ids: Sequence[str]) -> dict[str, str]:
    """What are the names of these sweeps? Id → name; unknown ids are left out."""
    with db.read() as connection:
        names = select(SweepRow.id, SweepRow.name).where(SweepRow.id.in_(sweep_ids))
        return {row.id: row.name for row in connection.execute(names)}


def sweep_runs(db: Database, sweep_id: str) -> list[RunRow]:
    """Which runs does a sweep have? In the order of its plan."""
    columns = select(*RUN_COLUMNS).where(Run.sweep_id == sweep_id).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        now = read_clock(connection)
        return [make_run_row(db, row, now) for row in connection.execute(columns).all()]


def _with_progress(db: Database, rows: Sequence[Any]) -> list[Sweep]:
    columns = (
        *(Run.sweep_id, Run.env_steps, Run.target_steps, Run.started_at, Run.ended_at, Run.tags),
        *STATUS_COLUMNS,
    )
    of_sweeps = select(*columns).where(Run.sweep_id.in_([row.id for row in rows]))
    with db.read() as connection:
        runs = connection.execute(of_sweeps.order_by(Run.created_at, Run.id)).all()
        trained_s = measure_training_s(connection, runs)
        now = read_clock(connection)
    progress: dict[str, list[Progress]] = {}
    for run in runs:
        status, _ = read_live_status(db, run, now)
        is_pruned = shown_status(status, run.tags) == PRUNED
        progress.setdefault(run.sweep_id, []).append(
            Progress(run.id, status, run.env_steps, run.target_steps, trained_s.get(run.id, 0.0), is_pruned)
        )
    return [
        Sweep(
            id=row.id,
            name=row.name,
            status=row.status,
            created_at=row.created_at,
            jobs=row.jobs,
            has_worker=_has_worker(row, now),
            plan=row.plan,
            runs=tuple(progress.get(row.id, [])),
        )
        for row in rows
    ]


def _has_worker(row: Any, now: datetime) -> bool:
    """Return whether a worker of a sweep sends heartbeats. A search also needs an owner, which queues its trials."""
    if row.heartbeat_at is None or (now - row.heartbeat_at).total_seconds() > LOST_AFTER_S:
        return False
    return row.owner_token is not None or not _count_trials(row.plan)


def _count_trials(plan: Mapping[str, Any]) -> int:
    """Return the number of trials of a search; 0 for another sweep."""
    file = plan.get("file")
    search = file.get("optuna") if isinstance(file, Mapping) else None  # a foreign database may have any value
    trials = search.get("trials") if isinstance(search, Mapping) else None
    return trials if isinstance(trials, int) else 0
