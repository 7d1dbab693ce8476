"""The canvas places the names at the ends of lines as files do: never on one another."""

import json
from itertools import pairwise

import numpy as np
import pytest

from app.figures.assets import read_asset, read_script
from app.figures.render.lines_view import spread

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_canvas_places_labels_as_files_do(page) -> None:
    rng = np.random.default_rng(0)
    cases = [(rng.uniform(-0.2, 1.2, rng.integers(1, 9)).tolist(), float(rng.uniform(0.001, 0.12))) for _ in range(300)]
    page.goto("about:blank")
    page.add_script_tag(content=read_asset("ends.js"))
    moved = page.evaluate(f"() => {json.dumps(cases)}.map(([places, gap]) => spreadPlaces(places, gap, 0, 1))")
    for (places, gap), found in zip(cases, moved, strict=True):
        assert found == pytest.approx(spread(places, gap))
        assert all(upper - lower >= gap - 1e-9 for lower, upper in pairwise(sorted(found)))


@pytest.mark.parametrize("n_lines", [2, 12])
def test_a_chart_names_its_lines_at_their_ends_or_in_a_legend_but_not_in_both(page, n_lines) -> None:
    lines = [
        {"name": f"method {i} (n = 1)", "label": f"m{i}", "color": "#0072B2", "x": [0, 10], "y": [i / 12, i / 12]}
        for i in range(n_lines)
    ]
    data = {"panels": [{"title": "Win rate", "lines": lines}], "xLabel": "env steps", "alt": "", "panelHeight": 200}
    page.goto("about:blank")
    page.set_content(
        '<div id="parent" style="width:600px"><div class="curves"><canvas style="width:100%"></canvas>'
        '<div class="tip" hidden></div></div></div>'
    )
    script = read_script("ends.js", "curves.js")
    page.add_script_tag(content=script.replace("export default function curves", "function curves"))
    written = page.evaluate(
        f"""() => {{
            const texts = []
            const fillText = CanvasRenderingContext2D.prototype.fillText
            CanvasRenderingContext2D.prototype.fillText = function (...args) {{
                texts.push(args[0])
                fillText.apply(this, args)
            }}
            const parentElement = document.getElementById("parent")
            curves({{ data: {json.dumps(data)}, parentElement, setTriggerValue() {{}} }})
            return texts
        }}"""
    )
    is_labeled = n_lines <= 8
    assert [f"m{i}" in written for i in range(n_lines)] == [is_labeled] * n_lines
    assert [f"method {i} (n = 1)" in written for i in range(n_lines)] == [not is_labeled] * n_lines
