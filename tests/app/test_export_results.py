"""`emtc export` over made-up databases: mixed settings, unfinished runs, one seed, NaN, fifteen variants."""

import io
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import insert, update

from app.analysis.curves import read_quantity, read_tables
from app.analysis.finals import make_final_scale, name_final
from app.analysis.quantities import RATE_NAMES, ROBUST, TRAINING_WIN_RATE, WIN_RATE, RateName
from app.analysis.results import select_runs
from app.cli.main import run
from app.figures.named.curves import LearningCurveOptions
from app.figures.options import SeedOptions
from app.figures.registry import FIGURES, TABLES
from app.figures.theme import METHOD_STYLES
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.models import Evaluation, MetricRow, Run
from tests.app.curve_cases import make_run, read_cases, stored
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


@pytest.fixture(scope="module")
def empty_database(empty: Path) -> Iterator[Database]:
    db = open_database(f"sqlite:///{empty}")
    yield db
    db.dispose()


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


def spread_runs(runs: Runs, *overrides: str, **arguments: Any) -> None:
    """Four seeds whose last win rates are 0, 0, 0 and 1: mean 0.25, median and interquartile mean 0."""
    for seed, last in enumerate((0.0, 0.0, 0.0, 1.0), 1):
        runs.add(*overrides, seed=seed, points=[(0, 0.0), (1000, last)], **arguments)


@pytest.mark.parametrize("figure", ["learning-curves", "ablation", "baselines", "mu-w", "tau-study"])
def test_every_figure_over_seeds_draws_the_center_and_the_band_that_were_asked_for(runs, tmp_path, figure) -> None:
    spread_runs(runs)
    share = 0.5 if figure == "mu-w" else 1.0
    last = {
        center: draw(runs, figure, tmp_path, "--center", center, "--band", "minmax").query("panel != 'τ'").iloc[-1]
        for center in ("mean", "median", "iqm")
    }
    assert {center: row["value"] for center, row in last.items()} == {"mean": 0.25 * share, "median": 0.0, "iqm": 0.0}
    assert (last["iqm"]["low"], last["iqm"]["high"]) == (0.0, share)


@pytest.mark.parametrize("figure", ["learning-curves", "mu-w", "tau-study", "mu-w-by-delta", "performance-profile"])
def test_the_csv_of_a_figure_says_of_every_point_which_statistic_it_is_and_of_how_many_seeds(
    runs, tmp_path, figure
) -> None:
    spread_runs(runs, "gate.enabled=false")
    arguments = [] if figure == "performance-profile" else ["--band", "ci"]
    frame = draw(runs, figure, tmp_path, *arguments).query("panel != 'τ'")
    assert (frame["n"] == 4).all()
    assert frame["statistic"].str.contains("95 % interval").all()
    assert frame["low"].between(0, 1).all()
    assert frame["high"].between(0, 1).all()


def test_ci_and_bootstrap_are_two_bands_and_each_says_its_name(runs, capsysbinary, tmp_path) -> None:
    spread_runs(runs)
    names = {}
    for band in ("ci", "bootstrap"):
        assert runs.export("--table", "win-rates", "--band", band) == 0
        names[band] = pd.read_csv(io.BytesIO(capsysbinary.readouterr().out))["3m interval"].iloc[0]
        assert runs.export("--table", "win-rates", "--band", band, "--format", "latex") == 0
        assert names[band].replace("%", "").split()[0] in capsysbinary.readouterr().out.decode()
    assert names["ci"].startswith("95 % interval (Wilson's score")
    assert names["bootstrap"] == "percentile bootstrap of 2000 draws"


@pytest.mark.parametrize("figure", ["lambda-heatmap", "augmentation", "mu-w-by-delta"])
def test_final_numbers_of_studies_follow_the_center(runs, tmp_path, figure) -> None:
    spread_runs(runs, "gate.enabled=false")
    found = {
        center: draw(runs, figure, tmp_path, "--center", center)["value"].iloc[-1] for center in ("mean", "median")
    }
    assert found == {"mean": 0.25, "median": 0.0}


