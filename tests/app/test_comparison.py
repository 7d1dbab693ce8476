"""Learning curves over seeds: groups, lines, captions and facets."""

import numpy as np
import pandas as pd
import pytest

from app.comparison import EVALUATED, MU_W, WIN_RATE, find_quantity, group_curves, list_tasks
from app.figures.export import export_figure
from app.figures.learning import draw_comparison, split_panels
from app.provenance import describe_runs, hash_config
from app.seed_statistics import Reading
from emtc_core.config.resolve import resolve


@pytest.fixture
def study() -> tuple[dict, pd.DataFrame]:
    configs, rows = {}, []
    for map in ("3m", "8m"):
        for seed, rate in ((1, 0.4), (2, 0.8)):
            run_id = f"{map}-{seed}"
            configs[run_id] = resolve(map=map, seed=seed).model_dump(mode="json")
            rows += [(run_id, 0, 0.0, 1.0), (run_id, 10 * seed, rate, 2.0)]
    configs["never"] = resolve(algo="qmix").model_dump(mode="json")
    return configs, pd.DataFrame(rows, columns=["run_id", "env_step", "win_rate", "return_mean"])


def test_the_band_is_the_spread_over_seeds(study) -> None:
    line = draw_comparison(group_curves(*study)).panels[0].lines[0]
    assert line.name == "emtc-qplex (n = 2)"
    assert line.low is not None
    np.testing.assert_allclose(line.x, [0, 10])
    np.testing.assert_allclose(line.y, [0.0, (0.4 + 0.4) / 2])  # the second seed is half way to 0.8 at step 10
    np.testing.assert_allclose(line.y - line.low, [0.0, 0.0])


def test_each_map_is_a_panel_and_a_chart_of_its_own_on_the_page(study) -> None:
    groups = group_curves(*study)
    chart = draw_comparison(groups)
    assert list_tasks(groups) == ["3m", "8m"]
    assert [panel.title for panel in chart.panels] == ["win rate, 3m", "win rate, 8m"]
    assert [part.panels[0].title for part in split_panels(chart)] == ["win rate, 3m", "win rate, 8m"]
    assert chart.columns == 2


def test_a_run_without_a_point_makes_no_line(study) -> None:
    assert [group.variant.algo for group in group_curves(*study)] == ["emtc-qplex", "emtc-qplex"]


def test_the_caption_says_statistic_band_seeds_and_the_order_of_averaging(study) -> None:
    caption = draw_comparison(group_curves(*study), reading=Reading("iqm", "ci")).caption
    assert "interquartile mean with 95 % bootstrap interval over seeds" in caption
    assert "episodes are averaged per seed first" in caption
    assert "n = 2 seeds" in caption
    assert "resamples whole seeds" in caption


def test_seeds_can_be_seen_as_faint_lines_outside_the_legend(study) -> None:
    lines = draw_comparison(group_curves(*study), per_seed=True).panels[0].lines
    assert [line.faint for line in lines] == [True, True, False]
    assert [line.color for line in lines] == [lines[0].color] * 3


def test_mu_w_is_taken_of_each_seed_before_seeds_are_averaged(study) -> None:
    configs, frame = study
    groups = group_curves(configs, frame, MU_W)
    np.testing.assert_allclose([curve.values[-1] for curve in groups[0].curves], [0.2, 0.4])
    assert "area under the curve" in draw_comparison(groups, MU_W).caption


def test_any_logged_number_can_be_drawn_and_a_stranger_is_the_win_rate(study) -> None:
    configs, _ = study
    loss = find_quantity("train/loss")
    frame = pd.DataFrame({"run_id": ["3m-1"] * 2, "env_step": [1, 2], "value": [3.0, np.nan]})
    panel = draw_comparison(group_curves(configs, frame, loss), loss).panels[0]
    assert (panel.title, panel.unit, panel.lines[0].y.tolist()) == ("train/loss, 3m", "return²", [3.0])
    assert find_quantity("<script>") is WIN_RATE
    assert find_quantity("return") is EVALUATED["return"]


@pytest.mark.parametrize("format", ["svg", "pdf", "png", "html"])
def test_facets_export_side_by_side_in_every_format(study, format) -> None:
    chart = draw_comparison(group_curves(*study), per_seed=True)
    assert len(export_figure(chart, format, mode="dark", sources=("run a",))) > 1000


def test_nothing_to_compare_is_an_empty_chart(study) -> None:
    configs, frame = study
    chart = draw_comparison(group_curves(configs, frame.iloc[:0]))
    assert chart.is_empty
    assert export_figure(chart, "svg").startswith(b"<?xml")


def test_provenance_names_run_seed_settings_and_code(study) -> None:
    configs, _ = study
    (line,) = describe_runs({"3m-1": configs["3m-1"]}, {"3m-1": {"emtc_lab": "0.1.0"}})
    assert line == f"run 3m-1: emtc-qplex on 3m, seed 1, config {hash_config(configs['3m-1'])}, emtc_lab 0.1.0"
    assert hash_config({"a": 1, "b": 2}) == hash_config({"b": 2, "a": 1, "seed": 7}) != hash_config({"a": 1})


def test_a_method_has_one_name_in_every_panel_even_if_its_seeds_differ(study) -> None:
    configs, frame = study
    chart = draw_comparison(group_curves(configs, frame[frame["run_id"] != "8m-2"]))
    assert [line.name for _, line in chart.lines] == ["emtc-qplex (n = 1 to 2)"] * 2
