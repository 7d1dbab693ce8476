"""Curves of several runs as one data frame: the input of all figures and tables over seeds.

The way from a database to a figure has five steps, with one function each:

1. `app.analysis.curve_reader.read_curves` reads the points of one measure. It chooses the win rate
   (`app.analysis.rates`) and names the variant of each run (`app.analysis.variants`).
2. `app.analysis.results.select_results` excludes duplicates and runs that are not results, with the reason.
3. `app.analysis.results.cut_to_budget` cuts final numbers to one budget per task.
4. `app.analysis.aggregates` computes the center, the band and n of each variant.
5. `app.figures.named` makes charts and tables of them.

Each step takes `Curves` and returns new `Curves`. No function changes its arguments.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.analysis.aggregates import trailing_mean
from app.analysis.intervals import Values
from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.settings import Settings, write_value
from app.analysis.variants import Variant, group_variants
from app.analysis.x_axes import X_AXES, XAxis
from emtc_core.errors import ConfigError

DAGGER = "†"
_MAX_LISTED = 5


class EvaluationDigest(NamedTuple):
    """All evaluations of a run in short. Runs with equal seeds and equal hashes have identical evaluations."""

    hash: int
    has_win: bool
    """Whether an episode of any evaluation was won."""


class RunPoints(NamedTuple):
    """The points of one run [T], in the order of env steps."""

    env_step: Values
    x: Values
    """Position on the x axis; equal to `env_step` on the axis of env steps."""
    value: Values


NO_POINTS = RunPoints(np.empty(0), np.empty(0), np.empty(0))


class ExcludedRun(NamedTuple):
    """A selected run that is left out, with the reason."""

    run_id: str
    label: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.label}): {self.reason}"


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison, without its points."""

    id: str
    settings: Settings
    variant: Variant
    status: str = "finished"
    env_steps: int = 0
    target_steps: int = 0
    created_s: float = 0.0
    """Creation time [s]. Of two runs of a variant with the same seed the newer one counts."""
    comparison_budget: int = 0
    """Budget [env steps] at which the run is compared; 0 if it is compared at its end."""
    evaluations: EvaluationDigest | None = None
    """Digest of all its evaluations, to find identical runs; None if it cannot identify them:
    `app.analysis.curve_reader.digest_evaluations`."""

    @property
    def budget(self) -> int:
        """Env steps at which the run is compared."""
        return self.comparison_budget or self.target_steps

    @property
    def is_result(self) -> bool:
        """Whether it has finished or has reached its target steps."""
        return self.status == "finished" or 0 < self.target_steps <= self.env_steps

    @property
    def progress(self) -> str:
        """Progress in words: "stopped at 2,942 of 15,000 env steps"."""
        return f"{self.status} at {self.env_steps:,} of {self.target_steps:,} env steps"

    @property
    def task(self) -> str:
        """The map, with the environment unless it is the embedded one."""
        return self.variant.task

    @property
    def seed(self) -> int:
        """The random seed; -1 if it has none. -2 is the second run of an import without seeds."""
        number = self.settings.get("seed")
        return number if isinstance(number, int) else -1

    @property
    def seed_text(self) -> str:
        """The random seed in texts, with a minus sign before a negative number."""
        return str(self.settings.get("seed")).replace("-", "−")

    @property
    def training_length(self) -> float:
        """The budget at which the run is compared, or the configured training length [env steps]."""
        steps = self.comparison_budget or self.settings.get("train.t_max")
        return float(steps) if isinstance(steps, int | float) else 0.0

    def make_excluded(self, reason: str) -> ExcludedRun:
        """Make the entry of this run in the list of excluded runs."""
        return ExcludedRun(self.id, f"{self.variant.label}; seed {self.seed_text}", reason)