def swing(runs: Runs, *overrides: str, **arguments: Any) -> None:
    """Two seeds that win one of their last three evaluations of the budget's last tenth, the very last one."""
    for seed in (1, 2):
        runs.add(*overrides, seed=seed, points=[(500, 1.0), (920, 0.0), (960, 0.0), (1000, 1.0)], **arguments)


@pytest.mark.parametrize("figure", ["lambda-heatmap", "augmentation", "mu-w-by-delta"])
def test_final_numbers_of_studies_are_means_over_the_last_tenth_or_the_last_evaluation(runs, tmp_path, figure) -> None:
    swing(runs, "gate.enabled=false")
    mean, last = (draw(runs, figure, tmp_path, "--final", rule).iloc[-1] for rule in ("last-tenth", "last"))
    assert (round(mean["value"], 3), last["value"]) == (0.333, 1.0)
    assert draw(runs, figure, tmp_path).iloc[-1]["value"] == mean["value"]


@pytest.mark.parametrize(
    ("table", "column", "mean", "last"),
    [
        ("win-rates", "3m", "33.3 ± 0.0 (2 seeds)", "100.0 ± 0.0 (2 seeds)"),
        ("augmentation", "3m", "0.333 ± 0.000 (2 seeds)", "1.000 ± 0.000 (2 seeds)"),
    ],
)
def test_tables_of_final_numbers_take_either_and_csv_says_which(runs, capsysbinary, table, column, mean, last) -> None:
    for noise in ("0.05", "0.1"):
        swing(runs, f"embed.sigma={noise}")
    for rule, cell, name in (("last-tenth", mean, "final win rate"), ("last", last, "last win rate")):
        frame, notes = tabulate(runs, table, capsysbinary, "--final", rule)
        assert frame[column or f"{name} [%]"].tolist()[0] == cell
        assert name_final(rule).partition("(")[2].rstrip(")") in notes


def test_falls_are_a_table_of_their_own(runs, capsysbinary) -> None:
    swing(runs)
    frame, _ = tabulate(runs, "falls", capsysbinary, "--center", "median", "--band", "none")
    assert frame.iloc[0].tolist() == [
        *("3m", "EMTC(QPLEX)", 2, 2, 2.0, 3.0, 66.7),
        "seed 1: 2 of 3; seed 2: 2 of 3",
    ]
    assert runs.export("--table", "falls", "--final", "last") == 2
    assert b"final is not an option of the table falls" in capsysbinary.readouterr().err


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
def test_the_table_of_win_rates_is_made_of_the_rate_that_was_asked_for_and_says_which(runs, capsysbinary, rate) -> None:
    runs.add(robust=0.25, trained=0.75)
    text, statistic = RATED[rate]
    assert runs.export("--table", "win-rates", "--rate", rate) == 0
    row = pd.read_csv(io.BytesIO(capsysbinary.readouterr().out)).iloc[0]
    assert (row["3m"], row["3m statistic"]) == (f"{text} (1 seed)", statistic)
    assert runs.export("--table", "win-rates", "--rate", rate, "--format", "markdown") == 0
    caption = capsysbinary.readouterr().out.decode()
    assert statistic.partition(" (")[0].capitalize() in caption
    if rate == "robust":  # the default of a task of which every run has it
        runs.export("--table", "win-rates")
        assert f"{text} (1 seed)" in capsysbinary.readouterr().out.decode()


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


def test_tests_of_variants_take_the_same_rate(runs, capsysbinary) -> None:
    for seed in (1, 2):
        runs.add(robust=0.25, seed=seed)
        runs.add(robust=0.75, seed=seed, algo="qmix")
    differences = []
    for rate in ("greedy", "robust"):
        assert runs.export("--table", "comparisons", "--rate", rate) == 0
        row = pd.read_csv(io.BytesIO(capsysbinary.readouterr().out)).iloc[0]
        differences.append(row["difference [%] value"])
        assert f"final {'robust ' if rate == 'robust' else ''}win rate [%]" in row["difference [%] statistic"]
    assert differences == [0.0, -50.0]


