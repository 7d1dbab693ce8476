"""Which win rate the runs of a task are compared by: the default of each task, and what the reader is told of it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.published import tabulate_with_published
from app.analysis.quantities import (
    MU_W,
    ROBUST,
    ROBUST_MU_W,
    SELECTED_MU_W,
    SELECTED_RATE,
    TRAINING_WIN_RATE,
    WIN_RATE,
    average_over_time,
    find_rate,
    is_mu_w,
    uses_selected_rate,
)
from app.analysis.rates import RatedSeeds, TaskRate, apply_rate, average_curves, choose_rates
from app.analysis.series import SeedRun, join_seeds
from app.analysis.settings import LABEL
from app.analysis.win_rates import tabulate_falls, tabulate_mu_w, tabulate_win_rates
from app.figures.named.comparisons import draw_profiles, tabulate_tests
from app.figures.named.curves import draw_comparison
from tests.app.seed_cases import make_seed

GREEDY = [(0, 0.0), (500, 1.0), (1000, 1.0)]
SHIFTED = [(0, 0.0), (500, 0.25), (1000, 0.5)]
FOOTBALL = {"env": "grf", "map": "academy_3_vs_1_with_keeper"}
ON_FOOTBALL = "academy_3_vs_1_with_keeper [grf]"


def with_robust(run_id: str, *overrides: str, **given) -> SeedRun:
    return make_seed(run_id, GREEDY, *overrides, robust=SHIFTED, **given)


def without_robust(run_id: str, *overrides: str, **given) -> SeedRun:
    return make_seed(run_id, GREEDY, *overrides, **given)


def join(rated: RatedSeeds):
    return join_seeds(*rated, final=True)


def test_a_task_is_robust_where_every_run_has_a_robust_win_rate_at_each_evaluation() -> None:
    seeds = [with_robust("a"), with_robust("b", seed=2)]
    assert choose_rates(seeds) == {"3m": TaskRate("robust")}
    rated = apply_rate(seeds)
    assert rated.quantity.key == ROBUST.key
    assert "nearly identical" in rated.quantity.note
    assert [seed.curve.values.tolist() for seed in rated.seeds] == [[0.0, 0.25, 0.5]] * 2


@pytest.mark.parametrize("odd", [(), SHIFTED[1:]], ids=["no robust evaluation", "one evaluation without"])
def test_one_run_without_makes_its_task_greedy_for_all_its_runs_and_is_named(odd) -> None:
    seeds = [with_robust("a"), make_seed("b", GREEDY, robust=odd, seed=2)]
    assert choose_rates(seeds)["3m"].rate == "greedy"
    rated = apply_rate(seeds)
    assert rated.quantity.key == WIN_RATE.key
    assert [seed.curve.values.tolist() for seed in rated.seeds] == [[0.0, 1.0, 1.0]] * 2
    assert "run b has evaluations without a robust win rate" in rated.quantity.note
    comparison = join(rated)
    captions = [tabulate_win_rates(comparison).caption, draw_comparison(comparison).caption]
    captions.append(tabulate_mu_w(comparison, {"3m": [1000], ON_FOOTBALL: [1000]}).caption)
    assert all(rated.quantity.note in caption for caption in captions)


def test_many_runs_without_a_robust_evaluation_are_counted_and_the_first_named() -> None:
    seeds = [with_robust("z"), *(without_robust(f"r{k}", seed=k) for k in range(2, 7))]
    assert "runs r2, r3, r4 and 2 more have evaluations" in apply_rate(seeds).quantity.note


def test_a_run_that_was_never_evaluated_does_not_decide() -> None:
    assert choose_rates([with_robust("a"), make_seed("b", [], seed=2)]) == {"3m": TaskRate("robust")}
    assert choose_rates([make_seed("b", [])]) == {}


def test_football_smac_imports_and_runs_without_shifts_are_greedy_without_a_word() -> None:
    imported = without_robust("c")
    imported = replace(imported, settings={**imported.settings, LABEL: "pymarl"})
    plain = [
        without_robust("a", **FOOTBALL),
        without_robust("b", env="smac", map="3m"),
        imported,
        without_robust("d", "env.skirmish.spawn_jitter=0.05", map="8m"),
    ]
    for seeds in ([each] for each in plain):
        rated = apply_rate(seeds)
        assert (rated.quantity, rated.seeds) == (WIN_RATE, seeds)


def two_tasks_seeds() -> list[SeedRun]:
    """EMTC(QPLEX) and QMIX on skirmish and on football."""
    seeds = []
    for algo in ("emtc-qplex", "qmix"):
        for seed in (1, 2):
            seeds.append(with_robust(f"{algo}{seed}", algo=algo, seed=seed))
            seeds.append(without_robust(f"{algo}{seed}f", algo=algo, seed=seed, **FOOTBALL))
    return seeds


@pytest.fixture
def two_tasks() -> RatedSeeds:
    """These runs by the default win rate of each task."""
    return apply_rate(two_tasks_seeds())


def test_each_of_several_tasks_has_its_own_default(two_tasks) -> None:
    quantity = two_tasks.quantity
    assert (quantity.at("3m").episodes, quantity.at(ON_FOOTBALL).episodes) == ("robust", "greedy")
    assert {seed.curve.values[-1] for seed in two_tasks.seeds if seed.task == "3m"} == {0.5}
    assert {seed.curve.values[-1] for seed in two_tasks.seeds if seed.task == ON_FOOTBALL} == {1.0}
    assert "on 3m, because" in quantity.note
    assert f"Greedy win rates on {ON_FOOTBALL}, because no run has a robust win rate." in quantity.note


def test_heads_panels_and_captions_name_the_win_rate_of_each_task(two_tasks) -> None:
    comparison, note = join(two_tasks), two_tasks.quantity.note
    heads = [f"{ON_FOOTBALL} (greedy)", "3m (robust)"]
    assert sorted(tabulate_win_rates(comparison).frame.columns[1:]) == sorted(heads)
    assert sorted(tabulate_mu_w(comparison, {"3m": [1000], ON_FOOTBALL: [1000]}).frame.columns[1:]) == sorted(
        f"{head} · 1,000" for head in heads
    )
    chart = draw_comparison(comparison)
    assert sorted(panel.title for panel in chart.panels) == ["greedy win rate, academy_3_vs_1_with_keeper [grf]",
                                                            "robust win rate, 3m"]  # fmt: skip
    averaged = draw_comparison(join(average_curves(two_tasks)))
    assert sorted(panel.title.partition(",")[0] for panel in averaged.panels) == ["greedy μ̄_w", "robust μ̄_w"]
    made = [
        tabulate_win_rates(comparison),
        tabulate_mu_w(comparison, {"3m": [1000], ON_FOOTBALL: [1000]}),
        tabulate_tests(comparison),
    ]
    assert all(note in table.caption for table in made)
    assert all(note in figure.caption for figure in (chart, averaged, draw_profiles(comparison)))


def test_a_column_of_runs_of_unequal_lengths_is_not_bold_whatever_its_head_is() -> None:
    worse = [
        make_seed(f"vdn{k}", GREEDY, robust=[(step, 0.1) for step, _ in SHIFTED], algo="vdn", seed=k) for k in (1, 2)
    ]
    comparison = join(apply_rate([*two_tasks_seeds(), *worse]))
    unequal = replace(comparison, mixed_length_tasks=frozenset({"3m"}))
    bold, left = ({name for _, name in tabulate_win_rates(each).best} for each in (comparison, unequal))
    assert bold - left == {"3m (robust)"}


def test_the_rate_that_was_asked_for_is_that_of_every_task() -> None:
    seeds = [with_robust("a"), without_robust("b", seed=2), without_robust("c", **FOOTBALL)]
    greedy, robust = apply_rate(seeds, "greedy"), apply_rate(seeds, "robust")
    assert [seed.curve.values[-1] for seed in greedy.seeds] == [1.0, 1.0, 1.0]
    assert (greedy.quantity.key, greedy.quantity.by_task) == (WIN_RATE.key, ())
    assert "greedy episodes" in greedy.quantity.note
    comparison = join(robust)
    assert [seed.id for seed in comparison.seeds] == ["a"]
    assert [each.run_id for each in comparison.excluded_runs] == ["b", "c"]


def test_mu_w_is_the_time_average_of_the_win_rate_that_the_runs_are_compared_by() -> None:
    """Robust: the areas of two trapezoids, 62.5 + 187.5 over 1,000 steps; greedy: 250 + 500."""
    seeds = [with_robust("a")]
    for rate, key, expected in (("auto", "robust_mu_w", 0.25), ("greedy", "mu_w", 0.75)):
        averaged = average_curves(apply_rate(seeds, rate))
        assert averaged.quantity.key == key
        assert averaged.seeds[0].curve.values[-1] == pytest.approx(expected)
        table = tabulate_mu_w(join(apply_rate(seeds, rate)), {"3m": [1000], ON_FOOTBALL: [1000]})
        assert table.frame.iloc[0, 1] == f"{expected:.3f} (1 seed)"
    assert tabulate_mu_w(join(apply_rate(seeds)), {"3m": [1000], ON_FOOTBALL: [1000]}).caption.startswith("robust μ̄_w")


def test_falls_are_those_of_the_win_rate_that_the_runs_are_compared_by_and_the_table_names_it() -> None:
    """The run reaches .9 with greedy episodes only."""
    for rate, reached, name in (("auto", 0, "robust win rate"), ("greedy", 1, "greedy win rate")):
        table = tabulate_falls(join(apply_rate([with_robust("a")], rate)))
        assert table.frame["reached 0.9"].tolist() == [reached]
        definition = f"Falls: evaluations with a {name} below 0.5 after the first one of at least 0.9."
        assert definition in table.caption
        assert definition in table.notes
    mixed = tabulate_falls(join(apply_rate([with_robust("a"), without_robust("b", **FOOTBALL)])))
    assert mixed.frame[["task", "reached 0.9"]].to_numpy().tolist() == [
        ["3m (robust)", 0],
        [f"{ON_FOOTBALL} (greedy)", 1],
    ]


def test_the_papers_numbers_are_compared_with_greedy_episodes() -> None:
    greedy = join_seeds([with_robust("a", map="corridor")], final=True)
    assert "Ours: always greedy episodes" in tabulate_with_published(greedy).caption


def test_a_time_average_says_of_which_win_rate_it_is() -> None:
    titles = [average_over_time(rate).title for rate in (WIN_RATE, ROBUST, TRAINING_WIN_RATE)]
    assert titles == ["μ̄_w", "robust μ̄_w", "training μ̄_w"]
    assert average_over_time(WIN_RATE) == MU_W
    assert ROBUST.meaning in ROBUST_MU_W.meaning


def test_a_key_names_its_win_rate_or_leaves_it_to_the_choice() -> None:
    for chosen in ("auto", "greedy", "robust", "training"):
        assert find_rate(SELECTED_RATE, chosen) == find_rate(SELECTED_MU_W, chosen) == chosen
        assert find_rate("win_rate", chosen) == find_rate("mu_w", chosen) == "greedy"
        assert find_rate("robust_win_rate", chosen) == find_rate("robust_mu_w", chosen) == "robust"
        assert find_rate("return", chosen) is find_rate("train/loss", chosen) is None
    assert [key for key in (SELECTED_RATE, SELECTED_MU_W, "mu_w", "win_rate") if uses_selected_rate(key)] == [
        SELECTED_RATE,
        SELECTED_MU_W,
    ]
    assert [is_mu_w(key) for key in (SELECTED_MU_W, "mu_w", "robust_mu_w", SELECTED_RATE)] == [True, True, True, False]


runs = st.lists(
    st.tuples(st.sampled_from(["3m", "8m", "corridor"]), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8
)


@given(runs)
def test_no_task_ever_has_both_win_rates(runs: Sequence[tuple[str, int, int]]) -> None:
    """Each run: its map, how many evaluations it has, and at most how many of them have a robust win rate."""
    steps = np.arange(3) * 100.0
    seeds = [
        make_seed(
            f"r{k}",
            [(step, 1.0) for step in steps[:n]],
            robust=[(step, 0.5) for step in steps[: min(n, shifted)]],
            map=map,
            seed=k,
        )
        for k, (map, n, shifted) in enumerate(runs)
    ]
    rated = apply_rate(seeds)
    for task in {seed.task for seed in seeds}:
        here = [(before, after) for before, after in zip(seeds, rated.seeds, strict=True) if before.task == task]
        values = {value for _, after in here for value in after.curve.values.tolist()}
        evaluated = [before for before, _ in here if len(before.curve.steps)]
        complete = all(len(before.robust.steps) == len(before.curve.steps) for before in evaluated)
        assert values == ({0.5} if complete else {1.0}) if evaluated else values == set()
