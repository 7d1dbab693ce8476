"""The tooltip of stacked charts shows the cursor's own x, and no value of a line that has no point there."""

import json

import numpy as np
import pytest

from app.figures.assets import read_script
from app.figures.curve_style import smooth_chart
from app.figures.kinds.chart import Chart, Line, Panel

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

SHORT = {"name": "demo", "color": "#0072B2", "x": [0, 1000, 2523], "y": [0.0, 0.5, 1.0]}
LONG = {"name": "other run", "color": "#D55E00", "x": list(range(0, 20001, 5000)), "y": [0.0, 0.1, 0.2, 0.3, 0.4]}
DELTA = {"name": "demo", "color": "#0072B2", "x": [0, 10000, 20000], "y": [4.0, 5.0, 6.0]}
DATA = {
    "panels": [{"title": "Win rate", "lines": [SHORT, LONG]}, {"title": "Δ̄", "lines": [DELTA]}],
    "xLabel": "env steps",
    "xName": "env step",
    "height": 500,
    "alt": "two panels",
}


@pytest.fixture
def chart(page):
    """Draw the chart on an empty page."""
    page.goto("about:blank")
    page.set_content(
        '<div id="parent" style="width:800px"><div class="curves" tabindex="0"><canvas style="width:100%"></canvas>'
        '<div class="tip" hidden></div></div></div>'
    )
    script = read_script("ends.js", "curves.js")
    page.add_script_tag(content=script.replace("export default function curves", "function curves"))
    page.evaluate(
        f"() => {{ curves({{ data: {json.dumps(DATA)}, parentElement: document.getElementById('parent'),"
        " setTriggerValue: () => {} }) }"
    )
    return page


def read_tip(page, step: float, height: float = 5) -> list[str]:
    """Move the cursor to an env step, `height` pixels below the top of the first panel; return the tooltip's lines."""
    x, y = page.locator(".curves").evaluate(
        """(node, [step, height]) => {
            const { sx, box } = node.state.boxes[0]
            const frame = node.querySelector('canvas').getBoundingClientRect()
            return [frame.left + sx(step), frame.top + box.y + height]
        }""",
        [step, height],
    )
    page.mouse.move(x, y)
    return [line for line in page.locator(".tip").inner_text().splitlines() if line]


def read_step(line: str) -> int:
    assert line.startswith("env step ")
    return int(line.removeprefix("env step ").replace(",", ""))


def test_a_run_that_ended_before_the_cursor_has_a_dash(chart):
    title, *rows = read_tip(chart, 13_700)
    assert read_step(title) == pytest.approx(13_700, abs=30)
    assert rows == ["Win rate", "other run: 0.3 at 15,000", "demo: –", "Δ̄", "demo: 5 at 10,000"], "highest first"


def test_a_value_at_the_cursor_needs_no_step(chart):
    title, *rows = read_tip(chart, 2523)
    assert read_step(title) == pytest.approx(2523, abs=30)
    assert rows[1] == "demo: 1"


def test_a_zoomed_line_stays_between_the_axes(chart):
    shown = chart.evaluate(
        """() => {
            const node = document.querySelector('.curves')
            node.state.window = [6000, 9000]
            node.state.draw()
            const { box } = node.state.boxes[0]
            const canvas = node.querySelector('canvas')
            const ratio = canvas.width / canvas.clientWidth
            const pixels = canvas.getContext('2d').getImageData(
                (box.x + box.width + 1) * ratio, box.y * ratio, 4 * ratio, box.height * ratio).data
            return pixels.some((value) => value > 0)
        }"""
    )
    assert not shown, "nothing is drawn to the right of the axes"


