"""A figure is written in one file: then it is on its page, in the command line, in notebooks, in the door."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.analysis.curves import RunTables
from app.analysis.tables import Column, Table, make_table
from app.cli.main import run
from app.figures.figure import FigureKind, PageSection, StoredRuns, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import LearningCurveOptions, read_run_tables
from app.figures.options import Options, RateOptions
from app.figures.registry import FIGURES, TABLES, find_figure, write_command
from app.figures.render.export import export_figure
from app.notebook.export import export_entries
from app.notebook.view import freeze, make_view
from emtc_core.errors import ConfigError
from emtc_core.metrics import METRICS
from storage import open_database as open_door
from storage.engine import Database, open_database
from storage.notebook import create_entry
from storage.queries.episodes import list_episodes
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run

ROOT = Path(__file__).resolve().parents[2]


class ToyOptions(Options):
    slope: float = 1.0


class ToyTableOptions(ToyOptions, RateOptions):
    pass


def draw_toy(runs: StoredRuns, options: ToyOptions) -> Chart:
    """A figure with its data, its drawing and its option in one file."""
    steps = np.array([0.0, 1.0])
    line = Line("toy", "#0072B2", steps, steps * options.slope)
    panel = Panel(", ".join(row.name for row in runs.rows), "steps", (line,))
    return Chart("toy", "A toy", "env steps", (panel,), "What a toy shows.", "A toy.")


TOY = FigureKind(
    "toy", draw_toy, options=ToyOptions, needs_runs=True, question="What does a toy show?", pages=("compare", "live"),
)  # fmt: skip


def tabulate_toys(runs: RunTables, options: ToyTableOptions) -> Table:
    """A statistic of the compared runs."""
    rows = [[row.name, options.slope * row.seed] for row in runs.rows.values()]
    return make_table(["run", Column("toy", unit="steps", format=".1f")], rows)


def draw_toys(runs: RunTables, options: RateOptions) -> Chart:
    """The same statistic as a figure."""
    seeds = np.array([float(row.seed) for row in runs.rows.values()])
    panel = Panel("toys", "steps", (Line("toy", "#0072B2", seeds, seeds),))
    return Chart("toys", "Toys", "seed", (panel,), "One point for each run.", "Toys.")


TOYS = TableKind(
    "toys", tabulate_toys, read_run_tables, ToyTableOptions, section=PageSection("compare", "Toy statistics")
)
TOY_CHART = FigureKind(
    "toys",
    draw_toys,
    read_run_tables,
    RateOptions,
    question="How many toys?",
    section=PageSection("compare", "Toy statistics"),
)


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> tuple[Database, str]:
    monkeypatch.setitem(FIGURES, "toy", TOY)
    monkeypatch.setitem(FIGURES, "toys", TOY_CHART)
    monkeypatch.setitem(TABLES, "toys", TOYS)
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    monkeypatch.setenv("EMTC_DB", db.url)
    return db, seed_run(db)


def test_the_command_line_has_it(seeded, tmp_path: Path) -> None:
    db, run_id = seeded
    out = tmp_path / "toy.csv"
    command = ["export", run_id, "--figure", "toy", "--set", "slope=3", "--out", str(out), "--db", db.url]
    assert run(command) == 0
    assert pd.read_csv(out)["value"].tolist() == [0.0, 3.0]


def test_the_door_has_it(seeded) -> None:
    db, run_id = seeded
    with open_door(db.url) as door:
        assert list(door.run(run_id).figure("toy", slope=2).data[0].y) == [0.0, 2.0]


def test_a_notebook_draws_it_by_the_line_of_the_door(seeded) -> None:
    db, run_id = seeded
    row = find_run(db, run_id)
    view = make_view(page="live", figure="toy", query={}, runs=[row], facts={"slope": 4.0})
    figure = TOY.make(db, [row], TOY.read_options({"slope": 4.0}))
    made = create_entry(db, title="Toy", figure=freeze(figure), view=view)
    cells = json.loads(export_entries(db, [made], "ipynb"))["cells"]
    (call,) = [cell["source"] for cell in cells if cell["source"].startswith("show(")]
    assert call.startswith(f"show(lambda db: db.figure('toy', ['{run_id}'], slope=4.0), ")


@pytest.mark.parametrize("page", ["compare", "live"])
def test_its_pages_offer_it(seeded, page: str) -> None:
    _, run_id = seeded
    app = AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=120)
    app.query_params.update({"run": run_id, "runs": run_id, "more_figures": "true", "more_figure": "toy"})
    app.switch_page(f"../pages/{page}.py").run()
    assert not app.exception
    (chosen,) = [box for box in app.selectbox if box.label == "Figure"]
    assert chosen.options == ["Select a figure", *chosen.options[1:-1], "What does a toy show?"]
    assert chosen.value == "toy"
    assert "#### A toy" in [text.value for text in app.markdown]


def test_a_statistic_with_a_section_is_on_compare_and_in_the_command_line(seeded, capsysbinary) -> None:
    db, run_id = seeded
    app = AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=120)
    app.query_params.update({"runs": run_id, "part": "Toy statistics"})
    app.switch_page("../pages/compare.py").run()
    assert not app.exception
    texts = [str(text.value).replace("\\", "") for text in app.markdown]
    assert "| run | toy [steps] |\n|---|---|\n| Seeded run | 1.0 |" in texts
    assert "#### Toys" in texts
    assert run(["export", run_id, "--table", "toys", "--set", "slope=3", "--db", db.url]) == 0
    assert capsysbinary.readouterr().out == b"run,toy [steps]\nSeeded run,3.0\n"


def test_a_metric_with_a_chart_has_it_on_live(seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run_id = seeded
    monkeypatch.setitem(METRICS, "train/loss", replace(METRICS["train/loss"], chart="Loss of the learner"))
    app = AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=120)
    app.query_params.update({"run": run_id})
    app.switch_page("../pages/live.py").run()
    assert not app.exception
    assert "#### Loss of the learner" in [text.value for text in app.markdown]


def test_the_command_of_a_figure_has_the_options_that_are_set(seeded, tmp_path: Path) -> None:
    _, run_id = seeded
    kind = find_figure("learning-curves")
    options = LearningCurveOptions(center="median", per_seed=True, smooth=200, log_axes="x", hidden_names=("a, b",))
    command = write_command(kind, [run_id], options)
    assert command == (
        f"emtc export {run_id} --figure learning-curves --center median --set each=true --set smooth=200 --set log=x "
        "--set 'hide=[\"a, b\"]' --out learning-curves.pdf"
    )
    out = str(tmp_path / "x.csv")
    words = shlex.split(command)[1:-1]
    assert run([*words, out, "--db", seeded[0].url]) == 0


def test_smoothing_is_read_as_people_write_it() -> None:
    values = [LearningCurveOptions.read({"smooth": value}).smooth for value in ("20k", "1e3", 500, 500.0, 0)]
    assert values == [20_000, 1000, 500, 500, 0]
    for value in ("-5", "1.5", "k", None, True):
        with raises(ConfigError, key="smooth"):
            LearningCurveOptions.read({"smooth": value})


def test_the_command_of_a_figure_names_a_database_that_is_not_the_default() -> None:
    command = write_command(find_figure("learning-curves"), ["r"], LearningCurveOptions(), db=Path("/a b/x.db"))
    assert command == "emtc export r --figure learning-curves --db '/a b/x.db' --out learning-curves.pdf"


def test_every_figure_asks_something_and_its_name_is_that_of_the_registry() -> None:
    assert [name for name, kind in FIGURES.items() if not kind.question.endswith("?") or name != kind.name] == []


def test_what_only_one_figure_takes_is_refused_by_another(seeded, tmp_path: Path, capsys) -> None:
    db, run_id = seeded
    command = ["export", run_id, "--figure", "mu-w", "--set", "slope=3", "--out", str(tmp_path / "x.csv")]
    assert run([*command, "--db", db.url]) == 2
    assert "slope is not an option of the figure mu-w" in capsys.readouterr().err
    assert find_figure("toy").read_options({"slope": "2"}).slope == 2.0


@pytest.mark.parametrize("figure", ["gate-effect", "what-if", "outcomes", "metrics"])
def test_what_live_and_memory_draw_can_be_exported(seeded, tmp_path: Path, figure: str) -> None:
    db, run_id = seeded
    out = tmp_path / f"{figure}.csv"
    given = ["--set", "tau_factor=0.5"] if figure == "what-if" else []
    assert run(["export", run_id, "--figure", figure, *given, "--out", str(out), "--db", db.url]) == 0
    assert len(pd.read_csv(out)) > 0


def test_what_if_without_a_change_names_the_options(seeded, tmp_path: Path, capsys) -> None:
    db, run_id = seeded
    out = tmp_path / "x.csv"
    assert run(["export", run_id, "--figure", "what-if", "--out", str(out), "--db", db.url]) == 2
    assert "needs a change of the gate: tau_factor, tau_fixed, delta_factor" in capsys.readouterr().err
    assert not out.exists()


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
