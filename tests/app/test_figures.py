"""Figures: what they contain, and that every export works without a browser."""

import io
import json
from dataclasses import replace
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
from app.figures.named.live import compute_chance_accuracy
from app.figures.named.trajectories import draw_trajectory
from app.figures.render.export import EXPORT_FORMATS, export_figure
from app.figures.render.lines_view import draw_chart, wrap_text
from app.figures.render.matplotlib_style import make_style
from app.figures.render.plotly_view import to_plotly
from app.figures.run_charts import (
    GATE_METRICS,
    NO_RETURNS,
    compute_interval_of_wins,
    draw_gate_dynamics,
    draw_gate_effect,
    draw_metrics,
    draw_outcomes,
)
from app.figures.theme import get_theme_colors
from app.replay.layout import crop_field
from app.replay.payload import make_payload, pack_payload
from app.replay.replay import EpisodeView
from emtc_core.envs.scene import Scene
from emtc_core.metrics import METRICS, describe_metric

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


def test_gate_dynamics_draws_tau_with_the_error_that_it_is_compared_with(stats):
    chart = draw_gate_dynamics(stats, run="r")
    assert [(panel.title, panel.unit) for panel in chart.panels] == [("Δ̄_mem", "return"), ("β̄", "fraction")]
    assert chart.panels[0].log, "Δ̄_mem is often hundreds of times smaller than τ"
    assert (chart.panels[0].lines[-1].name, chart.panels[0].lines[-1].y.tolist()) == ("τ", [1.2, 1.1, 1.0])
    band = chart.panels[0].lines[0]
    assert band.low is not None
    assert band.low.tolist() == [0.1, 0.1, 0.1]


def test_gate_dynamics_shows_new_transitions_beside_the_links_and_says_what_each_averages(stats):
    new = logged(gate__delta_mem_new=1.0, gate__delta_mem_new_p10=0.2, gate__delta_mem_new_p90=3.0, gate__beta_new=0.4)
    chart = draw_gate_dynamics(stats, new, run="r")
    fresh, stored, _ = chart.panels[0].lines
    assert (fresh.name, stored.name) == ("new transitions: mean, band 10–90 %", "links in memory: mean, band 5–95 %")
    assert (fresh.x.tolist(), fresh.y.tolist()) == ([100, 200], [1, 2])
    assert fresh.low is not None
    assert fresh.high is not None
    assert (fresh.low.tolist(), fresh.high.tolist()) == ([0.2, 0.4], [3, 6])
    assert stored.y.tolist() == [0.5] * 3
    assert "new transitions 2, links in memory 0.5" in chart.description
    svg = export_figure(chart, "svg").decode()
    assert "new transitions: mean, band 10–90 %" in svg
    assert "links in memory: mean, band 5–95 %" in svg
    assert chart.to_component()["panels"][0]["lines"][0]["label"] == "new transitions"


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
    for other in (
        draw_gate_dynamics(open_gate.assign(beta_q05=0.1), run="r"),
        draw_gate_dynamics(stats.iloc[:0], run="r"),
    ):
        assert other.panels[1].range == (-0.03, 1.03)
        assert "only" not in other.caption


def test_gate_effect_shows_when_the_gate_acts_and_draws_no_removed_incentive_while_there_is_none():
    frame = logged(
        gate__delta_mem_positive_fraction=0.02, gate__delta_mem_positive_p50=0.5, gate__delta_mem_positive_p10=0.25,
        gate__delta_mem_positive_p90=2.0, gate__tau=1.0, gate__incentive_removed=0.1, gate__closed_fraction=0.05,
        memory__merge_rate=0.2, memory__hit_rate=0.4,
    )  # fmt: skip
    chart = draw_gate_effect(frame, run="r")
    assert [panel.title for panel in chart.panels] == ["gate activity", "Δ_mem where it is above 0", "memory"]
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


