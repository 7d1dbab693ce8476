"""Sweeps: planned, queued, stopped, continued; which there are, how far they are, and which runs one has.

A sweep's runs are rows of `runs` that carry its id. Who takes them stands in `claims`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import insert, select, update

from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import StorageError
from storage import clock
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.changes import new_run_values
from storage.runs.claims import Worker, find_sweep_locked, is_unclaimed, lock_sweep, ownerless
from storage.runs.lifecycle import LiveStatus, is_process_alive, is_process_gone
from storage.runs.rows import PRUNED, RUN_COLUMNS, RunRow, forget_commands, make_run_row, observe, shown_status

SweepStatus = Literal["active", "stopped"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan: `key` tells it from every other run of all sweeps."""

    key: str
    name: str
    config: Mapping[str, Any]
    target_steps: int
    settings: frozenset[str] = frozenset({"seed"})
    """Dotted keys of the settings by which the runs of its sweep differ."""


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
    """Write a sweep and queue the runs that it does not have yet, all or nothing; again changes nothing.

    A finished run that a bundle brought takes the place of a planned run (`match_imported`), so that a study can be
    continued elsewhere.

    Returns:
        How many runs were queued.
    """
    now = clock.now()
    with db.transaction() as connection:
        values = {"name": name, "plan": dict(plan), "jobs": jobs, "status": "active"}
        if find_sweep_locked(connection, sweep_id) is None:
            connection.execute(insert(SweepRow), {"id": sweep_id, "created_at": now, **values})
        else:
            connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))
        there = connection.execute(
            select(Run.launch_token, Run.status, Run.config).where(Run.sweep_id == sweep_id)
        ).all()
        known = {row.launch_token for row in there}
        known |= match_imported(runs, there)
        fresh = [run for run in runs if run.key not in known]
        for i, run in enumerate(fresh):
            row = {
                **new_run_values(connection, run.config, run.name),
                "target_steps": run.target_steps,
                "versions": dict(versions),
                "sweep_id": sweep_id,
                "launch_token": run.key,
                "created_at": now + timedelta(microseconds=i),  # the list keeps the order of the plan
            }
            connection.execute(insert(Run), row)
    return len(fresh)


def queue_run(db: Database, sweep_id: str, run: PlannedRun, *, versions: Mapping[str, Any]) -> str | None:
    """Queue one more run of a sweep whose runs follow from each other; None where the sweep was stopped.

    Returns:
        Its id, or that of the run that has its key already.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        if lock_sweep(connection, sweep_id).status == "stopped":
            return None
        known = connection.execute(select(Run.id).where(Run.launch_token == run.key)).scalar_one_or_none()
        if known is not None:
            return known
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
    """Find the planned runs of a sweep that finished runs out of a bundle have done.

    A bundle leaves the launch token behind, which is the key of a planned run. An imported run is therefore matched by
    the settings in which the sweep's runs differ. Its other settings may differ from the plan: a preset of this version
    may have other values than the one that the run was trained with.

    Args:
        planned: The planned runs.
        runs: The runs of the sweep in the database: launch_token, status and config of each.

    Returns:
        Keys of the planned runs that are done.
    """
    imported = [flatten_tree(run.config) for run in runs if run.launch_token is None and run.status == "finished"]
    done: set[str] = set()
    for run in planned if imported else ():
        config = flatten_tree(run.config)
        same = next((each for each in imported if _agree(config, each, run.settings)), None)
        if same is not None:
            imported.remove(same)
            done.add(run.key)
    return frozenset(done)


def _agree(config: Mapping[str, Any], other: Mapping[str, Any], settings: Iterable[str]) -> bool:
    """Whether two flat configurations are equal in those of some settings that both have."""
    return all(config[key] == other[key] for key in settings if key in config and key in other)


def attach_scheduler(db: Database, sweep_id: str, worker: Worker, *, jobs: int) -> None:
    """Note which process starts the runs of a sweep, and how many at once.

    Raises:
        StorageError: If there is no such sweep.
    """
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        values = {"pid": worker.pid, "pid_created_at": worker.pid_created_at, "host": worker.host, "jobs": jobs}
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(**values))


def detach_scheduler(db: Database, sweep_id: str, worker: Worker) -> None:
    """Note that this process starts no more runs of a sweep; another's note stays."""
    with db.transaction() as connection:
        mine = (SweepRow.id == sweep_id, SweepRow.pid == worker.pid, SweepRow.host == worker.host)
        connection.execute(update(SweepRow).where(*mine).values(pid=None, pid_created_at=None, host=None))


