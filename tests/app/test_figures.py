"""Figures: what they contain, and that every export works without a browser."""

import io
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from app.analysis.aggregates import trailing_mean
from app.analysis.selection import NODE_QUANTITIES
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.kinds.maps import Cloud
from app.figures.mathtext import format_mathtext
from app.figures.named.live import compute_chance_accuracy
from app.figures.named.trajectories import draw_trajectory
from app.figures.render.export import EXPORT_FORMATS, export_figure
from app.figures.render.lines_view import draw_chart
from app.figures.render.matplotlib_style import make_style
from app.figures.render.plotly_view import to_plotly
from app.figures.run_charts import (
    NO_RETURNS,
    compute_interval_of_wins,
    draw_gate_dynamics,
    draw_gate_effect,
    draw_metrics,
    draw_outcomes,
)
from app.figures.theme import get_theme_colors
from emtc_core.metrics import METRICS

EMPTY_EVALUATIONS = pd.DataFrame(columns=["env_step", "episodes", "wins", "win_rate", "return_mean"], dtype=float)


@pytest.fixture
def stats() -> pd.DataFrame:
    frame = pd.DataFrame({"env_step": [100, 200, 300], "tau": [1.2, 1.1, 1.0]})
    for name in ("delta_mem", "beta"):
        for part, value in (("mean", 0.5), ("q05", 0.1), ("q95", 0.9)):
            frame[f"{name}_{part}"] = value
    return frame


def logged(**values: float) -> pd.DataFrame:
    """Log these numbers at two reports, the second twice as large; a name's "__" stands for its slash."""
    rows = [
        (step, name.replace("__", "/"), step / 100 * value) for name, value in values.items() for step in (100, 200)
    ]
    return pd.DataFrame(rows, columns=["env_step", "name", "value"])


@pytest.fixture
def cloud() -> Cloud:
    n = 50
    rng = np.random.default_rng(0)
    value = rng.random(n).astype(np.float32)
    value[3] = np.nan
    return Cloud(
        "memory-atlas", "Memory of <b>x</b>", "principal component 1", "principal component 2",
        rng.random(n, np.float32), rng.random(n, np.float32), np.arange(n), value, NODE_QUANTITIES["h"], "50 of 50",
    )  # fmt: skip


def test_gate_dynamics_draws_new_transitions_and_links_with_tau(stats):
    new = logged(gate__delta_mem_new=1.0, gate__delta_mem_new_p10=0.2, gate__delta_mem_new_p90=3.0, gate__beta_new=0.4)
    chart = draw_gate_dynamics(stats, new, run="r")
    assert [(panel.title, panel.unit) for panel in chart.panels] == [("Δ̄_mem", "return"), ("β̄", "fraction")]
    assert chart.panels[0].log, "Δ̄_mem is often hundreds of times smaller than τ"
    fresh, stored, tau = chart.panels[0].lines
    assert (fresh.x.tolist(), fresh.low.tolist(), fresh.y.tolist(), fresh.high.tolist()) == (
        [100, 200],
        [0.2, 0.4],
        [1, 2],
        [3, 6],
    )
    assert (stored.low.tolist(), stored.y.tolist(), stored.high.tolist()) == ([0.1] * 3, [0.5] * 3, [0.9] * 3)
    assert (tau.name, tau.y.tolist()) == ("τ", [1.2, 1.1, 1.0])
    assert "new transitions 2, links in memory 0.5" in chart.description
    svg = export_figure(chart, "svg").decode()
    assert fresh.name in svg
    assert stored.name in svg
    assert "band 10–90 %" in fresh.name
    assert "band 5–95 %" in stored.name


def test_a_band_whose_edges_are_equal_is_not_announced(stats):
    """The gate acts on less than a tenth of the transitions: the 10 % and the 90 % quantile of their errors are 0."""
    rows = [(step, f"gate/delta_mem_new{part}", value) for step in (100, 200) for part, value in
            (("", step / 1000), ("_p10", 0.0), ("_p90", 0.0))]  # fmt: skip
    new = pd.DataFrame(rows, columns=["env_step", "name", "value"])
    chart = draw_gate_dynamics(stats, new, run="r")
    fresh, stored, _ = chart.panels[0].lines
    assert (fresh.name, fresh.low, fresh.high) == ("new transitions: mean", None, None)
    assert stored.name == "links in memory: mean, band 5–95 %"
    assert "No band of Δ_mem of new transitions: its two quantiles are equal" in chart.caption


