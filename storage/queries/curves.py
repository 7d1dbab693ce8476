"""How does a run develop? Evaluations, metrics and training episodes over env steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, exists, func, or_, select

from emtc_core.metrics import METRICS, OPEN_GROUPS, in_order
from storage.engine import Database
from storage.frames import Statement, empty_frame, in_parts, join_frames, read_frame
from storage.models import EpisodeRow, Evaluation, MetricRow, PolicyEvaluation

if TYPE_CHECKING:  # a trainer asks here for a metric's name alone
    import pandas as pd


def evaluations(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How well does it play? One row per evaluation after env step `after`, or of all: an import may begin at step 0.

    Returns:
        env_step, episodes, wins, win_rate, return_mean, return_std, length_mean, distinct, robust_win_rate,
        robust_distinct; the last three are missing where nothing was counted or played.
    """
    columns = [column for column in Evaluation.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(Evaluation.run_id == run_id, Evaluation.env_step > (after or -1))
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
    wanted = (
        *(MetricRow.run_id == run_id, MetricRow.name.in_(list(names)), MetricRow.env_step > after),
        MetricRow.value.is_not(None),
    )
    ends = (func.count(), func.min(MetricRow.env_step), func.max(MetricRow.env_step))
    with db.read() as connection:
        counts = connection.execute(select(MetricRow.name, *ends).where(*wanted).group_by(MetricRow.name)).all()
        known = {name: n for name, n, _, _ in counts}
        if max(known.values(), default=0) <= points:
            rows: Statement = select(MetricRow.env_step, MetricRow.name, MetricRow.value).where(*wanted)
        else:
            first, last = min(row[2] for row in counts), max(row[3] for row in counts)
            rows = _keep_extremes(wanted, first, last, stretches=max(1, points // 2 - 1))
        # Most ticks of a page bring nothing; over a network, asking for it would be a trip more.
        frame = read_frame(connection, rows.order_by("name", "env_step")) if known else empty_frame(rows)
    frame["n"] = [known[name] for name in frame["name"]]
    return frame.astype({"n": "int64"})


def _keep_extremes(wanted: tuple[ColumnElement[bool], ...], first: int, last: int, *, stretches: int) -> Statement:
    """Of each stretch of env steps keep the first row with the least and with the greatest value."""
    stretch = (MetricRow.env_step - first) // ((last - first) // stretches + 1)
    within = (MetricRow.name, stretch)
    row = select(
        MetricRow.env_step,
        MetricRow.name,
        MetricRow.value,
        stretch.label("stretch"),
        func.min(MetricRow.value).over(partition_by=within).label("low"),
        func.max(MetricRow.value).over(partition_by=within).label("high"),
    )
    row = row.where(*wanted).subquery()
    same = (row.c.name, row.c.stretch, row.c.value)
    extreme = (
        select(row, func.row_number().over(partition_by=same, order_by=row.c.env_step).label("place"))
        .where(or_(row.c.value == row.c.low, row.c.value == row.c.high, row.c.env_step.in_((first, last))))
        .subquery()
    )
    kept = or_(extreme.c.place == 1, extreme.c.env_step.in_((first, last)))
    return select(extreme.c.env_step, extreme.c.name, extreme.c.value).where(kept)


def metric_names(db: Database, run_id: str) -> list[str]:
    """Which numbers did it log?"""
    with db.read() as connection:
        names = select(MetricRow.name).where(MetricRow.run_id == run_id).distinct().order_by(MetricRow.name)
        return list(connection.execute(names).scalars())


def training_returns(db: Database, run_id: str, width: int) -> pd.DataFrame:
    """How did training go in each stretch of `width` env steps? Only stretches that are over: none changes later.

    Returns:
        first_env_step (of a stretch's last episode), episode_return (mean over its episodes), episodes.
    """
    stretch = (EpisodeRow.first_env_step - EpisodeRow.first_env_step % width).label("stretch")
    columns = (
        func.max(EpisodeRow.first_env_step).label("first_env_step"),
        func.avg(EpisodeRow.episode_return).label("episode_return"),
        func.count().label("episodes"),
    )
    statement = select(*columns).where(EpisodeRow.run_id == run_id).group_by(stretch).order_by(stretch)
    with db.read() as connection:
        return read_frame(connection, statement).iloc[:-1].reset_index(drop=True)


def evaluation_curves(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """How well did each of these runs play over time?

    Returns:
        run_id, env_step, win_rate, robust_win_rate, return_mean, length_mean, episodes, distinct, by run and env step.
    """
    columns = (
        *(Evaluation.run_id, Evaluation.env_step, Evaluation.win_rate, Evaluation.robust_win_rate),
        *(Evaluation.return_mean, Evaluation.length_mean, Evaluation.episodes, Evaluation.distinct),
    )

    def select_rows(ids: Sequence[str]) -> Statement:
        wanted = Evaluation.run_id.in_(ids)
        return select(*columns).where(wanted).order_by(Evaluation.run_id, Evaluation.env_step)

    return _read(db, run_ids, select_rows)


def policy_evaluations(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """What did the stored policies of these runs do when somebody evaluated them? Of no curve; newest last.

    Returns:
        The columns of `policy_evaluations`, by run and in the order in which they were made.
    """

    def select_rows(ids: Sequence[str]) -> Statement:
        order = (PolicyEvaluation.run_id, PolicyEvaluation.id)
        return select(*PolicyEvaluation.__table__.columns).where(PolicyEvaluation.run_id.in_(ids)).order_by(*order)

    return _read(db, run_ids, select_rows)


def metric_curves(db: Database, run_ids: Sequence[str], name: str, stretch: int = 1) -> pd.DataFrame:
    """How did one logged number go in each of these runs? Answered from the index ix_metrics_curve.

    Args:
        db: An open database.
        run_ids: The runs.
        name: A metric, as in `emtc_core.metrics`.
        stretch: Values within so many env steps become their mean, at the last of their steps.

    Returns:
        run_id, env_step, value, by run and env step.
    """
    last = func.max(MetricRow.env_step).label("env_step")
    place = MetricRow.env_step // max(1, stretch)

    def select_rows(ids: Sequence[str]) -> Statement:
        wanted = (MetricRow.run_id.in_(ids), MetricRow.name == name, MetricRow.value.is_not(None))
        rows = select(MetricRow.run_id, last, func.avg(MetricRow.value).label("value")).where(*wanted)
        return rows.group_by(MetricRow.run_id, place).order_by(MetricRow.run_id, last)

    return _read(db, run_ids, select_rows)


def shared_metrics(db: Database, run_ids: Sequence[str]) -> list[str]:
    """Which numbers did any of these runs log? In the registry's order; each name is one look into an index.

    Names of the open groups are read as they stand.
    """
    ids = next(in_parts(run_ids))
    looks = [exists().where(MetricRow.run_id.in_(ids), MetricRow.name == name) for name in METRICS]
    found = [look.label(f"found_{place}") for place, look in enumerate(looks)]
    with db.read() as connection:
        row = connection.execute(select(*found)).one()
        opened = connection.execute(_open_names(ids, in_bytes=connection.dialect.name == "sqlite")).scalars().all()
    return in_order([*opened, *(name for name, present in zip(METRICS, row, strict=True) if present)])


def _open_names(ids: Sequence[str], *, in_bytes: bool) -> Statement:
    """Names of the open groups: a stretch of the index where it is ordered by bytes, as a server's may not be."""
    named = or_(
        *(
            MetricRow.name.between(f"{group}/", f"{group}0") if in_bytes else MetricRow.name.startswith(f"{group}/")
            for group in OPEN_GROUPS
        )
    )
    return select(MetricRow.name).distinct().where(MetricRow.run_id.in_(ids), named)


def _read(db: Database, run_ids: Sequence[str], select_rows: Callable[[Sequence[str]], Statement]) -> pd.DataFrame:
    with db.read() as connection:
        return join_frames([read_frame(connection, select_rows(part)) for part in in_parts(run_ids)])
