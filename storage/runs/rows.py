"""Runs as they stand in the table: found by their id, with what their process does and where they are in their life.

What a run's rows come to is kept beside them: its curves in its own row, its transitions in sums. A list of thousands
of runs sorts and filters by `runs.mu_w` and `runs.gate_removed`, and charts over whole runs read
`transition_summary`, sums per SUMMARY_STEPS transitions. All are written in the transaction that changes the rows. What
mu_w means is defined by `app.analysis.aggregates`, a gate that acts by `storage.queries.gate`; tests keep these
statements equal to both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, case, func, insert, literal, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage import clock
from storage.engine import Database
from storage.files.trainer_files import stall_reason
from storage.models import SUMMARY_STEPS, CommandRow, Evaluation, MetricRow, Run, Transition, TransitionSummary
from storage.runs import lifecycle
from storage.runs.lifecycle import LiveStatus, State, is_process_alive, live_status

if TYPE_CHECKING:  # a list of runs sums nothing
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
STOP_ASKED_AT: Final = (
    select(func.max(CommandRow.requested_at))
    .where(CommandRow.run_id == Run.id, CommandRow.command == "stop")
    .scalar_subquery()
    .label("stop_asked_at")
)
"""When somebody last asked a run to stop."""
STATE_COLUMNS: Final = (
    *(Run.id, Run.status, Run.heartbeat_at, Run.pid, Run.pid_created_at, Run.host, Run.claimed_at, Run.started_at),
    STOP_ASKED_AT,
)
"""What `observe` and `state_now` need of a row."""

PRUNED: Final = "pruned"
"""The tag of a run that a search has ended early; stored as stopped, shown as pruned."""


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


STORED: Final = tuple(column for column in Run.__table__.columns if column.name in RunRow.__annotations__)
"""The columns of `runs` that RunRow names."""
RUN_COLUMNS: Final = (*STORED, STOP_ASKED_AT)
"""What `make_run_row` needs of a row."""


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
        raise RunNotFoundError(
            f'No run starts with "{prefix}". List them with: emtc runs', reason="not_found", subject=prefix
        )
    ids = ", ".join(row.id for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    raise RunNotFoundError(
        f'More than one run starts with "{prefix}": {ids}. Write more of the id.', reason="ambiguous", subject=prefix
    )


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
        raise RunNotFoundError(
            f'There is no run "{run_id}". List them with: emtc runs', reason="not_found", subject=run_id
        )
    return row


def name_seed(seed: object) -> str:
    """A seed in words; a number below 0 is that of a run whose source tells no seeds."""
    return f"run {-seed} (seed unknown)" if isinstance(seed, int) and seed < 0 else f"seed {seed}"


def imported_label(config: Mapping[str, Any]) -> str | None:
    """Where an imported run came from, as legends say it; None for a run of this program."""
    from emtc_core.config.base import IMPORTED  # behind it is pydantic, which no list of runs needs

    mark = config.get(IMPORTED)
    return str(mark.get("label", "")) or IMPORTED if isinstance(mark, Mapping) else None


def refuse_imported(row: Any, act: str) -> None:
    """Refuse what only a run that was trained here can do.

    Raises:
        RunStateError: If the run was imported.
    """
    if (label := imported_label(row.config)) is not None:
        raise RunStateError(
            f"Run {row.id} was imported ({label}): it is a curve without checkpoint and memory, and cannot {act}.",
            reason="imported",
            subject=row.id,
        )


def shown_status(status: str, tags: Sequence[str]) -> str:
    """A status as people see it: a stopped run that a search pruned is `pruned`.

    `runs.status` keeps its six words, which scripts and older versions know; the tag travels with the run.
    """
    return PRUNED if status == "stopped" and PRUNED in tags else status


_CURVES: Final = ("evaluations", "metrics")


def _mu_w() -> ColumnElement[Any]:
    """Average the win rate over env steps by the trapezoid rule; a single evaluation is its own average."""
    width = Evaluation.env_step - func.lag(Evaluation.env_step).over(order_by=Evaluation.env_step)
    height = (Evaluation.win_rate + func.lag(Evaluation.win_rate).over(order_by=Evaluation.env_step)) / 2.0
    pieces = (
        select(Evaluation.env_step, Evaluation.win_rate, (width * height).label("area"))
        .where(Evaluation.run_id == Run.id, Evaluation.win_rate.is_not(None))
        .correlate(Run)
        .subquery()
    )
    span = func.max(pieces.c.env_step) - func.min(pieces.c.env_step)
    mean = case((span > 0, func.sum(pieces.c.area) / span), else_=func.max(pieces.c.win_rate))
    return select(mean).scalar_subquery()


def _gate_removed() -> ColumnElement[Any]:
    """Average what the gate removed over its reports; it has reported with its first episodes or there is none."""

    def values(name: str, what: ColumnElement[Any]) -> ColumnElement[Any]:
        wanted = (MetricRow.run_id == Run.id, MetricRow.name == name, MetricRow.value.is_not(None))
        return select(what).where(*wanted).correlate(Run).scalar_subquery()

    removed = func.coalesce(values("gate/incentive_removed", func.avg(MetricRow.value)), 0.0)
    reported = values("gate/beta_new", func.min(MetricRow.env_step)).is_not(None)
    return case((reported, removed))


def update_run_summary(connection: Connection, run_id: str, *, curves: Collection[str] = _CURVES) -> None:
    """Bring a run's row up to its curves.

    Args:
        connection: Inside the transaction that changed them.
        run_id: The run.
        curves: The tables that were changed.
    """
    values: dict[str, Any] = {}
    if "evaluations" in curves:
        values["mu_w"] = _mu_w()
    if "metrics" in curves:
        values["gate_removed"] = _gate_removed()
    if values:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


SummaryRow = tuple[int, int, int, float, float | None, int, float, float | None, int, float]
"""bucket, n, delta_mem n, sum, max, beta n, sum, min, tau n, sum."""


def summarize(first_env_step: int, delta_mem: Floats, beta: Floats, tau: Floats) -> list[SummaryRow]:
    """Sum consecutive transitions per bucket; NaN counts as missing.

    Args:
        first_env_step: The step of element 0.
        delta_mem: [T] consistency errors.
        beta: [T] gates.
        tau: [T] temperatures.

    Returns:
        One row for each bucket touched, to be added to what the table holds.
    """
    import numpy as np

    buckets = (np.arange(first_env_step, first_env_step + len(delta_mem)) - 1) // SUMMARY_STEPS
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
    sizes = np.diff(np.r_[starts, len(buckets)])
    delta_n, delta_sum = _count_and_sum(delta_mem, starts)
    beta_n, beta_sum = _count_and_sum(beta, starts)
    tau_n, tau_sum = _count_and_sum(tau, starts)
    delta_max = np.fmax.reduceat(delta_mem, starts)
    beta_min = np.fmin.reduceat(beta, starts)
    columns = (
        *(buckets[starts], sizes, delta_n, delta_sum, _with_none(delta_max)),
        *(beta_n, beta_sum, _with_none(beta_min), tau_n, tau_sum),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def summarize_bucket(connection: Connection, run_id: str, bucket: int) -> None:
    """Sum one bucket anew from its transitions, after some of them were removed."""
    first = bucket * SUMMARY_STEPS + 1
    table, summary = Transition, TransitionSummary
    source = select(
        table.run_id,
        literal(bucket),
        func.count(),
        func.count(table.delta_mem),
        func.coalesce(func.sum(table.delta_mem), 0.0),
        func.max(table.delta_mem),
        func.count(table.beta),
        func.coalesce(func.sum(table.beta), 0.0),
        func.min(table.beta),
        func.count(table.tau),
        func.coalesce(func.sum(table.tau), 0.0),
    ).where(table.run_id == run_id, table.env_step.between(first, first + SUMMARY_STEPS - 1))
    columns = [column.name for column in summary.__table__.columns]
    connection.execute(insert(summary).from_select(columns, source.group_by(table.run_id)))


def _count_and_sum(values: Floats, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    import numpy as np

    present = ~np.isnan(values)
    counts = np.add.reduceat(present.astype(np.int64), starts)
    return counts, np.add.reduceat(np.where(present, values, 0.0), starts)


def _with_none(values: Floats) -> NDArray[np.object_]:
    import numpy as np

    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return objects
