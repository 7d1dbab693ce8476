"""Is one variant better? Differences, probability of improvement and profiles, by hand and against SciPy."""

import io
from datetime import UTC, datetime
from functools import partial
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binomtest, mannwhitneyu, nct, t, ttest_1samp, ttest_ind, ttest_rel

from app.analysis.curves import RunTables, read_quantity
from app.analysis.intervals import BinomialScale
from app.analysis.quantities import WIN_RATE
from app.analysis.results import select_results
from app.analysis.significance import (
    MIN_SEEDS,
    MeanDifference,
    adjust_p_values,
    compare_seeds,
    decide,
    performance_profile,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.tables import export_table
from app.analysis.win_rates import tabulate_win_rates
from app.analysis.x_axes import ENV_STEPS
from app.figures.named.comparisons import draw_profiles, tabulate_tests
from app.figures.named.curves import draw_comparison
from emtc_core.errors import ConfigError
from tests.app.curve_cases import join, make_run, stored
from tests.errors import raises


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, float)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_the_probability_of_improvement_is_mann_whitneys_u_over_the_pairs(x, y) -> None:
    u = mannwhitneyu(x, y).statistic
    assert probability_of_improvement([values(*x)], [values(*y)]).value == pytest.approx(u / (len(x) * len(y)))


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [
        ([[1, 2, 3, 4, 5]], [[0.5, 0.6, 0.7, 4.1, 1.5]], 20 / 25),
        ([range(20, 30)], [range(10)], 1.0),
        ([[1, 2, 3]], [[7, 8, 9, 10, 11]], 0.0),
        ([[1, 2], [0, 0, 0, 0]], [[0, 0], [1, 1]], 0.5),
        ([[1, 2, 3], [5]], [[1, 2], [3, 6]], (4 / 6 + 1 / 2) / 2),
    ],
    ids=["20 of 25 pairs", "all pairs", "no pair", "two tasks", "tasks with a different number of seeds"],
)
def test_tasks_weigh_equally_and_the_edges_lie_as_many_standard_errors_away_as_student_says(x, y, value) -> None:
    found = probability_of_improvement([values(*task) for task in x], [values(*task) for task in y])
    assert found.value == pytest.approx(value)
    sizes = [(len(ours), len(theirs)) for ours, theirs in zip(x, y, strict=True)]
    quantile = t.ppf(0.975, sum(n + k - 2 for n, k in sizes))
    for edge in (found.low, found.high):
        variances = [
            edge * (1 - edge) * (1 + ((n + k) / 2 - 1) * ((1 - edge) / (2 - edge) + edge / (1 + edge))) / (n * k)
            for n, k in sizes
        ]
        assert abs(edge - found.value) == pytest.approx(quantile * sum(variances) ** 0.5 / len(sizes), rel=1e-6)
    assert (found.low == 0.0) == (value == 0)
    assert (found.high == 1.0) == (value == 1)
    assert found.high - found.low > 0.1


def test_one_seed_against_one_says_nothing_of_how_often() -> None:
    found = probability_of_improvement([values(1)], [values(0)])
    assert (found.value, found.low, found.high) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(("threshold", "runs"), [(-1.0, 8), (0.3, 6), (0.7, 2), (0.9, 0)])
def test_a_profile_is_the_mean_share_of_runs_above_a_threshold_with_wilsons_interval(threshold, runs) -> None:
    """Tasks with three and six seeds: the mean of the two shares has the variance of a share of eight runs."""
    scores = [values(0.4, 0.5, 0.6), values(0.1, 0.2, 0.3, 0.8, 0.85, 0.9)]
    wilson = binomtest(runs, 8).proportion_ci(0.95, "wilson")
    expected = ((runs / 8,), (wilson.low,), (wilson.high,))
    np.testing.assert_allclose(performance_profile(scores, values(threshold)), expected, atol=1e-9)


seed_values = st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=2, max_size=6)


def by_seed(numbers, first: int = 1) -> dict[int, float]:
    return dict(enumerate(map(float, numbers), first))


