"""The figures of one run on the page Live: their options, how their data are read, and how they are drawn.

The page Live passes the rows that it has read so far. The other callers read the rows from the database. A figure whose
`section` is on the page Live is shown on that page, in the order of `FIGURES`. The gate of the metrics is the weight β
of the episodic incentive.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field

from app.analysis.quantities import get_success_threshold
from app.analysis.settings import is_gate_off
from app.analysis.x_axes import ENV_STEPS, XAxisName, XValues, read_x_values
from app.figures.curve_style import smooth_chart
from app.figures.figure import FigureKind, PageSection, get_single_run
from app.figures.kinds.chart import Chart, Mark, Panel
from app.figures.options import Option, WindowOptions, XAxisOptions, convert_with
from app.figures.reference_runs import (
    MAX_REFERENCE_RUNS,
    add_reference_runs,
    name_reference_run,
    read_marks,
    read_reference_ids,
)
from app.figures.run_charts import (
    DEFAULT_METRICS,
    GATE_METRICS,
    N_INTERVALS,
    N_SMOOTHED_INTERVALS,
    OUTCOME_METRICS,
    X_LABEL,
    TrainingReturns,
    draw_gate_dynamics,
    draw_gate_effect,
    draw_metrics,
    draw_outcomes,
)
from emtc_core.errors import ConfigError
from emtc_core.metrics import is_known
from storage.engine import Database
from storage.queries.curves import evaluations, metric_points, training_returns
from storage.queries.gate import gate_stats
from storage.runs.rows import RunRow, find_run

R = TypeVar("R", bound="RunChartOptions")
MAX_SMOOTHING: Final = 0.99
"""Largest weight of the earlier points in the moving average."""


def _read_metric_names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else [str(name) for name in value]
    unknown = [name for name in names if not is_known(name)]
    if unknown:
        raise ValueError(f"unknown metrics: {unknown}")
    return tuple(names)


class RunChartOptions(WindowOptions, XAxisOptions):
    """Options of the charts of one run."""

    reference_runs: Annotated[
        tuple[str, ...],
        Field(alias="beside"),
        convert_with(read_reference_ids),
        Option(rule=f"the ids of up to {MAX_REFERENCE_RUNS} runs, separated by commas"),
    ] = ()
    """Other runs, whose main lines are drawn dotted."""
    smoothing: Annotated[
        float,
        Field(ge=0, le=MAX_SMOOTHING),
        Option(
            "Smoothing",
            "Weight w of an exponential moving average as on W&B: s_t = w s_(t−1) + (1 − w) y_t, divided by 1 − w^t, "
            "with s_0 = 0, of lines and bands. The measured values are pale. τ, constant levels and running means are "
            "not smoothed.",
            rule=f"a number from 0 to {MAX_SMOOTHING:g}: 0 for none",
        ),
    ] = 0.0


class PanelOptions(RunChartOptions):
    """Options of a chart with fixed panels."""

    panel: Annotated[str, Option(rule="the title of a panel of the figure")] = ""
    """The only panel that is drawn. Default: all panels."""


class GateDynamicsOptions(PanelOptions):
    """Options of the figure `gate-dynamics`."""

    closing: Annotated[
        bool,
        Option(help="Shows 1 − β̄ instead of β̄", rule="true or false: 1 − β̄ on a logarithmic axis instead of β̄"),
    ] = False
    """Draw 1 − β̄, which is how far the gate is closed, where β̄ is the mean gate."""


class MetricOptions(RunChartOptions):
    """Options of the figure `metrics`."""

    metrics: Annotated[
        tuple[str, ...],
        convert_with(_read_metric_names),
        Option(
            "Learning, memory and speed",
            "All metrics that this run logs. The Method page explains each.",
            rule="names of metrics, separated by commas",
        ),
    ] = DEFAULT_METRICS


@dataclass(frozen=True)
class RunData:
    """The recorded curves of one run: the data of the figures of this module."""

    run: RunRow
    gate: pd.DataFrame
    """Statistics of the links in memory from `storage.queries.gate.gate_stats`."""
    evaluations: pd.DataFrame
    metrics: pd.DataFrame
    """Logged metrics from `storage.queries.curves.metric_points`."""
    read_returns: Callable[[], TrainingReturns]
    """Reads the training returns, which only one figure needs."""
    marks: tuple[Mark, ...] = ()
    """The steps at which the run was resumed."""
    x: XValues = ENV_STEPS
    """The x axis of the figures."""
    references: Mapping[str, "RunData"] = field(default_factory=dict[str, "RunData"])
    """Other runs for reference, by the name for the legend."""


def compute_chance_accuracy(config: Mapping[str, Any]) -> float | None:
    """Return the InfoNCE accuracy of a random guess, 1 / batch size, for the stored configuration of a run."""
    batch = config.get("embed", {}).get("batch")
    return 1 / batch if batch else None


def read_returns(db: Database, run: RunRow) -> TrainingReturns:
    """Read the mean training return of each interval."""
    interval_steps = max(1, run.target_steps // N_INTERVALS)
    frame = training_returns(db, run.id, interval_steps)
    return TrainingReturns(frame, window=float(interval_steps * N_SMOOTHED_INTERVALS))


def read_run_data(db: Database, run: RunRow, metrics: Sequence[str], x_axis: XAxisName = "env_steps") -> RunData:
    """Read the curves of one run, with these metrics."""
    return RunData(
        run=run,
        gate=gate_stats(db, run.id),
        evaluations=evaluations(db, run.id),
        metrics=metric_points(db, run.id, metrics),
        read_returns=partial(read_returns, db, run),
        marks=read_marks(db, run),
        x=read_x_values(db, [run], x_axis),
    )


def convert_x_axis(chart: Chart, run_id: str, x: XValues) -> Chart:
    """Return the chart of a run with its env steps converted to another x axis.

    Raises:
        ConfigError: If the run has no values on this axis.
    """
    if x.curves is None:  # the axis is env steps
        return chart
    panels: list[Panel] = []
    for panel in chart.panels:
        lines = tuple(replace(line, x=x.convert(run_id, line.x)) for line in panel.lines)
        panels.append(replace(panel, lines=lines))
    marks: list[Mark] = []
    for mark in chart.marks:
        converted_x = x.convert(run_id, np.array([mark.x]))
        marks.append(replace(mark, x=float(converted_x[0])))
    return replace(
        chart,
        x_label=x.axis.label,
        panels=tuple(panels),
        marks=tuple(marks),
        caption=f"{chart.caption} {x.axis.caption}",
        description=chart.description.replace(X_LABEL, x.axis.label),
    )


def _read_data(
    db: Database, rows: Sequence[RunRow], options: RunChartOptions, *, figure: str, metrics: Sequence[str]
) -> RunData:
    """Read the run of a figure with these metrics, and the runs for reference."""
    references = [find_run(db, run_id) for run_id in options.reference_runs]
    data = read_run_data(db, get_single_run(figure, rows), metrics, options.x_axis)
    others = {name_reference_run(run): read_run_data(db, run, metrics, options.x_axis) for run in references}
    return replace(data, references=others)


def _read_metric_data(db: Database, rows: Sequence[RunRow], options: MetricOptions) -> RunData:
    return _read_data(db, rows, options, figure="metrics", metrics=options.metrics)


def _draw_with_references(draw: Callable[[RunData, R], Chart], data: RunData, options: R) -> Chart:
    """Draw a chart on the x axis of its data, with the main lines of the runs for reference that can be drawn.

    Args:
        draw: Draws the chart of one run over env steps.
        data: The run and the runs for reference.
        options: Options of the figure.
    """
    reference_charts: dict[str, Chart] = {}
    for name, reference in data.references.items():
        with suppress(ConfigError):  # a run without this figure is not drawn
            reference_charts[name] = convert_x_axis(draw(reference, options), reference.run.id, reference.x)
    chart = convert_x_axis(draw(data, options), data.run.id, data.x)
    if isinstance(options, PanelOptions) and options.panel:
        titles = [panel.title for panel in chart.panels]
        if options.panel not in titles:
            raise ConfigError(f"must be one of {', '.join(titles)}", key="panel", value=options.panel)
        chart = chart.keep_panel(options.panel)
    return smooth_chart(add_reference_runs(chart, reference_charts), options.smoothing)


def _draw_gate_dynamics(data: RunData, options: GateDynamicsOptions) -> Chart:
    if data.gate.empty or is_gate_off(data.run.config):
        raise ConfigError(f"Run {data.run.id} ({data.run.algo}) has no gate", hint="Choose a run of an EMTC algorithm.")
    return draw_gate_dynamics(
        data.gate,
        data.metrics,
        run=data.run.name,
        marks=data.marks,
        closing=options.closing,
    )


def _draw_gate_effect(data: RunData, options: PanelOptions) -> Chart:
    chart = draw_gate_effect(
        data.metrics, run=data.run.name, marks=data.marks, has_gate=not is_gate_off(data.run.config)
    )
    if chart.is_empty:
        raise ConfigError(f"Run {data.run.id} ({data.run.algo}) has no gate metrics", hint="Select another run.")
    return chart


def _draw_outcomes(data: RunData, options: PanelOptions) -> Chart:
    return draw_outcomes(
        data.evaluations,
        data.read_returns(),
        run=data.run.name,
        marks=data.marks,
        threshold=get_success_threshold(data.run.config),
        metrics=data.metrics,
    )


def _draw_metrics(data: RunData, options: MetricOptions) -> Chart:
    chance = compute_chance_accuracy(data.run.config)
    return draw_metrics(data.metrics, options.metrics, run=data.run.name, marks=data.marks, chance=chance)


FIGURES = (
    FigureKind(
        "outcomes", partial(_draw_with_references, _draw_outcomes),
        partial(_read_data, figure="outcomes", metrics=OUTCOME_METRICS), PanelOptions,
        needs_runs=True, metrics=OUTCOME_METRICS,
        question="Which win rates and returns did one run reach?", section=PageSection("live", "Outcomes"),
    ),
    FigureKind(
        "gate-effect", partial(_draw_with_references, _draw_gate_effect),
        partial(_read_data, figure="gate-effect", metrics=GATE_METRICS), PanelOptions,
        needs_runs=True, metrics=GATE_METRICS,
        question="How do gate and memory change the incentive?", section=PageSection("live", "Gate effect"),
    ),
    FigureKind(
        "gate-dynamics", partial(_draw_with_references, _draw_gate_dynamics),
        partial(_read_data, figure="gate-dynamics", metrics=GATE_METRICS), GateDynamicsOptions,
        needs_runs=True, metrics=GATE_METRICS,
        question="How does the gate change during training?", section=PageSection("live", "Gate"),
    ),
    FigureKind(
        "metrics", partial(_draw_with_references, _draw_metrics), _read_metric_data, MetricOptions,
        needs_runs=True, metrics=DEFAULT_METRICS, question="How do the metrics of one run develop?",
    ),
)  # fmt: skip
