"""Runs that are compared: the curves behind the page Compare, and behind the figures and tables of final numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.analysis.comparable import COMMON, Budget, cut_to_budget, list_budgets
from app.analysis.quantities import (
    AUTO,
    SELECTED_RATE,
    TRAINING_WIN_RATE,
    Quantity,
    RateName,
    find_quantity,
    find_rate,
    is_mu_w,
)
from app.analysis.rates import RatedSeeds, apply_rate, average_curves
from app.analysis.series import Comparison, SeedRun, join_seeds, read_seeds
from app.analysis.settings import with_code
from app.analysis.x_axes import ENV_STEPS, XAxisName, XValues, read_x_values
from storage.engine import Database
from storage.runs.rows import RunRow


@dataclass(frozen=True)
class ComparedRuns:
    """Several runs with their curves."""

    rows: Mapping[str, RunRow]
    """The runs by id."""
    greedy: Sequence[SeedRun]
    """The runs with their greedy win rates."""
    rated: RatedSeeds
    """The runs with the win rates by which they are compared."""
    plotted: RatedSeeds
    """The runs with the quantity that is drawn, over env steps."""
    x: XValues = ENV_STEPS
    """The x axis of the drawn curves."""

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The stored configuration of each run, with the version of its code."""
        return {run_id: with_code(row.config, row.versions) for run_id, row in self.rows.items()}

    def join_plotted(self, *, include_unfinished: bool) -> Comparison:
        """Group the drawn curves by variant."""
        return join_seeds(*self.plotted, include_unfinished=include_unfinished)

    def list_lengths(self, *, include_unfinished: bool) -> list[int]:
        """List the different lengths of the runs that count [env steps], ascending."""
        return list_budgets(join_seeds(*self.rated, include_unfinished=include_unfinished, final=True))

    def join_finals(
        self, *, include_unfinished: bool, budget: Budget = COMMON, rate: Literal["greedy", "robust"] | None = None
    ) -> Comparison:
        """Group win rates by variant, for final numbers at one budget.

        Args:
            include_unfinished: Include runs that have not finished.
            budget: The budget; see `cut_to_budget`.
            rate: The win rate. Default: the one by which the runs are compared.
        """
        rated = apply_rate(self.greedy, rate) if rate else self.rated
        return cut_to_budget(join_seeds(*rated, include_unfinished=include_unfinished, final=True), budget)


def combine_curves(
    rows: Mapping[str, RunRow],
    greedy: Sequence[SeedRun],
    read_curves: Callable[[Quantity], RatedSeeds],
    *,
    quantity: str = SELECTED_RATE,
    rate: RateName = AUTO,
) -> ComparedRuns:
    """Select the win rate by which runs are compared, and the quantity that is drawn.

    Args:
        rows: The runs by id.
        greedy: The runs with their greedy win rates.
        read_curves: Reads the curves of a quantity that is not in the evaluations of `greedy`.
        quantity: Key of the quantity that is drawn.
        rate: The win rate by which the runs are compared, and which is drawn if the key does not name one.
    """

    def select_rate(name: RateName) -> RatedSeeds:
        return read_curves(TRAINING_WIN_RATE) if name == "training" else apply_rate(greedy, name)

    rated, drawn_rate = select_rate(rate), find_rate(quantity, rate)
    if drawn_rate is None:
        return ComparedRuns(rows, greedy, rated, read_curves(find_quantity(quantity)))
    plotted = rated if drawn_rate == rate else select_rate(drawn_rate)
    return ComparedRuns(rows, greedy, rated, average_curves(plotted) if is_mu_w(quantity) else plotted)


def read_compared_runs(
    db: Database,
    rows: Sequence[RunRow],
    *,
    quantity: str = SELECTED_RATE,
    rate: RateName = AUTO,
    x_axis: XAxisName = "env_steps",
) -> ComparedRuns:
    """Read the curves of runs of one database; see `combine_curves`."""

    def read_curves(quantity: Quantity) -> RatedSeeds:
        return RatedSeeds(read_seeds(db, rows, quantity), quantity)

    by_id = {row.id: row for row in rows}
    runs = combine_curves(by_id, read_seeds(db, rows), read_curves, quantity=quantity, rate=rate)
    return replace(runs, x=read_x_values(db, rows, x_axis))
