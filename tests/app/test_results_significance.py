"""Is one variant better? Differences, probability of improvement and profiles, by hand and against SciPy."""

import io
import pickle
from datetime import UTC, datetime
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


def test_the_probability_of_improvement_counts_pairs_and_half_of_the_ties() -> None:
    # 1 beats none of 1, 2, 2 and ties once; 2 wins once and ties twice; 3 wins three times: 5.5 of 9
    found = probability_of_improvement([values(1, 2, 3)], [values(1, 2, 2)])
    assert found.value == pytest.approx((0.5 + 2 + 3) / 9)
    assert found.low <= found.value <= found.high


def test_tasks_weigh_equally_however_many_seeds_they_have() -> None:
    found = probability_of_improvement([values(1), values(0, 0, 0, 0)], [values(0), values(1, 1)])
    assert found.value == 0.5
    assert found.low + found.high == pytest.approx(1)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_the_probability_of_improvement_is_mann_whitneys_u_over_the_pairs(x, y) -> None:
    u = mannwhitneyu(x, y).statistic
    assert probability_of_improvement([values(*x)], [values(*y)]).value == pytest.approx(u / (len(x) * len(y)))


def test_the_edges_lie_as_many_standard_errors_away_as_student_says() -> None:
    """Five seeds against five, 20 of 25 pairs won, N = 5: at either edge the distance is 2.306 standard errors."""
    found = probability_of_improvement([values(1, 2, 3, 4, 5)], [values(0.5, 0.6, 0.7, 4.1, 1.5)])
    for edge in (found.low, found.high):
        variance = edge * (1 - edge) / 25 * (1 + 4 * ((1 - edge) / (2 - edge) + edge / (1 + edge)))
        assert abs(edge - found.value) == pytest.approx(2.306 * variance**0.5, rel=1e-3)
    assert 0 < found.low < 0.5 < found.value < found.high < 1


def test_three_seeds_that_all_won_leave_even_odds_open_and_ten_do_not() -> None:
    assert probability_of_improvement([values(7, 8, 9)], [values(1, 2, 3)]).low < 0.5
    apart = probability_of_improvement([np.arange(10.0) + 20], [np.arange(10.0)])
    assert (apart.value, apart.high) == (1.0, 1.0)
    assert 0.5 < apart.low < 1


def test_one_seed_against_one_says_nothing_of_how_often() -> None:
    found = probability_of_improvement([values(1)], [values(0)])
    assert (found.value, found.low, found.high) == (1.0, 0.0, 1.0)


def test_a_profile_is_the_share_of_runs_above_each_threshold() -> None:
    scores = [values(0.2, 0.4, 0.9, 1.0), values(0.0, 0.5)]
    share, low, high = performance_profile(scores, values(0.0, 0.4, 0.9, 1.0))
    np.testing.assert_allclose(share, [(1 + 0.5) / 2, (0.5 + 0.5) / 2, 0.25 / 2, 0.0])
    assert (low <= share).all()
    assert (share <= high).all()
    assert share[-1] == low[-1] == 0.0
    assert high[-1] > 0, "six runs below a threshold do not prove that none gets above"


def test_the_band_of_a_profile_is_wilsons_for_so_many_runs() -> None:
    _, low, high = performance_profile([values(0.1, 0.3, 0.3, 0.8, 0.9)], values(0.25))
    found = binomtest(4, 5).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose((low[0], high[0]), (found.low, found.high), atol=1e-9)


seed_values = st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=2, max_size=6)


def by_seed(numbers, first: int = 1) -> dict[int, float]:
    return dict(enumerate(map(float, numbers), first))


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=6))
def test_equal_seeds_are_compared_by_the_paired_t_test(pairs) -> None:
    x, y = (np.round(each, 3) for each in zip(*pairs, strict=True))
    assume(np.ptp(x - y) > 1e-3)  # SciPy warns of equal numbers
    difference, expected = compare_seeds(by_seed(x), by_seed(y)), ttest_rel(x, y)
    assert difference.is_paired
    assert difference.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)


@given(seed_values, seed_values)
def test_other_seeds_are_compared_by_welchs_t_test(x, y) -> None:
    assume(np.ptp(x) > 1e-3)
    assume(np.ptp(y) > 1e-3)
    difference = compare_seeds(by_seed(x), by_seed(y, first=101))
    expected = ttest_ind(x, y, equal_var=False)
    assert not difference.is_paired
    assert difference.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)


