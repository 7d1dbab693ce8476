"""Is one variant better? Probability of improvement, profiles and tests, by hand and against slow twins."""

import io
import pickle
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, mannwhitneyu

from app.analysis.series import join_seeds
from app.analysis.significance import (
    compare_means,
    difference_of_means,
    least_p,
    performance_profile,
    probability_of_improvement,
)
from app.analysis.statistics import Rate, interval_over_seeds
from app.analysis.tables import export_table
from app.figures.named.comparisons import draw_profiles, tabulate_tests
from emtc_core.errors import ConfigError
from tests.app.seed_cases import make_seed


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
    assert np.isnan(difference_of_means([values(1)], [values(0, 0.5)], Rate()).low)


def test_a_difference_combines_the_distances_to_the_edges_of_both_means() -> None:
    x, y, rate = values(0.9, 1.0, 0.95), values(0.1, 0.3, 0.2), Rate(episodes=16)
    (low, high), (least, most) = (interval_over_seeds(each, "mean", rate) for each in (x, y))
    found = difference_of_means([x], [y], rate)
    assert found.value == pytest.approx(0.75)
    assert found.value - found.low == pytest.approx(np.hypot(0.95 - low, most - 0.2))
    assert found.high - found.value == pytest.approx(np.hypot(high - 0.95, 0.2 - least))
    twice = difference_of_means([x, x], [y, y], rate)
    assert twice.value - twice.low == pytest.approx((found.value - found.low) / 2**0.5)


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


def test_welch_by_hand() -> None:
    """Means 5 and 2, variances 4 and 1, three seeds each: t = 3 / sqrt(5/3) = 2.324 at 2.94 degrees of freedom."""
    found = compare_means(values(3, 5, 7), values(1, 2, 3))
    assert found.difference == 3.0
    assert found.welch_p == pytest.approx(0.1045, abs=2e-3)


def test_the_permutation_test_deals_the_seeds_in_every_way() -> None:
    x, y = values(0.9, 0.8, 0.7, 0.95), values(0.5, 0.6, 0.75, 0.4)
    pooled, seen = np.concatenate([x, y]), []
    for chosen in combinations(range(8), 4):
        rest = [place for place in range(8) if place not in chosen]
        seen.append(pooled[list(chosen)].mean() - pooled[rest].mean())
    greater = np.mean(np.array(seen) >= x.mean() - y.mean() - 1e-12)
    assert compare_means(x, y).permutation_p == pytest.approx(2 * greater)


def test_three_seeds_are_too_few_to_tell_and_that_is_said() -> None:
    assert least_p(3, 3) == pytest.approx(0.1)
    assert least_p(4, 4) == pytest.approx(2 / 70)
    found = compare_means(values(1, 0.9, 0.95), values(0, 0.1, 0.05))
    assert found.permutation_p == pytest.approx(0.1)
    assert found.verdict == "too few seeds to tell: with 3 and 3 no permutation falls below p = 0.1"


def test_five_clearly_parted_seeds_differ_and_five_alike_do_not() -> None:
    assert compare_means(values(5, 6, 7, 8, 9), values(0, 1, 2, 3, 4)).verdict == "differs"
    assert compare_means(values(1, 2, 3, 4, 5), values(1, 2, 3, 4, 5.1)).verdict == "no difference shown"


def test_one_seed_has_no_test_and_equal_seeds_no_welch() -> None:
    one = compare_means(values(1), values(0, 0, 0))
    assert np.isnan([one.welch_p, one.permutation_p]).all()
    assert "too few seeds" in one.verdict
    assert np.isnan(compare_means(values(1, 1, 1, 1), values(0, 0, 0, 0)).welch_p)


def test_welch_is_silent_about_a_variant_whose_seeds_all_end_alike() -> None:
    """Mean 1 and no variance against mean 1/3 and variance .0233: t = .667 / sqrt(.0233 / 3) = 7.56 at 2 degrees."""
    assert compare_means(values(1, 1, 1), values(0.2, 0.5, 0.3)).welch_p == pytest.approx(0.01705, abs=1e-5)
    assert np.isnan(compare_means(values(0.9125, 0.9125, 0.9125), values(0.7, 0.7, 0.7)).welch_p)


def finals(algo: str, map: str, *last: float, **options) -> list:
    return [
        make_seed(f"{algo}-{map}-{k}", [(0, 0.0), (1000, rate)], algo=algo, map=map, seed=k, **options)
        for k, rate in enumerate(last, 1)
    ]


def test_the_table_names_both_variants_their_seeds_and_the_verdict() -> None:
    seeds = [
        *finals("emtc-qplex", "3m", 0.9, 1.0, 0.95, 0.9),
        *finals("qmix", "3m", 0.1, 0.2, 0.15, 0.1),
        *finals("emtc-qplex", "8m", 0.5),
        *finals("qmix", "8m", 0.5, 0.5),
    ]
    table = tabulate_tests(join_seeds(seeds, final=True)).set_index("task")
    assert table.loc["3m", "n"] == "4 and 4"
    assert table.loc["3m", "difference [%]"] == "+80.0 [+55.0–+89.9]"
    assert table.loc["3m", "P(improvement)"] == "1.00 [0.47–1.00]"
    assert table.loc["3m", "permutation p"] == "0.029"
    assert table.loc["3m", "verdict"] == "differs"
    assert table.loc["8m", ["P(improvement)", "Welch p"]].tolist() == ["0.50 [0.00–1.00]", "–"]
    assert "too few seeds to tell" in table.loc["8m", "verdict"]
    assert table.loc["all 2 tasks", "P(improvement)"].startswith("0.75 [0.")
    assert (table["variant"] == "EMTC(QPLEX)").all()
    assert {type(each) for each in table["P(improvement)"]} == {str}
    assert len(pickle.loads(pickle.dumps(table))) == len(table)
    files = (
        pd.read_csv(io.BytesIO(export_table(table, "csv"))),
        pd.read_parquet(io.BytesIO(export_table(table, "parquet"))),
    )
    for read in files:
        first = read.iloc[0]
        assert (first["difference [%] value"], first["difference [%] n"]) == (pytest.approx(80), "4 and 4")
        assert first["P(improvement) statistic"].endswith("share of pairs of seeds in which it is greater")
        assert first["P(improvement) statistic"].startswith("final win rate (mean of the evaluations in the last")
        assert "95 % interval" in first["P(improvement) interval"]
    assert (table["against"] == "QMIX").all()


def test_profiles_pool_the_tasks_that_all_variants_have() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9, 0.5), *finals("qmix", "3m", 0.1, 0.3), *finals("qmix", "8m", 1.0)]
    chart = draw_profiles(join_seeds(seeds, final=True))
    ours, theirs = chart.panels[0].lines
    at = int(np.searchsorted(ours.x, 0.4))
    assert (ours.name, ours.y[at], theirs.y[at]) == ("EMTC(QPLEX) (n = 2)", 1.0, 0.0)
    assert "over 3m, tasks" in chart.caption
    assert "fewer than 3" in chart.caption
    with pytest.raises(ConfigError, match="need a map"):
        draw_profiles(join_seeds([*finals("emtc-qplex", "3m", 0.9), *finals("qmix", "8m", 1.0)], final=True))