def test_without_a_gate_the_effect_is_that_of_the_memory():
    frame = logged(gate__closed_fraction=0.0, memory__merge_rate=0.2)
    assert [panel.title for panel in draw_gate_effect(frame, run="r", has_gate=False).panels] == ["memory"]


def test_a_panel_alone_has_its_own_caption_and_last_values(stats):
    chart = draw_gate_dynamics(stats, run="r")
    alone = chart.keep_panel("β̄")
    assert [panel.title for panel in alone.panels] == ["β̄"]
    assert alone.caption.startswith("Gate β")
    assert "τ" not in alone.caption
    assert alone.description == "β̄ over training env steps. Latest values: links in memory 0.5."
    with pytest.raises(KeyError):
        chart.keep_panel("σ")


def test_gate_effect_draws_the_gap_against_none_and_nothing_of_an_old_run():
    chart = draw_gate_effect(logged(eval__overestimation=-1.5), run="r")
    gap, none = chart.panels[0].lines
    assert (gap.y.tolist(), none.y.tolist()) == ([-1.5, -3.0], [0, 0])
    empty = draw_gate_effect(pd.DataFrame(), run="r")
    assert empty.is_empty
    assert empty.description == "No point yet."


def test_gate_metrics_are_registered():
    assert set(GATE_METRICS) <= set(METRICS)


def test_labels_of_metrics_are_words_and_unique():
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)
    assert METRICS["train/q_taken"].label == "Q of the actions taken"
    assert METRICS["memory/write_ms"].label == "memory write time"
    assert METRICS["gate/delta_mem_new_p10"].label == "Δ_mem new (10 % quantile)"
    assert describe_metric("user/info_nce").label == "info nce"
    assert draw_metrics(logged(train__td_loss=1.0), ["train/td_loss"], run="r").panels[0].title == "TD loss"


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
    assert (plain.panels[0].title, plain.panels[0].lines[0].y.tolist()) == ("win rate", [0, 0, 0])


def test_copies_of_one_battle_count_once_in_the_band_and_the_other_rates_stand_beside():
    counted = {"distinct": [4, 16], "robust_win_rate": [0.25, 0.5]}
    frame = pd.DataFrame(
        {"env_step": [1, 2], "episodes": 16, "wins": 8, "win_rate": 0.5, "return_mean": 1.0, **counted}
    )
    chart = draw_outcomes(frame, NO_RETURNS, run="r", metrics=logged(rollout__win_rate=0.1))
    greedy, robust, training = chart.panels[0].lines
    low, high = compute_interval_of_wins(np.array([2.0, 8.0]), np.array([4.0, 16.0]))
    assert (greedy.low.tolist(), greedy.high.tolist()) == (low.tolist(), high.tolist())
    assert robust.y.tolist() == [0.25, 0.5]
    assert training.y.tolist() == [0.1, 0.2]
    assert "(of the last evaluation's 16: 16)" in chart.caption


def test_an_evaluation_of_an_earlier_version_has_the_band_of_all_its_episodes():
    frame = pd.DataFrame({"env_step": [1], "episodes": 16, "wins": 8, "win_rate": 0.5, "return_mean": 1.0})
    (line,) = draw_outcomes(frame, NO_RETURNS, run="r").panels[0].lines
    low, high = compute_interval_of_wins(np.array([8.0]), np.array([16.0]))
    assert (line.low[0], line.high[0]) == (low[0], high[0])


def test_wilson_interval_matches_a_hand_calculation():
    low, high = compute_interval_of_wins(np.array([0.0, 8.0]), np.array([16.0, 16.0]))
    assert low[0] == 0
    assert high[0] == pytest.approx(1.9599639845**2 / (16 + 1.9599639845**2))
    assert (low[1] + high[1]) / 2 == pytest.approx(0.5)
    assert high[1] - low[1] == pytest.approx(0.4398, abs=1e-3)