@given(seed_values)
def test_one_variant_is_compared_with_zero(x) -> None:
    assume(np.ptp(x) > 1e-3)
    difference, expected = compare_seeds(by_seed(x)), ttest_1samp(x, 0.0)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)
    assert difference.n == (len(x),)


def test_a_seed_that_one_variant_lacks_is_left_out_and_named() -> None:
    x, y = {1: 0.5, 2: 0.7, 3: 0.9, 4: 0.1}, {1: 0.4, 2: 0.5, 3: 0.6}
    difference = compare_seeds(x, y)
    assert (difference.n, difference.unpaired, difference.estimate) == ((3,), (4,), pytest.approx(0.2))


def test_seeds_that_overlap_in_part_and_seeds_of_an_import_are_not_paired() -> None:
    assert not compare_seeds({1: 0.1, 2: 0.2, 3: 0.4}, {3: 0.3, 4: 0.5, 5: 0.1}).is_paired
    assert not compare_seeds({-1: 0.1, -2: 0.2}, {-1: 0.3, -2: 0.5}).is_paired, "these number the runs of an import"


def test_the_sign_flip_test_counts_all_flips() -> None:
    gaps = values(0.4, 0.3, -0.1, 0.2, 0.05)
    means = [np.mean(gaps * signs) for signs in product((-1, 1), repeat=len(gaps))]
    expected = np.mean(np.abs(means) >= gaps.mean() - 1e-12)
    difference = compare_seeds(by_seed(gaps + 0.5), by_seed(np.full(5, 0.5)))
    assert difference.randomization_p == pytest.approx(expected)


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
    percent = compare_seeds(by_seed(np.full(5, 100.0)), zeros, BinomialScale(100, episodes=16))
    assert percent.low == pytest.approx(100 * difference.low)


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


@pytest.mark.parametrize(
    ("low", "high", "n", "p", "verdict"),
    [
        (0.1, 0.3, 5, 0.01, "supported"),
        (0.1, 0.3, 4, 0.01, "too few seeds"),
        (np.nan, np.nan, 5, np.nan, "too few seeds"),
        (0.1, 0.3, 5, 0.06, "cannot tell"),
        (-0.3, -0.1, 5, 0.01, "contradicted"),
        (-0.04, 0.045, 5, 0.9, "no relevant difference"),
        (-0.04, 0.06, 5, 0.9, "cannot tell"),
    ],
)
def test_a_verdict_follows_the_rule_of_the_plan(low: float, high: float, n: int, p: float, verdict: str) -> None:
    assert decide(difference_of(low, high, n), p, is_rate=True) == verdict


def test_a_claim_of_a_fall_is_supported_below_zero_and_only_win_rates_can_be_equal_in_practice() -> None:
    assert decide(difference_of(-0.3, -0.1), 0.01, sign=-1) == "supported"
    assert decide(difference_of(-0.04, 0.04), 0.9) == "cannot tell"


def test_equal_numbers_in_every_pair_are_called_equal_and_one_pair_is_not_enough() -> None:
    x = by_seed([0.5, 0.7, 0.2])
    assert decide(compare_seeds(x, x, BinomialScale(episodes=16)), np.nan) == "equal"
    assert decide(compare_seeds({1: 0.5}, {1: 0.5}), np.nan) == "too few seeds"


def finals(algo: str, map: str, *last: float, **options) -> list:
    return [
        make_run(f"{algo}-{map}-{k}", [(0, 0.0), (1000, rate)], algo=algo, map=map, seed=k, **options)
        for k, rate in enumerate(last, 1)
    ]


