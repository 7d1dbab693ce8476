"""Measures of studies: one number per run, by name.

A study file (`app.analysis.study_plans`) names the measures of its claims. A new measure is a function that computes
the number of each run, and an entry in `MEASURES`.

A greedy win rate is measured in evaluation episodes with the start positions of the training, a robust one with shifted
start positions. The budget is the number of env steps at which runs are compared. A fall is an evaluation with a low
win rate after one with a high win rate.

Symbols: μ̄_w (mu_w) is the time average of the win rate. H is the highest return that was reached from a state, stored
in the episodic memory. Δ_mem is the error between H of a state and of its successor. The gate turns it into the weight
β of the episodic incentive r_p. R² of H is the quality of an embedding (`app.analysis.collapse`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd

from app.analysis import collapse
from app.analysis.aggregates import compute_mu_w
from app.analysis.curves import Curves, RunTables, read_quantity, read_tables
from app.analysis.finals import (
    LAST_TENTH,
    compute_final_rates,
    count_falls,
    make_final_scale,
    make_mu_w_scale_at_fraction,
)
from app.analysis.intervals import BinomialScale, Values
from app.analysis.quantities import ROBUST, WIN_RATE, find_quantity
from app.analysis.settings import get_delta_space
from storage.engine import Database
from storage.queries.gate_progress import (
    compute_gate_by_run_part,
    compute_removed_after_first_win,
    count_closed_by_outcome,
)
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.projections import find_embedding
from storage.runs.rows import RunRow

Numbers = Mapping[str, float]
"""Numbers of a measure by run id; runs without a number are missing."""

OWN_EMBEDDER: Final = "own"
"""The embedder with which a run was trained."""
FITTED_EMBEDDERS: Final = ("tcse", "dcae", "random")
"""Embedders that are newly fitted to the states of a run's last memory snapshot."""
N_PARTS: Final = 10
"""Number of equal parts of a run in which the gate is averaged."""