def test_metric_panels_take_unit_and_meaning_from_the_registry():
    frame = pd.DataFrame({"env_step": [1, 2], "name": "train/loss", "value": [1.0, 0.5]})
    chart = draw_metrics(frame, ["train/loss", "train/q_taken"], run="r")
    assert [(panel.title, panel.unit) for panel in chart.panels] == [("loss", "return²")]
    assert "masked mean squared TD error" in chart.caption


def test_trajectory_leaves_out_what_is_unknown():
    chart = draw_trajectory(title="e", reward=np.ones(4), delta_mem=np.array([1, np.nan, 2, 3.0]))
    assert [panel.title for panel in chart.panels] == ["Δ_mem", "reward"]
    assert chart.to_component()["panels"][0]["lines"][0]["y"] == [1.0, None, 2.0, 3.0]


def test_an_episode_without_values_of_the_memory_is_drawn_with_the_reason():
    assert draw_trajectory(title="e", reward=np.ones(3)).caption == "Δ_mem, β and H are not stored for this episode."
    assert draw_trajectory(title="e", reward=np.ones(3), h=np.ones(3)).caption == ""


def test_window_cuts_every_line_with_its_band(stats):
    cut = draw_gate_dynamics(stats, run="r").keep_window((150, 250))
    assert all(line.x.tolist() == [200.0] for _, line in cut.panel_lines)
    assert cut.panels[0].lines[0].low is not None
    assert len(cut.panels[0].lines[0].low) == 1


@pytest.mark.parametrize(
    ("mode", "format"), [*(("light", format) for format in EXPORT_FORMATS), ("dark", "svg"), ("dark", "html")]
)
def test_every_figure_exports_in_every_format(stats, cloud, format, mode):
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype html>", "csv": b""}[format]
    for figure in (draw_gate_dynamics(stats, run="r"), cloud):
        data = export_figure(figure, format, mode=mode)
        assert data.lower().startswith(start.lower())
        assert len(data) > 100


def test_same_figure_gives_the_same_file(stats):
    chart = draw_gate_dynamics(stats, run="r")
    for format in ("svg", "pdf", "png"):
        assert export_figure(chart, format) == export_figure(chart, format)


def test_vector_export_keeps_text_as_text(stats):
    svg = export_figure(draw_gate_dynamics(stats, run="$x_1$ & co"), "svg").decode()
    assert "training env steps" in svg
    assert "$x_1$ &amp; co" in svg


def test_names_cannot_become_markup_in_the_html_export(cloud):
    page = export_figure(cloud, "html").decode()
    assert "<b>x</b>" not in page
    assert to_plotly(cloud).layout.title.text == "Memory of &lt;b&gt;x&lt;/b&gt;"


def test_csv_holds_every_point(stats, cloud):
    frame = pd.read_csv(io.BytesIO(export_figure(draw_gate_dynamics(stats, run="r"), "csv")))
    assert len(frame) == 9
    assert len(pd.read_csv(io.BytesIO(export_figure(cloud, "csv")))) == 50


def test_plotly_twin_has_a_titled_axis_for_each_panel(stats):
    layout = to_plotly(draw_gate_dynamics(stats, run="r")).layout
    assert (layout.yaxis.title.text, layout.yaxis2.title.text) == ("Δ̄_mem [return]", "β̄ [fraction]")
    assert layout.xaxis2.title.text == "training env steps"


def test_the_name_of_an_axis_fits_beside_a_single_panel_and_a_mark_is_named_once():
    line = Line("a", "#0072B2", np.arange(3.0), np.arange(3.0))
    panels = tuple(Panel("robust win rate, 3s_vs_5z", "fraction", (line,)) for _ in range(2))
    single, both = (Chart("c", "c", "x", panels[:n], "", "", (Mark(1.0, "resumed"),)) for n in (1, 2))
    assert to_plotly(single).layout.height > to_plotly(both).layout.height / 2 + 60
    assert [text.text for text in to_plotly(both).layout.annotations] == ["resumed"]
    assert len(to_plotly(both).layout.shapes) == 2
    background = get_theme_colors("dark")[1]
    assert f'<body style="background: {background}">' in export_figure(both, "html", mode="dark").decode()