def test_the_table_names_both_variants_their_seeds_and_the_verdict() -> None:
    seeds = [
        *finals("emtc-qplex", "3m", 0.9, 1.0, 0.95, 0.9),
        *finals("qmix", "3m", 0.1, 0.2, 0.15, 0.1),
        *finals("emtc-qplex", "8m", 0.5),
        *finals("qmix", "8m", 0.5, 0.5),
    ]
    table = tabulate_tests(join(seeds, for_final_numbers=True))
    rows = table.frame.set_index("task")
    gap = compare_seeds(by_seed([0.9, 1.0, 0.95, 0.9]), by_seed([0.1, 0.2, 0.15, 0.1]), BinomialScale(episodes=16))
    assert rows.loc["3m", "n"] == "4 pairs"
    assert rows.loc["3m", "difference [%]"] == f"+80.0 [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    assert rows.loc["3m", "P(improvement)"] == "1.00 [0.47–1.00]"
    assert rows.loc["3m", "p (randomization)"] == "0.125"
    assert rows.loc["3m", "verdict"] == "too few seeds"
    assert rows.loc["8m", ["n", "P(improvement)", "p"]].tolist() == [
        "1 pair (without seed 2)",
        "0.50 [0.00–1.00]",
        "–",
    ]
    assert rows.loc["all 2 tasks", "P(improvement)"].startswith("0.75 [0.")
    assert (rows["variant"] == "EMTC(QPLEX)").all()
    assert {type(each) for each in rows["P(improvement)"]} == {str}
    assert len(pickle.loads(pickle.dumps(table))) == len(table)
    files = (
        pd.read_csv(io.BytesIO(export_table(table, "csv"))),
        pd.read_parquet(io.BytesIO(export_table(table, "parquet"))),
    )
    for read in files:
        first = read.iloc[0]
        assert (first["difference [%] value"], first["difference [%] n"]) == (pytest.approx(80), "4 pairs")
        assert first["P(improvement) statistic"].endswith("share of pairs of seeds in which it is greater")
        assert first["P(improvement) statistic"].startswith("final win rate (mean of the evaluations in the last")
        assert first["difference [%] interval"].startswith("95 % interval (paired t; covers")
    assert (rows["against"] == "QMIX").all()


def test_five_clearly_different_seeds_get_a_verdict() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9, 1.0, 0.95, 0.9, 0.8), *finals("qmix", "3m", 0.1, 0.2, 0.3, 0.1, 0.0)]
    assert tabulate_tests(join(seeds, for_final_numbers=True)).frame["verdict"].tolist() == ["higher"]


def test_profiles_pool_the_tasks_that_all_variants_have() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9, 0.5), *finals("qmix", "3m", 0.1, 0.3), *finals("qmix", "8m", 1.0)]
    chart = draw_profiles(join(seeds, for_final_numbers=True))
    ours, theirs = chart.panels[0].lines
    at = int(np.searchsorted(ours.x, 0.4))
    assert (ours.name, ours.y[at], theirs.y[at]) == ("EMTC(QPLEX) (n = 2)", 1.0, 0.0)
    assert "over 3m. All tasks" in chart.caption
    assert "fewer than 3" in chart.caption
    with raises(ConfigError, key="env.map"):
        draw_profiles(join([*finals("emtc-qplex", "3m", 0.9), *finals("qmix", "8m", 1.0)], for_final_numbers=True))


def test_a_profile_is_titled_by_its_maps_and_names_the_runs_of_other_maps() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9), *finals("qmix", "3m", 0.1), *finals("qmix", "8m", 1.0, 0.9, 0.8)]
    chart = draw_profiles(join(seeds, for_final_numbers=True))
    assert chart.title == "Performance profiles, 3m"
    assert chart.subtitle.startswith("2 runs on 3m; band")
    assert "run qmix-8m-1 (QMIX on 8m; seed 1): not every variant has a result on this map" in chart.caption


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


IDENTICAL = "identical runs (no win yet, so the memory pays no incentive)"


def test_copies_of_the_same_runs_have_no_interval_and_no_verdict_but_the_reason() -> None:
    comparison = comparison_of(copies(0.0, 0.0))
    row = tabulate_tests(comparison).frame.iloc[0]
    assert row[["difference [%]", "p", "p (randomization)", "verdict"]].tolist() == ["+0.0", "–", "–", IDENTICAL]
    told = "Identical runs on 3m: EMTC(QPLEX); EMTC(QPLEX), No-TCGM (no win yet, so the memory pays no incentive)."
    assert told in tabulate_win_rates(comparison).caption
    assert told in tabulate_win_rates(comparison).notes
    assert told in draw_comparison(comparison).caption


def test_copies_with_a_win_have_no_known_reason_and_equal_returns_of_0_prove_nothing() -> None:
    comparison = comparison_of(copies(0.0, 0.5))
    assert tabulate_tests(comparison).frame["verdict"].tolist() == ["identical runs"]
    other, sparse = copies(0.0, 0.0), copies(0.0, 0.0)
    other.loc[3, "return_mean"] += 1e-9
    sparse["return_mean"] = 0.0
    for frame in (other, sparse):
        comparison = comparison_of(frame)
        assert "identical" not in tabulate_tests(comparison).to_wide_frame().to_string()
        assert "Identical" not in draw_comparison(comparison).caption
