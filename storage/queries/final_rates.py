"""What is the final win rate of a run, by which lists of runs compare it?

The final win rate is the mean win rate of the evaluations in the last tenth of the budget. The budget is the training
length of a run that has reached it, and the env steps so far of any other run. A run without an evaluation in that
tenth has the win rate of its last evaluation, and a run without any evaluation has no final win rate.

Its episodes are the robust ones (greedy episodes from shifted starts) if every evaluation of the run has a robust win
rate, otherwise the greedy ones from the fixed starts. The robust win rate is preferred because greedy episodes from
fixed starts are nearly identical.

The database computes it, so that thousands of runs can be searched and sorted by it. For a finished run,
`app.analysis.finals.compute_final_rate` gives the same number, which a test checks. `runs.win_rate` is another number:
the greedy win rate of the last evaluation.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple, cast

from sqlalchemy import ColumnElement, Double, Numeric, and_, case, func, null, or_, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import InstrumentedAttribute

from storage.engine import Database
from storage.frames import in_parts
from storage.models import Evaluation, Run

FINAL_RATE_LABEL: Final = "Final win rate"
FINAL_RATE_MEANING: Final = (
    "mean win rate of the evaluations in the last tenth of the training so far; of robust episodes (shifted starts) if "
    "every evaluation has them, otherwise of greedy episodes"
)
EpisodeKind = Literal["robust", "greedy"]

_DIGITS: Final = 12
"""Decimals of a final win rate, as in `app.analysis.finals`. Means that differ only by rounding errors are equal."""
_OF_RUN: Final = Evaluation.run_id == Run.id
_Rate = InstrumentedAttribute[float | None]


class FinalRate(NamedTuple):
    """Final win rate of a run."""

    rate: float
    """Fraction, 0 to 1."""
    episodes: EpisodeKind
    """Episodes that the rate counts."""


@cache
def select_final_rate() -> ColumnElement[Any]:
    """Return the final win rate of a row of `runs` as an SQL expression; NULL without an evaluation [fraction]."""
    return case(
        (_has_robust_rates(), _select_mean(Evaluation.robust_win_rate)), else_=_select_mean(Evaluation.win_rate)
    )


@cache
def select_final_rate_episodes() -> ColumnElement[Any]:
    """Return the kind of episodes of the final win rate as an SQL expression; NULL without a rate."""
    is_evaluated = _exists(Evaluation.win_rate.is_not(None))
    return case((_has_robust_rates(), "robust"), (is_evaluated, "greedy"), else_=null())


def read_final_rates(db: Database, run_ids: Sequence[str]) -> dict[str, FinalRate]:
    """What are the final win rates of these runs? Run id → rate; runs without an evaluation are left out.

    Args:
        db: An open database.
        run_ids: The runs. Unknown ids are skipped.
    """
    rates: dict[str, FinalRate] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            columns = (Run.id, select_final_rate().label("rate"), select_final_rate_episodes().label("episodes"))
            for run_id, rate, episodes in connection.execute(select(*columns).where(Run.id.in_(part))):
                if rate is not None:
                    rates[run_id] = FinalRate(rate, cast("EpisodeKind", episodes))
    return rates


def _has_robust_rates() -> ColumnElement[bool]:
    """Return whether a run has robust win rates, and has one in each evaluation."""
    is_incomplete = and_(Evaluation.win_rate.is_not(None), Evaluation.robust_win_rate.is_(None))
    return and_(_exists(Evaluation.robust_win_rate.is_not(None)), ~_exists(is_incomplete))


def _exists(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return whether a run has an evaluation with this condition."""
    return select(Evaluation.env_step).where(_OF_RUN, condition).correlate(Run).exists()


def _select_mean(rate: _Rate) -> ColumnElement[Any]:
    """Return the mean of a win rate in the last tenth of the budget; without an evaluation there, the last win rate."""
    has_reached_target = or_(Run.status == "finished", Run.env_steps >= Run.target_steps)
    budget = case((has_reached_target, Run.target_steps), else_=Run.env_steps)
    evaluated = select(rate).where(_OF_RUN, rate.is_not(None)).correlate(Run)
    # For whole numbers, env_step > 9 budget // 10 is the same as 10 env_step > 9 budget, and an index answers it.
    in_last_tenth = (budget > 0, Evaluation.env_step > 9 * budget // 10)
    mean = evaluated.where(*in_last_tenth).with_only_columns(func.avg(rate)).scalar_subquery()
    last = evaluated.order_by(Evaluation.env_step.desc()).limit(1).scalar_subquery()
    rounded = func.round(sql_cast(func.coalesce(mean, last), Numeric), _DIGITS)
    return sql_cast(rounded, Double)