def test_beta_has_an_axis_of_its_values_where_they_are_close_together(stats):
    near_one = {f"beta_{part}": np.linspace(0.97, 1.0, 3) for part in ("mean", "q05", "q95")}
    open_gate = stats.assign(**near_one)
    chart = draw_gate_dynamics(open_gate, run="r")
    assert chart.panels[1].range is None, "the axis of a panel without a range is that of its values"
    assert "fitted to the values" in chart.caption
    for other in (open_gate.assign(beta_q05=0.1), stats.iloc[:0]):
        chart = draw_gate_dynamics(other, run="r")
        assert chart.panels[1].range == (-0.03, 1.03)
        assert "fitted to the values" not in chart.caption


def test_gate_effect_shows_when_the_gate_acts_and_draws_no_removed_incentive_while_there_is_none():
    frame = logged(
        gate__delta_mem_positive_fraction=0.02, gate__delta_mem_positive_p50=0.5, gate__delta_mem_positive_p10=0.25,
        gate__delta_mem_positive_p90=2.0, gate__tau=1.0, gate__incentive_removed=0.1, gate__closed_fraction=0.05,
        memory__merge_rate=0.2, memory__hit_rate=0.4, eval__overestimation=-1.5,
    )  # fmt: skip
    chart = draw_gate_effect(frame, run="r")
    assert [panel.title for panel in chart.panels] == [
        "gate activity",
        "Δ_mem where it is above 0",
        "memory",
        "overestimation",
    ]
    gap, none = chart.panels[3].lines
    assert (gap.y.tolist(), none.y.tolist()) == ([-1.5, -3.0], [0, 0])
    positive, closed, removed = chart.panels[0].lines
    assert positive.y.tolist() == [0.02, 0.04]
    assert closed.y.tolist() == [0.05, 0.1]
    assert removed.y.tolist() == [0.1, 0.2]
    assert (chart.panels[0].range, chart.panels[0].from_zero) == (None, True), "0.5 % is visible"
    median, tau = chart.panels[1].lines
    assert (median.low.tolist(), median.y.tolist(), median.high.tolist()) == ([0.25, 0.5], [0.5, 1], [2, 4])
    assert (tau.y.tolist(), chart.panels[1].log) == ([1, 2], True)
    dry = pd.concat([frame, pd.DataFrame({"env_step": [100, 200], "name": "incentive/rho", "value": [0.0, 0.1]})])
    _, closed, removed = draw_gate_effect(dry, run="r").panels[0].lines
    assert np.isnan(removed.y[0])
    assert (removed.y[1], closed.y[0]) == (0.2, 0.05)
    assert [panel.title for panel in draw_gate_effect(frame, run="r", has_gate=False).panels] == [
        "memory",
        "overestimation",
    ]


def test_a_panel_alone_has_its_own_caption_and_last_values(stats):
    chart = draw_gate_dynamics(stats, run="r")
    alone = chart.keep_panel("β̄")
    assert [panel.title for panel in alone.panels] == ["β̄"]
    assert alone.caption.startswith("Gate β")
    assert "τ" not in alone.caption
    assert alone.description == "β̄ over training env steps. Latest values: links in memory 0.5."
    with pytest.raises(KeyError):
        chart.keep_panel("σ")


def test_info_nce_accuracy_stands_beside_chance():
    frame = logged(embedder__info_nce_accuracy=0.05)
    chance = compute_chance_accuracy({"embed": {"batch": 1024}})
    accuracy, level = draw_metrics(frame, ["embedder/info_nce_accuracy"], run="r", chance=chance).panels[0].lines
    assert accuracy.y.tolist() == [0.05, 0.1]
    assert accuracy.name == "InfoNCE accuracy"
    assert level.name == "chance, 1/1024"
    assert level.y.tolist() == [1 / 1024, 1 / 1024]
    assert compute_chance_accuracy({}) is None
    assert len(draw_metrics(frame, ["embedder/info_nce_accuracy"], run="r").panels[0].lines) == 1


def test_figures_of_a_run_without_points_are_empty_and_still_drawable(stats):
    chart = draw_gate_dynamics(stats.iloc[:0], run="r")
    assert chart.is_empty
    assert export_figure(chart, "svg").startswith(b"<?xml")
    assert draw_outcomes(EMPTY_EVALUATIONS, NO_RETURNS, run="r").is_empty
    assert draw_gate_effect(pd.DataFrame(), run="r").is_empty
    assert Chart("n", "t", "x", (), "c", "d").to_frame().columns.tolist()[0] == "panel"


