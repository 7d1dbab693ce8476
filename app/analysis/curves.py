"""Curves of several runs as one data frame: the input of all figures and tables over seeds.

The way from a database to a figure has six steps:

1. `read_tables` reads the evaluations of the selected runs.
2. `read_curves` makes the curves of one quantity from them. A run may have several win rates: of greedy episodes from
   fixed starts, and of greedy episodes from shifted starts ("robust"). `app.analysis.rates` chooses one for each task.
   `app.analysis.variants` groups the runs into variants: runs that differ only in their seed.
3. `app.analysis.results.select_results` excludes duplicates and runs that are not results, with the reason.
4. `app.analysis.results.cut_to_budget` cuts final numbers to one budget per task.
5. `app.analysis.aggregates` computes the center, the band and n of each variant.
6. `app.figures.named` makes charts and tables of them.

Steps 3 and 4 take `Curves` and return new `Curves`. No function changes its arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.analysis.aggregates import MAX_POINTS, compute_mu_w, trailing_mean
from app.analysis.intervals import Values
from app.analysis.quantities import (
    AUTO,
    SELECTED_RATE,
    WIN_RATE,
    Quantity,
    RateName,
    add_success_rule,
    average_over_time,
    find_quantity,
    find_rate,
    is_mu_w,
)
from app.analysis.rates import make_rate
from app.analysis.settings import Settings, add_code_settings, write_value
from app.analysis.variants import Variant, group_variants
from app.analysis.x_axes import X_AXES, XAxis, XAxisName, XValues, read_x_values
from emtc_core.config.resolve import flatten_tree
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import evaluation_curves, metric_curves
from storage.runs.rows import RunRow

DAGGER = "†"
"""Mark of a variant with an unfinished run."""
_MAX_LISTED = 5
"""Maximum number of excluded runs that a caption lists."""
_POINT_COLUMNS = ("run", "variant", "task", "seed", "env_step", "x", "value", "distinct")
_DIGEST_COLUMNS = ("env_step", "win_rate", "robust_win_rate", "return_mean", "length_mean", "episodes")


class EvaluationDigest(NamedTuple):
    """Hash of all evaluations of a run. Runs with equal seeds and equal hashes have identical evaluations."""

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
    """Budget [env steps] to which a longer run is cut (`app.analysis.results`); 0 if the run is not cut."""
    evaluations: EvaluationDigest | None = None
    """Hash of all its evaluations, to find identical runs; None if equal values do not prove that runs are identical,
    see `digest_evaluations`."""

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
        """The random seed; -1 without one. The runs of an import without seeds have -1, -2 and so on."""
        number = self.settings.get("seed")
        return number if isinstance(number, int) else -1

    @property
    def seed_text(self) -> str:
        """The random seed in texts, with a minus sign before a negative number."""
        return str(self.settings.get("seed")).replace("-", "−")

    @property
    def training_length(self) -> float:
        """`comparison_budget`, or the configured training length if the run is not cut [env steps]; 0 if unknown."""
        steps = self.comparison_budget or self.settings.get("train.t_max")
        return float(steps) if isinstance(steps, int | float) else 0.0

    def make_excluded(self, reason: str) -> ExcludedRun:
        """Make the entry of this run for the list of excluded runs."""
        return ExcludedRun(self.id, f"{self.variant.label}; seed {self.seed_text}", reason)


@dataclass(frozen=True, eq=False)
class PointTable:
    """The points of all runs as one data frame, and the points of each run as arrays."""

    frame: pd.DataFrame
    """One row per point: run (id), variant (`Variant.method`), task, seed, env_step, x, value and distinct.

    x is the position on the x axis. `distinct` is the number of different episodes among those of an evaluation: greedy
    episodes from the same start can be equal. It is NaN if they were not counted.
    """

    @cached_property
    def by_run(self) -> dict[str, RunPoints]:
        """The points of each run."""
        arrays = [read_float_column(self.frame, name) for name in ("env_step", "x", "value")]
        positions = self.frame.groupby("run", sort=False).indices
        return {str(run_id): RunPoints(*(array[rows] for array in arrays)) for run_id, rows in positions.items()}


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of several runs: of all variants of a comparison, or of one variant on one task."""

    table: PointTable
    """The points of at least these runs. Selections of runs share one table, so that a selection copies no points."""
    runs: tuple[ComparedRun, ...]
    """The included runs, by task, variant and seed."""
    measure: Quantity = WIN_RATE
    """The quantity of `value`."""
    excluded: tuple[ExcludedRun, ...] = ()
    """The selected runs that are left out."""
    x_axis: XAxis = X_AXES["env_steps"]
    budget_note: str = ""
    """Sentence for captions: at which env steps the runs are compared (`app.analysis.results`)."""
    mixed_length_tasks: frozenset[str] = frozenset()
    """Tasks whose runs have different lengths and are compared at their own ends."""
    hidden: tuple[ComparedRun, ...] = ()
    """Runs that are not drawn. Their variants still count when the styles of lines are chosen."""

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
        """The included runs that are not results (`ComparedRun.is_result`)."""
        return tuple(run for run in self.runs if not run.is_result)

    @property
    def mark(self) -> str:
        """A dagger if an unfinished run is included."""
        return DAGGER if self.unfinished else ""

    @property
    def tasks(self) -> list[str]:
        """The tasks of the runs, in order. Each task is a panel of a figure or a column of a table."""
        return list(dict.fromkeys(run.task for run in self.runs))

    @property
    def methods(self) -> dict[str, str]:
        """Names of the methods, by key (`Variant.method`), in the order of the runs."""
        return {run.variant.method: run.variant.name for run in self.runs}

    @property
    def seed_counts(self) -> list[int]:
        """The number of seeds of each variant on each task."""
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
        for group in self.by_variant:
            if group.variant.task == task and group.variant.method == method:
                return group
        return None

    def on_task(self, task: str) -> "Curves":
        """Keep the runs of one task."""
        return self.keep(run for run in self.runs if run.task == task)

    def keep(self, runs: Iterable[ComparedRun]) -> "Curves":
        """Keep only these runs, in this order."""
        return replace(self, runs=tuple(runs))

    def exclude(self, find_reason: Callable[[ComparedRun], str | None]) -> "Curves":
        """Exclude the runs for which `find_reason` returns a reason, and add them to `excluded`."""
        included: list[ComparedRun] = []
        excluded = list(self.excluded)
        for run in self.runs:
            reason = find_reason(run)
            if reason is None:
                included.append(run)
            else:
                excluded.append(run.make_excluded(reason))
        return replace(self, runs=tuple(included), excluded=tuple(excluded))

    def hide(self, names: Iterable[str]) -> "Curves":
        """Remove runs that the user has hidden, and keep them in `hidden`.

        Args:
            names: Ids of runs, and keys of methods (`Variant.method`), which mean all their runs.
        """
        hidden_names = set(names)
        visible: list[ComparedRun] = []
        hidden = list(self.hidden)
        for run in self.runs:
            is_hidden = run.id in hidden_names or run.variant.method in hidden_names
            (hidden if is_hidden else visible).append(run)
        return replace(self, runs=tuple(visible), hidden=tuple(hidden))


