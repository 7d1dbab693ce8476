"""How does a run develop? Evaluations, metrics and training episodes over env steps."""

from collections.abc import Sequence

import pandas as pd
from sqlalchemy import func, or_, select

from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, Evaluation, MetricRow


def evaluations(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How well does it play? One row per evaluation after env step `after`.

    Returns:
        env_step, episodes, wins, win_rate, return_mean, return_std, length_mean.
    """
    columns = [column for column in Evaluation.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(Evaluation.run_id == run_id, Evaluation.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(Evaluation.env_step))


def metric(db: Database, run_id: str, names: Sequence[str], after: int = 0, points: int = 2000) -> pd.DataFrame:
    """How did these numbers go? Of a long curve each stretch keeps its least and its greatest value.

    Args:
        db: An open database.
        run_id: The run.
        names: Metrics, as in `emtc_core.metrics`.
        after: Only later env steps.
        points: Rows at most per name.

    Returns:
        env_step, name, value, n (how many values the curve had before thinning), by name and env step.
    """
    key = (MetricRow.name,)
    known = (
        select(
            MetricRow.env_step,
            MetricRow.name,
            MetricRow.value,
            func.row_number().over(partition_by=key, order_by=MetricRow.env_step).label("place"),
            func.count().over(partition_by=key).label("n"),
        )
        .where(
            MetricRow.run_id == run_id,
            MetricRow.name.in_(list(names)),
            MetricRow.env_step > after,
            MetricRow.value.is_not(None),
        )
        .subquery()
    )
    stretches = max(1, points // 2 - 1)  # two values each, and both ends of the curve
    stretch = (known.c.place - 1) * stretches / known.c.n
    within = (known.c.name, func.floor(stretch))
    ranked = select(
        known,
        func.row_number().over(partition_by=within, order_by=(known.c.value, known.c.env_step)).label("low"),
        func.row_number().over(partition_by=within, order_by=(known.c.value.desc(), known.c.env_step)).label("high"),
    ).subquery()
    kept = or_(
        *(ranked.c.n <= points, ranked.c.low == 1, ranked.c.high == 1),
        *(ranked.c.place == 1, ranked.c.place == ranked.c.n),
    )
    columns = (ranked.c.env_step, ranked.c.name, ranked.c.value, ranked.c.n)
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(kept).order_by(ranked.c.name, ranked.c.env_step))


def metric_names(db: Database, run_id: str) -> list[str]:
    """Which numbers did it log?"""
    with db.read() as connection:
        names = select(MetricRow.name).where(MetricRow.run_id == run_id).distinct().order_by(MetricRow.name)
        return list(connection.execute(names).scalars())


def training_episodes(db: Database, run_id: str, points: int = 2000) -> pd.DataFrame:
    """How did the training episodes go? Of many, evenly spaced ones; the first and the last always.

    Returns:
        first_env_step, episode, length, episode_return, won, epsilon.
    """
    columns = (
        *(EpisodeRow.first_env_step, EpisodeRow.episode, EpisodeRow.length, EpisodeRow.episode_return),
        *(EpisodeRow.won, EpisodeRow.epsilon),
    )
    ends = select(func.min(EpisodeRow.episode), func.max(EpisodeRow.episode)).where(EpisodeRow.run_id == run_id)
    with db.read() as connection:
        first, last = connection.execute(ends).one()
        every = 1 if first is None else max(1, -(-(last - first) // max(1, points - 1)))
        spaced = or_((EpisodeRow.episode - (first or 0)) % every == 0, EpisodeRow.episode == last)
        statement = select(*columns).where(EpisodeRow.run_id == run_id, spaced)
        return read_frame(connection, statement.order_by(EpisodeRow.episode))
