"""What a reader may change of a chart: smoothing, logarithmic axes, what an axis leaves out, other runs beside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.analysis.aggregates import Curve, trailing_mean
from app.analysis.series import Comparison, Group
from app.figures.figure import Options, Own
from app.figures.kinds.chart import Chart, Line, Mark, Panel, Values, keep_points
from app.figures.theme import OKABE_ITO
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.runs import list_resumes
from storage.runs.rows import RunRow, find_run

SPIKE = 3.0
"""So many times the median is beyond an axis that is not to be flattened,"""
FEW = 0.1
"""where at most this share of the values is."""


DOTTED = (2, 3)


def lay_beside(chart: Chart, others: Mapping[str, Chart]) -> Chart:
    """Lay the main line of the same panels of other runs into a chart, dotted and without bands.

    Args:
        chart: Of one run.
        others: The same figure of other runs, by the name that stands in the legend.
    """
    colors = {name: OKABE_ITO[place % len(OKABE_ITO)] for place, name in enumerate(others)}
    panels = [replace(panel, lines=(*panel.lines, *_main_lines(panel, others, colors))) for panel in chart.panels]
    told = f" Dotted, for reference: {'; '.join(others)}." if others else ""
    return replace(chart, panels=tuple(panels), caption=f"{chart.caption}{told}")


def _main_lines(panel: Panel, others: Mapping[str, Chart], colors: Mapping[str, str]) -> Iterator[Line]:
    for name, other in others.items():
        same = next((each for each in other.panels if each.title == panel.title and each.lines), None)
        if same is not None:
            main = max(same.lines, key=lambda line: line.width)  # the first of those that are widest
            yield Line(name, colors[name], main.x, main.y, dash=DOTTED, width=1.6)


MOST_BESIDE = 3
Draw = Callable[[Database, Sequence[RunRow], Options], Chart]


def _read_ids(value: Any) -> list[str]:
    ids = value.split(",") if isinstance(value, str) else [str(each) for each in value]
    if not 0 < len(ids) <= MOST_BESIDE:
        raise ValueError(ids)
    return [each.strip() for each in ids]


BESIDE = Own("beside", _read_ids, f"the ids of up to {MOST_BESIDE} runs, with commas between them")


def beside(draw: Draw) -> Draw:
    """Let a figure of one run take the main lines of others (`BESIDE`); one with nothing to draw is left out."""

    def drawn(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
        others: dict[str, Chart] = {}
        for row in (find_run(db, run_id) for run_id in options.get(BESIDE.name, ())):
            with suppress(ConfigError):
                others[name_beside(row)] = draw(db, [row], options)
        return lay_beside(draw(db, rows, options), others)

    return drawn


def read_marks(db: Database, run: RunRow) -> tuple[Mark, ...]:
    """Where a run was resumed."""
    return tuple(Mark(step, "resumed") for step in list_resumes(db, run.id)["env_step"])


def name_beside(run: RunRow) -> str:
    """What a legend calls another run."""
    return f"{run.name} ({run.id})"


AXES = ("x", "y")


@dataclass(frozen=True)
class Look:
    """How curves over seeds are drawn: smoothed over so many env steps, 0 for as measured, and on which axes."""

    smooth: int = 0
    log: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What the caption says of it."""
        said = []
        if self.smooth:
            said.append(
                f"Smoothed: each seed's mean over the {self.smooth:,} env steps up to each point, before anything is "
                "averaged over seeds; what was measured is faint."
            )
        if self.log:
            axes = " and ".join(self.log)
            said.append(
                f"The {axes} {'axes are' if len(self.log) > 1 else 'axis is'} logarithmic; 0 has no place there."
            )
        return " ".join(said)

    def smoothed(self, comparison: Comparison) -> Comparison:
        """Smooth each seed's curve by what came before each point, so that no later point changes it."""
        if not self.smooth:
            return comparison
        return replace(comparison, groups=tuple(self._smooth(group) for group in comparison.groups))

    def _smooth(self, group: Group) -> Group:
        seeds = [
            replace(seed, curve=Curve(seed.curve.steps, trailing_mean(*seed.curve, self.smooth)))
            for seed in group.seeds
        ]
        return replace(group, seeds=tuple(seeds))

    def on_axes(self, chart: Chart) -> Chart:
        """Give the chart its logarithmic axes."""
        panels = tuple(map(on_log_axis, chart.panels)) if "y" in self.log else chart.panels
        return right_of_zero(replace(chart, panels=panels)) if "x" in self.log else replace(chart, panels=panels)


AS_MEASURED = Look()


def right_of_zero(chart: Chart) -> Chart:
    """Give a chart a logarithmic x axis; what is not right of 0 has no place there."""
    panels = tuple(
        replace(panel, lines=tuple(keep_points(line, line.x > 0) for line in panel.lines)) for panel in chart.panels
    )
    return replace(chart, panels=panels, x_log=True)


def on_log_axis(panel: Panel) -> Panel:
    """Give a panel a logarithmic y axis.

    A value that is not above 0 has no point there; a band that reaches so low ends at the least value of the panel.
    """
    drawn = [part for line in panel.lines for part in (line.y, line.low, line.high) if part is not None]
    least = min((float(part[part > 0].min()) for part in drawn if (part > 0).any()), default=np.nan)
    lines = tuple(_above_zero(line, least) for line in panel.lines)
    return replace(panel, lines=lines, range=None, from_zero=False, log=True)


def _above_zero(line: Line, least: float) -> Line:
    low, high = (None if edge is None else np.where(edge <= 0, least, edge) for edge in (line.low, line.high))
    return replace(line, y=np.where(line.y > 0, line.y, np.nan), low=low, high=high)


def complement(line: Line) -> Line:
    """Turn a share into what is left of 1, its band with it."""
    low, high = (None if edge is None else 1 - edge for edge in (line.high, line.low))
    return replace(line, y=1 - line.y, low=low, high=high)


def without_spikes(panel: Panel) -> tuple[Panel, str]:
    """End a panel's axis where a few values would flatten all others, and say in a sentence what lies above it."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in panel.lines] or [np.empty(0)])
    beyond = values > SPIKE * np.median(values) if len(values) else np.zeros(0, bool)
    if not 0 < beyond.sum() <= FEW * len(values):
        return panel, ""
    n = int(beyond.sum())
    told = f"{n} value{'s' if n > 1 else ''} of {panel.title} {'lie' if n > 1 else 'lies'} above its panel"
    top = 1.1 * float(values[~beyond].max())
    return replace(panel, range=(0.0, top)), f"{told}: up to {_highest(panel)}."


def _highest(panel: Panel) -> str:
    y, x = max((float(line.y[i]), float(line.x[i])) for line in panel.lines for i in _peak(line.y))
    return f"{y:,.0f} {panel.unit} at step {x:,.0f}"


def _peak(values: Values) -> list[int]:
    return [int(np.nanargmax(values))] if np.isfinite(values).any() else []
