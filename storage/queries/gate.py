"""What does the gate do? Statistics over the memory, and the verdicts on the transitions themselves."""

from collections.abc import Sequence

import pandas as pd
from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import BigInteger, Double

from storage.engine import Database
from storage.frames import Statement, read_frame
from storage.models import SUMMARY_STEPS, EpisodeRow, GateStats, Run, Transition, TransitionSummary

_EXACT_STEPS = 40_000  # ranges up to this long are read from the transitions themselves


def gate_stats(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How consistent is the whole memory? One row per report after env step `after`.

    Returns:
        env_step, delta_mem_mean, delta_mem_q05 q25 q50 q75 q95, beta_mean, beta_q05 … q95, tau,
        memory_size, desirable_fraction.
    """
    columns = [column for column in GateStats.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(GateStats.run_id == run_id, GateStats.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(GateStats.env_step))


def gate_chart(
    db: Database, run_id: str, points: int = 2000, start: int | None = None, end: int | None = None
) -> pd.DataFrame:
    """How did the gate judge the transitions of a run, or of a part of it?

    A long range is answered from sums over 1,000 transitions, whose borders then are its borders; a range
    of at most 40,000 from the transitions, unless they were thinned away. Misses have no delta_mem but count in
    beta and n.

    Args:
        db: An open database.
        run_id: The run.
        points: Rows at most.
        start: First env step; the run's first when missing.
        end: Last env step; the run's last when missing.

    Returns:
        env_step (last of its group), delta_mem_mean, delta_mem_max, beta_mean, beta_min, tau, n.
    """
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none() or 0
        first, last = max(1, start or 1), min(reached, end or reached)
        exact = last - first < _EXACT_STEPS and has_transitions(connection, run_id)
        statement = (_from_transitions if exact else _from_summary)(run_id, first, last, points)
        frame = read_frame(connection, statement)
    frame["env_step"] = frame["env_step"].clip(upper=last)
    return frame


def newest_transitions(db: Database, run_id: str, until: int, limit: int) -> pd.DataFrame:
    """How was each of the newest transitions judged, at most `limit` up to env step `until`?

    Returns:
        episode, reward, h, h_next, delta_mem, beta, tau, slot, next_slot in the order of env steps; no row where the
        transitions were thinned away.
    """
    table = Transition
    judged = (table.reward, table.h, table.h_next, table.delta_mem, table.beta, table.tau)
    columns = (table.episode, *judged, table.slot, table.next_slot)
    wanted = (table.run_id == run_id, table.env_step.between(until - limit + 1, until))
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(*wanted).order_by(table.env_step))


def has_transitions(connection: Connection, run_id: str) -> bool:
    """Whether a run's transitions are there, or only their sums."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    return connection.execute(first).first() is not None


def _mean(column: InstrumentedAttribute[float | None]) -> ColumnElement[float]:
    return func.avg(column, type_=Double())


def _ratio(total: InstrumentedAttribute[float], count: InstrumentedAttribute[int]) -> ColumnElement[float]:
    return func.sum(total, type_=Double()) / func.nullif(func.sum(count, type_=Double()), 0.0, type_=Double())


def _from_transitions(run_id: str, first: int, last: int, points: int) -> Statement:
    table = Transition
    width = max(1, -(-(last - first + 1) // points))
    group = (table.env_step - first) // width
    return (
        select(
            func.max(table.env_step).label("env_step"),
            _mean(table.delta_mem).label("delta_mem_mean"),
            func.max(table.delta_mem).label("delta_mem_max"),
            _mean(table.beta).label("beta_mean"),
            func.min(table.beta).label("beta_min"),
            _mean(table.tau).label("tau"),
            func.count().label("n"),
        )
        .where(table.run_id == run_id, table.env_step.between(first, last))
        .group_by(group)
        .order_by(group)
    )


def _from_summary(run_id: str, first: int, last: int, points: int) -> Statement:
    table = TransitionSummary
    low, high = (first - 1) // SUMMARY_STEPS, (last - 1) // SUMMARY_STEPS
    width = max(1, -(-(high - low + 1) // points))
    group = (table.bucket - low) // width
    return (
        select(
            ((func.max(table.bucket) + 1) * SUMMARY_STEPS).label("env_step"),
            _ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem_mean"),
            func.max(table.delta_mem_max).label("delta_mem_max"),
            _ratio(table.beta_sum, table.beta_n).label("beta_mean"),
            func.min(table.beta_min).label("beta_min"),
            _ratio(table.tau_sum, table.tau_n).label("tau"),
            func.sum(table.n, type_=BigInteger()).label("n"),
        )
        .where(table.run_id == run_id, table.bucket.between(low, high))
        .group_by(group)
        .order_by(group)
    )


def gate_parts(db: Database, run_ids: Sequence[str], parts: int = 10) -> pd.DataFrame:
    """How did the gate judge what was collected in each part of the training that was asked for?

    Returns:
        run_id, part (0 for the first), delta_mem, beta: means over the transitions, of sums over 1,000 of them.
    """
    table = TransitionSummary
    part = (table.bucket * SUMMARY_STEPS * parts) // Run.target_steps
    statement = (
        select(
            table.run_id,
            part.label("part"),
            _ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem"),
            _ratio(table.beta_sum, table.beta_n).label("beta"),
        )
        .join(Run, Run.id == table.run_id)
        .where(table.run_id.in_(run_ids), part < parts)
        .group_by(table.run_id, part)
        .order_by(table.run_id, part)
    )
    with db.read() as connection:
        return read_frame(connection, statement)


def closed_by_outcome(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """On which transitions did the gate close, of won and of lost training episodes from the first win on?

    Returns:
        run_id, won, steps, closed: transitions, and those of them with β below .5; no row of a run without a gate.
    """
    first = (
        select(EpisodeRow.run_id, func.min(EpisodeRow.episode).label("episode"))
        .where(EpisodeRow.won.is_(True))
        .group_by(EpisodeRow.run_id)
        .subquery()
    )
    statement = (
        select(
            EpisodeRow.run_id,
            EpisodeRow.won,
            func.sum(EpisodeRow.length, type_=BigInteger()).label("steps"),
            func.sum(EpisodeRow.closed, type_=BigInteger()).label("closed"),
        )
        .join(first, (first.c.run_id == EpisodeRow.run_id) & (first.c.episode <= EpisodeRow.episode))
        .where(EpisodeRow.run_id.in_(run_ids), EpisodeRow.closed.is_not(None))
        .group_by(EpisodeRow.run_id, EpisodeRow.won)
        .order_by(EpisodeRow.run_id, EpisodeRow.won)
    )
    with db.read() as connection:
        return read_frame(connection, statement)