@pytest.mark.parametrize(
    ("compare", "test", "n"),
    [
        (lambda x, y: compare_seeds(by_seed(x), by_seed(y[: len(x)])), lambda x, y: ttest_rel(x, y[: len(x)]), 1),
        (lambda x, y: compare_seeds(by_seed(x), by_seed(y, first=101)), partial(ttest_ind, equal_var=False), 2),
        (lambda x, y: compare_seeds(by_seed(x)), lambda x, y: ttest_1samp(x, 0.0), 1),
    ],
    ids=["paired t test of equal seeds", "Welch's t test of other seeds", "one variant against zero"],
)
@given(seed_values, st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=6, max_size=9))
def test_a_difference_has_the_interval_and_the_p_value_of_scipys_t_test(compare, test, n, x, y) -> None:
    for numbers in (x, y, values(*x) - y[: len(x)]):
        assume(np.ptp(numbers) > 1e-3)  # SciPy warns of equal numbers
    difference, expected = compare(x, y), test(x, y)
    assert difference.n == (len(x), len(y))[:n]
    assert difference.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)


@pytest.mark.parametrize(
    ("x", "y", "is_paired", "n", "unpaired"),
    [
        ((1, 2, 3), (1, 2, 3), True, (3,), ()),
        ((1, 2, 3, 4), (1, 2, 3), True, (3,), (4,)),
        ((0, 1), (0, 1, 2), True, (2,), (2,)),
        ((1, 2, 3), (3, 4, 5), False, (3, 3), ()),
        ((1, 2, 3), (4, 5), False, (3, 2), ()),
        ((-1, -2), (-1, -2), False, (2, 2), ()),
    ],
    ids=["equal", "one more", "one less", "overlap in part", "different", "numbers of the runs of an import"],
)
def test_seeds_are_paired_if_every_seed_of_one_variant_exists_in_the_other(x, y, is_paired, n, unpaired) -> None:
    difference = compare_seeds({seed: seed / 7 for seed in x}, {seed: seed**2 / 9 for seed in y})
    assert (difference.is_paired, difference.n, difference.unpaired) == (is_paired, n, unpaired)
    common = [seed / 7 - seed**2 / 9 for seed in x if seed in y]
    means = sum(seed / 7 for seed in x) / len(x) - sum(seed**2 / 9 for seed in y) / len(y)
    assert difference.estimate == pytest.approx(np.mean(common) if is_paired else means)


def test_the_sign_flip_test_counts_all_flips() -> None:
    gaps = values(0.4, 0.3, -0.1, 0.2, 0.05)
    means = [np.mean(gaps * signs) for signs in product((-1, 1), repeat=len(gaps))]
    expected = np.mean(np.abs(means) >= gaps.mean() - 1e-12)
    difference = compare_seeds(by_seed(gaps + 0.5), by_seed(np.full(5, 0.5)))
    assert difference.randomization_p == pytest.approx(expected)


def test_flips_whose_means_differ_by_rounding_are_ties() -> None:
    values = {1: 0.25, 2: -0.25 + 2e-13, 3: 0.5}
    result = compare_seeds(values, dict.fromkeys(values, 0.0))
    assert result.randomization_p == 6 / 8, "only the flip of the second value and its opposite have a smaller mean"


def test_the_permutation_test_deals_the_seeds_in_every_way() -> None:
    x, y = values(0.9, 0.8, 0.7, 0.95), values(0.5, 0.6, 0.75, 0.4)
    pooled, means = np.concatenate([x, y]), []
    for chosen in combinations(range(8), 4):
        rest = [place for place in range(8) if place not in chosen]
        means.append(pooled[list(chosen)].mean() - pooled[rest].mean())
    greater = np.mean(np.array(means) >= x.mean() - y.mean() - 1e-12)
    assert compare_seeds(by_seed(x), by_seed(y, 11)).randomization_p == pytest.approx(2 * greater)


