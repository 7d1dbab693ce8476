"""Find a run, compute its status, and update the summaries that are stored with it.

The row of a run contains `mu_w` and `gate_removed`, so that a list of thousands of runs can be sorted and filtered by
them. The table `transition_summary` contains sums over SUMMARY_STEPS transitions, for charts of whole runs. Both are
updated in the transaction that changes the underlying rows. `app.analysis.aggregates` defines mu_w, and
`storage.queries.gate_state` an active gate. Tests check that the statements here give the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Connection, case, func, insert, literal, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.files import read_stall_reason
from storage.models import (
    RUN_TABLE_COLUMNS,
    SUMMARY_STEPS,
    CommandRow,
    Evaluation,
    MetricRow,
    Run,
    Transition,
    TransitionSummary,
)
from storage.runs.status import (
    LOST_AFTER_S,
    NOT_ENDED,
    STOP_ASKED_AT,
    Action,
    Status,
    check_allowed,
    read_clock,
    status,
)

if TYPE_CHECKING:  # only the summaries of transitions need numpy
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_CURVE_TABLES: Final = ("evaluations", "metrics")
PRUNED: Final = "pruned"
"""Tag of a run that a hyperparameter search has stopped early. It is stored as stopped and shown as pruned."""


SummaryRow = tuple[int, int, int, float, float | None, int, float, float | None, int, float]
"""A row of `transition_summary`: bucket, n, then n, sum and max of delta_mem, n, sum and min of beta, n, sum of tau."""


RUN_COLUMNS: Final = (*RUN_TABLE_COLUMNS, STOP_ASKED_AT)
"""The columns that `make_run_row` needs. Each is a field of RunRow."""

if TYPE_CHECKING:

    @dataclass(frozen=True)
    class RunRow(Run):
        """The row of a run, and what is computed from it. The columns are declared in `Run`."""

        stop_asked_at: datetime | None
        live_status: Status
        """The status that people see. `status` is the stored one."""
        stall: str | None
        """Why the recorder waits (full disk, locked database), or None."""

else:  # the same fields, as a record that is independent of the database
    RunRow = make_dataclass(
        "RunRow",
        [*(column.name for column in RUN_COLUMNS), "live_status", "stall"],
        frozen=True,
        namespace={"__module__": __name__},
    )


def find_run(db: Database, prefix: str) -> RunRow:
    """Get the run whose id starts with `prefix`.

    Raises:
        RunNotFoundError: If no run matches, or more than one and none of them exactly.
    """
    start = prefix.strip().lower()
    if not start:
        raise RunNotFoundError("A run id must not be empty. List the runs with: emtc runs")
    with db.read() as connection:
        statement = select(*RUN_COLUMNS).where(Run.id.startswith(start, autoescape=True))
        rows = connection.execute(statement.order_by(Run.id).limit(6)).all()
        now = read_clock(connection)
    exact = [row for row in rows if row.id == start]
    if len(rows) == 1 or exact:
        return make_run_row(db, (exact or rows)[0], now)
    if not rows:
        raise RunNotFoundError(f'Run "{prefix}" not found. List runs with: emtc runs')
    ids = ", ".join(row.id for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    raise RunNotFoundError(f'More than one run starts with "{prefix}": {ids}. Write more of the id.')


def make_run_row(db: Database, row: Any, now: datetime) -> RunRow:
    """Make a record from the row of a run.

    Args:
        db: The database.
        row: A row of the columns RUN_COLUMNS.
        now: The time, as `read_clock` returns it.
    """
    live_status, stall = read_live_status(db, row, now)
    return RunRow(**row._mapping, live_status=live_status, stall=stall)


def read_live_status(db: Database, row: Any, now: datetime) -> tuple[Status, str | None]:
    """Return the status of a run, and why its recorder waits (or None).

    A trainer that cannot write because the disk is full cannot send heartbeats either. On its host, its state file
    shows that it is paused and not lost.

    Args:
        db: The database, next to which the state file is.
        row: A row with STATUS_COLUMNS.
        now: The time, as `read_clock` returns it.
    """
    live_status = status(row, now)
    if row.status == "queued" or row.status not in NOT_ENDED:
        return live_status, None
    stall = read_stall_reason(db, row.id, max_age_s=LOST_AFTER_S)
    return ("paused" if live_status == "lost" and stall else live_status), stall


def lock_for_action(db: Database, connection: Connection, run_id: str, action: Action) -> Any:
    """Read the row of a run, lock it until the end of the transaction, and check that its status allows an action.

    Args:
        db: The database.
        connection: The transaction.
        run_id: The run.
        action: The action.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If its status does not allow the action.
    """
    row = get_locked_row(connection, run_id)
    check_allowed(run_id, read_live_status(db, row, read_clock(connection))[0], action)
    return row


def acknowledge_pending_commands(connection: Connection, run_ids: Sequence[str]) -> None:
    """Mark the pending commands of runs as acknowledged, because the trainers that they were sent to have gone."""
    pending = (CommandRow.run_id.in_(run_ids), CommandRow.acknowledged_at.is_(None))
    connection.execute(update(CommandRow).where(*pending).values(acknowledged_at=read_clock(connection)))


def get_locked_row(connection: Connection, run_id: str) -> Any:
    """Read the row of a run and lock it until the end of the transaction.

    Raises:
        RunNotFoundError: If there is no such run.
    """
    columns = select(*RUN_COLUMNS).where(Run.id == run_id).with_for_update(of=Run)
    row = connection.execute(columns).one_or_none()
    if row is None:
        raise make_not_found_error(run_id)
    return row


def make_not_found_error(run_id: str) -> RunNotFoundError:
    """Make the error for an id that no run has."""
    message = f'There is no run "{run_id}". List them with: emtc runs'
    return RunNotFoundError(message)


def format_seed(seed: object) -> str:
    """Return a seed as text. A negative number means that the source of an imported run has no seeds."""
    return f"run {-seed} (seed unknown)" if isinstance(seed, int) and seed < 0 else f"seed {seed}"


def imported_label(config: Mapping[str, Any]) -> str | None:
    """Return the source of an imported run, as legends show it; None for a run trained by this program."""
    from emtc_core.config.base import IMPORTED  # imported late: it loads pydantic

    mark = config.get(IMPORTED)
    return str(mark.get("label", "")) or IMPORTED if isinstance(mark, Mapping) else None


def check_not_imported(row: Any, act: str) -> None:
    """Raise if a run was imported. `act` completes "the run cannot …".

    Raises:
        RunStateError: If the run was imported.
    """
    if (label := imported_label(row.config)) is not None:
        raise RunStateError(
            f"Run {row.id} was imported ({label}). It has no checkpoint and no memory, so it cannot {act}."
        )


def shown_status(status: str, tags: Sequence[str]) -> str:
    """Return the status that is shown to users: a stopped run with the tag `pruned` is `pruned`.

    The column `runs.status` has no such value.
    """
    return PRUNED if status == "stopped" and PRUNED in tags else status


def _mu_w() -> ColumnElement[Any]:
    """Select the mean win rate over env steps by the trapezoidal rule; of a single evaluation its win rate."""
    width = Evaluation.env_step - func.lag(Evaluation.env_step).over(order_by=Evaluation.env_step)
    height = (Evaluation.win_rate + func.lag(Evaluation.win_rate).over(order_by=Evaluation.env_step)) / 2.0
    intervals = (
        select(Evaluation.env_step, Evaluation.win_rate, (width * height).label("area"))
        .where(Evaluation.run_id == Run.id, Evaluation.win_rate.is_not(None))
        .correlate(Run)
        .subquery()
    )
    span = func.max(intervals.c.env_step) - func.min(intervals.c.env_step)
    mean = case((span > 0, func.sum(intervals.c.area) / span), else_=func.max(intervals.c.win_rate))
    return select(mean).scalar_subquery()


def _gate_removed() -> ColumnElement[Any]:
    """Select the mean fraction of the incentive that the gate removed; NULL without a gate.

    A run with a gate reports `gate/beta_new` from its first episodes on.
    """

    def aggregate(name: str, value: ColumnElement[Any]) -> ColumnElement[Any]:
        conditions = (MetricRow.run_id == Run.id, MetricRow.name == name, MetricRow.value.is_not(None))
        return select(value).where(*conditions).correlate(Run).scalar_subquery()

    removed = func.coalesce(aggregate("gate/incentive_removed", func.avg(MetricRow.value)), 0.0)
    has_gate = aggregate("gate/beta_new", func.min(MetricRow.env_step)).is_not(None)
    return case((has_gate, removed))


def update_run_summary(connection: Connection, run_id: str, *, curves: Collection[str] = _CURVE_TABLES) -> None:
    """Update `mu_w` and `gate_removed` in the row of a run.

    Args:
        connection: The transaction that changed the curves.
        run_id: The run.
        curves: The tables that were changed: evaluations, metrics or both.
    """
    values: dict[str, Any] = {}
    if "evaluations" in curves:
        values["mu_w"] = _mu_w()
    if "metrics" in curves:
        values["gate_removed"] = _gate_removed()
    if values:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


def sum_by_bucket(first_env_step: int, delta_mem: Floats, beta: Floats, tau: Floats) -> list[SummaryRow]:
    """Sum consecutive transitions per bucket of SUMMARY_STEPS env steps. NaN means missing.

    Args:
        first_env_step: Env step of element 0.
        delta_mem: Temporal-consistency errors [T] [return].
        beta: Gate coefficients [T].
        tau: Temperatures [T] [return].

    Returns:
        One row per bucket that contains one of the transitions. The caller adds it to the row in the table.
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
        *(buckets[starts], sizes, delta_n, delta_sum, _nan_to_none(delta_max)),
        *(beta_n, beta_sum, _nan_to_none(beta_min), tau_n, tau_sum),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def summarize_bucket(connection: Connection, run_id: str, bucket: int) -> None:
    """Insert the row of one bucket, summed from its transitions. The caller has deleted the old row.

    Args:
        connection: The connection.
        run_id: The run.
        bucket: Number of the bucket, from 0.
    """
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


def _nan_to_none(values: Floats) -> NDArray[np.object_]:
    import numpy as np

    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return objects