@dataclass(frozen=True, eq=False)
class RunTables:
    """Runs of one or of several databases, with their evaluations, and the functions that read their other tables."""

    rows: Mapping[str, RunRow]
    """The runs by id."""
    evaluations: pd.DataFrame
    """The evaluations of all runs, as `storage.queries.curves.evaluation_curves` returns them."""
    read_metric: Callable[[str], pd.DataFrame]
    """Reads a logged metric: one row per point with run_id, env_step and value."""
    read_x: Callable[[XAxisName], XValues]
    """Reads the values of an x axis."""
    _curves: dict[tuple[str, RateName, XAxisName], Curves] = field(default_factory=dict)  # type: ignore[type-arg]
    """Cached results of `read_curves`, by its arguments."""

    @cached_property
    def runs(self) -> tuple[ComparedRun, ...]:
        """The runs by task, variant and seed."""
        settings = {
            run_id: flatten_tree(add_code_settings(row.config, row.versions)) for run_id, row in self.rows.items()
        }
        digests = digest_evaluations(self.evaluations)
        runs = []
        for variant in group_variants(settings):
            for run_id in variant.run_ids:
                row = self.rows[run_id]
                run = ComparedRun(
                    run_id,
                    settings[run_id],
                    variant,
                    row.live_status,
                    row.env_steps,
                    row.target_steps,
                    row.created_at.timestamp(),
                    evaluations=digests.get(run_id),
                )
                runs.append(run)
        return tuple(runs)

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The task of each run."""
        return {run.id: run.task for run in self.runs}


def read_tables(db: Database, rows: Sequence[RunRow]) -> RunTables:
    """Read the evaluations of runs of one database, with one SQL statement. Metrics and x axes are read when needed."""
    ids = [row.id for row in rows]

    def read_metric(name: str) -> pd.DataFrame:
        longest = max((row.env_steps for row in rows), default=0)
        env_steps_per_point = max(1, longest // MAX_POINTS)
        return metric_curves(db, ids, name, interval_steps=env_steps_per_point)

    def read_x(name: XAxisName) -> XValues:
        return read_x_values(db, rows, name)

    return RunTables({row.id: row for row in rows}, evaluation_curves(db, ids), read_metric, read_x)


def read_curves(
    tables: RunTables, key: str = SELECTED_RATE, *, rate: RateName = AUTO, x_axis: XAxisName = "env_steps"
) -> Curves:
    """Read the curves of all runs, finished or not. A result is computed once per `tables`.

    Args:
        tables: The runs.
        key: Key of the quantity: a win rate, its time average, another evaluated quantity, or a metric.
        rate: The win rate, if the key does not name one. All runs of a task have the same one.
        x_axis: The x axis. A run without values on it has NaN for x.
    """
    arguments = (key, rate, x_axis)
    if arguments not in tables._curves:
        chosen_rate = find_rate(key, rate)
        if chosen_rate is None:
            quantity = find_quantity(key)
        else:
            quantity = make_rate(chosen_rate, tables.evaluations, tables.tasks)
            if is_mu_w(key):
                quantity = average_over_time(quantity)
        tables._curves[arguments] = read_quantity(tables, quantity, x_axis)
    return tables._curves[arguments]


def read_quantity(tables: RunTables, quantity: Quantity, x_axis: XAxisName = "env_steps") -> Curves:
    """Read the curves of one quantity; see `read_curves`."""
    runs = tables.runs
    if quantity.is_evaluation:
        table = tables.evaluations
    else:
        table = tables.read_metric(quantity.metric)
        # captions must not call runs identical by their evaluations if the figure shows a metric
        runs = tuple(replace(run, evaluations=None) for run in runs)
    points = select_points(table, quantity, tables.tasks)
    x_values = tables.read_x(x_axis)
    by_id = {run.id: run for run in runs}
    run_of_row = [by_id[run_id] for run_id in points["run"]]
    points = points.assign(
        variant=[run.variant.method for run in run_of_row],
        task=[run.task for run in run_of_row],
        seed=[run.seed for run in run_of_row],
        x=_convert_x(points, x_values),
    )
    titled_quantity = add_success_rule(quantity, (run.settings for run in runs))
    point_table = PointTable(points.reindex(columns=list(_POINT_COLUMNS)))
    return Curves(point_table, runs, titled_quantity, x_axis=x_values.axis)


def select_points(table: pd.DataFrame, quantity: Quantity, tasks: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Select the points of a quantity from evaluations or from a metric; points without a finite value are left out.

    Args:
        table: Columns run_id, env_step and the column of the quantity; for evaluations also `distinct`.
        quantity: The quantity.
        tasks: Task of each run, if the tasks have different win rates.

    Returns:
        Columns run, env_step, value and distinct, in the order of the table.
    """
    values = read_float_column(table, quantity.column)
    # only episodes of the greedy win rate start from equal positions, so `distinct` is kept only for its rows
    is_greedy = np.full(len(table), quantity.key == WIN_RATE.key)
    tasks = tasks or {}
    task_of_row = np.array([tasks.get(run_id, "") for run_id in table["run_id"]], dtype=object)
    for task, task_quantity in quantity.by_task:
        is_task = task_of_row == task
        values = np.where(is_task, read_float_column(table, task_quantity.column), values)
        if task_quantity.key == WIN_RATE.key:
            is_greedy |= is_task
    distinct = np.full(len(table), np.nan)
    if "distinct" in table:
        distinct = np.where(is_greedy, read_float_column(table, "distinct"), np.nan)
    points = pd.DataFrame(
        {
            "run": table["run_id"].to_numpy(),
            "env_step": read_float_column(table, "env_step"),
            "value": values,
            "distinct": distinct,
        }
    )
    points = points.take(np.flatnonzero(np.isfinite(values))).reset_index(drop=True)
    return _replace_by_mu_w(points) if quantity.is_time_average else points