def stop_sweep(db: Database, sweep_id: str) -> tuple[int, list[str]]:
    """Start no further run of a sweep: what is queued becomes stopped.

    Returns:
        How many runs left the queue, and the runs that are being worked on; ask each of those to stop.

    Raises:
        StorageError: If there is no such sweep.
    """
    columns = select(*Run.__table__.columns).where(
        Run.sweep_id == sweep_id, Run.status.in_(("queued", "running", "paused"))
    )
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="stopped"))
        rows = connection.execute(columns).all()
        waiting = [row.id for row in rows if is_unclaimed(row)]
        values = {"status": "stopped", "ended_at": clock.now()}
        connection.execute(update(Run).where(Run.id.in_(waiting)).values(**values))
    return len(waiting), [row.id for row in rows if row.id not in waiting]


def requeue(
    db: Database,
    sweep_id: str,
    statuses: Collection[Literal["stopped", "failed"]],
    *,
    without: Collection[str] = (),
) -> int:
    """Queue ended runs of a sweep again, but none that a search pruned; each goes on from its checkpoint if it can.

    Args:
        db: An open database.
        sweep_id: The sweep.
        statuses: How they ended.
        without: Runs that stay as they are.

    Returns:
        How many there were.
    """
    with db.transaction() as connection:
        lock_sweep(connection, sweep_id)
        ended = select(Run.id, Run.tags).where(Run.sweep_id == sweep_id, Run.status.in_(statuses))
        ids = [row.id for row in connection.execute(ended) if PRUNED not in row.tags and row.id not in without]
        forget_commands(connection, ids)
        connection.execute(update(Run).where(Run.id.in_(ids)).values(**ownerless()))
        connection.execute(update(SweepRow).where(SweepRow.id == sweep_id).values(status="active"))
    return len(ids)


ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


@dataclass(frozen=True)
class Progress:
    """One run of a sweep, as far as its progress goes."""

    run_id: str
    status: LiveStatus
    env_steps: int
    target_steps: int
    started_at: datetime | None
    ended_at: datetime | None
    pruned: bool = False
    """Whether a search has ended it early."""


@dataclass(frozen=True)
class Sweep:
    """One sweep with the progress of its runs."""

    id: str
    name: str
    status: SweepStatus
    created_at: datetime
    jobs: int
    has_scheduler: bool
    plan: Mapping[str, Any]
    runs: tuple[Progress, ...]
    scheduler_here: int | None = None
    """The process that starts its runs, where this machine certainly has it."""

    @property
    def counts(self) -> Counter[str]:
        """How many runs have each live status; those that a search pruned are counted as `pruned`."""
        return Counter(PRUNED if run.pruned else run.status for run in self.runs)

    @property
    def trials(self) -> int:
        """How many trials a search is to have; 0 where it is none."""
        file = self.plan.get("file")
        search = file.get("optuna") if isinstance(file, Mapping) else None  # a foreign database may hold anything
        trials = search.get("trials") if isinstance(search, Mapping) else None
        return trials if isinstance(trials, int) else 0

    @property
    def steps_saved(self) -> float:
        """The share of the env steps of all its runs that pruning has spared."""
        spared = sum(max(0, run.target_steps - run.env_steps) for run in self.runs if run.pruned)
        return spared / max(1, sum(run.target_steps for run in self.runs))

    @property
    def done(self) -> float:
        """The share of all env steps that are done; a finished run counts as whole."""
        wanted = sum(run.target_steps for run in self.runs)
        reached = (run.target_steps if run.status == "finished" or run.pruned else run.env_steps for run in self.runs)
        wanted *= max(1.0, self.trials / max(1, len(self.runs)))
        return min(1.0, sum(reached) / wanted) if wanted else 0.0

    @property
    def state(self) -> Literal["running", "paused", "finished", "stopped", "failed", "lost"]:
        """What goes on, in one word; `lost` means that runs are left and nobody starts them."""
        counts = self.counts
        if counts["running"]:
            return "running"
        if self.is_over:
            return "failed" if counts["failed"] else "stopped" if counts["stopped"] else "finished"
        if self.status == "stopped":
            return "stopped"
        return "running" if self.has_scheduler else "paused" if counts["paused"] else "lost"

    @property
    def is_for_workers(self) -> bool:
        """Whether its runs were queued for `emtc worker`, and no scheduler is to start them."""
        return self.plan.get("for_workers") is True

    @property
    def is_attended(self) -> bool:
        """Whether a scheduler or a worker takes its queued and lost runs.

        Workers are not listed in the database. One is at work if a run is trained although the sweep has no scheduler.
        """
        if self.has_scheduler or self.trials or self.status == "stopped":
            return self.has_scheduler  # the trials of a search are queued by its scheduler
        return self.is_for_workers or self.counts["running"] > 0

    @property
    def is_over(self) -> bool:
        """Whether no run is left to do."""
        return len(self.runs) >= self.trials and all(run.status in ENDED for run in self.runs)

    def seconds_left(self, now: datetime | None = None) -> float | None:
        """Estimate what is left at the speed that its own trainers had, `jobs` at once; None before there is one."""
        moment = now or datetime.now(UTC)
        worked = [(run.env_steps, (run.ended_at or moment) - run.started_at) for run in self.runs if run.started_at]
        steps, seconds = sum(n for n, _ in worked), sum(span.total_seconds() for _, span in worked)
        left = sum(max(0, run.target_steps - run.env_steps) for run in self.runs if run.status not in ENDED)
        if not left:
            return 0.0
        if not steps or seconds <= 0:
            return None
        at_once = min(self.jobs, sum(run.status not in ENDED for run in self.runs))
        return left * seconds / steps / max(1, at_once)


