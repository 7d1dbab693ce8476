"""What did the gate compute for the nodes of the memory and for the transitions of a run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import BigInteger, Double

from storage.engine import Database
from storage.frames import Statement, read_frame
from storage.models import SUMMARY_STEPS, GateStats, Run, Transition, TransitionSummary

if TYPE_CHECKING:
    import pandas as pd

_EXACT_STEPS = 40_000
"""A range of at most this many env steps is read from the transitions, a longer one from their sums."""


def gate_stats(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How consistent is the whole memory?

    Source: table `gate_stats`.

    Args:
        db: An open database.
        run_id: The run.
        after: Read only later env steps.

    Returns:
        One row per report of the gate: env_step [env steps], delta_mem_mean, delta_mem_q05 q25 q50 q75 q95 [return],
        beta_mean, beta_q05 … q95 (dimensionless), tau [return], memory_size [nodes], desirable_fraction.
    """
    columns = [column for column in GateStats.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(GateStats.run_id == run_id, GateStats.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(GateStats.env_step))


def gate_chart(
    db: Database, run_id: str, points: int = 2000, start: int | None = None, end: int | None = None
) -> pd.DataFrame:
    """How did the gate evaluate the transitions of a run, or of a part of it?

    A range of at most 40,000 env steps is read from the transitions, unless thinning has deleted them. A longer range
    is read from sums over blocks of 1,000 env steps, so it is extended to whole blocks. A transition for which
    the lookup found no node has no delta_mem, but counts in beta and n.

    Source: tables `transitions` and `transition_summary`.

    Args:
        db: An open database.
        run_id: The run.
        points: Maximum number of rows.
        start: First env step; None is the first of the run.
        end: Last env step; None is the last of the run.

    Returns:
        One row per group of transitions: env_step (last of the group), delta_mem_mean [return], delta_mem_max
        [return], beta_mean, beta_min, tau [return], n (transitions).
    """
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none() or 0
        first, last = max(1, start or 1), min(reached, end or reached)
        exact = last - first < _EXACT_STEPS and has_transitions(connection, run_id)
        make_statement = _select_from_transitions if exact else _select_from_summary
        statement = make_statement(run_id, first, last, points)
        frame = read_frame(connection, statement)
    frame["env_step"] = frame["env_step"].clip(upper=last)
    return frame


def newest_transitions(db: Database, run_id: str, until: int, limit: int) -> pd.DataFrame:
    """What did the gate compute for the newest transitions?

    Source: table `transitions`.

    Args:
        db: An open database.
        run_id: The run.
        until: Last env step.
        limit: Maximum number of rows.

    Returns:
        One row per transition, by env step: episode, reward [reward], h, h_next, delta_mem [return], beta
        (dimensionless), tau [return], slot, next_slot. There are no rows if thinning has deleted the transitions.
    """
    table = Transition
    gate_values = (table.reward, table.h, table.h_next, table.delta_mem, table.beta, table.tau)
    columns = (table.episode, *gate_values, table.slot, table.next_slot)
    newest = (table.run_id == run_id, table.env_step.between(until - limit + 1, until))
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(*newest).order_by(table.env_step))


def has_transitions(connection: Connection, run_id: str) -> bool:
    """Return whether the transitions of a run are stored. After thinning only their sums are."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    return connection.execute(first).first() is not None


def select_ratio(total: InstrumentedAttribute[float], count: InstrumentedAttribute[int]) -> ColumnElement[float]:
    """Return the SQL expression of a mean: the sum of sums divided by the sum of counts; NULL without a value."""
    return func.sum(total, type_=Double()) / func.nullif(func.sum(count, type_=Double()), 0.0, type_=Double())


def _select_from_transitions(run_id: str, first: int, last: int, points: int) -> Statement:
    table = Transition
    width = max(1, -(-(last - first + 1) // points))
    group = (table.env_step - first) // width
    return (
        select(
            func.max(table.env_step).label("env_step"),
            func.avg(table.delta_mem, type_=Double()).label("delta_mem_mean"),
            func.max(table.delta_mem).label("delta_mem_max"),
            func.avg(table.beta, type_=Double()).label("beta_mean"),
            func.min(table.beta).label("beta_min"),
            func.avg(table.tau, type_=Double()).label("tau"),
            func.count().label("n"),
        )
        .where(table.run_id == run_id, table.env_step.between(first, last))
        .group_by(group)
        .order_by(group)
    )


def _select_from_summary(run_id: str, first: int, last: int, points: int) -> Statement:
    table = TransitionSummary
    first_bucket, last_bucket = (first - 1) // SUMMARY_STEPS, (last - 1) // SUMMARY_STEPS
    width = max(1, -(-(last_bucket - first_bucket + 1) // points))
    group = (table.bucket - first_bucket) // width
    return (
        select(
            ((func.max(table.bucket) + 1) * SUMMARY_STEPS).label("env_step"),
            select_ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem_mean"),
            func.max(table.delta_mem_max).label("delta_mem_max"),
            select_ratio(table.beta_sum, table.beta_n).label("beta_mean"),
            func.min(table.beta_min).label("beta_min"),
            select_ratio(table.tau_sum, table.tau_n).label("tau"),
            func.sum(table.n, type_=BigInteger()).label("n"),
        )
        .where(table.run_id == run_id, table.bucket.between(first_bucket, last_bucket))
        .group_by(group)
        .order_by(group)
    )
