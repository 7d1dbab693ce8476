"""Which win rate the runs of a task are compared by: the default of each task, and what the reader is told of it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.curves import Curves, read_curves
from app.analysis.quantities import (
    SELECTED_MU_W,
    SELECTED_RATE,
    WIN_RATE,
    find_rate,
    is_mu_w,
    uses_selected_rate,
)
from app.analysis.results import select_results
from app.analysis.settings import IMPORT_LABEL
from app.analysis.win_rates import tabulate_falls, tabulate_mu_w, tabulate_win_rates
from app.figures.named.comparisons import draw_profiles, tabulate_tests
from app.figures.named.curves import draw_comparison
from tests.app.curve_cases import RunCase, make_run, make_tables

GREEDY = [(0, 0.0), (500, 1.0), (1000, 1.0)]
SHIFTED = [(0, 0.0), (500, 0.25), (1000, 0.5)]
FOOTBALL = {"env": "grf", "map": "academy_3_vs_1_with_keeper"}
ON_FOOTBALL = "academy_3_vs_1_with_keeper [grf]"


def with_robust(run_id: str, *overrides: str, **given) -> RunCase:
    return make_run(run_id, GREEDY, *overrides, robust=SHIFTED, **given)


def without_robust(run_id: str, *overrides: str, **given) -> RunCase:
    return make_run(run_id, GREEDY, *overrides, **given)


def rate_runs(runs: Sequence[RunCase], rate: str = "auto", measure: str = SELECTED_RATE) -> Curves:
    return read_curves(make_tables(runs), measure, rate=rate)


def join(rated: Curves) -> Curves:
    return select_results(rated, for_final_numbers=True)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        (1, "run r1 has evaluations without a robust win rate"),
        (3, "runs r1, r2, r3 have evaluations without a robust win rate"),
        (5, "runs r1, r2, r3 and 2 more have evaluations without a robust win rate"),
    ],
)
def test_runs_without_a_robust_win_rate_make_their_task_greedy_for_all_its_runs_and_are_named(others, named) -> None:
    runs = [with_robust("a", seed=9)]
    runs += [make_run(f"r{k}", GREEDY, robust=SHIFTED[1:], seed=k) for k in range(1, 1 + others)]
    rated = rate_runs(runs)
    assert rated.measure.key == WIN_RATE.key
    assert [points.value.tolist() for points in rated.list_points()] == [[0.0, 1.0, 1.0]] * (others + 1)
    assert named in rated.measure.note
    comparison = join(rated)
    captions = [tabulate_win_rates(comparison).caption, draw_comparison(comparison).caption]
    captions.append(tabulate_mu_w(comparison, {"3m": [1000], ON_FOOTBALL: [1000]}).caption)
    assert all(rated.measure.note in caption for caption in captions)


def imported(run: RunCase) -> RunCase:
    return replace(run, config={**run.config, IMPORT_LABEL: "pymarl"})


@pytest.mark.parametrize(
    "run",
    [
        without_robust("a", **FOOTBALL),
        imported(without_robust("c")),
        without_robust("d", "env.skirmish.spawn_jitter=0.05", map="8m"),
    ],
    ids=["football", "import", "skirmish with shifted starts only"],
)
def test_a_task_without_robust_evaluations_is_greedy_without_a_note(run) -> None:
    rated = rate_runs([run])
    assert rated.measure == WIN_RATE
    assert rated.points["value"].tolist() == [value for _, value in run.points]


def two_tasks_seeds() -> list[RunCase]:
    """EMTC(QPLEX) and QMIX on skirmish and on football."""
    seeds = []
    for algo in ("emtc-qplex", "qmix"):
        for seed in (1, 2):
            seeds.append(with_robust(f"{algo}{seed}", algo=algo, seed=seed))
            seeds.append(without_robust(f"{algo}{seed}f", algo=algo, seed=seed, **FOOTBALL))
    return seeds


@pytest.fixture
def two_tasks() -> Curves:
    """These runs, and one that was never evaluated, by the default win rate of each task."""
    return rate_runs([*two_tasks_seeds(), make_run("never", [], seed=3)])


def test_each_task_has_its_own_win_rate_which_heads_panels_and_captions_name(two_tasks) -> None:
    last_values = two_tasks.points.groupby("run").last().groupby("task")["value"].agg(set).to_dict()
    assert last_values == {"3m": {0.5}, ON_FOOTBALL: {1.0}}
    comparison, note = join(two_tasks), two_tasks.measure.note
    assert note.startswith("Robust win rates (shifted starts) on 3m, because greedy episodes")
    assert f"Greedy win rates on {ON_FOOTBALL}, because no run has a robust win rate." in note
    heads = {f"{ON_FOOTBALL} (greedy)", "3m (robust)"}
    steps = {"3m": [1000], ON_FOOTBALL: [1000]}
    assert set(tabulate_win_rates(comparison).frame.columns[1:]) == heads
    assert set(tabulate_mu_w(comparison, steps).frame.columns[1:]) == {f"{head} · 1,000" for head in heads}
    chart = draw_comparison(comparison)
    assert {panel.title for panel in chart.panels} == {f"greedy win rate, {ON_FOOTBALL}", "robust win rate, 3m"}
    averaged = draw_comparison(join(rate_runs(two_tasks_seeds(), measure=SELECTED_MU_W)))
    assert {panel.title.partition(",")[0] for panel in averaged.panels} == {"greedy μ̄_w", "robust μ̄_w"}
    made = [tabulate_win_rates(comparison), tabulate_mu_w(comparison, steps), tabulate_tests(comparison)]
    made += [chart, averaged, draw_profiles(comparison)]
    assert all(note in figure.caption for figure in made)


def test_a_column_of_runs_of_unequal_lengths_is_not_bold_whatever_its_head_is() -> None:
    worse = [
        make_run(f"vdn{k}", GREEDY, robust=[(step, 0.1) for step, _ in SHIFTED], algo="vdn", seed=k) for k in (1, 2)
    ]
    comparison = join(rate_runs([*two_tasks_seeds(), *worse]))
    unequal = replace(comparison, mixed_length_tasks=frozenset({"3m"}))
    bold, left = ({name for _, name in tabulate_win_rates(each).best} for each in (comparison, unequal))
    assert bold - left == {"3m (robust)"}


def test_the_rate_that_was_asked_for_is_that_of_every_task() -> None:
    seeds = [with_robust("a"), without_robust("b", seed=2), without_robust("c", **FOOTBALL)]
    greedy, robust = rate_runs(seeds, "greedy"), rate_runs(seeds, "robust")
    assert [points.value[-1] for points in greedy.list_points()] == [1.0, 1.0, 1.0]
    assert (greedy.measure.key, greedy.measure.by_task) == (WIN_RATE.key, ())
    assert "greedy episodes" in greedy.measure.note
    comparison = join(robust)
    assert comparison.run_ids == ("a",)
    assert sorted(each.run_id for each in comparison.excluded) == ["b", "c"]


def test_mu_w_is_the_time_average_of_the_win_rate_that_the_runs_are_compared_by() -> None:
    """Robust: the areas of two trapezoids, 62.5 + 187.5 over 1,000 steps; greedy: 250 + 500."""
    seeds = [with_robust("a")]
    for rate, key, expected in (("auto", "robust_mu_w", 0.25), ("greedy", "mu_w", 0.75)):
        averaged = rate_runs(seeds, rate, SELECTED_MU_W)
        assert averaged.measure.key == key
        assert averaged.list_points()[0].value[-1] == pytest.approx(expected)
        table = tabulate_mu_w(join(rate_runs(seeds, rate)), {"3m": [1000], ON_FOOTBALL: [1000]})
        assert table.frame.iloc[0, 1] == f"{expected:.3f} (1 seed)"
    assert tabulate_mu_w(join(rate_runs(seeds)), {"3m": [1000], ON_FOOTBALL: [1000]}).caption.startswith("robust μ̄_w")


def test_falls_are_those_of_the_win_rate_that_the_runs_are_compared_by_and_the_table_names_it() -> None:
    """The run reaches .9 with greedy episodes only."""
    for rate, reached, name in (("auto", 0, "robust win rate"), ("greedy", 1, "greedy win rate")):
        table = tabulate_falls(join(rate_runs([with_robust("a")], rate)))
        assert table.frame["reached 0.9"].tolist() == [reached]
        definition = f"Falls: evaluations with a {name} below 0.5 after the first one of at least 0.9."
        assert definition in table.caption
        assert definition in table.notes
    mixed = tabulate_falls(join(rate_runs([with_robust("a"), without_robust("b", **FOOTBALL)])))
    assert mixed.frame[["task", "reached 0.9"]].to_numpy().tolist() == [
        ["3m (robust)", 0],
        [f"{ON_FOOTBALL} (greedy)", 1],
    ]


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
        make_run(
            f"r{k}",
            [(step, 1.0) for step in steps[:n]],
            robust=[(step, 0.5) for step in steps[: min(n, shifted)]],
            map=map,
            seed=k,
        )
        for k, (map, n, shifted) in enumerate(runs)
    ]
    rated = rate_runs(seeds)
    for task in {run.task for run in rated.runs}:
        cases = [case for case in seeds if case.config["env"]["map"] == task and case.points]
        complete = all(len(case.robust) == len(case.points) for case in cases)
        values = set(rated.on_task(task).points["value"])
        assert values == (({0.5} if complete else {1.0}) if cases else set())
