"""Learning curves over seeds: groups, lines, captions and facets; which runs count, and what is said of the others."""

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.aggregates import Aggregation
from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.curves import Curves
from app.analysis.intervals import INTERVAL_LABELS
from app.analysis.quantities import find_quantity
from app.figures.named.curves import draw_comparison, style_comparison
from app.figures.render.lines_view import draw_chart
from tests.app.curve_cases import RunCase, join, make_run


@pytest.fixture
def seeds() -> list[RunCase]:
    made = [
        make_run(f"{map}-{seed}", [(0, 0.0), (10 * seed, rate)], map=map, seed=seed)
        for map in ("3m", "8m")
        for seed, rate in ((1, 0.4), (2, 0.8))
    ]
    return [*made, make_run("never", [], algo="qmix", status="queued", env_steps=0)]


@pytest.fixture
def comparison(seeds) -> Curves:
    return join(seeds)


def test_the_band_is_the_spread_over_seeds() -> None:
    seeds = [make_run("a", [(0, 0.0), (10, 0.4)], seed=1), make_run("b", [(0, 0.2), (20, 0.8)], seed=2)]
    line = draw_comparison(join(seeds)).panels[0].lines[0]
    assert line.name == "EMTC(QPLEX) (n = 2)"
    np.testing.assert_allclose(line.x, [0, 10])
    center = np.array([0.1, (0.4 + 0.5) / 2])  # the second seed is half way from 0.2 to 0.8 at step 10
    spread = np.array([0.1, 0.05]) * 2**0.5
    np.testing.assert_allclose([line.y, line.low, line.high], [center, np.maximum(center - spread, 0), center + spread])


def test_each_map_is_a_panel_in_which_a_method_has_the_same_name_and_a_chart_on_the_page(seeds) -> None:
    chart = draw_comparison(join([seed for seed in seeds if seed.id != "8m-2"]))
    assert [panel.title for panel in chart.panels] == ["win rate, 3m", "win rate, 8m"]
    assert [line.name for _, line in chart.panel_lines] == ["EMTC(QPLEX) (n = 1 to 2)"] * 2
    assert [part.panels[0].title for part in chart.split()] == ["win rate, 3m", "win rate, 8m"]
    assert chart.columns == 2


def test_a_run_without_a_point_makes_no_line_and_is_told(comparison) -> None:
    assert [group.run_ids for group in comparison.by_variant] == [("3m-1", "3m-2"), ("8m-1", "8m-2")]
    (lost,) = comparison.excluded
    assert str(lost) == "run never (QMIX on 3m; seed 1): no point yet; queued at 0 of 1,000 env steps"
    assert str(lost) in draw_comparison(comparison).caption


def test_the_caption_says_how_many_episodes_of_an_evaluation_differ_where_that_was_counted(comparison, seeds) -> None:
    assert "differ" not in draw_comparison(comparison).caption
    counts = ((1.0, 9.0), (16.0, 16.0), (9.0, 2.0), (9.0, 12.0))
    counted = [replace(seed, distinct=each) for seed, each in zip(seeds[:4], counts, strict=True)]
    caption = draw_comparison(join(counted)).caption
    assert "Of the 16 episodes of an evaluation 1 to 16 differ, median 9. " in f"{caption} "
    caption = draw_comparison(join([*counted[1:2], *seeds[2:4]])).caption
    assert "Of the 16 episodes of an evaluation 16 differ. Counted in 1 of the 3 runs." in caption


def test_the_caption_says_statistic_band_seeds_and_the_order_of_averaging(comparison) -> None:
    caption = draw_comparison(comparison, Aggregation("iqm", "ci")).caption
    assert f"interquartile mean with {INTERVAL_LABELS['iqm', True]} over seeds" in caption
    assert "episodes are averaged per seed first" in caption
    assert "n = 2 seeds" in caption
    assert "resampled" not in caption
    said = draw_comparison(comparison, Aggregation("mean", "bootstrap")).caption
    assert "mean with percentile bootstrap of 2000 draws over seeds" in said
    assert BOOTSTRAP_COVERAGE in said


def test_a_band_of_fractions_ends_at_0_and_1() -> None:
    seeds = [make_run(f"{seed}", [(0, 0.0), (10, rate)], seed=seed) for seed, rate in ((1, 0.0), (2, 1.0), (3, 1.0))]
    chart = draw_comparison(join(seeds))
    line = chart.panels[0].lines[0]
    assert line.high is not None
    assert line.high.tolist() == [0.0, 1.0], "mean + standard deviation is 1.24"
    assert "Bands end at 0 and at 1." in chart.caption


