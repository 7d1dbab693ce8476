"""The example study that is part of the program: its notebook and the tour, on the pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.figures.kinds.chart import Chart
from app.figures.registry import find_figure
from app.jobs.launch import EXAMPLE_BUNDLE
from app.notebook.view import read_entries
from app.ui.widgets.tour import STEPS
from storage.bundles.bundle_cache import Bundle, cache_bundle
from storage.engine import Database, open_database
from storage.notebook import list_entries
from storage.queries.runs import list_runs
from storage.runs.rows import find_run
from tests.pages.test_pages import open_page, said


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache folder in which the bundle is unpacked once."""
    return tmp_path_factory.mktemp("example")


@pytest.fixture
def example(empty: Database, cache: Path, monkeypatch) -> Bundle:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache_bundle(EXAMPLE_BUNDLE)


@pytest.fixture
def study(example: Bundle) -> Iterator[Database]:
    db = open_database(example.url, read_only=True)
    yield db
    db.dispose()


def test_every_entry_can_be_drawn_and_its_view_opens(example: Bundle, study: Database) -> None:
    app = open_page("notebook", **{"from": example.key})
    assert not app.exception
    assert not app.error
    assert "cannot be drawn" not in said(app)
    entries = read_entries(study, [row.id for row in list_entries(study)])
    assert len(entries) > 3
    for entry in entries:
        assert entry.figure is not None, entry.figure_error
        assert entry.view is not None
        query = {name: values[0] for name, values in entry.view.query.items()}
        shown = open_page(entry.view.page, **query, **{"from": example.key})
        assert not shown.exception, entry.title
        assert not shown.error, entry.title


def test_the_frozen_curves_have_the_rates_colors_and_bands_of_the_pages(study: Database) -> None:
    entries = read_entries(study, [row.id for row in list_entries(study)])
    curves = [entry for entry in entries if entry.view and entry.view.figure_name == "learning-curves"]
    assert len(curves) == 2
    kind = find_figure("learning-curves")
    for entry in curves:
        assert entry.view
        rows = [find_run(study, run_id) for run_id in entry.view.run_ids]
        drawn, frozen = kind.make(study, rows, kind.read_options({})), entry.figure
        assert isinstance(drawn, Chart)
        assert isinstance(frozen, Chart)
        assert (frozen.title, frozen.caption) == (drawn.title, drawn.caption)
        assert "robust" in frozen.title
        for (_, old), (_, new) in zip(frozen.panel_lines, drawn.panel_lines, strict=True):
            assert (old.name, old.color, old.dash, old.marker) == (new.name, new.color, new.dash, new.marker)
            assert old.low is None or old.high is None or (old.low.min() >= 0 and old.high.max() <= 1)


def test_one_press_opens_the_example_and_its_tour_takes_the_run_of_which_everything_is_in_the_bundle(
    example: Bundle, study: Database
) -> None:
    app = open_page("guide").button(key="open_example").click().run()
    assert app.title[0].value == "Findings"
    assert app.query_params["from"] in (example.key, [example.key])
    app = open_page("guide", **{"from": example.key})
    app.button(key="take_tour").click().run()
    run_id = app.query_params["run"]
    run_id = run_id if isinstance(run_id, str) else run_id[0]
    assert find_run(study, run_id).sweep_id is None
    for number, step in enumerate(STEPS, 1):
        app = open_page(step.page, **{"from": example.key}, run=run_id, tour=str(number))
        assert not app.exception
        assert not app.error
        text = said(app)
        assert f"{number} of {len(STEPS)}" in text
        assert "no snapshot of the memory" not in text
        assert "a sample" not in text
    assert "The episodes with the highest and the lowest return" in text


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_the_stored_layouts_are_those_that_memory_shows_by_default(
    example: Bundle, study: Database, method: str
) -> None:
    (run_id,) = [run_id for run_id in list_runs(study, limit=None)["id"] if find_run(study, run_id).sweep_id is None]
    app = open_page("memory", **{"from": example.key}, run=run_id, method=method)
    assert not app.exception
    assert "not computed yet" not in said(app)
