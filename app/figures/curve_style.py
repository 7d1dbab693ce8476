"""Style of curves and axes: smoothing, logarithmic axes, and axes without spikes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from app.figures.kinds.chart import UNSMOOTHED_NOTE, Chart, Line, Panel, Values, keep_points

AXES = ("x", "y")
SPIKE_FACTOR = 3.0
"""A value above this multiple of the median of its panel is a spike."""
MAX_SPIKE_SHARE = 0.1
"""The axis is clipped only if at most this fraction of the values are spikes."""


def with_log_axes(chart: Chart, axes: Sequence[str]) -> Chart:
    """Return the chart with logarithmic axes; `axes` contains "x", "y" or both."""
    if "y" in axes:
        chart = replace(chart, panels=tuple(map(with_log_y_axis, chart.panels)))
    return with_log_x_axis(chart) if "x" in axes else chart


def describe_style(smooth: int, log_axes: Sequence[str]) -> str:
    """Describe smoothing over a window [env steps] and logarithmic axes for a caption; empty for curves as measured."""
    sentences = []
    if smooth:
        sentences.append(
            f"Smoothed: each seed's mean over the {smooth:,} env steps up to each point, before seeds are "
            f"averaged. {UNSMOOTHED_NOTE}"
        )
    if log_axes:
        axes = " and ".join(log_axes)
        sentences.append(f"The {axes} {'axes are' if len(log_axes) > 1 else 'axis is'} logarithmic and cannot show 0.")
    return " ".join(sentences)


def smooth_chart(chart: Chart, weight: float) -> Chart:
    """Smooth the lines and their bands with an exponential moving average. The measured values stay as faint lines.

    The average is the same as in W&B: s_t = weight s_(t-1) + (1 - weight) y_t with s_0 = 0, divided by 1 - weight^t.
    `curves.js` computes the same values. Points without a value are skipped.

    Args:
        chart: The chart.
        weight: Weight of the earlier points, in [0, 1). 0: no smoothing.
    """
    if not weight:
        return chart
    panels = []
    for panel in chart.panels:
        lines: list[Line] = []
        for line in panel.lines:
            if line.faint or not line.smoothable:
                lines.append(line)
                continue
            measured = replace(
                line, name=f"{line.name}, as measured", label="", low=None, high=None, width=1.0, marker="",
                faint=True, unsmoothed=True, group=line.name,
            )  # fmt: skip
            y, low, high = (_average(values, line, weight) for values in (line.y, line.low, line.high))
            smoothed = replace(line, y=y, low=low, high=high)
            lines += [measured, smoothed]
        panels.append(replace(panel, lines=tuple(lines)))
    average = f"exponential moving average, weight {weight:g}"
    return replace(
        chart,
        panels=tuple(panels),
        caption=f"{chart.caption} Smoothed: {average}, lines and bands alike. {UNSMOOTHED_NOTE}",
        subtitle="; ".join(filter(None, (chart.subtitle, f"smoothed: {average}"))),
    )


def _average(values: Values | None, line: Line, weight: float) -> Values | None:
    """Compute the moving average of the values of a line, or of an edge of its band, where the line has a value."""
    if values is None:
        return None
    series = pd.Series(values).where(~np.isnan(line.y))
    return series.ewm(alpha=1 - weight, ignore_na=True).mean().where(series.notna()).to_numpy()


def with_log_x_axis(chart: Chart) -> Chart:
    """Return the chart with a logarithmic x axis and without the points at x <= 0."""
    panels = []
    for panel in chart.panels:
        lines = [keep_points(line, line.x > 0) for line in panel.lines]
        panels.append(replace(panel, lines=tuple(lines)))
    return replace(chart, panels=tuple(panels), x_log=True)


def with_log_y_axis(panel: Panel) -> Panel:
    """Return the panel with a logarithmic y axis.

    Values <= 0 become NaN. The edge of a band at <= 0 is moved to the smallest positive value of the panel.
    """
    arrays = [array for line in panel.lines for array in (line.y, line.low, line.high) if array is not None]
    positive_minima = [float(array[array > 0].min()) for array in arrays if (array > 0).any()]
    smallest = min(positive_minima, default=np.nan)
    lines = []
    for line in panel.lines:
        low, high = (None if edge is None else np.where(edge <= 0, smallest, edge) for edge in (line.low, line.high))
        lines.append(replace(line, y=np.where(line.y > 0, line.y, np.nan), low=low, high=high))
    return replace(panel, lines=tuple(lines), range=None, from_zero=False, log=True)


def clip_spikes(panel: Panel) -> tuple[Panel, str]:
    """Limit the y axis if a few spikes would flatten all other values.

    Returns:
        The panel, and a sentence for the caption with the number of spikes and the largest one. The sentence is empty
        if nothing was clipped.
    """
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in panel.lines] or [np.empty(0)])
    is_spike = values > SPIKE_FACTOR * np.median(values) if len(values) else np.zeros(0, bool)
    n_spikes = int(is_spike.sum())
    if not 0 < n_spikes <= MAX_SPIKE_SHARE * len(values):
        return panel, ""
    peaks = [(line, int(np.nanargmax(line.y))) for line in panel.lines if np.isfinite(line.y).any()]
    largest, step = max((float(line.y[i]), float(line.x[i])) for line, i in peaks)
    subject = f"{n_spikes} values of {panel.title} are" if n_spikes > 1 else f"1 value of {panel.title} is"
    sentence = f"{subject} above the axis, up to {largest:,.0f} {panel.unit} at step {step:,.0f}."
    top = 1.1 * float(values[~is_spike].max())
    return replace(panel, range=(0.0, top)), sentence
