"""The paper's studies: cells and lines by hand, missing cells empty, every export on a machine without a browser."""

import shutil
from typing import get_args

import numpy as np
import pytest

from app.analysis.published import find_published, read_published_studies
from app.analysis.results import select_runs
from app.analysis.tables import TABLE_FORMATS, export_table
from app.figures.kinds.maps import Grid, Heatmap
from app.figures.registry import FIGURES, TABLES
from app.figures.render.export import export_figure
from app.jobs.sweeps.file import StudyFigure
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.runs.sweeps import sweep_runs
from tests.app.sweep_cases import AUGMENTATION, DELTA, LAMBDA, TAU, seed_sweep
from tests.errors import raises

SWEEPS = {
    "lambda-heatmap": LAMBDA,
    "tau-study": TAU.replace("seeds = 2", 'seeds = 2\nmap = ["3m", "8m"]'),
    "mu-w-by-delta": DELTA,
    "augmentation": AUGMENTATION,
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory) -> tuple[Database, dict[str, str]]:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('studies') / 'x.db'}")
    return db, {name: seed_sweep(db, text) for name, text in SWEEPS.items()}


def draw(studies, name: str):
    db, ids = studies
    return FIGURES[name].make(db, sweep_runs(db, ids[name]))


@pytest.fixture
def db(tmp_path, sqlite_template) -> Database:
    return open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")


def test_a_heat_map_holds_the_mean_over_seeds_of_each_cell(studies):
    heatmap = draw(studies, "lambda-heatmap")
    assert (heatmap.y, heatmap.x) == (("0.05", "0.1"), ("0.05", "0.1", "0.15"))
    (grid,) = heatmap.grids
    expected = (np.arange(6).reshape(2, 3) + np.arange(6, 12).reshape(2, 3)) / 2 / 16
    np.testing.assert_allclose(grid.values, expected)
    assert (grid.counts == 2).all()
    assert [cell[:2] for cell in grid.cells if cell[4]] == [(1, 2)]
    assert "12 of 12 runs are used" in heatmap.caption


def test_a_missing_cell_stays_empty_and_is_told(db):
    sweep_id = seed_sweep(db, LAMBDA, unfinished=(1, 7, 2))
    heatmap = FIGURES["lambda-heatmap"].make(db, sweep_runs(db, sweep_id))
    (grid,) = heatmap.grids
    assert np.isnan(grid.values[0, 1])
    assert grid.counts.tolist() == [[2, 0, 1], [2, 2, 2]]
    assert "9 of 12 runs are used" in heatmap.caption
    frame = heatmap.to_frame()
    assert frame["value"].isna().sum() == 1
    assert export_figure(heatmap, "svg")


def test_all_grids_share_one_colour_scale_and_ties_share_the_star():
    low = Grid("a", np.array([[0.1, 0.5], [0.5, np.nan]]), np.full((2, 2), 2))
    high = Grid("b", np.array([[0.7, 0.7], [0.7, 0.7]]), np.ones((2, 2), np.int64))
    heatmap = Heatmap("n", "t", "x", "y", ("1", "2"), ("1", "2"), (low, high), "v", "c")
    assert heatmap.bounds == (0.1, 0.7)
    assert low.best.tolist() == [[False, True], [True, False]]
    assert not high.best.any()
    alone = Grid("c", np.array([[0.1, 0.9], [0.5, 0.7]]), np.array([[2, 1], [2, 1]]))
    assert alone.best.tolist() == [[False, False], [True, False]], "a single seed is never the best"
    svg = export_figure(heatmap, "svg").decode()
    assert "0.700" in svg
    assert "0.100" in svg


def test_the_tau_study_draws_the_curves_of_each_task_and_the_schedules_below(studies):
    *curves, schedules = draw(studies, "tau-study").panels
    assert sorted(panel.title for panel in curves) == ["win rate, 3m", "win rate, 8m"]
    for panel in curves:
        assert [line.name for line in panel.lines] == ["τ = 0.6 (n = 2)", "τ from 1.2 to 0.6 (n = 2)"]
        assert [line.color for line in panel.lines] == [line.color for line in schedules.lines]
    cooling = schedules.lines[1]
    assert (cooling.x.tolist(), cooling.y.tolist()) == ([0, 500, 1000], [1.2, 0.6, 0.6])


