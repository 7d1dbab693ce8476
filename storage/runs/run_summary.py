"""What a run's rows come to, kept beside them: its curves in its own row, its transitions in sums.

A list of thousands of runs sorts and filters by `runs.mu_w` and `runs.gate_removed`, and charts over whole runs read
`transition_summary`, sums per SUMMARY_STEPS transitions. All are written in the transaction that changes the rows. What
mu_w means is defined by `app.analysis.statistics`, a gate that acts by `storage.queries.gate`; tests keep these
statements equal to both.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, case, func, insert, literal, select, update

from storage.models import SUMMARY_STEPS, Evaluation, MetricRow, Run, Transition, TransitionSummary

_CURVES: Final = ("evaluations", "metrics")


def _mu_w() -> ColumnElement[Any]:
    """Average the win rate over env steps by the trapezoid rule; a single evaluation is its own average."""
    width = Evaluation.env_step - func.lag(Evaluation.env_step).over(order_by=Evaluation.env_step)
    height = (Evaluation.win_rate + func.lag(Evaluation.win_rate).over(order_by=Evaluation.env_step)) / 2.0
    pieces = (
        select(Evaluation.env_step, Evaluation.win_rate, (width * height).label("area"))
        .where(Evaluation.run_id == Run.id)
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


Floats = NDArray[np.float64]


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
    present = ~np.isnan(values)
    counts = np.add.reduceat(present.astype(np.int64), starts)
    return counts, np.add.reduceat(np.where(present, values, 0.0), starts)


def _with_none(values: Floats) -> NDArray[np.object_]:
    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return objects