def test_a_smoothed_line_has_the_values_of_an_export_and_names_both(chart):
    rng = np.random.default_rng(1)
    x, y = np.arange(0.0, 20_001, 100), rng.normal(size=201).cumsum()
    y[[0, 50]] = np.nan
    lines = (Line("loss", "#0072B2", x, y, y - 1, y + 2), Line("τ", "#D55E00", x, y, smoothable=False))
    plain = Chart("metrics", "", "env steps", (Panel("loss", "", lines),), "", "loss")
    data = {**plain.to_component(), "link": "live", "height": 300, "smoothing": 0}
    shown = chart.evaluate(
        """data => {
            const root = document.querySelector('.curves')
            curves({ data, parentElement: document.getElementById('parent'), setTriggerValue: () => {} })
            document.dispatchEvent(new CustomEvent('emtc-lab-smoothing', { detail: { link: 'other', weight: 0.5 } }))
            const before = root.state.panels[0].lines.length
            document.dispatchEvent(new CustomEvent('emtc-lab-smoothing', { detail: { link: 'live', weight: 0.9 } }))
            return [before, root.state.panels[0].lines.map((line) => [line.faint, line.y, line.lo, line.hi])]
        }""",
        data,
    )
    before, drawn = shown
    assert before == 2, "the slider of other charts"
    expected = smooth_chart(plain, 0.9).panels[0].lines
    assert [faint for faint, *_ in drawn] == [line.faint for line in expected] == [True, False, False]
    for (_, *edges), line in zip(drawn, expected, strict=True):
        for values, exported in zip(edges, (line.y, line.low, line.high), strict=True):
            if exported is None:
                assert values is None
            else:
                assert np.array(values, float) == pytest.approx(exported, rel=1e-4, abs=1e-4, nan_ok=True)
    _, smoothed, tau = read_tip(chart, 10_000)
    assert smoothed.endswith(f"{y[100]:.4g} measured".replace("-", "−"))
    assert ") smoothed, " in smoothed, "the band is that of the smoothed line"
    assert "smoothed" not in tau


def test_the_line_nearest_to_the_pointer_is_highlighted_and_has_the_only_band(chart):
    x = np.arange(0.0, 101)
    lines = [
        Line(f"{name} (n = 1 to 3)", color, x, np.full(101, y), np.full(101, y - 1), np.full(101, y + 1), n=n)
        for name, color, y, n in (("low", "#0072B2", 2.0, 3), ("high", "#D55E00", 8.0, 1))
    ]
    panel = Panel("loss", "", tuple(lines), range=(0, 10))
    data = Chart("c", "", "env steps", (panel,), "", "").to_component() | {"bands": "pointed", "height": 400}
    opacity_at = """value => {
        const node = document.querySelector('.curves')
        const { box, sx, sy } = node.state.boxes[0]
        const canvas = node.querySelector('canvas')
        const ratio = canvas.width / canvas.clientWidth
        return canvas.getContext('2d').getImageData((sx(33) + 3) * ratio, sy(value) * ratio, 1, 1).data[3]
    }"""
    chart.evaluate(
        "data => curves({ data, parentElement: document.getElementById('parent'), setTriggerValue: () => {} })", data
    )
    assert [chart.evaluate(opacity_at, value) for value in (2.7, 8.7)] == [0, 0], "no band without a pointer"
    for height, name in ((20, "high (n = 1)"), (300, "low (n = 3)")):
        _, *rows = read_tip(chart, 50, height)
        assert [row.partition(":")[0] for row in rows] == ["high (n = 1)", "low (n = 3)"], "the seeds of this panel"
        assert chart.locator(".tip-row.strong").inner_text().startswith(name)
        has_band = [chart.evaluate(opacity_at, value) > 0 for value in (2.7, 8.7)]
        assert has_band == [name.startswith("low"), name.startswith("high")]
    tip, frame = (chart.locator(selector).bounding_box() for selector in (".tip", ".curves"))
    assert frame["x"] <= tip["x"]
    assert tip["x"] + tip["width"] <= frame["x"] + frame["width"]
    assert chart.locator(".tip").evaluate("node => node.scrollWidth <= node.clientWidth")


def test_an_axis_of_values_that_differ_by_rounding_has_ticks(chart):
    assert len(chart.evaluate("() => niceTicks(1 - 2e-16, 1 + 2e-16, 5)")) < 20
    assert chart.evaluate("() => niceTicks(-0.3, 1, 4)") == [0, 0.5, 1]
