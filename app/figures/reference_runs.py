"""Reference runs: other runs in a figure of one run, as dotted lines. Also the marks where a run was resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.figures.kinds.chart import Chart, Line, Mark
from app.figures.theme import OKABE_ITO, Style
from storage.engine import Database
from storage.queries.runs import list_resumes
from storage.runs.rows import RunRow

MAX_REFERENCE_RUNS = 5
"""Largest number of other runs that a figure of one run can show for reference."""
DOTTED = (2, 3)
"""Lengths of dash and gap [px]."""


def read_reference_ids(value: Any) -> list[str]:
    """Read the ids of reference runs from a text with commas or from a list.

    Raises:
        ValueError: If there are none, or too many.
    """
    ids = value.split(",") if isinstance(value, str) else [str(run_id) for run_id in value]
    if not 0 < len(ids) <= MAX_REFERENCE_RUNS:
        raise ValueError(ids)
    return [run_id.strip() for run_id in ids]


def add_reference_runs(chart: Chart, others: Mapping[str, Chart]) -> Chart:
    """Add the main line of other runs to each panel, dotted and without a band. The main line is the widest one.

    Args:
        chart: The chart of one run.
        others: The same chart of other runs, by the name for the legend.
    """
    panels = []
    for panel in chart.panels:
        lines = list(panel.lines)
        for index, (name, other) in enumerate(others.items()):
            same_panels = [candidate for candidate in other.panels if candidate.title == panel.title]
            if not same_panels or not same_panels[0].lines:
                continue
            main = max(same_panels[0].lines, key=lambda line: line.width)
            style = _get_style(index)
            lines.append(
                Line(name, style.color, main.x, main.y, dash=style.dash, width=1.6, smoothable=main.smoothable)
            )
        panels.append(replace(panel, lines=tuple(lines)))
    note = f" Dotted, for reference: {'; '.join(others)}." if others else ""
    return replace(chart, panels=tuple(panels), caption=f"{chart.caption}{note}")


def style_reference_runs(run_ids: Sequence[str]) -> dict[str, Style]:
    """Return the style of the lines of each reference run, in the order in which they are added to a chart."""
    return {run_id: _get_style(index) for index, run_id in enumerate(run_ids)}


def _get_style(index: int) -> Style:
    return Style(OKABE_ITO[index % len(OKABE_ITO)], DOTTED)


def name_reference_run(run: RunRow) -> str:
    """Return the name of a reference run in a legend."""
    return f"{run.name} ({run.id})"


def read_marks(db: Database, run: RunRow) -> tuple[Mark, ...]:
    """Return a mark at each env step at which the run was resumed."""
    return tuple(Mark(step, "resumed") for step in list_resumes(db, run.id)["env_step"])
