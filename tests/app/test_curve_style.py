"""What a reader changes of a chart: 1 − β̄ on a logarithmic axis, an axis that a few values do not flatten."""

import numpy as np
import pandas as pd
import pytest

from app.figures.curve_style import smooth_chart
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import draw_comparison
from app.figures.reference_runs import DOTTED
from app.figures.registry import find_figure
from app.figures.render.export import export_figure
from app.figures.run_charts import draw_gate_dynamics, draw_metrics
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.runs.rows import find_run
from tests.app.curve_cases import join, make_run
from tests.pages.seed import seed_failed_run, seed_run


def speeds(*values: float) -> pd.DataFrame:
    steps = 100 * np.arange(1, len(values) + 1)
    return pd.DataFrame({"env_step": steps, "name": "time/env_steps_per_second", "value": values})


def test_a_gate_that_closes_by_a_thousandth_is_drawn_on_a_logarithmic_axis_when_asked():
    stats = pd.DataFrame({"env_step": [100, 200, 300], "tau": 1.0})
    for name, value in (("delta_mem", 0.5), ("beta", [0.999, 0.9, 1.0])):
        stats[f"{name}_mean"] = value
        stats[f"{name}_q05"], stats[f"{name}_q95"] = 0.8, 1.0
    assert draw_gate_dynamics(stats, run="r").panels[1].title == "β̄"
    chart = draw_gate_dynamics(stats, run="r", closing=True)
    panel = chart.panels[1]
    assert (panel.title, panel.log, panel.range) == ("1 − β̄", True, None)
    (line,) = panel.lines
    assert line.y.tolist() == pytest.approx([0.001, 0.1, np.nan], nan_ok=True)
    assert (line.low, line.high) == (None, None), "an edge of 0 has no place on this axis"
    assert "logarithmic axis" in chart.caption
    assert "without bands" in panel.caption
    assert "%" not in panel.caption, "the quantiles of bands that are not drawn"
    assert "1 − β̄" in chart.description


def test_a_smoothed_chart_has_the_moving_average_of_measured_lines_only():
    y = np.array([1.0, np.nan, 0.0, 4.0])
    x, band = np.arange(4.0), (np.array([0.0, 9.0, np.nan, 3.0]), np.array([2.0, 0.0, 1.0, 5.0]))
    tau = Line("τ", "#000000", x, y, smoothable=False)
    panel = Panel("loss", "return²", (Line("measured", "#123456", x, y, *band), tau))
    chart = Chart("c", "t", "training env steps", (panel,), "Loss.", "", subtitle="one run")
    assert smooth_chart(chart, 0.0) is chart
    smoothed_chart = smooth_chart(chart, 0.5)
    faint, smoothed, same_tau = smoothed_chart.panels[0].lines
    assert same_tau is tau
    assert smoothed.y.tolist() == pytest.approx([1, np.nan, (0.5 * 1) / 1.5, (0.25 * 1 + 4) / 1.75], nan_ok=True)
    assert smoothed.low.tolist() == pytest.approx([0, np.nan, np.nan, (0.5 * 0 + 3) / 1.5], nan_ok=True)
    assert smoothed.high.tolist() == pytest.approx([2, np.nan, 2 / 1.5, (0.25 * 2 + 0.5 * 1 + 5) / 1.75], nan_ok=True)
    assert (faint.faint, faint.unsmoothed, faint.low) == (True, True, None)
    assert faint.y.tolist() == pytest.approx(y.tolist(), nan_ok=True)
    assert "weight 0.5" in smoothed_chart.caption
    assert smoothed_chart.subtitle == "one run; smoothed: exponential moving average, weight 0.5"


@pytest.mark.parametrize(
    ("name", "values", "axis"),
    [
        ("time/env_steps_per_second", (9000, *[300.0] * 11, 330.0), (0, 363)),
        ("time/env_steps_per_second", (9000, 300, 310), None),
        ("train/loss", (9000, *[300.0] * 12), None),
        ("time/env_steps_per_second", (), None),
    ],
    ids=["one of many speeds", "one of three speeds", "a loss", "no value"],
)
def test_a_warm_up_spike_does_not_flatten_the_speed_and_is_told(name, values, axis):
    chart = draw_metrics(speeds(*values).assign(name=name), [name], run="r")
    sentence = "1 value of env steps per second is above the axis, up to 9,000 steps/s at step 100."
    assert (sentence in chart.caption) == (axis is not None)
    for panel in chart.panels:
        assert panel.range == (axis and pytest.approx(axis))
        assert panel.lines[0].y.tolist() == list(values), "files and tips have all values"


POINTS = [(0, 0.0), (100, 1.0), (200, 0.0), (300, 1.0)]


@pytest.mark.parametrize("per_seed", [False, True])
def test_smoothing_looks_back_over_env_steps_and_keeps_what_was_measured_as_faint_lines(per_seed):
    comparison = join([make_run("a", POINTS, seed=1), make_run("b", POINTS, seed=2)])
    chart = draw_comparison(comparison, smooth=150, per_seed=per_seed)
    *measured, line = chart.panels[0].lines
    assert [raw.faint for raw in measured] == [True] * (2 if per_seed else 1)
    assert all((raw.color, raw.low, raw.y.tolist()) == (line.color, None, [0, 1, 0, 1]) for raw in measured)
    assert line.y.tolist() == [0, 0.5, 0.5, 0.5], "the mean of the points of the last 150 steps"
    assert "over the 150 env steps up to each point" in chart.caption
    assert "smoothed over 150 env steps" in chart.subtitle


@pytest.mark.parametrize("format", ["svg", "html"])
def test_logarithmic_axes_leave_out_what_has_no_place_there_and_the_caption_says_so(format):
    chart = draw_comparison(join([make_run("a", POINTS)]), log_axes="xy")
    (line,) = chart.panels[0].lines
    component = chart.to_component()
    assert component["xLog"]
    assert component["panels"][0]["log"]
    assert line.x.tolist() == [100, 200, 300]
    assert line.y.tolist() == pytest.approx([1, np.nan, 1], nan_ok=True)
    assert "The x and y axes are logarithmic" in chart.caption
    assert export_figure(chart, format)


def test_files_take_smoothing_and_axes_and_refuse_what_is_none():
    kind = find_figure("learning-curves")
    values = kind.read_options({"smooth": 20_000, "log": "xy"}).list_set_values()
    assert values == {"smooth": 20_000, "log": "xy"}
    for strange in ({"smooth": -1}, {"smooth": "much"}, {"log": "z"}, {"log": "xyz"}, {"log": 3}):
        with pytest.raises(ConfigError):
            kind.read_options(strange)


def test_other_runs_stand_beside_one_with_their_main_lines_dotted(tmp_path):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    first, second = (seed_run(db, name=name) for name in ("One", "Another"))
    none = seed_failed_run(db)
    kind = find_figure("gate-dynamics")
    alone = kind.make(db, [find_run(db, first)])
    chart = kind.make(db, [find_run(db, first)], kind.read_options({"beside": f"{second},{none}"}))
    assert [len(panel.lines) for panel in chart.panels] == [len(panel.lines) + 1 for panel in alone.panels]
    line = chart.panels[0].lines[-1]
    assert (line.name, line.dash, line.low) == (f"Another ({second})", DOTTED, None)
    assert f"Dotted, for reference: Another ({second})" in chart.caption, (
        "a run without gate statistics has no line here"
    )
    with pytest.raises(ConfigError):
        kind.read_options({"beside": "a,b,c,d,e,f"})
    db.dispose()
