"""How do several runs compare? Curves of all of them, one statement for each figure."""

from collections.abc import Callable, Sequence

import pandas as pd
from sqlalchemy import exists, func, select

from emtc_core.metrics import METRICS
from storage.engine import Database
from storage.frames import Statement, read_frame
from storage.models import Evaluation, MetricRow, Run
from storage.runs import RUN_COLUMNS, RunRow, make_run_row

_AT_ONCE = 500  # databases limit the parameters of one statement


def get_rows(db: Database, run_ids: Sequence[str]) -> list[RunRow]:
    """What are these runs? In the order of their ids as given; ids that are not there are left out."""
    found: dict[str, RunRow] = {}
    with db.read() as connection:
        for first in range(0, len(run_ids), _AT_ONCE):
            wanted = Run.id.in_(list(run_ids[first : first + _AT_ONCE]))
            rows = connection.execute(select(*RUN_COLUMNS).where(wanted)).all()
            found |= {row.id: make_run_row(db, row) for row in rows}
    return [found[run_id] for run_id in run_ids if run_id in found]


def evaluation_curves(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """How well did each of these runs play over time?

    Returns:
        run_id, env_step, win_rate, return_mean, length_mean, episodes, by run and env step.
    """
    columns = (
        *(Evaluation.run_id, Evaluation.env_step, Evaluation.win_rate, Evaluation.return_mean),
        *(Evaluation.length_mean, Evaluation.episodes),
    )

    def select_rows(ids: Sequence[str]) -> Statement:
        wanted = Evaluation.run_id.in_(ids)
        return select(*columns).where(wanted).order_by(Evaluation.run_id, Evaluation.env_step)

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
    """Which numbers did any of these runs log? In the registry's order; each name is one look into an index."""
    ids = list(run_ids[:_AT_ONCE])
    looks = [exists().where(MetricRow.run_id.in_(ids), MetricRow.name == name) for name in METRICS]
    found = [look.label(f"found_{place}") for place, look in enumerate(looks)]
    with db.read() as connection:
        row = connection.execute(select(*found)).one()
    return [name for name, present in zip(METRICS, row, strict=True) if present]


def _read(db: Database, run_ids: Sequence[str], select_rows: Callable[[Sequence[str]], Statement]) -> pd.DataFrame:
    groups = [run_ids[first : first + _AT_ONCE] for first in range(0, len(run_ids), _AT_ONCE)] or [[]]
    with db.read() as connection:
        frames = [read_frame(connection, select_rows(list(ids))) for ids in groups]
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