@dataclass(frozen=True)
class MeasuredRuns:
    """Runs that are measured. Data that several measures need is read once, when the first of them needs it."""

    db: Database
    rows: tuple[RunRow, ...]
    greedy_curves: Curves
    """The same runs with their greedy win rates."""

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs."""
        return [row.id for row in self.rows]

    @cached_property
    def tables(self) -> RunTables:
        """The evaluations and metrics of the runs."""
        return read_tables(self.db, self.rows)

    @cached_property
    def robust_or_greedy_curves(self) -> Curves:
        """The runs with their robust win rates on skirmish and their greedy win rates on other environments."""
        skirmish_tasks = {run.task for run in self.tables.runs if run.settings.get("env.name") == "skirmish"}
        rate = replace(WIN_RATE, by_task=tuple((task, ROBUST) for task in sorted(skirmish_tasks)))
        curves = read_quantity(self.tables, rate)
        return curves.keep(run for run in curves.runs if len(curves.get_points(run.id).value))

    @cached_property
    def late_q_errors(self) -> dict[str, Values]:
        """Greedy Q_tot(s₀) − return of the evaluations in the second half of the budget, by run id [return]."""
        curves = read_quantity(self.tables, find_quantity("eval/overestimation"))
        errors = {}
        for run in curves.runs:
            points = curves.get_points(run.id)
            is_late = 2 * points.env_step > run.target_steps
            if is_late.any():
                errors[run.id] = points.value[is_late]
        return errors

    @cached_property
    def gate_by_part(self) -> pd.DataFrame:
        """Means of Δ_mem and β in each tenth of a run."""
        return compute_gate_by_run_part(self.db, self.run_ids, N_PARTS)

    @cached_property
    def gate_by_part_after_first_win(self) -> pd.DataFrame:
        """Means of Δ_mem and β in each tenth of the part of a run from its first win on."""
        return compute_gate_by_run_part(self.db, self.run_ids, N_PARTS, from_first_win=True)

    @cached_property
    def return_r2(self) -> dict[str, Numbers]:
        """R² of H by run id and embedder, see `compute_return_r2`."""
        return {row.id: compute_return_r2(self.db, row) for row in self.rows}


@dataclass(frozen=True)
class Measure:
    """One number per run."""

    name: str
    """Name in study files."""
    title: str
    meaning: str
    compute: Callable[[MeasuredRuns], Numbers]
    make_scale: Callable[[Curves], BinomialScale] | None = None
    """Makes the binomial scale of the number from the runs of one task; None if the number is not a win rate."""
    is_pooled: bool = True
    """Whether tasks can be averaged. They cannot if the unit is the return of the task."""
    uses_snapshots: bool = False
    """Whether the number is computed from the last memory snapshot, which may be a sample of the memory."""

    @property
    def is_rate(self) -> bool:
        """Whether the number is a win rate."""
        return self.make_scale is not None


def measure_runs(
    db: Database, rows: Sequence[RunRow], curves: Curves, names: Iterable[str] | None = None
) -> dict[str, Numbers]:
    """Compute measures of runs, by name of the measure and run id; runs without a number are missing.

    Args:
        db: An open database.
        rows: The runs.
        curves: The included runs with their greedy win rates.
        names: Names of the needed measures; default: all. R² of H takes most of the time.
    """
    runs = MeasuredRuns(db, tuple(row for row in rows if row.id in curves.run_ids), curves)
    needed = MEASURES if names is None else dict.fromkeys(names)
    return {name: MEASURES[name].compute(runs) for name in needed}


def compute_return_r2(db: Database, row: RunRow) -> Numbers:
    """Compute the R² of H at a run's last snapshot, by embedder.

    The embedders are `OWN_EMBEDDER` and those of `FITTED_EMBEDDERS` whose embeddings of the snapshot are stored.
    """
    snapshot_ids = list_snapshots(db, row.id)["id"]
    if not len(snapshot_ids):
        return {}
    snapshot = get_snapshot(db, int(snapshot_ids.iloc[-1]))
    space = get_delta_space(row.config)
    r2 = {OWN_EMBEDDER: collapse.compute_return_r2(snapshot, delta_space=space)}
    for embedder in FITTED_EMBEDDERS:
        if fitted := find_embedding(db, snapshot.id, embedder, seed=0):
            r2[embedder] = collapse.compute_return_r2(snapshot, delta_space=space, embedding=fitted.coordinates)
    return r2


def _compute_mu_w(runs: MeasuredRuns) -> Numbers:
    return _average_over_time(runs.robust_or_greedy_curves)


def _compute_greedy_mu_w(runs: MeasuredRuns) -> Numbers:
    return _average_over_time(runs.greedy_curves)


def _average_over_time(curves: Curves) -> Numbers:
    averages = {}
    for run_id, points in zip(curves.run_ids, curves.list_points(), strict=True):
        averages[run_id] = float(compute_mu_w(points.env_step, points.value)[-1])
    return averages


def _compute_final(runs: MeasuredRuns) -> Numbers:
    return _average_last_tenth(runs.robust_or_greedy_curves)


def _compute_greedy_final(runs: MeasuredRuns) -> Numbers:
    return _average_last_tenth(runs.greedy_curves)


def _average_last_tenth(curves: Curves) -> Numbers:
    return dict(zip(curves.run_ids, compute_final_rates(curves, LAST_TENTH).tolist(), strict=True))


def _make_last_tenth_scale(curves: Curves) -> BinomialScale:
    return make_final_scale(curves, LAST_TENTH)


def _count_falls(runs: MeasuredRuns) -> Numbers:
    curves = runs.robust_or_greedy_curves
    counts = {run_id: count_falls(curves.get_points(run_id).value) for run_id in curves.run_ids}
    return {run_id: float(count.n_falls) for run_id, count in counts.items() if count is not None}


def _compute_q_error(runs: MeasuredRuns) -> Numbers:
    return _select_finite({run_id: np.abs(errors).mean() for run_id, errors in runs.late_q_errors.items()})


def _compute_overestimation(runs: MeasuredRuns) -> Numbers:
    return _select_finite({run_id: errors.mean() for run_id, errors in runs.late_q_errors.items()})


def _compute_delta_ratio(runs: MeasuredRuns) -> Numbers:
    return _divide_delta_of_tenths(runs.gate_by_part_after_first_win)


def _compute_delta_ratio_of_whole_run(runs: MeasuredRuns) -> Numbers:
    return _divide_delta_of_tenths(runs.gate_by_part)


def _divide_delta_of_tenths(gate_by_part: pd.DataFrame) -> Numbers:
    """Compute ln(last tenth / first tenth) of Δ_mem; a run with a mean of 0 has no logarithm and is missing."""
    tenths = _read_pairs(gate_by_part, "delta_mem", "part", (0, N_PARTS - 1))
    return {run_id: float(np.log(last / first)) for run_id, (first, last) in tenths.items() if first > 0 and last > 0}


def _compute_beta_rise(runs: MeasuredRuns) -> Numbers:
    return _subtract_beta_of_tenths(runs.gate_by_part_after_first_win)


def _compute_beta_rise_of_whole_run(runs: MeasuredRuns) -> Numbers:
    return _subtract_beta_of_tenths(runs.gate_by_part)


def _subtract_beta_of_tenths(gate_by_part: pd.DataFrame) -> Numbers:
    """Compute the last tenth minus the first tenth of β."""
    tenths = _read_pairs(gate_by_part, "beta", "part", (0, N_PARTS - 1))
    return _select_finite({run_id: last - first for run_id, (first, last) in tenths.items()})


def _compute_closed_more(runs: MeasuredRuns) -> Numbers:
    """Compute the fraction of transitions with a closed gate (β < .5) in lost episodes, minus that in won episodes."""
    counts = count_closed_by_outcome(runs.db, runs.run_ids)
    fractions = counts.assign(fraction=counts["closed"] / counts["steps"])
    by_outcome = _read_pairs(fractions, "fraction", "won", (False, True))
    return _select_finite({run_id: not_won - won for run_id, (not_won, won) in by_outcome.items()})


def _compute_removed(runs: MeasuredRuns) -> Numbers:
    return compute_removed_after_first_win(runs.db, runs.run_ids)


def _compute_removed_of_whole_run(runs: MeasuredRuns) -> Numbers:
    return {row.id: row.gate_removed for row in runs.rows if row.gate_removed is not None}


def _compute_r2(runs: MeasuredRuns) -> Numbers:
    return _select_finite({run_id: r2[OWN_EMBEDDER] for run_id, r2 in runs.return_r2.items() if OWN_EMBEDDER in r2})


def _compute_r2_over_dcae(runs: MeasuredRuns) -> Numbers:
    return _compute_r2_over(runs, "dcae")


def _compute_r2_over_random(runs: MeasuredRuns) -> Numbers:
    return _compute_r2_over(runs, "random")


def _compute_r2_over(runs: MeasuredRuns, other: str) -> Numbers:
    """Compute the R² of H of TCSE minus that of another embedder, both newly fitted."""
    differences = {
        run_id: r2["tcse"] - r2[other] for run_id, r2 in runs.return_r2.items() if "tcse" in r2 and other in r2
    }
    return _select_finite(differences)


def _read_pairs(frame: pd.DataFrame, column: str, key: str, keys: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Return the values of `column` in the two rows of each run whose column `key` has the values `keys`.

    Runs without one of the rows are left out.
    """
    by_run: dict[str, dict[int, float]] = {}
    for run_id, row_key, value in zip(frame["run_id"], frame[key], frame[column], strict=True):
        by_run.setdefault(str(run_id), {})[int(row_key)] = float(value)
    first, second = keys
    return {
        run_id: (values[first], values[second])
        for run_id, values in by_run.items()
        if first in values and second in values
    }