def test_an_interval_of_win_rates_is_never_narrower_than_the_episodes_allow() -> None:
    """All 5 × 16 episodes won by one, none by the other: both shares become (w + 2) / (n + 4) with n = 80."""
    ones, zeros = by_seed(np.ones(5)), by_seed(np.zeros(5))
    difference = compare_seeds(ones, zeros, BinomialScale(episodes=16))
    share = 82 / 84
    error = np.sqrt(2 * share * (1 - share) / 80)
    assert difference.standard_error == pytest.approx(error)
    assert difference.low == pytest.approx(1 - t.ppf(0.975, 4) * error)
    assert difference.high == 1.0, "a difference of shares cannot exceed 1"
    assert np.isnan(compare_seeds(ones, zeros).low), "without a number of episodes nothing is known of the spread"
    percent = compare_seeds(by_seed(np.full(5, 75.0)), zeros, BinomialScale(100, episodes=16))
    shares = values(62 / 84, 2 / 84)
    assert percent.standard_error == pytest.approx(100 * np.sqrt((shares * (1 - shares) / 80).sum()))


def test_the_detectable_difference_has_a_power_of_80_percent() -> None:
    difference = compare_seeds(by_seed([0.5, 0.1, 0.3, 0.9, 0.2]))
    critical = t.ppf(0.975, 4)

    def power(gap: float) -> float:
        shift = gap / difference.standard_error
        return float(nct.sf(critical, 4, shift) + nct.cdf(-critical, 4, shift))

    assert difference.detectable_difference == pytest.approx(brentq(lambda gap: power(gap) - 0.8, 0.01, 5), rel=1e-4)


def test_pooled_tasks_have_equal_weights() -> None:
    first = compare_seeds(by_seed([0.5, 0.6, 0.9]), by_seed([0.1, 0.3, 0.2]))
    second = compare_seeds(by_seed([0.5, 0.7, 0.6, 0.4]), by_seed([0.4, 0.4, 0.4, 0.5]))
    pooled = pool_differences([first, second])
    variances = values(first.standard_error, second.standard_error) ** 2
    assert pooled.estimate == pytest.approx((first.estimate + second.estimate) / 2)
    assert pooled.standard_error == pytest.approx(np.sqrt(variances.sum()) / 2)
    assert pooled.dof == pytest.approx(variances.sum() ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 3))
    assert (pooled.n, pooled.min_n) == ((7,), 3)


def test_holm_by_hand() -> None:
    assert adjust_p_values([0.04, 0.01, np.nan, 0.03], ["3m"] * 4) == pytest.approx(
        [0.06, 0.03, np.nan, 0.06], nan_ok=True
    )
    assert adjust_p_values([0.9, 0.8], ["3m", "3m"]) == [1.0, 1.0]
    assert adjust_p_values([0.04, 0.01, 0.03], ["3m", "8m", "3m"]) == pytest.approx([0.06, 0.01, 0.06])


def difference_of(low: float, high: float, n: int = MIN_SEEDS) -> MeanDifference:
    return MeanDifference((low + high) / 2, low, high, (n,), n, is_paired=True)


SAME = by_seed([0.5, 0.7, 0.2])


