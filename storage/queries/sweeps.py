"""Which sweeps are there, how far are they, and which runs has one?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import select

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.models import Run, SweepRow
from storage.runs.lifecycle import LiveStatus, is_process_gone
from storage.runs.rows import RUN_COLUMNS, RunRow, make_run_row, observe
from storage.runs.sweeps import SweepStatus

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

    @property
    def counts(self) -> Counter[str]:
        """How many runs have each live status."""
        return Counter(run.status for run in self.runs)

    @property
    def done(self) -> float:
        """The share of all env steps that are done; a finished run counts as whole."""
        wanted = sum(run.target_steps for run in self.runs)
        reached = (run.target_steps if run.status == "finished" else run.env_steps for run in self.runs)
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
    def is_over(self) -> bool:
        """Whether no run is left to do."""
        return all(run.status in ENDED for run in self.runs)

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
        raise StorageError(f'{which} sweep starts with "{sweep_id}". List them with: emtc sweep --list')
    return _with_progress(db, rows)[0]


def sweep_runs(db: Database, sweep_id: str) -> list[RunRow]:
    """Which runs has a sweep, in the order of its plan?"""
    columns = select(*RUN_COLUMNS).where(Run.sweep_id == sweep_id).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        return [make_run_row(db, row) for row in connection.execute(columns).all()]


def _with_progress(db: Database, rows: Sequence[Any]) -> list[Sweep]:
    columns = (
        *(Run.id, Run.sweep_id, Run.status, Run.env_steps, Run.target_steps, Run.started_at, Run.ended_at),
        *(Run.heartbeat_at, Run.pid, Run.pid_created_at, Run.host, Run.claimed_at),
    )
    wanted = select(*columns).where(Run.sweep_id.in_([row.id for row in rows])).order_by(Run.created_at, Run.id)
    with db.read() as connection:
        runs = connection.execute(wanted).all()
    progress: dict[str, list[Progress]] = {}
    for run in runs:
        status = observe(db, run)[0]
        if run.status == "queued" and status == "lost" and run.started_at is None:
            status = "queued"  # its scheduler died before the trainer began: it waits, nothing is lost
        known = Progress(run.id, status, run.env_steps, run.target_steps, run.started_at, run.ended_at)
        progress.setdefault(run.sweep_id, []).append(known)
    return [_make_sweep(row, progress.get(row.id, [])) for row in rows]


def _make_sweep(row: Any, runs: Sequence[Progress]) -> Sweep:
    alive = row.pid is not None and not is_process_gone(row)
    return Sweep(row.id, row.name, row.status, row.created_at, row.jobs, alive, row.plan, tuple(runs))
