"""The table `transition_summary`: sums per SUMMARY_STEPS transitions, for charts over whole runs."""

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, literal, select

from storage.models import SUMMARY_STEPS, Transition, TransitionSummary

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
