"""Which win rate stands for the end of a run, and its falls: by hand, and for any curve."""

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.aggregates import Aggregation
from app.analysis.finals import (
    FINAL_RULES,
    Falls,
    FinalRule,
    compute_final_rates,
    count_falls,
    define_final,
    list_runs_without_last_tenth,
    make_final_scale,
    name_final,
)
from app.analysis.published import tabulate_with_published
from app.analysis.quantities import ROBUST, TRAINING_WIN_RATE
from app.analysis.tables import export_table
from app.analysis.win_rates import tabulate_falls, tabulate_win_rates
from app.figures.named.comparisons import draw_profiles, tabulate_tests
from tests.app.curve_cases import RunCase, join, make_run, read_cases

SWINGS = (1.0, 1.0, 0.0, 0.38, 0.62, 0.0, 1.0, 1.0, 0.12, 0.0, 0.94, 0.44, 0.44)
"""Measured: EMTC(QPLEX) on 3s_vs_5z between 500,000 and 640,000 env steps; here every 10,000 steps up to its end."""


def run_of(values: tuple[float, ...], first: int, every: int, *settings: str, **given) -> RunCase:
    """A run that was evaluated at equal distances up to its budget."""
    steps = [first + every * place for place in range(len(values))]
    done = {"env_steps": steps[-1], "target_steps": steps[-1]}
    return make_run(given.pop("run_id", "a"), list(zip(steps, values, strict=True)), *settings, **(done | given))


def final_rate(run: RunCase, rule: FinalRule) -> float:
    return float(compute_final_rates(read_cases([run]), rule)[0])


def values_of(run: RunCase) -> np.ndarray:
    return np.array([value for _, value in run.points])


def test_equal_means_of_unequal_evaluations_are_a_tie() -> None:
    """.1 + .2 + .3 is .6000000000000001 and .3 + .2 + .1 is .6, before they are divided by three."""
    up, down = (
        [run_of(values, 92_000, 4_000, run_id=algo, algo=algo)]
        for values, algo in (((0.1, 0.2, 0.3), "emtc-qplex"), ((0.3, 0.2, 0.1), "qmix"))
    )
    assert final_rate(up[0], "last-tenth") == final_rate(down[0], "last-tenth") == 0.2
    table = tabulate_tests(join([*up, *down], for_final_numbers=True))
    assert table.frame["P(improvement)"].str[:4].tolist() == ["0.50"]


def test_an_evaluation_at_exactly_nine_tenths_is_not_in_the_last_tenth() -> None:
    points = [(899, 0.0), (900, 0.0), (901, 1.0), (1003, 0.5)]
    assert final_rate(make_run("a", points), "last-tenth") == 0.75


@pytest.mark.parametrize(
    ("values", "falls"),
    [
        ((1.0, 0.0, 0.5, 0.38, 0.94), Falls(2, 4)),
        ((0.0, 0.1, 0.9, 0.6), Falls(0, 1)),
        ((0.0, 0.9), Falls(0, 0)),
        ((0.89, 0.0), None),
        ((), None),
    ],
    ids=["below .5", "before the first .9", "nothing after the first .9", "never .9", "no evaluation"],
)
def test_falls_are_evaluations_below_a_half_after_the_first_of_nine_tenths(values, falls) -> None:
    assert count_falls(np.array(values)) == falls
    if falls:
        np.testing.assert_equal(falls.fraction, falls.n_falls / falls.n_later if falls.n_later else np.nan)


rates = st.lists(st.integers(0, 16).map(lambda wins: wins / 16), min_size=1, max_size=30)


@given(rates, st.integers(0, 1200), st.randoms(use_true_random=False))
def test_the_final_rate_and_the_falls_of_any_curve_are_those_of_a_loop(values, target, random) -> None:
    steps = sorted(random.sample(range(1, 1300), len(values)))
    run = make_run("a", list(zip(steps, values, strict=True)), target_steps=target)
    late = [value for step, value in zip(steps, values, strict=True) if target and step > target - target / 10]
    expected = sum(late) / len(late) if late else values[-1]
    assert final_rate(run, "last-tenth") == pytest.approx(expected)
    assert final_rate(run, "last") == values[-1]
    assert (list_runs_without_last_tenth(read_cases([run]), "last-tenth") == "") == bool(late)
    made, falls, after = False, 0, 0
    for value in values:
        falls, after = (falls + (value < 0.5), after + 1) if made else (0, 0)
        made = made or value >= 0.9
    assert count_falls(values_of(run)) == (Falls(falls, after) if made else None)


