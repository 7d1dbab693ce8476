"""Names at the ends of lines: placed so that none lies on another, each saying which line it is of."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text

from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import draw_comparison
from app.figures.render.lines_view import draw_chart, spread
from tests.app.curve_cases import join, make_run

PLACES = st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=12)
GAPS = st.floats(0.001, 0.2)


@given(PLACES, GAPS)
def test_labels_keep_their_order_and_distance_and_move_only_if_they_have_no_room(places, gap) -> None:
    moved = spread(places, gap)
    if (len(places) - 1) * gap > 1:
        assert moved is None
        return
    assert moved is not None
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in moved)
    assert all(upper - lower >= gap - 1e-9 for lower, upper in pairwise(sorted(moved)))
    assert [moved[each] for each in np.argsort(places, kind="stable")] == sorted(moved), "their order is kept"
    if all(0 <= place <= 1 for place in places) and all(b - a >= gap for a, b in pairwise(sorted(places))):
        assert moved == pytest.approx(places)


ENDS = st.lists(st.tuples(st.integers(2, 40), st.floats(0, 1)), min_size=2, max_size=8)


@settings(max_examples=5, deadline=None)
@given(ENDS)
def test_labels_in_an_image_never_overlap_wherever_their_lines_end(ends) -> None:
    lines = tuple(
        Line(f"line {k}", "#0072B2", np.arange(n, dtype=float), np.linspace(0, last, n), label=f"EMTC(QPLEX), {k}")
        for k, (n, last) in enumerate(ends)
    )
    chart = Chart("c", "c", "x", (Panel("win rate", "fraction", lines, range=(-0.03, 1.03)),), "", "")
    drawn = draw_chart(chart, 6.75)
    FigureCanvasAgg(drawn).draw()
    texts = [each for each in drawn.axes[0].texts if isinstance(each, Annotation)]
    assert len(texts) == len(ends)
    boxes = sorted((Text.get_window_extent(each) for each in texts), key=lambda box: box.y0)
    assert all(upper.y0 >= lower.y1 - 1 for lower, upper in pairwise(boxes))
    assert all(box.x0 >= drawn.axes[0].get_window_extent().x1 for box in boxes)


def labels(*seeds) -> list[str]:
    chart = draw_comparison(join(list(seeds)))
    return [line.label for line in chart.panels[0].lines]


POINTS = [(0, 0.0), (400, 1.0)]


def test_a_label_says_which_line_is_meant() -> None:
    plain = make_run("a", POINTS)
    gateless = make_run("b", POINTS, "gate.enabled=false")
    ours, theirs = (make_run(f"d{algo}", POINTS, preset="demo", algo=algo) for algo in ("emtc-qplex", "emu-qplex"))
    assert labels(plain, gateless, make_run("c", POINTS, algo="qmix")) == ["EMTC(QPLEX)", "No-TCGM", "QMIX"]
    assert labels(plain, ours, theirs) == ["EMTC(QPLEX)", "EMTC(QPLEX), preset = demo", "EMU(QPLEX), preset = demo"]
    assert labels(plain, ours) == ["EMTC(QPLEX)", "preset = demo"]