@pytest.mark.parametrize(
    ("difference", "p", "claim", "verdict"),
    [
        (difference_of(0.1, 0.3), 0.01, {"is_rate": True}, "supported"),
        (difference_of(0.1, 0.3, n=4), 0.01, {"is_rate": True}, "too few seeds"),
        (difference_of(np.nan, np.nan), np.nan, {"is_rate": True}, "too few seeds"),
        (difference_of(0.1, 0.3), 0.06, {"is_rate": True}, "cannot tell"),
        (difference_of(-0.3, -0.1), 0.01, {"is_rate": True}, "contradicted"),
        (difference_of(-0.3, -0.1), 0.01, {"sign": -1}, "supported"),
        (difference_of(-0.04, 0.045), 0.9, {"is_rate": True}, "no relevant difference"),
        (difference_of(-0.04, 0.06), 0.9, {"is_rate": True}, "cannot tell"),
        (difference_of(-0.06, 0.04), 0.9, {"is_rate": True}, "cannot tell"),
        (difference_of(-0.04, 0.04), 0.9, {}, "cannot tell"),
        (compare_seeds(SAME, SAME, BinomialScale(episodes=16)), np.nan, {}, "equal"),
        (compare_seeds({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}), np.nan, {}, "equal"),
        (compare_seeds({1: 0.5}, {1: 0.5}), np.nan, {}, "too few seeds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_verdict_follows_the_rule_of_the_plan(difference, p, claim, verdict) -> None:
    assert decide(difference, p, **claim) == verdict


def finals(algo: str, map: str, *last: float, **options) -> list:
    return [
        make_run(f"{algo}-{map}-{k}", [(0, 0.0), (1000, rate)], algo=algo, map=map, seed=k, **options)
        for k, rate in enumerate(last, 1)
    ]


def test_the_table_of_tests_names_both_variants_their_seeds_and_the_verdict() -> None:
    ours, theirs = (0.9, 1.0, 0.95, 0.9, 0.85), (0.1, 0.2, 0.15, 0.1, 0.05)
    seeds = [
        *finals("emtc-qplex", "3m", *ours),
        *finals("qmix", "3m", *theirs),
        *finals("emtc-qplex", "8m", 0.5),
        *finals("qmix", "8m", 0.5, 0.5),
    ]
    table = tabulate_tests(join(seeds, for_final_numbers=True))
    rows = table.frame.set_index("task")
    gap = compare_seeds(by_seed(ours), by_seed(theirs), BinomialScale(episodes=16))
    odds = probability_of_improvement([values(*ours)], [values(*theirs)])
    columns = ["variant", "against", "n", "difference [%]", "P(improvement)", "p (randomization)", "verdict"]
    assert rows.loc["3m", columns].tolist() == [
        "EMTC(QPLEX)",
        "QMIX",
        "5 pairs",
        f"+80.0 [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]",
        f"1.00 [{odds.low:.2f}–1.00]",
        "0.062",
        "higher",
    ]
    assert rows.loc["8m", ["n", "P(improvement)", "p", "verdict"]].tolist() == [
        "1 pair (without seed 2)",
        "0.50 [0.00–1.00]",
        "–",
        "too few seeds",
    ]
    assert rows.loc["all 2 tasks", "P(improvement)"].startswith("0.75 [0.")
    first = pd.read_parquet(io.BytesIO(export_table(table, "parquet"))).iloc[0]
    assert (first["difference [%] value"], first["difference [%] n"]) == (pytest.approx(80), "5 pairs")
    assert first["P(improvement) statistic"].startswith("final win rate (mean of the evaluations in the last")
    assert first["P(improvement) statistic"].endswith("share of pairs of seeds in which it is greater")
    assert first["difference [%] interval"].startswith("95 % interval (paired t; covers")


def test_profiles_pool_the_tasks_that_all_variants_have_and_name_the_other_runs() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9, 0.5), *finals("qmix", "3m", 0.1, 0.3), *finals("qmix", "8m", 1.0)]
    chart = draw_profiles(join(seeds, for_final_numbers=True))
    ours, theirs = chart.panels[0].lines
    at = int(np.searchsorted(ours.x, 0.4))
    assert (ours.name, ours.y[at], theirs.y[at]) == ("EMTC(QPLEX) (n = 2)", 1.0, 0.0)
    assert chart.title == "Performance profiles, 3m"
    assert "over 3m. All tasks" in chart.caption
    assert "fewer than 3" in chart.caption
    assert "run qmix-8m-1 (QMIX on 8m; seed 1): not every variant has a result on this map" in chart.caption
    with raises(ConfigError, key="env.map"):
        draw_profiles(join([*finals("emtc-qplex", "3m", 0.9), *finals("qmix", "8m", 1.0)], for_final_numbers=True))


def test_the_reference_is_the_full_method_and_can_be_chosen() -> None:
    seeds = [
        make_run(f"{name}-{map}-{k}", [(0, 0.0), (1000, rate)], *settings, map=map, seed=k, algo=algo)
        for map in ("3m", "8m")
        for name, algo, settings, rate in (
            ("ungated", "emtc-qplex", ("gate.enabled=false",), 0.2),
            ("cds", "cds", (), 0.3),
            ("full", "emtc-qplex", (), 0.9),
        )
        if (name, map) != ("full", "8m")
        for k in (1, 2)
    ]
    comparison = join(seeds, for_final_numbers=True)
    table = tabulate_tests(comparison)
    assert set(table.frame["variant"]) == {"EMTC(QPLEX)"}
    assert set(table.frame["task"]) == {"3m"}
    assert "Not compared, because EMTC(QPLEX) has no result there: 8m." in table.caption
    chosen = tabulate_tests(comparison, reference="CDS").frame
    assert set(chosen["variant"]) == {"CDS"}
    assert chosen["task"].tolist() == ["3m", "3m", "8m", "all 2 tasks"]
    with raises(ConfigError, key="reference", value="VDN"):
        tabulate_tests(comparison, reference="VDN")


def copies(*rates: float, seeds=(1, 2, 3)) -> pd.DataFrame:
    """Evaluations of a run of EMTC(QPLEX) and of No-TCGM for each seed, equal to every digit."""
    return pd.DataFrame(
        {
            "run_id": f"{variant}{seed}", "env_step": 1000 * step, "win_rate": rate, "robust_win_rate": np.nan,
            "return_mean": 1.5 + seed / 7 + step, "length_mean": 20.0, "episodes": 16, "distinct": np.nan,
        }
        for variant in ("full", "ungated")
        for seed in seeds
        for step, rate in enumerate(rates, 1)
    )  # fmt: skip


def comparison_of(frame: pd.DataFrame):
    settings = {"full": (), "ungated": ("gate.enabled=false",)}
    rows = [
        SimpleNamespace(
            id=run_id, config=stored(*settings[run_id[:-1]], seed=int(run_id[-1])), versions={}, live_status="finished",
            env_steps=2000, target_steps=2000, created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for run_id in dict.fromkeys(frame["run_id"])
    ]  # fmt: skip
    tables = RunTables({row.id: row for row in rows}, frame, lambda _: frame, lambda _: ENV_STEPS)
    return select_results(read_quantity(tables, WIN_RATE), for_final_numbers=True)


NO_WIN = "no win yet, so the memory pays no incentive"


@pytest.mark.parametrize(
    ("evaluations", "verdict", "told"),
    [
        (copies(0.0, 0.0), f"identical runs ({NO_WIN})", f" ({NO_WIN})"),
        (copies(0.0, 0.5), "identical runs", ""),
    ],
    ids=["without a win", "with a win"],
)
def test_identical_runs_have_no_interval_and_no_verdict_but_the_reason(evaluations, verdict, told) -> None:
    comparison = comparison_of(evaluations)
    row = tabulate_tests(comparison).frame.iloc[0]
    assert row[["difference [%]", "p", "p (randomization)", "verdict"]].tolist() == ["+0.0", "–", "–", verdict]
    sentence = f"Identical runs on 3m: EMTC(QPLEX); EMTC(QPLEX), No-TCGM{told}."
    assert sentence in tabulate_win_rates(comparison).notes
    assert sentence in draw_comparison(comparison).caption


@pytest.mark.parametrize(
    "change",
    [{"return_mean": [*copies(0.0, 0.0)["return_mean"][:-1], 4.0]}, {"return_mean": 0.0}],
    ids=["one other return", "all returns are 0"],
)
def test_equal_win_rates_do_not_prove_that_runs_are_identical(change) -> None:
    comparison = comparison_of(copies(0.0, 0.0).assign(**change))
    assert "identical" not in tabulate_tests(comparison).to_wide_frame().to_string()
    assert "Identical" not in draw_comparison(comparison).caption