def _replace_by_mu_w(points: pd.DataFrame) -> pd.DataFrame:
    """Replace the win rates of each run by mu_w, their time average from the first evaluation to each point."""
    averages = np.empty(len(points))
    steps = read_float_column(points, "env_step")
    values = read_float_column(points, "value")
    for rows in points.groupby("run", sort=False).indices.values():
        averages[rows] = compute_mu_w(steps[rows], values[rows])
    return points.assign(value=averages)


def _convert_x(points: pd.DataFrame, x_values: XValues) -> Values:
    """Convert the env steps of each run to the x axis; NaN for a run without values on it."""
    steps = read_float_column(points, "env_step")
    if x_values.curves is None:
        return steps
    x = np.full(len(points), np.nan)
    for run_id, rows in points.groupby("run", sort=False).indices.items():
        if run_id in x_values.curves:
            x[rows] = x_values.convert(str(run_id), steps[rows])
    return x


def digest_evaluations(table: pd.DataFrame) -> dict[str, EvaluationDigest]:
    """Compute the hash of all evaluations of each run, by run id. It is used to find runs with identical evaluations.

    Runs whose returns are whole numbers or missing are left out, because different runs can have such evaluations in
    common: a return of 0 in every evaluation of a task with sparse rewards, or a win rate of 0 of imported runs.
    """
    columns = {name: read_float_column(table, name) for name in _DIGEST_COLUMNS}
    digests = {}
    for run_id, rows in table.groupby("run_id", sort=False).indices.items():
        returns = columns["return_mean"][rows]
        is_whole_or_missing = ~np.isfinite(returns) | (returns == np.round(returns))
        if np.all(is_whole_or_missing):
            continue
        has_win = bool(np.any(columns["win_rate"][rows] > 0) or np.any(columns["robust_win_rate"][rows] > 0))
        values = np.stack([column[rows] for column in columns.values()])
        values += 0.0  # -0.0 becomes 0.0
        digests[str(run_id)] = EvaluationDigest(hash(values.tobytes()), has_win)
    return digests


def smooth_curves(curves: Curves, window: int) -> Curves:
    """Replace each value by the mean of its run over the last `window` env steps; 0: no smoothing.

    Later points do not change earlier ones.
    """
    if not window:
        return curves
    points = curves.points
    smoothed = np.empty(len(points))
    steps = read_float_column(points, "env_step")
    values = read_float_column(points, "value")
    for rows in points.groupby("run", sort=False).indices.values():
        smoothed[rows] = trailing_mean(steps[rows], values[rows], window)
    return replace(curves, table=PointTable(points.assign(value=smoothed)))


def exclude_without_x(curves: Curves) -> Curves:
    """Exclude the runs without values on the x axis.

    Raises:
        ConfigError: If no run has values on it.
    """
    without_x = {run.id for run in curves.runs if np.isnan(curves.get_points(run.id).x).any()}
    reason = curves.x_axis.missing_reason
    if without_x and len(without_x) == curves.n:
        raise ConfigError(f"Run {curves.runs[0].id} has {reason}", hint="Use the x axis env_steps.")
    return curves.exclude(lambda run: reason if run.id in without_x else None)


def regroup(curves: Curves, run_ids: Collection[str]) -> Curves:
    """Keep only these runs and group them again: the name of a variant depends on the compared runs."""
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