def list_sweeps(db: Database, limit: int = 100) -> list[Sweep]:
    """Which sweeps were made last?"""
    newest = select(*SweepRow.__table__.columns).order_by(SweepRow.created_at.desc(), SweepRow.id).limit(limit)
    with db.read() as connection:
        rows = connection.execute(newest).all()
    return _with_progress(db, rows)


def get_sweep(db: Database, sweep_id: str) -> Sweep:
    """What is this sweep? An unambiguous prefix of the id will do.

    Raises:
        StorageError: If no sweep, or more than one, answers to it.
    """
    starts = SweepRow.id.startswith(sweep_id.strip().lower(), autoescape=True)
    with db.read() as connection:
        rows = connection.execute(select(*SweepRow.__table__.columns).where(starts).limit(2)).all()
    if len(rows) != 1 or not sweep_id.strip():
        which = "More than one" if len(rows) > 1 else "No"
        raise StorageError(
            f'{which} sweep starts with "{sweep_id}". List them with: emtc sweep --list',
            reason="not_found" if which == "No" else "ambiguous",
            subject=sweep_id,
        )
    return _with_progress(db, rows)[0]


def sweep_runs(db: Database, sweep_id: str) -> list[RunRow]:
    """Which runs has a sweep, in the order of its plan?"""
    columns = select(*RUN_COLUMNS).where(Run.sweep_id == sweep_id).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        return [make_run_row(db, row) for row in connection.execute(columns).all()]


def _with_progress(db: Database, rows: Sequence[Any]) -> list[Sweep]:
    columns = (
        *(Run.id, Run.sweep_id, Run.status, Run.env_steps, Run.target_steps, Run.started_at, Run.ended_at),
        *(Run.heartbeat_at, Run.pid, Run.pid_created_at, Run.host, Run.claimed_at, Run.tags),
    )
    wanted = select(*columns).where(Run.sweep_id.in_([row.id for row in rows])).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        runs = connection.execute(wanted).all()
    progress: dict[str, list[Progress]] = {}
    for run in runs:
        status = observe(db, run)[0]
        if run.status == "queued" and status == "lost" and run.started_at is None:
            status = "queued"  # its scheduler died before the trainer began: it waits, nothing is lost
        pruned = shown_status(status, run.tags) == PRUNED
        known = Progress(run.id, status, run.env_steps, run.target_steps, run.started_at, run.ended_at, pruned)
        progress.setdefault(run.sweep_id, []).append(known)
    return [_make_sweep(row, progress.get(row.id, [])) for row in rows]


def _make_sweep(row: Any, runs: Sequence[Progress]) -> Sweep:
    alive = row.pid is not None and not is_process_gone(row)
    here = row.pid if is_process_alive(row) else None
    return Sweep(row.id, row.name, row.status, row.created_at, row.jobs, alive, row.plan, tuple(runs), here)
