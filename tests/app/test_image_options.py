"""Options of images: what a value may be, and what each option changes in a file."""

import re

import numpy as np
import pytest

from app.figures.image_options import (
    read_image_options,
    read_labels,
    read_width,
    replace_labels,
)
from app.figures.kinds.chart import UNSMOOTHED_NOTE, Chart, Line, Panel
from app.figures.render.export import export_figure
from app.figures.render.lines_view import draw_chart
from app.figures.render.plotly_view import to_plotly
from emtc_core.errors import ConfigError
from tests.errors import raises

X = np.linspace(0, 3e6, 100)


def make_chart(*, n: tuple[int, int] = (3, 3), columns: int = 1) -> Chart:
    lines = (
        Line(f"EMTC(QPLEX) (n = {n[0]})", "#D55E00", X, X / 3e6, label="EMTC(QPLEX)"),
        Line("raw", "#D55E00", X, X / 3e6, faint=True, unsmoothed=True),
        Line(f"EMTC(QPLEX), No-TCGM (n = {n[1]})", "#0072B2", X, X / 6e6, label="No-TCGM"),
    )
    panel = Panel("win rate, 3m", "fraction", lines, range=(-0.03, 1.03))
    caption = f"Smoothed. {UNSMOOTHED_NOTE}"
    return Chart("c", "Title", "training env steps", (panel,), caption, "", subtitle="mean", columns=columns)


def write_svg(chart: Chart, **values: object) -> str:
    return export_figure(chart, "svg", options=read_image_options(values)[0]).decode()


@pytest.mark.parametrize(
    ("options", "points"),
    [
        ({}, 486),
        ({"width": "3.25in"}, 234),
        ({"width": 5}, 360),
        ({"width": "2.5in"}, 180),
        ({"width": "8.128cm"}, 230.4),
        ({"width": "one"}, 234),
    ],
)
def test_the_file_has_the_width(options, points) -> None:
    assert f'width="{points:g}pt"' in write_svg(make_chart(), **options)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("width", text) for text in ("three", "1in", "100cm", "3.25pt", "-4in", "")),
        ("font", "Comic Papyrus"),
        ("label", ["A"]),
        ("label", ["=B"]),
        ("label", ["Emtc=a text that is not in the figure"]),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(key, value) -> None:
    with raises(ConfigError, key=key):
        write_svg(make_chart(), **{key: value})


def test_a_text_is_replaced_in_names_titles_and_axes_and_keeps_the_number_of_seeds() -> None:
    labels = read_labels("EMTC(QPLEX)=Ours\n\n3m=easy = 1\ntraining env steps=steps")
    assert labels == read_labels({"EMTC(QPLEX)": "Ours", "3m": "easy = 1", "training env steps": "steps"})
    assert read_labels(["τ = 0.6=low"]) == (("τ = 0.6", "low"),), "an equals sign between spaces is part of a text"
    chart = replace_labels(make_chart(), labels)
    assert isinstance(chart, Chart)
    assert [line.name for line in chart.panels[0].lines] == ["Ours (n = 3)", "raw", "Ours, No-TCGM (n = 3)"]
    assert (chart.panels[0].title, chart.x_label) == ("win rate, easy = 1", "steps")


@pytest.mark.parametrize(
    ("n", "no_title", "shown"),
    [
        ((3, 3), False, {"Title", "mean; n = 3", "No-TCGM"}),
        ((3, 3), True, {"No-TCGM (n = 3)"}),
        ((3, 5), False, {"Title", "mean", "No-TCGM (n = 5)"}),
    ],
)
def test_the_number_of_seeds_is_in_the_subtitle_or_in_the_names_of_the_lines(n, no_title, shown) -> None:
    svg = write_svg(make_chart(n=n), line_names="labels", no_title=no_title)
    texts = set(re.findall(r">([^<>]+)</text>", svg))
    assert {text for text in texts if text == "Title" or text.startswith(("mean", "No-TCGM"))} == shown


@pytest.mark.parametrize(("font", "family"), [("serif", "STIXGeneral"), ("DejaVu Serif", "DejaVu Serif")])
def test_a_font_is_used_for_all_texts(font, family) -> None:
    assert family in write_svg(make_chart(), font=font)


@pytest.mark.parametrize(
    ("place", "width"), [("legend", "6.75in"), ("labels", "3.25in"), ("auto", "3.25in"), ("auto", "6.75in")]
)
def test_each_line_is_named_once(place, width) -> None:
    figure = draw_chart(make_chart(), read_width(width), line_names=place)
    has_labels = any("No-TCGM" in text.get_text() for text in figure.axes[0].texts)
    assert has_labels != bool(figure.legends)
    assert has_labels == (place == "labels" or (place == "auto" and width == "6.75in"))


def test_an_image_has_no_unsmoothed_lines_and_its_caption_does_not_mention_them() -> None:
    chart = make_chart()
    assert UNSMOOTHED_NOTE not in write_svg(chart)
    assert len(chart.without_unsmoothed_lines().panels[0].lines) == 2
    assert "raw" in export_figure(chart, "csv").decode()


@pytest.mark.parametrize(("end", "width"), [(2.2e5, 3.25), (3e6, 3.25), (1e6, 6.75), (7.7e6, 6.75)])
def test_ticks_are_round_numbers(width, end) -> None:
    panel = Panel("p", "", (Line("a", "#D55E00", X * end / 3e6, X * 1.7),))
    figure = draw_chart(Chart("c", "t", "env steps", (panel,), "", ""), width)
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        step = np.diff(axis.get_major_locator()())[0]
        assert round(step / 10 ** np.floor(np.log10(step)), 6) in (1, 2, 5)


def test_a_narrow_image_wraps_long_names_without_cutting_formulas_and_settings() -> None:
    names = (
        "Δ_mem = Δ_opt, band ±α, number 1 of the transitions (n = 3)",
        "EMTC(QPLEX), memory.delta_space = normalized, gate.timing = before_write (n = 3)",
    )
    lines = tuple(Line(name, "#D55E00", X, X) for name in names)
    chart = Chart("c", "t", "share of the transitions, least consistent first [%]", (Panel("p", "", lines),), "", "")
    figure = draw_chart(chart, 3.25)
    parts = [part for text in figure.legends[0].get_texts() for part in text.get_text().split("\n")]
    assert len(parts) > 2
    assert all(part.count("$") % 2 == 0 for part in parts)
    assert not any(part.startswith("=") or part.endswith("=") for part in parts)
    assert figure.axes[0].get_xlabel().count("\n") == 1


def test_two_lines_with_one_name_keep_their_legend_entries() -> None:
    lines = (Line("Ours (n = 3)", "#D55E00", X, X), Line("Ours (n = 3)", "#0072B2", X, X))
    chart = Chart("c", "t", "env steps", (Panel("a", "", lines), Panel("b", "", lines)), "", "", columns=2)
    (legend,) = draw_chart(chart, 6.75).legends
    assert [artist.get_color() for artist in legend.legend_handles] == ["#D55E00", "#0072B2"]
    shown = [trace for trace in to_plotly(chart).data if trace.showlegend]
    assert [trace.line.color for trace in shown] == ["#D55E00", "#0072B2"]
