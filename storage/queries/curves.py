"""How did a run develop over env steps? Curves of evaluations, metrics and training returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select

from emtc_core.metrics import METRICS, OPEN_GROUPS, sort_metrics
from storage.engine import Database
from storage.frames import Statement, empty_frame, in_parts, join_frames, read_frame
from storage.models import EpisodeRow, Evaluation, MetricRow, PolicyEvaluation, Run

if TYPE_CHECKING:  # trainers import this module for the names of metrics and do not need pandas
    import pandas as pd


def evaluations(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How well does a run play?

    Source: table `evaluations`.

    Args:
        db: An open database.
        run_id: The run.
        after: Read only later evaluations [env steps]; 0 reads also those at step 0.

    Returns:
        One row per evaluation: env_step [env steps], episodes, wins, win_rate (fraction), return_mean [return],
        return_std [return], length_mean [steps], distinct, robust_win_rate (fraction), robust_distinct. The last three
        are missing for imports, and if no episodes from shifted starts were played.
    """
    # Imported runs may have an evaluation at env step 0.
    columns = [column for column in Evaluation.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(Evaluation.run_id == run_id, Evaluation.env_step > (after or -1))
    with db.read() as connection:
        return read_frame(connection, statement.order_by(Evaluation.env_step))


def metric_points(db: Database, run_id: str, names: Sequence[str], after: int = 0, points: int = 1000) -> pd.DataFrame:
    """What are the values of some metrics? A long curve is reduced to the minimum and maximum of each interval.

    Source: table `metrics`.

    Args:
        db: An open database.
        run_id: The run.
        names: Names of metrics, as in `emtc_core.metrics`.
        after: Read only later env steps.
        points: Maximum number of rows per name.

    Returns:
        One row per point, by name and env step: env_step [env steps], name, value [unit varies, see
        `emtc_core.metrics`], n (number of values before the reduction).
    """
    conditions = (
        *(MetricRow.run_id == run_id, MetricRow.name.in_(list(names)), MetricRow.env_step > after),
        MetricRow.value.is_not(None),
    )
    ends = (func.count(), func.min(MetricRow.env_step), func.max(MetricRow.env_step))
    with db.read() as connection:
        ranges = connection.execute(select(MetricRow.name, *ends).where(*conditions).group_by(MetricRow.name)).all()
        n_values = {name: n for name, n, _, _ in ranges}
        if max(n_values.values(), default=0) <= points:
            rows: Statement = select(MetricRow.env_step, MetricRow.name, MetricRow.value).where(*conditions)
        else:
            first, last = min(row[2] for row in ranges), max(row[3] for row in ranges)
            rows = _select_extremes(conditions, first, last, intervals=max(1, points // 2 - 1))
        # Most refreshes of a page find no new value. Then the second query, one more network round trip, is skipped.
        frame = read_frame(connection, rows.order_by("name", "env_step")) if n_values else empty_frame(rows)
    frame["n"] = [n_values[name] for name in frame["name"]]
    return frame.astype({"n": "int64"})


def _select_extremes(
    conditions: tuple[ColumnElement[bool], ...], first: int, last: int, *, intervals: int
) -> Statement:
    """Select the first row with the minimum and with the maximum of each interval of env steps, and both ends."""
    interval = (MetricRow.env_step - first) // ((last - first) // intervals + 1)
    is_end = MetricRow.env_step.in_((first, last))
    steps = (func.min(MetricRow.env_step).label("first"), func.max(MetricRow.env_step).label("last"))
    values = (func.min(MetricRow.value).label("low"), func.max(MetricRow.value).label("high"))
    group = (
        select(MetricRow.run_id, MetricRow.name, interval.label("interval"), *steps, *values)
        .where(*conditions)
        .group_by(MetricRow.run_id, MetricRow.name, interval)
        .cte()
    )
    # An outer join, because SQLite then looks up the rows of each group in the index. PostgreSQL needs the equality of
    # the interval to join by a hash. Window functions over all rows take more than twice as long.
    rows_of_group = and_(
        *(MetricRow.run_id == group.c.run_id, MetricRow.name == group.c.name, interval == group.c.interval),
        MetricRow.env_step.between(group.c.first, group.c.last),
        or_(MetricRow.value.in_((group.c.low, group.c.high)), is_end),
    )
    return (
        select(func.min(MetricRow.env_step).label("env_step"), MetricRow.name, MetricRow.value)
        .select_from(group)
        .outerjoin(MetricRow, rows_of_group)
        .group_by(MetricRow.name, interval, MetricRow.value, is_end)
    )


def metric_names(db: Database, run_id: str) -> list[str]:
    """Which metrics did a run log?"""
    with db.read() as connection:
        names = select(MetricRow.name).where(MetricRow.run_id == run_id).distinct().order_by(MetricRow.name)
        return list(connection.execute(names).scalars())


def training_returns(db: Database, run_id: str, width: int) -> pd.DataFrame:
    """What is the mean training return in each interval of env steps?

    The last interval is omitted, because new episodes can still change it.

    Source: table `episodes`.

    Args:
        db: An open database.
        run_id: The run.
        width: Width of an interval [env steps].

    Returns:
        One row per interval: first_env_step [env steps] (of the last episode in the interval), episode_return (mean)
        [return], episodes (number).
    """
    interval = (EpisodeRow.first_env_step - EpisodeRow.first_env_step % width).label("interval")
    columns = (
        func.max(EpisodeRow.first_env_step).label("first_env_step"),
        func.avg(EpisodeRow.episode_return).label("episode_return"),
        func.count().label("episodes"),
    )
    statement = select(*columns).where(EpisodeRow.run_id == run_id).group_by(interval).order_by(interval)
    with db.read() as connection:
        return read_frame(connection, statement).iloc[:-1].reset_index(drop=True)


def evaluation_curves(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """How well did these runs play over env steps?

    Source: table `evaluations`.

    Args:
        db: An open database.
        run_ids: The runs.

    Returns:
        One row per evaluation, by run and env step: run_id, env_step [env steps], win_rate (fraction), robust_win_rate
        (fraction), return_mean [return], length_mean [steps], episodes, distinct.
    """
    columns = (
        *(Evaluation.run_id, Evaluation.env_step, Evaluation.win_rate, Evaluation.robust_win_rate),
        *(Evaluation.return_mean, Evaluation.length_mean, Evaluation.episodes, Evaluation.distinct),
    )

    def select_rows(ids: Sequence[str]) -> Statement:
        rows = select(*columns).where(Evaluation.run_id.in_(ids))
        return rows.order_by(Evaluation.run_id, Evaluation.env_step)

    return _read_in_parts(db, run_ids, select_rows)


def win_rate_sparklines(db: Database, run_ids: Sequence[str], points: int = 40) -> dict[str, list[float]]:
    """How did the win rates of these runs develop, in a few points each?

    They count the episodes of the final win rate (`final_rates`): robust ones if every evaluation of the run has a
    robust win rate, else greedy ones.

    Source: table `evaluations`.

    Args:
        db: An open database.
        run_ids: The runs.
        points: Each run's training length is split into this many intervals. A point is the mean over an interval.

    Returns:
        Run id → win rates (fraction) in the order of env steps, without runs that have none.
    """
    interval = Evaluation.env_step * points // case((Run.target_steps > 0, Run.target_steps), else_=1)
    lines: dict[str, list[float]] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            means = (
                select(
                    *(Evaluation.run_id, func.avg(Evaluation.win_rate), func.avg(Evaluation.robust_win_rate)),
                    *(func.count(Evaluation.win_rate), func.count(Evaluation.robust_win_rate)),
                )
                .join(Run, Run.id == Evaluation.run_id)
                .where(Evaluation.run_id.in_(part), Evaluation.win_rate.is_not(None))
                .group_by(Evaluation.run_id, interval)
                .order_by(Evaluation.run_id, func.min(Evaluation.env_step))
            )
            rows = connection.execute(means).all()
            greedy_only = {run_id for run_id, _, _, n_greedy, n_robust in rows if n_robust < n_greedy}
            for run_id, greedy_rate, robust_rate, _, _ in rows:
                win_rate = greedy_rate if run_id in greedy_only else robust_rate
                lines.setdefault(run_id, []).append(float(win_rate))
    return lines


def policy_evaluations(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """What are the results of `emtc evaluate` for the stored policies of these runs?

    Source: table `policy_evaluations`.

    Args:
        db: An open database.
        run_ids: The runs.

    Returns:
        One row per result, by run, oldest first, with all columns of the table; units as in `models.py` [unit varies].
    """

    def select_rows(ids: Sequence[str]) -> Statement:
        order = (PolicyEvaluation.run_id, PolicyEvaluation.id)
        return select(*PolicyEvaluation.__table__.columns).where(PolicyEvaluation.run_id.in_(ids)).order_by(*order)

    return _read_in_parts(db, run_ids, select_rows)


def metric_curves(db: Database, run_ids: Sequence[str], name: str, interval_steps: int = 1) -> pd.DataFrame:
    """What are the values of one metric in these runs? The index ix_metrics_curve contains the answer.

    Source: table `metrics`.

    Args:
        db: An open database.
        run_ids: The runs.
        name: Name of the metric, as in `emtc_core.metrics`.
        interval_steps: Width of an interval [env steps]. The values of an interval are averaged, at its last env step.

    Returns:
        One row per interval, by run and env step: run_id, env_step [env steps], value [unit varies, see
        `emtc_core.metrics`].
    """
    last = func.max(MetricRow.env_step).label("env_step")
    interval = MetricRow.env_step // max(1, interval_steps)

    def select_rows(ids: Sequence[str]) -> Statement:
        conditions = (MetricRow.run_id.in_(ids), MetricRow.name == name, MetricRow.value.is_not(None))
        rows = select(MetricRow.run_id, last, func.avg(MetricRow.value).label("value")).where(*conditions)
        return rows.group_by(MetricRow.run_id, interval).order_by(MetricRow.run_id, last)

    return _read_in_parts(db, run_ids, select_rows)


def cumulative_progress(db: Database, run_ids: Sequence[str], name: str, interval_steps: int = 1) -> pd.DataFrame:
    """How many seconds or training episodes did these runs need up to each env step?

    Each report of the metric covers the env steps since the report before it, or since env step 0. It adds these env
    steps divided by its value: seconds if the metric counts env steps per second, episodes if it counts env steps per
    episode. The env steps of a report without a positive value are added to the next report.

    Source: table `metrics`.

    Args:
        db: An open database.
        run_ids: The runs.
        name: Name of a metric in env steps per second, or in env steps per episode.
        interval_steps: Width of an interval [env steps]. Only the last report of each interval is returned.

    Returns:
        One row per interval, by run and env step: run_id, env_step [env steps], total [seconds or episodes].
    """

    def select_rows(ids: Sequence[str]) -> Statement:
        earlier_step = func.lag(MetricRow.env_step, 1, 0)
        new_steps = MetricRow.env_step - earlier_step.over(partition_by=MetricRow.run_id, order_by=MetricRow.env_step)
        reports = select(MetricRow.run_id, MetricRow.env_step, (new_steps / MetricRow.value).label("added")).where(
            MetricRow.run_id.in_(ids), MetricRow.name == name, MetricRow.value > 0
        )
        part = reports.subquery()
        total = func.sum(part.c.added).over(partition_by=part.c.run_id, order_by=part.c.env_step).label("total")
        sums = select(part.c.run_id, part.c.env_step, total).subquery()
        last = func.max(sums.c.env_step).label("env_step")
        rows = select(sums.c.run_id, last, func.max(sums.c.total).label("total"))
        return rows.group_by(sums.c.run_id, sums.c.env_step // max(1, interval_steps)).order_by(sums.c.run_id, last)

    return _read_in_parts(db, run_ids, select_rows)


def list_logged_metrics(db: Database, run_ids: Sequence[str]) -> list[str]:
    """Which metrics did at least one of these runs log? In the order of the registry.

    Each registered name is one lookup in an index. The names of the open groups, which the registry does not list, are
    read from the table. Only the first 500 runs are searched.
    """
    ids = next(in_parts(run_ids))
    lookups = [exists().where(MetricRow.run_id.in_(ids), MetricRow.name == name) for name in METRICS]
    columns = [lookup.label(f"logged_{i}") for i, lookup in enumerate(lookups)]
    with db.read() as connection:
        logged = connection.execute(select(*columns)).one()
        in_open_groups = or_(*(_is_in_group(group, connection.dialect.name) for group in OPEN_GROUPS))
        names = select(MetricRow.name).distinct().where(MetricRow.run_id.in_(ids), in_open_groups)
        open_names = connection.execute(names).scalars().all()
    return sort_metrics([*open_names, *(name for name, is_logged in zip(METRICS, logged, strict=True) if is_logged)])


def _is_in_group(group: str, dialect: str) -> ColumnElement[bool]:
    """Return whether a metric's name starts with `group/`, as a range of the index on SQLite.

    SQLite compares texts by bytes, and `0` is the byte after `/`. The collation of a PostgreSQL server may differ.
    """
    if dialect == "sqlite":
        return MetricRow.name.between(f"{group}/", f"{group}0")
    return MetricRow.name.startswith(f"{group}/")


def _read_in_parts(
    db: Database, run_ids: Sequence[str], select_rows: Callable[[Sequence[str]], Statement]
) -> pd.DataFrame:
    with db.read() as connection:
        return join_frames([read_frame(connection, select_rows(part)) for part in in_parts(run_ids)])