OF_A_RATE = ("ablation", "augmentation", "baselines", "lambda-heatmap", "learning-curves", "mu-w", "mu-w-by-delta")


@pytest.mark.parametrize("figure", [*OF_A_RATE, "performance-profile", "tau-study"])
def test_a_figure_is_robust_by_default_and_greedy_on_request(runs, tmp_path, figure) -> None:
    for seed in (1, 2):
        runs.add("gate.enabled=false", robust=0.25, trained=0.75, seed=seed)
    drawn = {rate: draw(runs, figure, tmp_path, *(["--rate", rate] if rate else [])) for rate in ("", *RATE_NAMES)}
    pd.testing.assert_frame_equal(drawn[""], drawn["robust"])
    pd.testing.assert_frame_equal(drawn[""], drawn["auto"])
    assert not any(drawn[first].equals(drawn[second]) for first, second in pairwise(("greedy", "robust", "training")))


@pytest.mark.parametrize(
    ("table", "column", "robust", "greedy"),
    [
        ("win-rates", "3m", "25.0 ± 0.0", "100.0 ± 0.0"),
        ("mu-w", "3m · 1,000", "0.250 ± 0.000", "0.500 ± 0.000"),
        ("augmentation", "3m", "0.250 ± 0.000", "1.000 ± 0.000"),
        ("mu-w-embedders", "100 % · TCSE", "0.250 ± 0.000", "0.500 ± 0.000"),
    ],
)
def test_a_table_is_robust_by_default_and_greedy_on_request(runs, capsysbinary, table, column, robust, greedy) -> None:
    for seed in (1, 2):
        for noise in ("0.05", "0.1"):
            runs.add("gate.enabled=false", f"embed.sigma={noise}", robust=0.25, seed=seed)
        runs.add("gate.enabled=false", "embed.type=dcae", robust=0.25, seed=seed)
    for rate, cell, title in (((), robust, "robust "), (("--rate", "greedy"), greedy, "")):
        frame, text = tabulate(runs, table, capsysbinary, *rate)
        assert frame[column or f"final {title}win rate [%]"].tolist()[0].startswith(cell)
        assert ("robust" in text) == bool(title)


def test_one_run_without_a_robust_evaluation_makes_every_number_of_its_task_greedy(
    runs, tmp_path, capsysbinary
) -> None:
    runs.add(robust=0.25)
    runs.add(robust=0.25, map="8m")
    without = runs.add(algo="qmix")
    frame, text = tabulate(runs, "win-rates", capsysbinary)
    assert frame.columns.tolist() == ["variant", "3m (greedy)", "8m (robust)"]
    assert frame["3m (greedy)"].tolist() == ["100.0 (1 seed)"] * 2
    assert frame["8m (robust)"].tolist()[0] == "25.0 (1 seed)"
    assert f"Greedy win rates on 3m, because run {without} has evaluations without a robust win rate." in text
    drawn = draw(runs, "learning-curves", tmp_path).groupby("panel")["value"].last().to_dict()
    assert drawn == {"greedy win rate, 3m": 1.0, "robust win rate, 8m": 0.25}


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


def test_the_interval_of_a_training_rate_counts_an_episode_for_each_report() -> None:
    seeds = [make_run(f"a{k}", [(k * 10, 1.0) for k in range(91, 101)], seed=k) for k in (1, 2)]
    assert make_final_scale(read_cases(seeds), "last-tenth", quantity=TRAINING_WIN_RATE).episodes == 10
    assert make_final_scale(read_cases(seeds), "last-tenth", quantity=ROBUST).episodes == 160


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