def test_runs_without_an_evaluation_there_have_their_last_one_and_every_table_names_them() -> None:
    seeds = [make_run(f"r{k}", [(0, 0.0), (850, 0.5)], algo="qmix", map="corridor", seed=k) for k in range(7)]
    seeds.append(make_run("b", [(0, 0.0), (920, 0.0), (1000, 1.0)], map="corridor"))
    assert final_rate(seeds[0], "last-tenth") == 0.5

    def write(more: str) -> str:
        named = "; ".join(f"run r{k}, at 850 of 1,000 env steps" for k in range(5))
        return f"Runs without an evaluation in the last tenth (their last evaluation is used): {named}{more}."

    comparison = join(seeds, for_final_numbers=True)
    note = write("; and 2 more")
    for table in (tabulate_win_rates(comparison), tabulate_tests(comparison), tabulate_with_published(comparison)):
        assert note in table.caption
        assert note in export_table(table, "latex").decode()
    assert note in draw_profiles(comparison).caption
    five = [*seeds[:5], seeds[-1]]
    assert list_runs_without_last_tenth(read_cases(five), "last-tenth") == write("")
    assert list_runs_without_last_tenth(read_cases(seeds), "last") == ""


def test_a_caption_says_of_how_many_evaluations_a_mean_is() -> None:
    one = run_of(SWINGS, 520_000, 10_000)
    two = run_of((0.0, 1.0, 0.5), 80_000, 10_000, run_id="b")
    meaning = "final win rate: mean of the evaluations in the last tenth of the budget"
    assert define_final(read_cases([one]), "last-tenth") == f"{meaning} (7 per run)"
    assert define_final(read_cases([one, two]), "last-tenth") == f"{meaning} (1 to 7 per run)"
    assert define_final(read_cases([two]), "last-tenth") == f"{meaning} (1 per run: the last)"
    assert (
        define_final(read_cases([one]), "last", unit="%") == "last win rate [%]: win rate of the last evaluation only"
    )


@pytest.mark.parametrize(("rule", "cell"), [("last-tenth", "56.3 (1 seed)"), ("last", "44.0 (1 seed)")])
def test_a_table_says_in_every_format_which_number_it_shows(rule, cell) -> None:
    comparison = join([run_of(SWINGS, 520_000, 10_000)], for_final_numbers=True)
    table = tabulate_win_rates(comparison, Aggregation(), rule)
    assert table.frame["3m"].tolist() == [cell]
    defined = f"{define_final(comparison, rule, unit='%').capitalize()}."
    assert table.caption.startswith(defined)
    for format in ("latex", "markdown"):
        assert defined in export_table(table, format).decode()
    for written in (
        pd.read_csv(io.BytesIO(export_table(table, "csv"))),
        pd.read_parquet(io.BytesIO(export_table(table, "parquet"))),
    ):
        assert written["3m statistic"].tolist() == [f"{name_final(rule, unit='%')}, mean over seeds"]


def test_the_interval_of_a_final_rate_counts_the_episodes_of_every_evaluation_that_it_averages() -> None:
    """Two seeds that won all of 3 · 2 episodes each, and two that won all of 2: p > n / (n + t²), t = 12.706."""
    seeds = [run_of((1.0, 1.0, 1.0), 92_000, 4_000, "eval.episodes=2", run_id=f"a{k}", seed=k) for k in (1, 2)]
    lows = []
    for rule in FINAL_RULES:
        table = tabulate_win_rates(join(seeds, for_final_numbers=True), Aggregation("mean", "ci"), rule)
        lows.append(pd.read_csv(io.BytesIO(export_table(table, "csv")))["3m low"].iloc[0])
    assert lows == [pytest.approx(100 * n / (n + 12.706**2), abs=0.01) for n in (12, 4)]