@dataclass(frozen=True, eq=False)
class PointTable:
    """The data frame of points, and the points of each run as arrays."""

    frame: pd.DataFrame
    """One row per point: run (id), variant (`Variant.method`), task, seed, env_step, x and value. `distinct` is the
    number of different episodes of an evaluation, NaN if they were not counted."""

    @cached_property
    def by_run(self) -> dict[str, RunPoints]:
        """The points of each run."""
        arrays = [read_float_column(self.frame, name) for name in ("env_step", "x", "value")]
        positions = self.frame.groupby("run", sort=False).indices
        return {str(run_id): RunPoints(*(array[rows] for array in arrays)) for run_id, rows in positions.items()}


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of several runs in one data frame, of all variants or of one."""

    table: PointTable
    """The points of at least these runs. Selections of runs share one table, so that a selection copies no points."""
    runs: tuple[ComparedRun, ...]
    """The included runs, by task, variant and seed."""
    measure: Quantity = WIN_RATE
    """The quantity of `value`."""
    excluded: tuple[ExcludedRun, ...] = ()
    x_axis: XAxis = X_AXES["env_steps"]
    budget_note: str = ""
    """Sentence for captions: at which env steps the runs are compared (`app.analysis.results`)."""
    mixed_length_tasks: frozenset[str] = frozenset()
    """Tasks whose runs have different lengths and are compared at their own ends."""
    hidden: tuple[Variant, ...] = ()
    """Variants that are not drawn. They still count when the styles of lines are chosen."""

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points of the included runs, with the columns of `PointTable.frame`."""
        frame = self.table.frame
        return frame.loc[frame["run"].isin(self.run_ids), :]

    def get_points(self, run_id: str) -> RunPoints:
        """Return the points of one run; empty if it has none."""
        return self.table.by_run.get(run_id, NO_POINTS)

    def list_points(self) -> list[RunPoints]:
        """List the points of each run."""
        return [self.get_points(run.id) for run in self.runs]

    @cached_property
    def by_variant(self) -> tuple["Curves", ...]:
        """The curves of each variant on each task, in order. Each object has the runs of one variant."""
        runs: dict[tuple[str, str], list[ComparedRun]] = {}
        for run in self.runs:
            runs.setdefault((run.task, run.variant.method), []).append(run)
        return tuple(replace(self, runs=tuple(variant_runs)) for variant_runs in runs.values())

    @property
    def variant(self) -> Variant:
        """The variant of the first run: the only variant of an object in `by_variant`."""
        return self.runs[0].variant

    @property
    def n(self) -> int:
        """Number of runs. The runs of one variant have different seeds."""
        return len(self.runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the runs."""
        return tuple(run.id for run in self.runs)

    @property
    def unfinished(self) -> tuple[ComparedRun, ...]:
        """The included runs that are not results."""
        return tuple(run for run in self.runs if not run.is_result)

    @property
    def mark(self) -> str:
        """A dagger if an unfinished run is included."""
        return DAGGER if self.unfinished else ""

    @property
    def tasks(self) -> list[str]:
        """The tasks in order. Each is a panel of a figure or a column of a table."""
        return list(dict.fromkeys(run.task for run in self.runs))

    @property
    def methods(self) -> dict[str, str]:
        """Names of the methods by key, in order."""
        return {run.variant.method: run.variant.name for run in self.runs}

    @property
    def seed_counts(self) -> list[int]:
        """The number of seeds of each variant."""
        return [group.n for group in self.by_variant]

    @property
    def budget_if_unequal(self) -> str:
        """`budget_note` if the runs differ in length, otherwise empty."""
        is_unequal = self.mixed_length_tasks or any(run.comparison_budget for run in self.runs)
        return self.budget_note if is_unequal else ""

    @property
    def shared_note(self) -> str:
        """Note with the changed settings that all runs share and their names omit: "All with preset = demo."."""
        shared = self.variant.shared if self.runs else {}
        text = ", ".join(f"{key} = {write_value(value)}" for key, value in sorted(shared.items()))
        return f"All with {text}." if text else ""

    def name_line(self, method: str) -> str:
        """Name a method with its number of seeds, equal in all panels: "QMIX (n = 5)", "QMIX (n = 3 to 5)"."""
        groups = [group for group in self.by_variant if group.variant.method == method]
        counts = [group.n for group in groups]
        mark = DAGGER if any(group.unfinished for group in groups) else ""
        return f"{self.methods[method]}{mark} (n = {format_range(counts)})"

    def find_variant(self, method: str, task: str) -> "Curves | None":
        """Return the curves of one variant on one task; None if no run of it is included."""
        same_task = (group for group in self.by_variant if group.variant.task == task)
        return next((group for group in same_task if group.variant.method == method), None)

    def on_task(self, task: str) -> "Curves":
        """Keep the runs of one task."""
        return self.keep(run for run in self.runs if run.task == task)

    def keep(self, runs: Iterable[ComparedRun]) -> "Curves":
        """Keep only these runs, in this order."""
        return replace(self, runs=tuple(runs))

    def exclude(self, find_reason: Callable[[ComparedRun], str | None]) -> "Curves":
        """Exclude the runs for which there is a reason, and list them with it."""
        reasons = {run.id: reason for run in self.runs if (reason := find_reason(run)) is not None}
        excluded = [run.make_excluded(reasons[run.id]) for run in self.runs if run.id in reasons]
        included = tuple(run for run in self.runs if run.id not in reasons)
        return replace(self, runs=included, excluded=(*self.excluded, *excluded))

    def hide(self, methods: Iterable[str]) -> "Curves":
        """Remove methods from the figure."""
        names = set(methods)
        hidden = tuple(group.variant for group in self.by_variant if group.variant.method in names)
        visible = tuple(run for run in self.runs if run.variant.method not in names)
        return replace(self, runs=visible, hidden=(*self.hidden, *hidden))


def smooth_curves(curves: Curves, window: int) -> Curves:
    """Replace each value by the mean of its run over the last `window` env steps; 0: no smoothing.

    Later points do not change earlier ones.
    """
    if not window:
        return curves
    points = curves.points
    smoothed = np.empty(len(points))
    steps, values = read_float_column(points, "env_step"), read_float_column(points, "value")
    for rows in points.groupby("run", sort=False).indices.values():
        smoothed[rows] = trailing_mean(steps[rows], values[rows], window)
    return replace(curves, table=PointTable(points.assign(value=smoothed)))


def exclude_without_x(curves: Curves) -> Curves:
    """Exclude the runs without values on the x axis.

    Raises:
        ConfigError: If no run has values on it.
    """
    missing = {
        run.id for run, points in zip(curves.runs, curves.list_points(), strict=True) if np.isnan(points.x).any()
    }
    if missing and len(missing) == curves.n:
        reason = f"Run {curves.runs[0].id} has {curves.x_axis.missing}"
        raise ConfigError(reason, hint="Use the x axis env_steps.")
    return curves.exclude(lambda run: curves.x_axis.missing if run.id in missing else None)


def regroup(curves: Curves, run_ids: Collection[str]) -> Curves:
    """Keep these runs and name their variants again, by the settings in which only these runs differ."""
    by_id = {run.id: run for run in curves.runs if run.id in run_ids}
    runs = []
    for variant in group_variants({run_id: run.settings for run_id, run in by_id.items()}):
        runs += [replace(by_id[run_id], variant=variant) for run_id in variant.run_ids]
    points = curves.keep(runs).points
    methods = {run.id: run.variant.method for run in runs}
    renamed = points.assign(variant=[methods[run_id] for run_id in points["run"]])
    return replace(curves, table=PointTable(renamed), runs=tuple(runs))


def describe_excluded(excluded: Sequence[ExcludedRun]) -> str:
    """Write the sentence of a caption that lists the excluded runs; empty if there are none."""
    if not excluded:
        return ""
    runs = "; ".join(str(run) for run in excluded[:_MAX_LISTED])
    more = f"; and {len(excluded) - _MAX_LISTED} more" if len(excluded) > _MAX_LISTED else ""
    return f" Left out: {runs}{more}."


def format_range(counts: Sequence[int]) -> str:
    """Write the smallest and the largest of some counts: "5", "3 to 5"."""
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def read_float_column(table: pd.DataFrame, name: str) -> Values:
    """Return a column as float64 with NaN for missing values."""
    return table[name].to_numpy(dtype=np.float64, na_value=np.nan)