def test_a_rate_that_no_table_knows_is_refused(runs, capsysbinary) -> None:
    assert runs.export("--table", "win-rates", "--rate", "lucky") == 2
    assert "must be one of auto, greedy, robust, training" in capsysbinary.readouterr().err.decode()
    with raises(ConfigError, key="rate", value="lucky"):
        FIGURES["mu-w"].read_options({"rate": "lucky"})


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


@pytest.mark.parametrize("table", ["win-rates", "mu-w"])
def test_tables_quote_the_center_and_the_band_that_were_asked_for(runs, capsysbinary, table) -> None:
    spread_runs(runs)
    cells = {
        tabulate(runs, table, capsysbinary, "--center", c, "--band", "minmax")[0].iloc[0, -1] for c in ("mean", "iqm")
    }
    assert len(cells) == 2


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


def test_an_unfinished_run_counts_at_the_steps_that_it_reached(runs, capsysbinary) -> None:
    runs.add(seed=1)
    runs.add(seed=2, points=[(0, 0.0), (500, 0.5), (600, 0.6)], status="stopped", env_steps=600)
    frame, text = tabulate(runs, "mu-w", capsysbinary)
    assert frame.iloc[0].tolist() == [
        "EMTC(QPLEX)",
        "0.125 ± 0.000 (2 seeds)",
        "0.250 ± 0.000 (2 seeds)",
        "0.500 (1 seed)",
    ]
    assert "\nrun r002 (EMTC(QPLEX) on 3m; seed 2): last evaluated at 600; stopped at 600 of 1,000 env steps" in text


def test_seeds_of_unequal_length_are_drawn_over_what_all_reached_and_the_rest_is_told(runs, tmp_path) -> None:
    runs.add(seed=1)
    runs.add(seed=2, points=[(0, 0.0), (400, 0.8)])
    runs.add(seed=4, points=[], env_steps=1000)
    frame = draw(runs, "learning-curves", tmp_path, "r001", "r002", "r003")
    assert set(frame["series"]) == {"EMTC(QPLEX) (n = 2)"}
    assert frame["x"].iloc[-1] == 400
    np.testing.assert_allclose(frame["value"].iloc[-1], (0.4 + 0.8) / 2)


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


def test_fifteen_variants_all_stand_in_the_figure_and_in_its_legend(runs, tmp_path) -> None:
    for k in range(1, 16):
        runs.add(f"memory.delta={k}e-5")
    for width in ("one", "two"):
        out = tmp_path / f"{width}.svg"
        assert runs.export("--figure", "learning-curves", "--width", width, "--out", str(out)) == 0
    frame = draw(runs, "learning-curves", tmp_path)
    assert frame["series"].nunique() == 15


STUDY = {"lambda-heatmap", "augmentation", "tau-study", "mu-w-by-delta"}


@pytest.mark.parametrize("figure", sorted(STUDY))
@pytest.mark.parametrize("other", ["train.lr=0.01", "train.t_max=2000"])
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


def test_every_figure_over_seeds_says_what_it_averages_on_itself(runs, tmp_path) -> None:
    runs.add("gate.enabled=false")
    for name, kind in FIGURES.items():
        if issubclass(kind.options, SeedOptions):
            out = tmp_path / f"{name}.svg"
            assert runs.export("--figure", name, "--center", "iqm", "--out", str(out)) == 0
            drawn = out.read_text(encoding="utf-8").partition("</metadata>")[2]
            assert "interquartile mean over seeds" in drawn


def test_baselines_are_titled_by_what_is_drawn_and_name_the_other_runs(runs) -> None:
    runs.add()
    other = runs.add(algo="emu-qplex")
    chart = FIGURES["baselines"].make(runs.db, select_runs(runs.db))
    assert chart.title == "EMTC(QPLEX)"
    assert f"run {other} (EMU(QPLEX) on 3m; seed 1): its algorithm is not in this figure" in chart.caption
    runs.add(algo="dmix")
    assert FIGURES["baselines"].make(runs.db, select_runs(runs.db)).title == "EMTC(QPLEX) against DMIX"