@pytest.mark.parametrize(
    ("last_steps", "rule", "quantity", "episodes"),
    [
        (10_000, "last-tenth", ROBUST, 160),
        (10_000, "last", ROBUST, 16),
        (850, "last-tenth", ROBUST, 16),
        (10_000, "last-tenth", TRAINING_WIN_RATE, 10),
    ],
    ids=["ten evaluations", "last evaluation", "a run without an evaluation there", "ten reports of the training"],
)
def test_the_scale_of_a_final_rate_has_the_fewest_episodes_of_a_run(last_steps, rule, quantity, episodes) -> None:
    """A report of the training win rate counts as one episode."""
    seeds = [make_run(f"a{k}", [(k * 10, 1.0) for k in range(91, 101)], seed=k) for k in (1, 2)]
    seeds.append(make_run("b", [(step, 1.0) for step in range(100, 1001, 5) if step <= last_steps], seed=3))
    assert make_final_scale(read_cases(seeds), rule, quantity=quantity).episodes == episodes


def test_only_the_share_of_falls_has_an_interval_and_it_stays_between_0_and_100() -> None:
    seeds = [
        run_of((1.0, 0.0, 0.0, 0.0, 0.94), 20_000, 20_000, run_id="a", seed=1),
        run_of((0.0, 0.9, 1.0, 0.5, 1.0), 20_000, 20_000, run_id="b", seed=2),
    ]
    table = tabulate_falls(join(seeds, for_final_numbers=True), Aggregation("mean", "ci"))
    row = pd.read_csv(io.BytesIO(export_table(table, "csv"))).iloc[0]
    assert row["falls value"] == 1.5
    assert row[["falls low", "falls high", "falls interval", "evaluations after low"]].isna().all()
    assert row["falls [%] statistic"] == "falls [%], mean over seeds"
    assert 0 <= row["falls [%] low"] < 37.5 < row["falls [%] high"] <= 100
    assert "Only falls [%] has an interval" in table.caption


@pytest.mark.parametrize("rule", FINAL_RULES)
def test_tests_and_profiles_use_the_number_that_was_asked_for(rule) -> None:
    """One variant ends with 1 after 0 and 0, the other holds .4: by the mean it is better, by the last it is worse."""
    seeds = [
        *(run_of((0.0, 0.0, 1.0), 92_000, 4_000, run_id=f"a{k}", seed=k) for k in (1, 2)),
        *(run_of((0.4, 0.4, 0.4), 92_000, 4_000, run_id=f"b{k}", seed=k, algo="qmix") for k in (1, 2)),
    ]
    comparison = join(seeds, for_final_numbers=True)
    table = tabulate_tests(comparison, rule)
    assert table.frame["difference [%]"].str[:5].tolist() == (["-6.7 "] if rule == "last-tenth" else ["+60.0"])
    assert table.frame["P(improvement)"].str[:4].tolist() == (["0.00"] if rule == "last-tenth" else ["1.00"])
    chart = draw_profiles(comparison, rule)
    name = define_final(comparison, rule)
    assert chart.x_label == name.partition(":")[0]
    assert name.capitalize() in chart.caption
    ours = chart.panels[0].lines[0]
    assert ours.y[int(np.searchsorted(ours.x, 0.5))] == (0.0 if rule == "last-tenth" else 1.0)


def test_the_table_of_falls_averages_the_seeds_that_reached_a_high_rate_and_shows_each() -> None:
    seeds = [
        run_of((1.0, 0.0, 0.0, 0.0, 0.94), 20_000, 20_000, run_id="a", seed=1),
        run_of((0.0, 0.9, 1.0, 0.5, 1.0), 20_000, 20_000, run_id="b", seed=2),
        run_of((0.0, 0.2, 0.4, 0.6, 0.8), 20_000, 20_000, run_id="c", seed=3),
        make_run("d", [(0, 0.0), (50, 0.5)], algo="qmix", status="stopped", env_steps=250),
    ]
    table = tabulate_falls(join(seeds, include_unfinished=True, for_final_numbers=True), Aggregation())
    assert table.frame.to_numpy().tolist() == [
        [
            *("3m", "EMTC(QPLEX)", 3, 2, "1.5 ± 2.1", "3.5 ± 0.7", "37.5 ± 53.0"),
            "seed 1: 3 of 4; seed 2: 0 of 3; seed 3: never 0.9",
        ],
        ["3m", "QMIX†", 1, 0, "–", "–", "–", "seed 1: never 0.9"],
    ]
    assert "greedy win rate below 0.5 after the first one of at least 0.9" in table.caption
    assert "mean ± standard deviation over seeds" in table.caption
    assert "† includes an unfinished run." in table.caption
