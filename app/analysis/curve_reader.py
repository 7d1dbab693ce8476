"""The reader of curves: from the tables of one or several databases to one data frame of points.

`read_tables` reads the evaluations of some runs. `read_curves` makes the curves of one measure from them. It chooses
the win rate of each task and converts env steps to the x axis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from app.analysis.aggregates import MAX_POINTS, compute_mu_w
from app.analysis.curves import ComparedRun, Curves, EvaluationDigest, PointTable, read_float_column
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
from app.analysis.settings import with_code
from app.analysis.variants import group_variants
from app.analysis.x_axes import XAxisName, XValues, read_x_values
from emtc_core.config.resolve import flatten_tree
from storage.engine import Database
from storage.queries.curves import evaluation_curves, metric_curves
from storage.runs.rows import RunRow

_COLUMNS = ("run", "variant", "task", "seed", "env_step", "x", "value", "distinct")
_DIGEST_COLUMNS = ("env_step", "win_rate", "robust_win_rate", "return_mean", "length_mean", "episodes")


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
    """The results of `read_curves`."""

    @cached_property
    def runs(self) -> tuple[ComparedRun, ...]:
        """The runs by task, variant and seed."""
        settings = {run_id: flatten_tree(with_code(row.config, row.versions)) for run_id, row in self.rows.items()}
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
    """Read the evaluations of runs of one database, with one SQL statement."""
    ids = [row.id for row in rows]

    def read_metric(name: str) -> pd.DataFrame:
        longest = max((row.env_steps for row in rows), default=0)
        return metric_curves(db, ids, name, stretch=max(1, longest // MAX_POINTS))

    def read_x(name: XAxisName) -> XValues:
        return read_x_values(db, rows, name)

    return RunTables({row.id: row for row in rows}, evaluation_curves(db, ids), read_metric, read_x)


def read_curves(
    tables: RunTables, measure: str = SELECTED_RATE, *, rate: RateName = AUTO, x_axis: XAxisName = "env_steps"
) -> Curves:
    """Read the curves of all runs, finished or not. A result is computed once per `tables`.

    Args:
        tables: The runs.
        measure: Key of a win rate, of its time average, of another evaluated quantity, or of a metric.
        rate: The win rate, if the key does not name one. All runs of a task have the same one.
        x_axis: The x axis. A run without values on it has NaN for x.
    """
    choice = (measure, rate, x_axis)
    if choice not in tables._curves:
        tables._curves[choice] = read_quantity(tables, choose_quantity(tables, measure, rate), x_axis)
    return tables._curves[choice]


def choose_quantity(tables: RunTables, measure: str, rate: RateName = AUTO) -> Quantity:
    """Return the quantity of a key; for a win rate or its time average, the win rate is chosen for each task."""
    chosen_rate = find_rate(measure, rate)
    if chosen_rate is None:
        return find_quantity(measure)
    quantity = make_rate(chosen_rate, tables.evaluations, tables.tasks)
    return average_over_time(quantity) if is_mu_w(measure) else quantity


def read_quantity(tables: RunTables, quantity: Quantity, x_axis: XAxisName = "env_steps") -> Curves:
    """Read the curves of one quantity; see `read_curves`."""
    runs = tables.runs
    if quantity.is_evaluation:
        table = tables.evaluations
    else:
        table = tables.read_metric(quantity.metric)
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
    measure = add_success_rule(quantity, (run.settings for run in runs))
    table_of_points = PointTable(points.reindex(columns=list(_COLUMNS)))
    return Curves(table_of_points, runs, measure, x_axis=x_values.axis)


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
    distinct = np.full(len(table), np.nan)
    if "distinct" in table:
        distinct = read_float_column(table, "distinct")
    counts_distinct = np.full(len(table), quantity.key == WIN_RATE.key)
    tasks = tasks or {}
    task_of_row = np.array([tasks.get(run_id, "") for run_id in table["run_id"]], dtype=object)
    for task, task_quantity in quantity.by_task:
        is_task = task_of_row == task
        values = np.where(is_task, read_float_column(table, task_quantity.column), values)
        counts_distinct |= is_task & (task_quantity.key == WIN_RATE.key)
    points = pd.DataFrame(
        {
            "run": table["run_id"].to_numpy(),
            "env_step": read_float_column(table, "env_step"),
            "value": values,
            "distinct": np.where(counts_distinct, distinct, np.nan),
        }
    )
    points = points.take(np.flatnonzero(np.isfinite(values))).reset_index(drop=True)
    return average_points(points) if quantity.is_time_average else points


def average_points(points: pd.DataFrame) -> pd.DataFrame:
    """Replace the values of each run by their running time average, mu_w."""
    averages = np.empty(len(points))
    steps, values = read_float_column(points, "env_step"), read_float_column(points, "value")
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
    """Digest the evaluations of each run, by run id.

    Runs whose returns are whole numbers or missing have no digest: two different runs of a task with sparse rewards may
    both have a return of 0 in every evaluation, and two imported runs may both have a win rate of 0.
    """
    columns = {name: read_float_column(table, name) for name in _DIGEST_COLUMNS}
    digests = {}
    for run_id, rows in table.groupby("run_id", sort=False).indices.items():
        returns = columns["return_mean"][rows]
        if np.all(~np.isfinite(returns) | (returns == np.round(returns))):
            continue
        has_win = bool(np.any(columns["win_rate"][rows] > 0) or np.any(columns["robust_win_rate"][rows] > 0))
        values = np.stack([column[rows] for column in columns.values()])
        values += 0.0  # -0.0 becomes 0.0
        digests[str(run_id)] = EvaluationDigest(hash(values.tobytes()), has_win)
    return digests