def test_where_the_return_decides_outcomes_draw_that_share_and_name_the_threshold():
    steps = {"env_step": [100, 200, 300], "episodes": 16.0, "wins": 0.0, "win_rate": 0.0, "return_mean": 1.0}
    rated = logged(eval__success_rate=0.25)
    chart = draw_outcomes(pd.DataFrame(steps), NO_RETURNS, run="r", threshold=-18.0, metrics=rated)
    (line,) = chart.panels[0].lines
    assert chart.panels[0].title == "success (return ≥ -18)"
    assert line.y.tolist()[:2] == [0.25, 0.5]
    assert np.isnan(line.y[2])  # an evaluation without a rate is no failure
    low, high = compute_interval_of_wins(np.array([4.0]), np.array([16.0]))
    assert (line.low[0], line.high[0]) == (low[0], high[0])
    plain = draw_outcomes(pd.DataFrame(steps), NO_RETURNS, run="r", metrics=rated)
    (line,) = plain.panels[0].lines
    assert (plain.panels[0].title, line.y.tolist()) == ("win rate", [0, 0, 0])


def test_copies_of_one_battle_count_once_in_the_band_and_the_other_rates_stand_beside():
    counted = {"distinct": [4, np.nan, 16], "robust_win_rate": [0.25, np.nan, 0.5]}
    frame = pd.DataFrame(
        {"env_step": [1, 2, 3], "episodes": 16, "wins": 8, "win_rate": 0.5, "return_mean": 1.0, **counted}
    )
    chart = draw_outcomes(frame, NO_RETURNS, run="r", metrics=logged(rollout__win_rate=0.1))
    greedy, robust, training = chart.panels[0].lines
    low, high = compute_interval_of_wins(np.array([2.0, 8.0, 8.0]), np.array([4.0, 16.0, 16.0]))
    assert (greedy.low.tolist(), greedy.high.tolist()) == (low.tolist(), high.tolist())
    np.testing.assert_array_equal(robust.y, [0.25, np.nan, 0.5])
    assert training.y.tolist() == [0.1, 0.2]
    assert "(of the last evaluation's 16: 16)" in chart.caption


def test_metric_panels_take_label_unit_and_meaning_from_the_registry():
    frame = pd.DataFrame({"env_step": [1, 2] * 2, "name": ["train/loss"] * 2 + ["user/info_nce"] * 2, "value": 1.0})
    chart = draw_metrics(frame, ["train/loss", "train/q_taken", "user/info_nce"], run="r")
    loss = METRICS["train/loss"]
    assert [(panel.title, panel.unit) for panel in chart.panels] == [(loss.label, loss.unit), ("info nce", "")]
    assert loss.meaning in chart.caption


def test_a_trajectory_leaves_out_what_is_unknown_and_says_that_the_memory_has_no_values():
    chart = draw_trajectory(title="e", reward=np.ones(4), delta_mem=np.array([1, np.nan, 2, 3.0]))
    assert [panel.title for panel in chart.panels] == ["Δ_mem", "reward"]
    assert chart.to_component()["panels"][0]["lines"][0]["y"] == [1.0, None, 2.0, 3.0]
    assert chart.caption == ""
    assert "not stored" in draw_trajectory(title="e", reward=np.ones(3)).caption


def test_window_cuts_every_line_with_its_band(stats):
    cut = draw_gate_dynamics(stats, run="r").keep_window((150, 250))
    assert all(line.x.tolist() == [200.0] for _, line in cut.panel_lines)
    assert len(cut.panels[0].lines[0].low) == 1


@pytest.mark.parametrize(("format", "mode"), [*((format, "light") for format in EXPORT_FORMATS), ("svg", "dark")])
def test_every_figure_is_exported_in_every_format_and_twice_as_the_same_file(stats, cloud, format, mode):
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype html>", "csv": b""}[format]
    for figure, n_points in ((draw_gate_dynamics(stats, run="r"), 9), (cloud, 50)):
        data = export_figure(figure, format, mode=mode)
        assert data.lower().startswith(start.lower())
        if format == "csv":
            assert len(pd.read_csv(io.BytesIO(data))) == n_points
    if format != "html":  # Plotly numbers its figures
        assert export_figure(figure, format, mode=mode) == data