def test_a_hidden_line_does_not_change_the_styles_of_the_others() -> None:
    changes = [f"memory.delta={k}e-5" for k in range(1, 9)]
    seeds = [make_run(f"{k}", [(0, 0.0), (10, 0.5)], change, seed=k) for k, change in enumerate(changes)]
    comparison = join(seeds)
    styles = style_comparison(comparison)
    for method in comparison.methods:
        others = {name: style for name, style in styles.items() if name != method}
        part = comparison.hide([method])
        assert {name: style_comparison(part)[name] for name in part.methods} == others


def test_a_logged_number_is_drawn_without_its_missing_values() -> None:
    cases = [make_run("a", [(1, 3.0), (2, np.nan), (4, 5.0)]), make_run("b", [(1, np.nan)], seed=2)]
    comparison = join(cases, find_quantity("train/loss"))
    panel = draw_comparison(comparison).panels[0]
    line = panel.lines[0]
    assert (panel.title, panel.unit) == ("train/loss, 3m", "return²")
    assert (line.x.tolist(), line.y.tolist()) == ([1, 4], [3.0, 5.0])
    assert [run.run_id for run in comparison.excluded] == ["b"]


RAMP = [(0, 0.0), (500, 0.5), (1000, 1.0)]
START = [(0, 0.0), (200, 0.1)]


def test_an_unfinished_seed_neither_cuts_a_line_nor_counts_until_it_is_asked_for() -> None:
    """Two finished ramps and a run that was stopped at 200 of 1000 steps: there the mean of 0.2, 0.2 and 0.1."""
    seeds = [
        make_run("a", RAMP, seed=1),
        make_run("b", RAMP, seed=2),
        make_run("c", START, seed=3, status="stopped", env_steps=294),
    ]
    line = draw_comparison(join(seeds)).panels[0].lines[0]
    assert (line.name, line.x[-1], line.y[-1]) == ("EMTC(QPLEX) (n = 2)", 1000, 1.0)
    with_it = draw_comparison(join(seeds, include_unfinished=True))
    line = with_it.panels[0].lines[0]
    assert (line.name, line.x[-1]) == ("EMTC(QPLEX)† (n = 3)", 200)
    np.testing.assert_allclose(line.y[-1], (0.2 + 0.2 + 0.1) / 3)
    assert "run c stopped at 294 of 1,000 env steps" in with_it.caption


@pytest.mark.parametrize(
    ("status", "env_steps", "target_steps", "is_result"),
    [
        ("running", 294, 1000, False),
        ("lost", 999, 1000, False),
        ("stopped", 1000, 1000, True),
        ("finished", 600, 1000, True),
        ("queued", 0, 0, False),
    ],
)
def test_a_variant_of_which_nothing_has_finished_is_drawn_but_is_no_final_number(
    status, env_steps, target_steps, is_result
) -> None:
    seeds = [make_run("c", START, status=status, env_steps=env_steps, target_steps=target_steps)]
    mark = "" if is_result else "†"
    assert join(seeds).name_line("emtc-qplex") == f"EMTC(QPLEX){mark} (n = 1)"
    final = join(seeds, for_final_numbers=True)
    reason = f"run c (EMTC(QPLEX) on 3m; seed 1): {status} at {env_steps:,} of {target_steps:,} env steps"
    assert [str(each) for each in final.excluded] == ([] if is_result else [reason])
    assert len(final.runs) == is_result


def test_the_same_seed_twice_is_one_sample_the_finished_and_newer_one() -> None:
    seeds = [
        make_run("old", RAMP, seed=1, made=1),
        make_run("new", RAMP, seed=1, made=2),
        make_run("cut", START, seed=1, made=3, status="failed", env_steps=200),
    ]
    found = join(seeds, include_unfinished=True)
    assert [group.run_ids for group in found.by_variant] == [("new",)]
    assert {each.run_id: each.reason for each in found.excluded} == {
        "old": "duplicate of seed 1; run new is used",
        "cut": "duplicate of seed 1; run new is used",
    }


def test_fifteen_variants_have_fifteen_names_and_fifteen_looks() -> None:
    seeds = [make_run(f"r{k}", RAMP, f"memory.delta={k / 1000}") for k in range(1, 16)]
    chart = draw_comparison(join(seeds))
    lines = chart.panels[0].lines
    assert len({line.name for line in lines}) == 15
    assert len({(line.color, line.dash, line.marker) for line in lines}) == 15
    for width in (3.25, 6.75):
        (legend,) = draw_chart(chart, width).legends
        assert len(legend.get_texts()) == 15


def test_a_shared_preset_stands_in_the_caption_and_another_one_in_the_name() -> None:
    demo = make_run("a", RAMP, preset="demo")
    alone = join([demo])
    assert list(alone.methods.values()) == ["EMTC(QPLEX)"]
    assert "All with preset = demo." in draw_comparison(alone).caption
    mixed = join([demo, make_run("b", RAMP)])
    assert sorted(mixed.methods.values()) == ["EMTC(QPLEX)", "EMTC(QPLEX), preset = demo"]
