"""How do the gate's values change during a run, and what does the gate do from the first win on?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Select, func, select
from sqlalchemy.types import BigInteger

from storage.engine import Database
from storage.frames import read_frame
from storage.models import SUMMARY_STEPS, EpisodeRow, MetricRow, TransitionSummary
from storage.queries.gate import select_ratio

if TYPE_CHECKING:
    import pandas as pd


def compute_gate_by_run_part(
    db: Database, run_ids: Sequence[str], parts: int = 10, *, from_first_win: bool = False
) -> pd.DataFrame:
    """What did the gate compute for the new transitions in each part of a run?

    Each part has the same number of blocks of 1,000 env steps, up to rounding.

    Source: table `transition_summary`.

    Args:
        db: An open database.
        run_ids: The runs.
        parts: Number of parts.
        from_first_win: Start with the first block that begins at or after the start of the first won training episode.
            Otherwise start with the first block of the run.

    Returns:
        One row per run and part: run_id, part (from 0), delta_mem [return] and beta (dimensionless), means over the
        transitions. With `from_first_win` a run without a win has no row.
    """
    table = TransitionSummary
    block_ranges = (
        select(table.run_id, func.min(table.bucket).label("first"), func.max(table.bucket).label("last"))
        .where(table.run_id.in_(run_ids))
        .group_by(table.run_id)
        .subquery()
    )
    win = _first_win().subquery()
    begin = (win.c.env_step + SUMMARY_STEPS - 2) // SUMMARY_STEPS if from_first_win else block_ranges.c.first
    part = ((table.bucket - begin) * parts) // (block_ranges.c.last - begin + 1)
    statement = (
        select(
            table.run_id,
            part.label("part"),
            select_ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem"),
            select_ratio(table.beta_sum, table.beta_n).label("beta"),
        )
        .join(block_ranges, block_ranges.c.run_id == table.run_id)
        .where(table.run_id.in_(run_ids), table.bucket >= begin)
        .group_by(table.run_id, part)
        .order_by(table.run_id, part)
    )
    if from_first_win:
        statement = statement.join(win, win.c.run_id == table.run_id)
    with db.read() as connection:
        return read_frame(connection, statement)


def compute_removed_after_first_win(db: Database, run_ids: Sequence[str]) -> dict[str, float]:
    """Which fraction of the incentive did the gate remove, on average over the reports from the first win on?

    Returns:
        Run id → fraction. A run without a gate or without a won training episode has no entry.
    """
    first = _first_win().subquery()
    statement = (
        select(MetricRow.run_id, func.avg(MetricRow.value))
        .join(first, (first.c.run_id == MetricRow.run_id) & (first.c.env_step <= MetricRow.env_step))
        .where(MetricRow.run_id.in_(run_ids), MetricRow.name == "gate/incentive_removed", MetricRow.value.is_not(None))
        .group_by(MetricRow.run_id)
    )
    with db.read() as connection:
        return {str(run_id): float(mean) for run_id, mean in connection.execute(statement).all()}


def _first_win() -> Select[str, int, int]:
    """Select the first won training episode of each run: run_id, episode, env_step (the first of the episode)."""
    return (
        select(
            EpisodeRow.run_id,
            func.min(EpisodeRow.episode).label("episode"),
            func.min(EpisodeRow.first_env_step).label("env_step"),
        )
        .where(EpisodeRow.won.is_(True))
        .group_by(EpisodeRow.run_id)
    )


def count_closed_by_outcome(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """How many transitions of won and of lost training episodes did the gate close, from the first win on?

    Source: table `episodes`.

    Args:
        db: An open database.
        run_ids: The runs.

    Returns:
        One row per run and outcome: run_id, won, steps [steps], closed [steps] (transitions with β below CLOSED_BELOW).
        A run without a gate has no row.
    """
    first = _first_win().subquery()
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
