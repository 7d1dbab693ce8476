"""A figure is written in one file: then it is on its pages, in the command line and in notebooks."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.cli.main import run
from app.figures.figure import FigureKind, StoredRuns
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import LearningCurveOptions
from app.figures.options import Options
from app.figures.registry import FIGURES, find_figure, write_command
from app.figures.render.export import export_figure
from app.notebook.export import export_entries
from app.notebook.view import freeze, make_view
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.notebook import create_entry
from storage.queries.episodes import list_episodes
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run

ROOT = Path(__file__).resolve().parents[2]


class ToyOptions(Options):
    slope: float = 1.0


def draw_toy(runs: StoredRuns, options: ToyOptions) -> Chart:
    """A figure with its data, its drawing and its option in one file."""
    steps = np.array([0.0, 1.0])
    line = Line("toy", "#0072B2", steps, steps * options.slope)
    panel = Panel(", ".join(row.name for row in runs.rows), "steps", (line,))
    return Chart("toy", "A toy", "env steps", (panel,), "What a toy shows.", "A toy.")


TOY = FigureKind(
    "toy", draw_toy, options=ToyOptions, needs_runs=True, question="What does a toy show?", pages=("compare", "live"),
)  # fmt: skip


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> tuple[Database, str]:
    monkeypatch.setitem(FIGURES, "toy", TOY)
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x y.db')}")
    monkeypatch.setenv("EMTC_DB", db.url)
    return db, seed_run(db)


def test_the_command_line_draws_a_registered_figure(seeded, tmp_path: Path) -> None:
    db, run_id = seeded
    out = tmp_path / "toy.csv"
    command = ["export", run_id, "--figure", "toy", "--set", "slope=3", "--out", str(out), "--db", db.url]
    assert run(command) == 0
    assert pd.read_csv(out)["value"].tolist() == [0.0, 3.0]


def test_a_notebook_draws_a_registered_figure_with_its_options(seeded) -> None:
    db, run_id = seeded
    row = find_run(db, run_id)
    view = make_view(page="live", figure="toy", query={}, runs=[row], facts={"slope": 4.0})
    figure = TOY.make(db, [row], TOY.read_options({"slope": 4.0}))
    made = create_entry(db, title="Toy", figure=freeze(figure), view=view)
    cells = json.loads(export_entries(db, [made], "ipynb"))["cells"]
    (call,) = [cell["source"] for cell in cells if cell["source"].startswith("show(")]
    assert call.startswith(f"show(lambda db: db.figure('toy', ['{run_id}'], slope=4.0), ")


@pytest.mark.parametrize("page", ["compare", "live"])
def test_the_pages_of_a_registered_figure_offer_it(seeded, page: str) -> None:
    _, run_id = seeded
    app = AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=120)
    app.query_params.update({"run": run_id, "runs": run_id, "more_figures": "true", "more_figure": "toy"})
    app.switch_page(f"../pages/{page}.py").run()
    assert not app.exception
    (chosen,) = [box for box in app.selectbox if box.label == "Figure"]
    assert chosen.options == ["Select a figure", *chosen.options[1:-1], "What does a toy show?"]
    assert chosen.value == "toy"
    assert "#### A toy" in [text.value for text in app.markdown]


def test_the_command_of_a_figure_has_the_options_that_are_set(seeded, tmp_path: Path) -> None:
    _, run_id = seeded
    kind = find_figure("learning-curves")
    options = LearningCurveOptions(center="median", per_seed=True, smooth=200, log_axes="x", hidden_names=("a, b",))
    command = write_command(kind, [run_id], options, db=seeded[0].path)
    assert command == (
        f"emtc export {run_id} --figure learning-curves --center median --set each=true --set smooth=200 --set log=x "
        f"--set 'hide=[\"a, b\"]' --db '{seeded[0].path}' --out learning-curves.pdf"
    )
    assert run([*shlex.split(command)[1:-1], str(tmp_path / "x.csv")]) == 0


def test_smoothing_is_read_as_people_write_it() -> None:
    values = [LearningCurveOptions.read({"smooth": value}).smooth for value in ("20k", "1e3", 500, 500.0, 0)]
    assert values == [20_000, 1000, 500, 500, 0]
    for value in ("-5", "1.5", "k", None, True):
        with raises(ConfigError, key="smooth"):
            LearningCurveOptions.read({"smooth": value})


@pytest.mark.parametrize("figure", ["gate-effect", "what-if", "outcomes"])
def test_a_figure_of_live_or_memory_is_exported(seeded, tmp_path: Path, figure: str) -> None:
    db, run_id = seeded
    out = tmp_path / f"{figure}.csv"
    given = ["--set", "tau_factor=0.5"] if figure == "what-if" else []
    assert run(["export", run_id, "--figure", figure, *given, "--out", str(out), "--db", db.url]) == 0
    assert len(pd.read_csv(out)) > 0


def test_a_memory_map_can_show_the_paths_of_episodes(seeded) -> None:
    db, run_id = seeded
    rows, kind = [find_run(db, run_id)], FIGURES["memory-atlas"]
    first, *_, last = (int(number) for number in list_episodes(db, run_id, "episode", limit=1000)["episode"])
    figure = kind.make(db, rows, kind.read_options({"paths": f"{first},{last}"}))
    assert [trace.label.partition(",")[0] for trace in figure.traces] == [f"episode {first}", f"episode {last}"]
    assert len({trace.color for trace in figure.traces}) == 2
    assert f"Paths: the nodes that the episode retrieved in its first 200 steps (episode {first}" in figure.caption
    assert set(figure.to_frame()["path"].dropna()) == {trace.label for trace in figure.traces}
    assert f">episode {first}" in export_figure(figure, "svg").decode()
    assert f"episode {last}" in export_figure(figure, "html").decode()
    assert not kind.make(db, rows).traces
