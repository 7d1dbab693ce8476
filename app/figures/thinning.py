"""Reduce the points of long lines, so that less data are stored or sent to a browser."""

import numpy as np
from numpy.typing import NDArray

from app.figures.kinds.chart import Line, Values, keep_points


def thin_line(line: Line, limit: int) -> Line:
    """Return the line with at most `limit` points: both ends, and the extremes of equally long sections.

    A section without any finite value keeps one point, so that the line keeps its gap.
    """
    if len(line.x) <= limit:
        return line
    keep = np.zeros(len(line.x), dtype=np.bool_)
    keep[_select_extremes(line.y, limit)] = True
    return keep_points(line, keep)


def _select_extremes(y: Values, limit: int) -> NDArray[np.int64]:
    """Select both ends, and the minimum and the maximum of each section.

    Args:
        y: Values, [n].
        limit: Maximum number of points, at least 4.

    Returns:
        Indices into `y`, [at most `limit`].
    """
    n_sections = (limit - 2) // 2  # two points per section, and the two ends
    length = -(-len(y) // n_sections)  # points per section, rounded up
    sections = np.full((n_sections, length), np.nan)
    sections.flat[: len(y)] = y
    starts = length * np.arange(n_sections)
    is_finite = np.isfinite(sections)
    lowest = starts + np.where(is_finite, sections, np.inf).argmin(axis=1)
    highest = starts + np.where(is_finite, sections, -np.inf).argmax(axis=1)
    indices = np.concatenate([lowest, highest, [0, len(y) - 1]])
    return indices[indices < len(y)]  # the last sections may be empty
