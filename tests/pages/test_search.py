"""Sweeps shows a search with Optuna's own figures, each with its downloads."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from app.jobs.sweeps.control import create_sweep
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import make_plan
from app.jobs.sweeps.study import find_study, open_study, read_best_trial
from app.ui.sweeps.search import KINDS, Format, Kind, export
from storage.engine import Database, open_database
from storage.runs.changes import finish_run
from storage.runs.labels import tag_runs
from storage.runs.sweeps import PlannedRun, get_sweep, queue_run, sweep_runs
from tests.pages.conftest import copy_database
from tests.pages.test_pages import open_page, said
from tests.require import require

SEARCH = """
name = "A search"
steps = 1000
seeds = 1
[optuna]
trials = 6
[optuna.space]
train.lr = { low = 1e-4, high = 1e-2, log = true }
train.batch = { low = 8, high = 32 }
"""
FIRST_BYTES = {"html": b"<!doctype html>", "svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "csv": b"number,value"}


@pytest.fixture(scope="module")
def search_file(tmp_path_factory, sqlite_template) -> tuple[Path, str]:
    """A database with a search, and the study of its five trials next to it."""
    require("optuna", importlib.util.find_spec("optuna") is not None, "optuna is not installed")
    import optuna
    from optuna.distributions import FloatDistribution, IntDistribution

    path = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("search") / "search.db"))
    db = open_database(f"sqlite:///{path}")
    plan = make_plan(parse_sweep(SEARCH))
    assert plan.file.optuna is not None
    create_sweep(db, plan, jobs=1, remote=True)
    study = open_study(db, plan.id, plan.file.optuna)
    space = {"train.lr": FloatDistribution(1e-4, 1e-2, log=True), "train.batch": IntDistribution(8, 32)}
    for n in range(5):
        params = {"train.lr": 10 ** -(2 + n / 4), "train.batch": 8 + n}
        study.add_trial(optuna.trial.create_trial(value=n / 4, params=params, distributions=space))
    db.dispose()
    return path, plan.id


@pytest.fixture
def searched(use_database, search_file: tuple[Path, str], tmp_path: Path) -> tuple[Database, str]:
    source, sweep_id = search_file
    path = copy_database(source, tmp_path / "search.db")
    shutil.copy(source.with_suffix(".optuna.db"), path.with_suffix(".optuna.db"))
    return use_database(path), sweep_id


def test_the_page_shows_the_best_trials_and_optunas_own_figures(searched: tuple[Database, str]) -> None:
    db, sweep_id = searched
    app = open_page("sweeps", sweep=sweep_id, history="true")
    assert not app.exception
    text = said(app).replace("\\", "")
    assert "5 of 6 trials are complete" in text
    assert "Best trial: 4, value 1, with" in text
    assert "train.batch = 12" in text
    best = read_best_trial(db, sweep_id)
    assert best is not None
    assert (best.trial, best.value, best.options) == (4, 1.0, "--set train.lr=0.001 --set train.batch=12")
    assert len(app.get("plotly_chart")) == len(KINDS)
    study = find_study(db, sweep_id)
    assert study is not None
    study.add_trial(study.best_trial)
    app = open_page("sweeps", sweep=sweep_id)
    assert "2 trials have the best value 1: 4, 5." in said(app).replace("\\", "")
    assert len(app.get("plotly_chart")) == 2, "the other figures are folded"


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("optimization_history", "html"),
        ("optimization_history", "csv"),
        ("param_importances", "svg"),
        ("slice", "pdf"),
        ("parallel_coordinate", "png"),
    ],
)
def test_each_figure_is_exported(searched: tuple[Database, str], kind: Kind, format: Format) -> None:
    content = export(*searched, kind, format)
    assert content.startswith(FIRST_BYTES[format])
    assert len(content) > 200


def test_a_pruned_run_is_counted_as_pruned(empty: Database) -> None:
    plan = make_plan(parse_sweep(SEARCH))
    create_sweep(empty, plan, jobs=1, remote=True)
    (row, *_) = plan.runs
    run_id = queue_run(
        empty, plan.id, PlannedRun(row.key, row.name, row.config.model_dump(mode="json"), 1000), versions={}
    )
    assert run_id is not None
    finish_run(empty, run_id, "stopped")
    tag_runs(empty, [run_id], add=["pruned"])
    sweep = get_sweep(empty, plan.id)
    assert (sweep.counts["pruned"], sweep.counts["stopped"], sweep.steps_saved) == (1, 0, 1.0)
    assert not sweep.is_over, "five trials are left"
    home = open_page("home")
    assert "✂ pruned 0 %" in home.dataframe[0].value["status"].tolist()


def test_a_search_without_its_study_is_reported(empty: Database, tmp_path: Path) -> None:
    plan = make_plan(parse_sweep(SEARCH))
    create_sweep(empty, plan, jobs=1, remote=True)
    app = open_page("sweeps", sweep=plan.id)
    assert not app.exception
    assert "There is no study of this search here" in said(app)
    assert not list(tmp_path.glob("*.optuna.db")), "opening the page creates no study"


def test_the_trials_are_listed_and_the_best_is_trained_over_other_seeds(
    searched: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        "app.jobs.sweeps.control.start_in_background", lambda db, sweep_id, *, jobs: started.append(sweep_id)
    )
    db, sweep_id = searched
    app = open_page("sweeps", sweep=sweep_id)
    (trials,) = [each.value for each in app.dataframe if "Trial" in each.value]
    assert trials["Trial"].tolist() == [4, 3, 2, 1, 0], "the best first"
    assert trials["train.batch"].tolist() == [12, 11, 10, 9, 8]
    assert "Importance from 5 complete trials of 2 settings is uncertain" in said(app)
    app.text_input(key="best_trial_seeds").set_value("3").run()
    app.button(key="best_trial_train").click().run()
    assert not app.exception
    (new,) = started
    runs = sweep_runs(db, new)
    assert [run.seed for run in runs] == [2, 3, 4], "without the seed of the search"
    assert {run.config["train"]["batch"] for run in runs} == {12}
    assert app.query_params["sweep"] == new
    app = open_page("sweeps", sweep=sweep_id)
    app.text_input(key="best_trial_seeds").set_value("3").run()
    assert app.button(key="best_trial_train").label == "Open its sweep"
