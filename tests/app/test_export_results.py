"""`emtc export` over made-up databases: mixed settings, unfinished runs, one seed, NaN, fifteen variants."""

import io
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import insert, update

from app.analysis.curves import read_quantity, read_tables
from app.analysis.quantities import ROBUST, WIN_RATE, RateName
from app.analysis.results import select_runs
from app.cli.main import run
from app.figures.named.curves import LearningCurveOptions
from app.figures.options import SeedOptions
from app.figures.registry import FIGURES, TABLES
from app.figures.theme import METHOD_STYLES
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.models import Evaluation, MetricRow, Run
from tests.app.curve_cases import stored
from tests.errors import raises

MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)
RAMP = [(0, 0.0), (500, 0.5), (1000, 1.0)]


class Runs:
    """A database to which runs are added, newest last."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.db: Database = open_database(self.url)
        self.count = 0

    def add(
        self,
        *overrides: str,
        points: list[tuple[int, float | None]] = RAMP,
        status: str = "finished",
        env_steps: int = 1000,
        robust: float | None = None,
        trained: float | None = None,
        **arguments: Any,
    ) -> str:
        """Add a run with its win rates and return its id."""
        self.count += 1
        config = stored(*overrides, **arguments)
        run_id = f"r{self.count:03d}"
        row = {
            "id": run_id, "name": run_id, "env": "skirmish", "map": config["env"]["map"], "algo": config["algo"],
            "seed": config["seed"], "status": status, "env_steps": env_steps, "target_steps": max(1000, env_steps),
            "created_at": MADE_AT + timedelta(minutes=self.count), "tags": [], "notes": "", "versions": {},
            "config": config, "win_rate": points[-1][1] if points else None, "return_mean": 0.0,
        }  # fmt: skip
        played = {"episodes": 16, "wins": 0, "return_mean": 0.0, "return_std": 0.0, "length_mean": 9.0}
        with self.db.transaction() as connection:
            connection.execute(insert(Run), row)
            for step, rate in points:
                place = {"run_id": run_id, "env_step": step}
                rates = {"win_rate": rate or 0.0, "robust_win_rate": robust}
                connection.execute(insert(Evaluation), place | rates | played)
                if trained is not None:
                    connection.execute(insert(MetricRow), place | {"name": "rollout/win_rate", "value": trained})
        return run_id

    def export(self, *arguments: str) -> int:
        """Call the command."""
        return run(["export", *arguments, "--db", self.url])


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate once; every test has a copy."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture
def runs(tmp_path: Path, empty: Path) -> Iterator[Runs]:
    made = Runs(Path(shutil.copy(empty, tmp_path / "made-up.db")))
    yield made
    made.db.dispose()


def draw(runs: Runs, figure: str, tmp_path: Path, *arguments: str) -> pd.DataFrame:
    out = tmp_path / "figure.csv"
    assert runs.export("--figure", figure, "--out", str(out), *arguments) == 0
    return pd.read_csv(out)


NUMBERS = tuple(f" {part}" for part in ("value", "low", "high", "n", "statistic", "interval"))


def tabulate(runs: Runs, table: str, capsysbinary, *arguments: str) -> tuple[pd.DataFrame, str]:
    assert runs.export("--table", table, *arguments) == 0
    written = capsysbinary.readouterr()
    read = pd.read_csv(io.BytesIO(written.out))
    return read.drop(columns=[name for name in read if name.endswith(NUMBERS)]), written.err.decode()


@pytest.mark.parametrize("figure", ["ablation", "learning-curves"])
def test_runs_with_other_settings_and_the_same_seed_are_never_averaged(runs, tmp_path, figure) -> None:
    runs.add()
    runs.add("train.lr=0.01", "train.hidden=16", points=[(0, 0.0), (1000, 0.2)])
    frame = draw(runs, figure, tmp_path)
    assert frame.groupby("series")["value"].last().to_dict() == {
        "EMTC(QPLEX) (n = 1)": 1.0,
        "EMTC(QPLEX), train.hidden = 16, train.lr = 0.01 (n = 1)": 0.2,
    }


SWINGS: list[tuple[int, float | None]] = [(500, 1.0), (920, 0.0), (960, 0.0), (1000, 1.0)]
"""Greedy win rates: 1/3 is their mean in the last tenth of the budget, and 0.46 their time average."""


def add_seeds(runs: Runs, robust: Sequence[float], *overrides: str) -> None:
    """Add a run for each robust win rate, with equal greedy and training win rates."""
    for seed, rate in enumerate(robust, 1):
        runs.add("gate.enabled=false", *overrides, seed=seed, points=SWINGS, robust=rate, trained=0.75)


ROBUST_VALUES = {"": 0.25, "--rate robust": 0.25, "--center median": 0.0, "--rate training": 0.75}
CURVE_VALUES = ROBUST_VALUES | {"--rate greedy": 1.0}
FINAL_VALUES = ROBUST_VALUES | {"--rate greedy": 0.333, "--rate greedy --final last": 1.0}


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("learning-curves", CURVE_VALUES),
        ("ablation", CURVE_VALUES),
        ("baselines", CURVE_VALUES),
        ("tau-study", CURVE_VALUES),
        ("mu-w", ROBUST_VALUES | {"--rate greedy": 0.46}),
        ("lambda-heatmap", FINAL_VALUES),
        ("augmentation", FINAL_VALUES),
        ("mu-w-by-delta", FINAL_VALUES),
        (
            "performance-profile",
            {"": 0.25, "--rate training": 1.0, "--rate greedy": 0.0, "--rate greedy --final last": 1.0},
        ),
    ],
)
def test_a_figure_over_seeds_draws_the_rate_the_center_and_the_final_number_that_were_asked_for(
    runs, tmp_path, figure, expected
) -> None:
    """The last number of the figure; of the profile, the fraction of runs above 0.5."""
    add_seeds(runs, (0.0, 0.0, 0.0, 1.0))
    found = {}
    for arguments in expected:
        frame = draw(runs, figure, tmp_path, *arguments.split()).query("panel != 'τ'")
        if figure == "performance-profile":
            frame = frame[frame["x"] <= 0.5]
        found[arguments] = round(frame["value"].iloc[-1], 3)
    assert found == expected


@pytest.mark.parametrize("figure", ["learning-curves", "mu-w", "tau-study", "mu-w-by-delta", "performance-profile"])
def test_the_csv_of_a_figure_says_of_every_point_which_statistic_it_is_and_of_how_many_seeds(
    runs, tmp_path, figure
) -> None:
    add_seeds(runs, (0.0, 0.0, 0.0, 1.0))
    arguments = [] if figure == "performance-profile" else ["--band", "ci"]
    frame = draw(runs, figure, tmp_path, *arguments).query("panel != 'τ'")
    assert (frame["n"] == 4).all()
    assert frame["statistic"].str.contains("95 % interval").all()
    assert frame["low"].between(0, 1).all()
    assert frame["high"].between(0, 1).all()


RATED = {
    "greedy": (
        "100.0",
        "final win rate [%] (mean of the evaluations in the last tenth of the budget), mean over seeds",
    ),
    "robust": (
        "25.0",
        "final robust win rate [%] (mean of the evaluations in the last tenth of the budget, each the fraction of "
        "greedy episodes won from starts shifted by up to 0.05 cells), mean over seeds",
    ),
    "training": (
        "75.0",
        "final training win rate [%] (mean of the reports in the last tenth of the budget, each the fraction of "
        "training episodes won since the last report, with exploration), mean over seeds",
    ),
}


@pytest.mark.parametrize("rate", RATED)
def test_csv_and_caption_of_win_rates_state_which_rate_they_have(runs, capsysbinary, rate) -> None:
    runs.add(robust=0.25, trained=0.75)
    text, statistic = RATED[rate]
    assert runs.export("--table", "win-rates", "--rate", rate) == 0
    row = pd.read_csv(io.BytesIO(capsysbinary.readouterr().out)).iloc[0]
    assert (row["3m"], row["3m statistic"]) == (f"{text} (1 seed)", statistic)
    assert runs.export("--table", "win-rates", "--rate", rate, "--format", "markdown") == 0
    assert statistic.partition(" (")[0].capitalize() in capsysbinary.readouterr().out.decode()


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        ("robust", "no robust win rate: no evaluation from shifted starts (skirmish with fixed starts only)"),
        ("training", "no training win rate was logged"),
    ],
)
def test_a_run_without_the_rate_that_was_asked_for_is_left_out_and_listed_with_the_reason(
    runs, capsysbinary, rate, reason
) -> None:
    runs.add(robust=0.25, trained=0.75)
    without = runs.add(algo="qmix")
    frame, notes = tabulate(runs, "win-rates", capsysbinary, "--rate", rate)
    assert frame["variant"].tolist() == ["EMTC(QPLEX)"]
    assert f"\nrun {without} (QMIX on 3m; seed 1): {reason}; finished at 1,000 of 1,000 env steps\n" in notes


@pytest.mark.parametrize(
    ("table", "column", "arguments", "cell"),
    [
        ("win-rates", "3m", "", "41.7 ± 52.0 (3 seeds)"),
        ("win-rates", "3m", "--rate greedy", "33.3 ± 0.0 (3 seeds)"),
        ("win-rates", "3m", "--rate greedy --final last", "100.0 ± 0.0 (3 seeds)"),
        ("win-rates", "3m", "--center median --band minmax", "25.0 [0.0–100.0] (3 seeds)"),
        ("mu-w", "3m · 1,000", "", "0.417 ± 0.520 (3 seeds)"),
        ("mu-w", "3m · 1,000", "--rate greedy", "0.460 ± 0.000 (3 seeds)"),
        ("mu-w", "3m · 1,000", "--center median --band minmax", "0.250 [0.000–1.000] (3 seeds)"),
        ("augmentation", "3m", "", "0.417 ± 0.520 (3 seeds)"),
        ("augmentation", "3m", "--rate greedy --final last", "1.000 ± 0.000 (3 seeds)"),
        ("mu-w-embedders", "100 % · TCSE", "", "0.417 ± 0.520 (3 seeds)"),
        ("mu-w-embedders", "100 % · TCSE", "--rate greedy", "0.460 ± 0.000 (3 seeds)"),
        ("falls", "falls", "--rate greedy --center median --band minmax", "2.0 [2.0–2.0]"),
        ("comparisons", "P(improvement)", "", "0.72 [0.19–0.97]"),
        ("comparisons", "P(improvement)", "--rate greedy", "0.50 [0.10–0.90]"),
    ],
)
def test_a_table_has_the_rate_the_center_and_the_final_number_that_were_asked_for(
    runs, capsysbinary, table, column, arguments, cell
) -> None:
    add_seeds(runs, (0.0, 0.25, 1.0), "embed.sigma=0.05")
    add_seeds(runs, (0.0, 0.25, 1.0), "embed.sigma=0.1")
    add_seeds(runs, (0.0, 0.0, 0.25), "embed.type=dcae")
    frame, notes = tabulate(runs, table, capsysbinary, *arguments.split())
    assert frame[column].tolist()[0] == cell
    assert ("robust" in notes) == ("greedy" not in arguments)
    assert ("last evaluation only" in notes) == ("--final last" in arguments)


def test_the_quantity_of_learning_curves_names_its_win_rate_itself(runs, tmp_path, capsys) -> None:
    runs.add(robust=0.25)
    ends = {
        key: draw(runs, "learning-curves", tmp_path, "--set", f"quantity={key}")["value"].iloc[-1]
        for key in ("win_rate", "mu_w", "robust_win_rate", "robust_mu_w", "chosen_win_rate", "chosen_mu_w")
    }
    assert list(ends.values()) == [1.0, 0.5, 0.25, 0.25, 0.25, 0.25]
    out = tmp_path / "x.svg"
    contradiction = ["--figure", "learning-curves", "--set", "quantity=win_rate", "--rate", "robust", "--out", str(out)]
    assert runs.export(*contradiction) == 2
    assert "rate has no effect, because quantity = win_rate" in capsys.readouterr().err
    draw(runs, "learning-curves", tmp_path, "--set", "quantity=win_rate", "--rate", "greedy")
    assert not out.exists()


def test_learning_curves_read_how_many_episodes_differ_and_the_robust_rate_says_nothing_of_it(runs) -> None:
    made = [runs.add(robust=0.5, seed=seed) for seed in (1, 2)]
    with runs.db.transaction() as connection:
        connection.execute(update(Evaluation).where(Evaluation.run_id == made[0]).values(distinct=3))
    rows = select_runs(runs.db, made)
    tables = read_tables(runs.db, rows)
    counted, robust = (read_quantity(tables, quantity).points for quantity in (WIN_RATE, ROBUST))
    assert counted.groupby("run")["distinct"].count().to_dict() == {made[0]: 3, made[1]: 0}
    assert set(counted["distinct"].dropna()) == {3}
    assert robust["distinct"].isna().all()
    told = "Of the 16 episodes of an evaluation 3 differ. Counted in 1 of the 2 runs."
    rates: list[RateName] = ["auto", "greedy", "robust"]
    captions = [
        FIGURES["learning-curves"].make(runs.db, rows, LearningCurveOptions(rate=rate)).caption for rate in rates
    ]
    assert [told in caption for caption in captions] == [False, True, False]


def test_runs_of_different_lengths_are_read_at_one_budget_in_every_file(runs, tmp_path, capsysbinary) -> None:
    for seed in (1, 2):
        runs.add(seed=seed)
        runs.add(
            "train.t_max=4000", seed=seed, algo="qmix", env_steps=4000, points=[(0, 0.0), (1000, 0.5), (4000, 1.0)]
        )
    _, text = tabulate(runs, "win-rates", capsysbinary, "--budget", "1000")
    assert "Compared at 1,000 env steps" in text
    for rule, cells in ((), ["100.0"]), (("--budget", "1000"), ["100.0", "50.0"]), (("--budget", "own"), ["100.0"] * 2):
        frame, _ = tabulate(runs, "win-rates", capsysbinary, *rule)
        assert [cell.partition(" ")[0] for cell in frame["3m"]] == cells
    assert runs.export("--table", "win-rates", "--format", "latex", "--budget", "own") == 0
    tex = capsysbinary.readouterr().out.decode()
    assert "RUNS OF DIFFERENT LENGTHS" in tex
    assert "2 seeds; 4,000 steps" in tex
    out = tmp_path / "evaluations.json"
    assert runs.export("--format", "marl-eval", "--budget", "1000", "--out", str(out)) == 0
    assert '"step_count": 4000' not in out.read_text()
    assert "Compared at 1,000 env steps" in capsysbinary.readouterr().err.decode()
    assert runs.export("--table", "win-rates", "--budget", "some") == 2
    assert "budget must be common, own or a number" in capsysbinary.readouterr().err.decode()


@pytest.mark.parametrize("table", ["mu-w-embedders", "augmentation", "findings", "comparisons"])
def test_a_table_that_none_of_the_runs_belongs_in_is_refused_and_nothing_is_written(
    runs, tmp_path, capsysbinary, table
) -> None:
    runs.add(algo="qmix")
    out = tmp_path / "x.csv"
    assert runs.export("--table", table, "--out", str(out)) == 2
    told = capsysbinary.readouterr().err.decode()
    assert f"None of 1 run belongs in {table}: it needs " in told
    assert told.count("\n") == 1
    assert not out.exists()


VALUES: dict[str, Any] = {
    "center": "mean",
    "band": "ci",
    "color": "xi",
    "method": "pca",
    "episodes": [1, 2],
    "x_axis": "hours",
    "include_unfinished": True,
    "budget": 1000,
    "final": "last",
    "rate": "robust",
}


@pytest.mark.parametrize("name", VALUES)
def test_an_option_that_would_change_nothing_is_refused(name: str) -> None:
    kinds = [*FIGURES.values(), *TABLES.values()]
    others = [kind for kind in kinds if name not in kind.options.list_options()]
    assert 0 < len(others) < len(kinds)
    for kind in others:
        with raises(ConfigError, key=name):
            kind.read_options({name: VALUES[name]})
    for kind in kinds:
        if kind not in others:
            assert kind.read_options({name: VALUES[name]}).list_set_values() in ({name: VALUES[name]}, {})


def test_a_refused_option_exits_with_2_and_writes_nothing(runs, tmp_path, capsys) -> None:
    runs.add()
    out = tmp_path / "x.svg"
    assert runs.export("--figure", "lambda-heatmap", "--band", "ci", "--out", str(out)) == 2
    assert (
        "band is not an option of the figure lambda-heatmap, which takes budget, center, final"
        in capsys.readouterr().err
    )
    assert not out.exists()
    assert runs.export("--table", "runs", "--center", "iqm") == 2
    assert "center is not an option of the table runs, which takes no option" in capsys.readouterr().err
    assert runs.export("--table", "win-rates", "--width", "one") == 2
    assert runs.export("--figure", "learning-curves", "--width", "one", "--out", str(tmp_path / "x.csv")) == 2
    assert runs.export("--figure", "learning-curves", "--width", "three", "--out", str(out)) == 2
    assert not out.exists()


def test_files_of_rows_have_only_rows_and_their_notes_are_next_to_them(runs, tmp_path, capsysbinary) -> None:
    runs.add()
    lost = runs.add(seed=2, status="stopped", env_steps=300)
    for format, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        out = tmp_path / f"rates.{format}"
        assert runs.export("--table", "win-rates", "--band", "ci", "--format", format, "--out", str(out)) == 0
        assert read(out).columns[:2].tolist() == ["variant", "3m"]
        notes = (tmp_path / f"rates.{format}.notes.txt").read_text()
        for text in ("95 % interval", "over seeds", "[%]", f"run {lost} (EMTC(QPLEX) on 3m; seed 2): stopped"):
            assert text in notes
    capsysbinary.readouterr()
    assert runs.export("--table", "win-rates", "--band", "ci") == 0
    written = capsysbinary.readouterr()
    assert written.out == (tmp_path / "rates.csv").read_bytes()
    assert written.err.decode() == (tmp_path / "rates.csv.notes.txt").read_text()
    out = tmp_path / "curves.csv"
    assert runs.export("--figure", "learning-curves", "--out", str(out)) == 0
    assert pd.read_csv(out).columns[0] == "panel"
    assert "over seeds" in (tmp_path / "curves.csv.notes.txt").read_text()
    assert runs.export("--figure", "learning-curves", "--out", str(tmp_path / "curves.svg")) == 0
    assert not (tmp_path / "curves.svg.notes.txt").exists()


def test_one_demo_run_that_was_lost_is_no_result_and_is_never_bold(runs, capsysbinary) -> None:
    """Two finished seeds at 0.5, and a run that played perfectly until it was lost after 300 of 1000 steps."""
    for seed in (1, 2):
        runs.add(seed=seed, algo="qmix", points=[(0, 0.0), (1000, 0.5)])
    lost = runs.add(points=[(0, 1.0), (200, 1.0)], status="stopped", env_steps=300)
    frame, text = tabulate(runs, "win-rates", capsysbinary)
    assert frame.to_numpy().tolist() == [["QMIX", "50.0 ± 0.0 (2 seeds)"]]
    reason = f"run {lost} (EMTC(QPLEX) on 3m; seed 1): stopped at 300 of 1,000 env steps"
    assert f"\nLeft out: 1 selected run.\n{reason}\n" in text
    assert runs.export("--table", "win-rates", "--format", "latex") == 0
    assert f"% {reason}" in capsysbinary.readouterr().out.decode()
    frame, text = tabulate(runs, "win-rates", capsysbinary, "--include-unfinished")
    assert frame.to_numpy().tolist() == [["EMTC(QPLEX)", "100.0† (1 seed)"], ["QMIX", "0.0 ± 0.0 (2 seeds)"]]
    assert "Compared at 300 env steps, the largest number that all runs reached (shortest: run" in text
    assert runs.export("--table", "win-rates", "--include-unfinished", "--format", "markdown") == 0
    assert "**" not in capsysbinary.readouterr().out.decode()


def test_the_same_run_has_the_same_color_in_every_figure_and_company(runs, tmp_path) -> None:
    algos = ("emtc-qplex", "qmix", "mappo", "emu-cds", "emc", "dmix")
    for algo in algos:
        runs.add(algo=algo)
    rows = select_runs(runs.db)
    for company in (rows, rows[:2], rows[-1:]):
        for name in ("learning-curves", "ablation", "mu-w"):
            lines = FIGURES[name].make(runs.db, company).panels[0].lines
            known = {line.name.partition(" (n")[0]: line.color for line in lines}
            assert known == {
                {"emtc-qplex": "EMTC(QPLEX)", "emu-cds": "EMU(CDS)"}.get(row.algo, row.algo.upper()): METHOD_STYLES[
                    row.algo
                ].color
                for row in company
            }


STUDY = ("lambda-heatmap", "augmentation", "tau-study", "mu-w-by-delta")


@pytest.mark.parametrize(
    ("figure", "other"), [*((figure, "train.lr=0.01") for figure in STUDY), ("tau-study", "train.t_max=2000")]
)
def test_a_study_refuses_runs_that_differ_in_another_setting(runs, tmp_path, capsys, figure, other) -> None:
    runs.add(steps=1000)
    runs.add(other, seed=2, **({} if "t_max" in other else {"steps": 1000}))
    out = tmp_path / "x.svg"
    assert runs.export("--figure", figure, "--out", str(out)) == 2
    assert capsys.readouterr().err.startswith(f"{other.partition('=')[0]} ")
    assert not out.exists()


def test_a_share_of_the_training_is_of_what_was_asked_not_of_what_was_evaluated(runs, capsysbinary) -> None:
    """Asked for 900 steps, last evaluated at 600: a third is step 300, and two thirds step 600, not 200 and 400."""
    for embedder in ("dcae", "tcse"):
        runs.add(
            "gate.enabled=false", f"embed.type={embedder}", points=[(0, 0.0), (600, 0.6)], steps=900, env_steps=900
        )
    frame, _ = tabulate(runs, "mu-w-embedders", capsysbinary)
    row = frame.iloc[0]
    assert row["33 % · TCSE"] == "0.150 (1 seed)"
    assert row["67 % · TCSE"] == "0.300 (1 seed)"
    assert row["100 % · TCSE"] == "0.300 (1 seed)"


@pytest.mark.parametrize("name", [name for name, kind in FIGURES.items() if issubclass(kind.options, SeedOptions)])
def test_every_figure_over_seeds_says_what_it_averages_on_itself(runs, tmp_path, name) -> None:
    runs.add("gate.enabled=false")
    out = tmp_path / f"{name}.svg"
    assert runs.export("--figure", name, "--center", "iqm", "--out", str(out)) == 0
    drawn = out.read_text(encoding="utf-8").partition("</metadata>")[2]
    assert "interquartile mean over seeds" in drawn
