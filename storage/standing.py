"""What a run's curves come to, kept in its row, so that a list of thousands sorts and filters by it.

Both numbers are written in the transaction that changes the curves. What they mean is defined elsewhere: mu_w by
`app.results.statistics`, a gate that acts by `storage.queries.gate_state`; tests keep these statements equal to both.
"""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, case, func, select, update

from storage.models import Evaluation, MetricRow, Run

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


def sum_up(connection: Connection, run_id: str, *, curves: Collection[str] = _CURVES) -> None:
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
