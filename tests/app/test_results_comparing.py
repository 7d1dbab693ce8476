"""Is one variant better? Probability of improvement, profiles and tests, by hand and against slow twins."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from app.results.comparing import compare_means, least_p, performance_profile, probability_of_improvement
from app.results.named.comparisons import draw_profiles, tabulate_tests
from app.results.series import settle
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
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_the_probability_of_improvement_is_mann_whitneys_u_over_the_pairs(x, y) -> None:
    u = mannwhitneyu(x, y).statistic
    assert probability_of_improvement([values(*x)], [values(*y)]).value == pytest.approx(u / (len(x) * len(y)))


def test_the_interval_resamples_seeds_of_both_variants_within_each_task() -> None:
    rng = np.random.default_rng(3)
    x, y = [rng.random(4), rng.random(5)], [rng.random(3), rng.random(5)]
    slow = np.random.default_rng(0)
    drawn = np.zeros(2000)
    for ours, theirs in zip(x, y, strict=True):
        rows, columns = (
            slow.integers(len(ours), size=(2000, len(ours))),
            slow.integers(len(theirs), size=(2000, len(theirs))),
        )
        for place in range(2000):
            pairs = [(a > b) + 0.5 * (a == b) for a in ours[rows[place]] for b in theirs[columns[place]]]
            drawn[place] += np.mean(pairs) / 2
    found = probability_of_improvement(x, y)
    np.testing.assert_allclose((found.low, found.high), np.quantile(drawn, (0.025, 0.975)), atol=1e-12)


def test_a_profile_is_the_share_of_runs_above_each_threshold() -> None:
    scores = [values(0.2, 0.4, 0.9, 1.0), values(0.0, 0.5)]
    share, low, high = performance_profile(scores, values(0.0, 0.4, 0.9, 1.0))
    np.testing.assert_allclose(share, [(1 + 0.5) / 2, (0.5 + 0.5) / 2, 0.25 / 2, 0.0])
    assert (low <= share).all()
    assert (share <= high).all()
    assert high[-1] == 0.0


def test_the_interval_of_a_profile_is_a_quantile_of_whole_seeds_drawn_again() -> None:
    scores = values(0.1, 0.3, 0.3, 0.8, 0.9)
    rows = np.random.default_rng(0).integers(5, size=(2000, 5))
    slow = [np.mean(scores[draw] > 0.25) for draw in rows]
    _, low, high = performance_profile([scores], values(0.25))
    np.testing.assert_allclose((low[0], high[0]), np.quantile(slow, (0.025, 0.975)), atol=1e-12)


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
    table = tabulate_tests(settle(seeds, final=True)).set_index("task")
    assert table.loc["3m", "n"] == "4 and 4"
    assert table.loc["3m", "difference [%]"] == "+80.0"
    assert table.loc["3m", "P(improvement)"] == "1.00 [1.00–1.00]"
    assert table.loc["3m", "permutation p"] == "0.029"
    assert table.loc["3m", "verdict"] == "differs"
    assert table.loc["8m", ["P(improvement)", "Welch p"]].tolist() == ["0.50 [0.50–0.50]", "–"]
    assert "too few seeds to tell" in table.loc["8m", "verdict"]
    assert table.loc["all 2 tasks", "P(improvement)"] == "0.75 [0.75–0.75]"
    assert (table["variant"] == "EMTC(QPLEX)").all()
    assert (table["against"] == "QMIX").all()


def test_profiles_pool_the_tasks_that_all_variants_have() -> None:
    seeds = [*finals("emtc-qplex", "3m", 0.9, 0.5), *finals("qmix", "3m", 0.1, 0.3), *finals("qmix", "8m", 1.0)]
    chart = draw_profiles(settle(seeds, final=True))
    ours, theirs = chart.panels[0].lines
    at = int(np.searchsorted(ours.x, 0.4))
    assert (ours.name, ours.y[at], theirs.y[at]) == ("EMTC(QPLEX) (n = 2)", 1.0, 0.0)
    assert "over 3m, tasks" in chart.caption
    assert "fewer than 3" in chart.caption
    with pytest.raises(ConfigError, match="needs a map"):
        draw_profiles(settle([*finals("emtc-qplex", "3m", 0.9), *finals("qmix", "8m", 1.0)], final=True))
