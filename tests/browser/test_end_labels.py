"""The canvas places the names at the ends of lines as files do: never on one another."""

import json
from itertools import pairwise

import numpy as np
import pytest

from app.figures.assets import read_asset
from app.figures.render.lines_view import spread

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_canvas_places_labels_as_files_do(page) -> None:
    rng = np.random.default_rng(0)
    cases = [(rng.uniform(-0.2, 1.2, rng.integers(1, 9)).tolist(), float(rng.uniform(0.001, 0.12))) for _ in range(300)]
    page.goto("about:blank")
    page.add_script_tag(content=read_asset("ends.js"))
    moved = page.evaluate(f"() => {json.dumps(cases)}.map(([places, gap]) => spreadPlaces(places, gap, 0, 1))")
    for (places, gap), found in zip(cases, moved, strict=True):
        assert found == pytest.approx(spread(places, gap))
        assert all(upper - lower >= gap - 1e-9 for lower, upper in pairwise(sorted(found)))