def test_text_in_an_svg_stays_text_also_with_characters_that_xml_forbids() -> None:
    line = Line("\x1b[2J\x9b31mred", "#336699", np.arange(3.0), np.arange(3.0), label="a\x00b")
    chart = Chart("c", "\x1b$x_1$ & co", "env steps", (Panel("\x07panel", "", (line, line)),), "cap\x1btion", "")
    svg = ElementTree.fromstring(export_figure(chart, "svg", sources=["run \x1b"]))
    text = "".join(svg.itertext())
    assert "$x_1$ & co" in text
    assert "env steps" in text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("|r + γV*(s′) − V*(s)|", r"|r + $\gamma$$V^{*}$(s′) − $V^{*}$(s)|"),
        ("SHARK H*", r"SHARK $H^{*}$"),
        ("Δ̄_mem, N_ξ of High", r"$\bar{\Delta}_{\mathrm{mem}}$, $N_{\xi}$ of High"),
        ("$5 log₁₀ H′", r"\$5 $\log_{10}$ $H^{\prime}$"),
    ],
)
def test_symbols_in_labels_are_formulas(text, code) -> None:
    assert format_mathtext(text) == code


def test_names_cannot_become_markup_in_the_html_export(cloud):
    page = export_figure(cloud, "html").decode()
    assert "<b>x</b>" not in page
    assert to_plotly(cloud).layout.title.text == "Memory of &lt;b&gt;x&lt;/b&gt;"


def test_the_name_of_an_axis_fits_beside_a_single_panel_and_a_mark_is_named_once():
    line = Line("a", "#0072B2", np.arange(3.0), np.arange(3.0))
    panels = tuple(Panel("robust win rate, 3s_vs_5z", "fraction", (line,)) for _ in range(2))
    single, both = (Chart("c", "c", "x", panels[:n], "", "", (Mark(1.0, "resumed"),)) for n in (1, 2))
    assert to_plotly(single).layout.height > to_plotly(both).layout.height / 2 + 60
    assert [text.text for text in to_plotly(both).layout.annotations] == ["resumed"]
    assert len(to_plotly(both).layout.shapes) == 2
    assert to_plotly(both).layout.yaxis2.title.text == "robust win rate, 3s_vs_5z [fraction]"
    assert to_plotly(both).layout.xaxis2.title.text == "x"
    background = get_theme_colors("dark")[1]
    assert f'<body style="background: {background}">' in export_figure(both, "html", mode="dark").decode()


def test_numbers_beyond_what_axes_can_hold_are_left_out() -> None:
    line = Line(
        "run", "#336699", np.arange(3.0), np.array([1.0, -1e308, 1e308]), low=np.full(3, -1e308), high=np.ones(3)
    )
    assert export_figure(Chart("c", "t", "x", (Panel("p", "", (line,)),), "", ""), "png")


@pytest.mark.parametrize(("n_panels", "columns", "width"), [(1, 1, 3.25), (3, 1, 3.25), (3, 3, 3.25), (3, 3, 6.75)])
def test_a_name_without_spaces_that_is_wider_than_the_picture_is_broken(n_panels, columns, width):
    """46 characters were cut at both sides; the name of a panel at the top and at the bottom."""
    names = ("my_algorithm_with_forty_six_characters_in_name", "M" * 46)
    lines = tuple(Line(name, "#336699", np.arange(3.0), np.arange(3.0)) for name in names)
    panels = tuple(Panel(f"{k} win rate, a.module:with_a_long_name_of_a_map", "", lines) for k in range(n_panels))
    with mpl.rc_context(make_style("light")):
        picture = draw_chart(Chart("c", "t", "env steps", panels, "", "", columns=columns), width)
        FigureCanvasAgg(picture).draw()
        legends = picture.legends or [ax.get_legend() for ax in picture.axes]
        texts = [text for legend in legends for text in legend.get_texts()]
        titles = [text for ax in picture.axes for text in (ax.title, ax.yaxis.label)]
        boxes = [text.get_window_extent() for text in (*texts, *titles)]
    assert {text.get_text().replace("\n", "") for text in texts} == set(names)
    assert all(box.x0 >= 0 and box.x1 <= picture.bbox.x1 and box.y0 >= 0 and box.y1 <= picture.bbox.y1 for box in boxes)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(-50, 50), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(1, 900),
    st.integers(1, 40),
)
def test_a_smoothed_curve_never_changes_its_past(steps, window, known):
    gaps, y, n = (np.array(part, float) for part in zip(*steps, strict=True))
    x = np.cumsum(gaps)
    whole = trailing_mean(x, y, window, n)
    assert np.array_equal(trailing_mean(x[:known], y[:known], window, n[:known]), whole[:known])
    slow = [np.average(y[(x > at - window) & (x <= at)], weights=n[(x > at - window) & (x <= at)]) for at in x]
    assert np.allclose(whole, slow)