def test_packed_payload_reads_back():
    payload = pack_payload({"n": 2, "name": "é</script>"}, {"x": np.array([1.5, np.nan]), "ok": np.array([True])})
    size = int.from_bytes(payload[:4], "little")
    header = json.loads(payload[4 : 4 + size])
    assert size % 4 == 0
    assert header["meta"]["name"] == "é</script>"
    first, second = header["arrays"]
    body = payload[4 + size :]
    x = np.frombuffer(body, np.float32, first["size"], first["offset"])
    assert x[0] == 1.5
    assert np.isnan(x[1])
    assert body[second["offset"]] == 1


@pytest.fixture
def scene() -> Scene:
    frames, units = 4, 3
    walkable = np.zeros((20, 20), bool)
    walkable[5:15, 8:12] = True
    return Scene(
        position=np.full((frames, units, 2), 10, np.float32),
        health=np.ones((frames, units), np.float32),
        shield=np.zeros((frames, units), np.float32),
        alive=np.ones((frames, units), bool),
        team=np.array([0, 0, 1], np.int8),
        radius=np.ones(units, np.float32),
        kind=("marine",) * units,
        bounds=(0, 0, 20, 20),
        walkable=walkable,
    )


def test_replay_is_cropped_to_where_the_episode_takes_place(scene):
    x0, y0, x1, y1 = crop_field(scene.position.reshape(-1, 2), scene.bounds)
    assert (x0, x1) == (5.5, 14.5)
    assert 0 <= y0 < 10 < y1 <= 20
    corner = replace(scene, position=np.zeros_like(scene.position))
    x0, y0, x1, y1 = crop_field(corner.position.reshape(-1, 2), corner.bounds)
    assert (x0, y0) == (0.0, 0.0)
    assert x1 > 8


def test_replay_starts_inside_the_episode_and_numbers_each_team(scene):
    chart = draw_trajectory(title="e", reward=np.ones(3))
    payload = make_payload([EpisodeView(scene, chart, "e")], start=99)
    size = int.from_bytes(payload[:4], "little")
    meta = json.loads(payload[4 : 4 + size])["meta"]
    assert meta["start"] == 3
    assert meta["sides"][0]["labels"] == ["0", "1", "0"]


def test_chart_without_lines_has_an_empty_table():
    chart = Chart("n", "t", "x", (), "c", "d")
    assert chart.is_empty
    assert chart.to_frame().columns.tolist()[0] == "panel"


def test_a_name_that_no_svg_may_hold_leaves_a_readable_file() -> None:
    line = Line("\x1b[2J\x9b31mred", "#336699", np.arange(3.0), np.arange(3.0), label="a\x00b")
    chart = Chart("c", "\x1btitle", "x", (Panel("\x07panel", "", (line, line)),), "cap\x1btion", "")
    assert ElementTree.fromstring(export_figure(chart, "svg", sources=["run \x1b"])).tag.endswith("svg")


def test_numbers_beyond_what_axes_can_hold_are_left_out() -> None:
    line = Line(
        "run", "#336699", np.arange(3.0), np.array([1.0, -1e308, 1e308]), low=np.full(3, -1e308), high=np.ones(3)
    )
    assert export_figure(Chart("c", "t", "x", (Panel("p", "", (line,)),), "", ""), "png")


@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize(("n_panels", "columns"), [(1, 1), (3, 1), (3, 3)])
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


def test_a_long_name_breaks_between_its_settings_and_not_within_one():
    name = "EMTC(QPLEX), gate.timing = before_write, gate.on_miss = nearest (n = 3)"
    wrapped = wrap_text(name, 2.6, 8)
    assert wrapped.replace("\n", " ") == name
    assert "\n" in wrapped
    assert not any(line.startswith("= ") or line.endswith(" =") for line in wrapped.split("\n"))


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