def _select_finite(numbers: Numbers) -> Numbers:
    return {run_id: float(number) for run_id, number in numbers.items() if np.isfinite(number)}


MEASURES: Final[Mapping[str, Measure]] = {
    measure.name: measure
    for measure in (
        Measure(
            "mu_w",
            "μ̄_w",
            "time average of the win rate from the first evaluation to the end of the budget; robust win rate on "
            "skirmish, greedy elsewhere",
            _compute_mu_w,
            make_mu_w_scale_at_fraction,
        ),
        Measure(
            "final",
            "final win rate",
            "mean win rate of the evaluations in the last tenth of the budget; robust or greedy as μ̄_w",
            _compute_final,
            _make_last_tenth_scale,
        ),
        Measure(
            "falls",
            "falls",
            "evaluations below .5 after the first evaluation of at least .9; robust or greedy as μ̄_w",
            _count_falls,
        ),
        Measure(
            "mu_w_greedy",
            "greedy μ̄_w",
            "μ̄_w of the greedy win rate on all environments",
            _compute_greedy_mu_w,
            make_mu_w_scale_at_fraction,
        ),
        Measure(
            "final_greedy",
            "final greedy win rate",
            "final greedy win rate on all environments",
            _compute_greedy_final,
            _make_last_tenth_scale,
        ),
        Measure(
            "q_error",
            "error of Q [return]",
            "mean of |greedy Q_tot(s₀) − return| over the evaluations in the second half of the budget",
            _compute_q_error,
            is_pooled=False,
        ),
        Measure(
            "overestimation",
            "overestimation [return]",
            "mean of greedy Q_tot(s₀) − return over the evaluations in the second half of the budget; positive if Q is "
            "too high",
            _compute_overestimation,
            is_pooled=False,
        ),
        Measure(
            "delta_ratio",
            "ln Δ̄ last / first tenth, from the first win on",
            "mean Δ_mem of new transitions; the first win is the first won training episode",
            _compute_delta_ratio,
        ),
        Measure(
            "delta_ratio_whole",
            "ln Δ̄ last / first tenth, whole run",
            "the same from the first transition on",
            _compute_delta_ratio_of_whole_run,
        ),
        Measure(
            "beta_rise",
            "β̄ last − first tenth, from the first win on",
            "mean β of new transitions",
            _compute_beta_rise,
        ),
        Measure(
            "beta_rise_whole",
            "β̄ last − first tenth, whole run",
            "the same from the first transition on",
            _compute_beta_rise_of_whole_run,
        ),
        Measure(
            "closed_more",
            "closed: lost − won",
            "fraction of transitions with β < .5 in lost episodes minus that in won episodes, from the first win on",
            _compute_closed_more,
        ),
        Measure(
            "removed",
            "incentive removed, from the first win on",
            "mean of Σ|(1 − β) r_p| / Σ|r_p| over the reports",
            _compute_removed,
        ),
        Measure(
            "removed_whole",
            "incentive removed, whole run",
            "the same over all reports",
            _compute_removed_of_whole_run,
        ),
        Measure(
            "r2",
            "R² of H",
            "H of a node predicted by its nearest nodes of other episodes, at the last snapshot",
            _compute_r2,
            uses_snapshots=True,
        ),
        Measure(
            "r2_dcae",
            "R² of H: TCSE − dCAE",
            "both embedders newly fitted to the states of a run's last snapshot",
            _compute_r2_over_dcae,
            uses_snapshots=True,
        ),
        Measure(
            "r2_random",
            "R² of H: TCSE − random",
            "the same with a fixed random projection instead of dCAE",
            _compute_r2_over_random,
            uses_snapshots=True,
        ),
    )
}
"""The measures by name, in the order of the columns of `study-measures`."""