def test_mu_w_by_delta_equals_a_calculation_by_hand(studies):
    mu_w, final = draw(studies, "mu-w-by-delta").panels
    random = mu_w.lines[0]
    assert random.name == "random projection (n = 2)"
    np.testing.assert_allclose(random.x, np.log10([1.8e-7, 1.8e-3]))
    share = (0.5 * 250 + 500) / 750  # a ramp from 0 at 250 to w at 500, then w to 1000
    np.testing.assert_allclose(random.y, [(0 + 6) / 2 / 16 * share, (3 + 9) / 2 / 16 * share])
    np.testing.assert_allclose(final.lines[2].y, [(2 + 8) / 2 / 16, (5 + 11) / 2 / 16])


@pytest.mark.parametrize(
    ("format", "start"),
    [("svg", b"<?xml"), ("html", b"<!doctype html"), ("csv", b"panel,")],
    ids=["svg", "html", "csv"],
)
def test_a_heat_map_is_exported_as_image_page_and_numbers(studies, format, start):
    assert export_figure(draw(studies, "lambda-heatmap"), format, mode="dark").startswith(start)


def test_the_augmentation_table_lists_measured_combinations_and_marks_the_best(studies):
    db, ids = studies
    table = TABLES["augmentation"].make(db, sweep_runs(db, ids["augmentation"]))
    assert table.frame.to_numpy().tolist() == [
        ["0.1", "0.05", "0.094 ± 0.133 (2 seeds)"],
        ["0.2", "0.05", "0.156 ± 0.133 (2 seeds)"],
        ["0.2", "0.1", "0.219 ± 0.133 (2 seeds)"],
    ]
    assert table.best == {(2, "3m")}


def test_the_embedders_table_nests_time_over_embedder(studies):
    db, ids = studies
    table = TABLES["mu-w-embedders"].make(db, sweep_runs(db, ids["mu-w-by-delta"]))
    assert table.frame["δ"].tolist() == ["1.8e-7", "1.8e-3"]
    assert "100 % · TCSE" in table.frame.columns
    shares = {str(name).partition(" · ")[0] for _, name in table.best}
    assert shares == {"33 %", "67 %", "100 %"}, "the best of each share of the training is marked"
    latex = export_table(table, "latex").decode()
    assert "multicolumn" in latex


@pytest.mark.parametrize(("name", "sweep"), [("augmentation", "augmentation"), ("mu-w-embedders", "mu-w-by-delta")])
def test_study_tables_find_their_runs_in_the_whole_database(studies, name, sweep):
    db, ids = studies
    table = TABLES[name].make(db, select_runs(db))
    assert table.frame.equals(TABLES[name].make(db, sweep_runs(db, ids[sweep])).frame)
    for format in TABLE_FORMATS:
        assert export_table(table, format)


def test_published_numbers_name_their_game_and_only_the_four_published_cells():
    assert set(read_published_studies()) >= set(get_args(StudyFigure))
    augmentation = find_published("augmentation", "skirmish")
    assert augmentation is not None
    assert len(augmentation.table) == 4
    assert augmentation.source == "StarCraft II"
    football = find_published("learning-curves", "grf")
    assert football is not None
    assert "Football" in football.source


def test_the_win_rate_by_setting_names_the_settings_that_also_differ(studies):
    db, ids = studies
    kind = FIGURES["setting-effect"]
    rows = sweep_runs(db, ids["lambda-heatmap"])
    chart = kind.make(db, rows, kind.read_options({"setting": "embed.lambda_rcon"}))
    points, line = chart.panels[0].lines
    assert len(points.x) == 12
    np.testing.assert_allclose(line.x, [0.05, 0.1])
    finals = np.arange(12).reshape(2, 2, 3) / 16  # seed × lambda_rcon × lambda_cl
    np.testing.assert_allclose(line.y, finals.mean(axis=(0, 2)))
    assert line.low is None
    assert "The runs also differ in embed.lambda_cl" in chart.caption
    with raises(ConfigError, key="setting"):
        kind.make(db, rows, kind.read_options({"setting": "memory.delta"}))
    with raises(ConfigError, key="setting-effect"):
        kind.make(db, rows[:1])
