"""Runs of 4,000, 20,000 and 40,000 env steps in one table: read at one budget, or marked so that nobody is misled."""

from contextlib import nullcontext

import numpy as np
import pytest

from app.analysis.aggregates import Aggregation
from app.analysis.curves import Curves
from app.analysis.finals import LAST_TENTH, compute_final_rates
from app.analysis.results import COMMON, OWN_END, cut_to_budget, list_budgets, parse_budget
from app.analysis.tables import export_table
from app.analysis.win_rates import find_best, format_aggregate, tabulate_falls, tabulate_win_rates
from app.figures.named.comparisons import tabulate_tests
from tests.app.curve_cases import RunCase, join, make_run


def ramp(
    run_id: str, length: int, *, algo: str, seed: int = 1, slope: float = 1 / 40_000, over: int = 7, map: str = "3m"
) -> RunCase:
    """A run whose win rate climbs by `slope` a step, evaluated about every 1,000 and at its very end."""
    steps = [k * 1000 + over for k in range(length // 1000 + 1)]
    return make_run(
        run_id, [(step, min(1.0, slope * step)) for step in steps], f"train.t_max={length}",
        algo=algo, map=map, seed=seed, env_steps=length + over, target_steps=length,
    )  # fmt: skip


@pytest.fixture
def unequal() -> list[RunCase]:
    """QMIX for 4,000 steps, VDN for 20,000 and 40,000: all learn equally fast."""
    return [
        *(ramp(f"q{k}", 4000, algo="qmix", seed=k, over=3 + k) for k in (1, 2)),
        *(ramp(f"v{k}", 40_000, algo="vdn", seed=k) for k in (1, 2)),
        ramp("m1", 20_000, algo="qplex", over=2),
    ]


def ends(runs: list[RunCase]) -> Curves:
    return join(runs, for_final_numbers=True)


def test_a_short_run_changes_no_number_of_the_others_and_is_left_out_with_its_reason() -> None:
    usual = [ramp(f"v{k}", 40_000, algo="vdn", seed=k) for k in (1, 2)]
    short, long = ramp("short", 2000, algo="qmix"), ramp("long", 80_000, algo="qplex")
    alone, table = (tabulate_win_rates(cut_to_budget(ends(seeds))) for seeds in (usual, [*usual, short, long]))
    assert table.frame.equals(alone.frame)
    assert table.frame["3m"].tolist() == ["95.0 ± 0.0 (2 seeds)"]
    excluded = "\n".join(table.excluded_lines)
    assert "run short (QMIX on 3m; seed 1): has 2,000 env steps; most runs of its map have 40,000" in excluded
    assert "run long (QPLEX on 3m; seed 1): has 80,000 env steps" in excluded


def test_a_longer_run_is_never_read_later_than_the_shorter_ones_ended(unequal) -> None:
    late = ramp("late", 40_000, algo="cds", over=99)
    cut = cut_to_budget(ends([*unequal, late]), 4000)
    assert [cut.get_points(name).env_step[-1] for name in ("q2", "m1", "v1")] == [4005, 4002, 4007]
    assert cut.get_points("late").env_step[-1] == 3099, "at 4,099 it had trained for longer than any run of 4,000"
    finals = dict(zip(cut.run_ids, compute_final_rates(cut, LAST_TENTH), strict=True))
    assert finals["late"] == pytest.approx(3099 / 40_000)
    caption = tabulate_win_rates(cut_to_budget(ends([*unequal, late]), 4000), Aggregation()).caption
    assert (
        "Runs without an evaluation in the last tenth (their last evaluation is used): run late, at 3,099 of 4,000"
        in caption
    )


def test_runs_of_one_length_are_left_as_they_are_whatever_round_they_ended_in() -> None:
    seeds = [ramp(f"r{k}", 4000 + k, algo="qmix", seed=k, over=9 * k) for k in range(1, 4)]
    comparison = cut_to_budget(ends(seeds))
    assert [len(points.value) for points in comparison.list_points()] == [5, 5, 5]
    assert comparison.budget_note == "All runs at 4,001 env steps."
    assert comparison.budget_if_unequal == ""


def test_a_requested_budget_leaves_out_what_is_shorter_and_is_stated_in_every_export(unequal) -> None:
    table = tabulate_win_rates(cut_to_budget(ends(unequal), 4000), Aggregation())
    assert table.frame["3m"].tolist() == ["10.0 (1 seed)", "10.0 ± 0.0 (2 seeds)", "10.0 ± 0.0 (2 seeds)"]
    assert "Compared at 4,000 env steps, the requested budget. 3 runs are longer" in table.notes
    assert "Compared at 4,000 env steps" in export_table(table, "latex").decode()
    longer = tabulate_win_rates(cut_to_budget(ends(unequal), 20_000), Aggregation())
    assert longer.frame["variant"].tolist() == ["QPLEX", "VDN"]
    reason = "run q1 (QMIX on 3m; seed 1): has 4,000 of the 20,000 env steps at which runs are compared"
    assert reason in longer.excluded
    near = ramp("near", 3970, algo="cds")
    assert "near" in cut_to_budget(ends([*unequal, near]), 4000).run_ids, "lengths within 1 % are equal"


def test_each_at_its_own_end_is_marked_in_every_cell_and_nothing_is_bold(unequal) -> None:
    comparison = cut_to_budget(ends(unequal), OWN_END)
    table = tabulate_win_rates(comparison, Aggregation())
    assert (
        "RUNS OF DIFFERENT LENGTHS: each run is evaluated at its own end (3m 4,000 to 40,000 env steps)"
        in table.caption
    )
    assert [cell.partition("; ")[2] for cell in table.frame["3m"]] == ["20,000 steps)", "4,000 steps)", "40,000 steps)"]
    assert not table.best
    assert "40,000 steps" in export_table(table, "latex").decode()
    assert r"\textbf" not in export_table(table, "latex").decode()
    assert set(tabulate_tests(comparison).frame["verdict"]) == {"no verdict: runs of different lengths"}
    assert "RUNS OF DIFFERENT LENGTHS" in tabulate_falls(comparison).caption


def test_a_map_has_a_budget_of_its_own(unequal) -> None:
    other = [ramp(f"c{k}", 9000, algo="qmix", seed=k, map="8m") for k in (1, 2)]
    comparison = cut_to_budget(ends([*unequal, *other]), COMMON)
    assert list(comparison.run_ids) == ["v1", "v2", "c1", "c2"], "of equally frequent budgets the greatest"
    assert "3m 40,000; 8m 9,000" in comparison.budget_note
    assert list_budgets(ends([*unequal, *other])) == [4000, 9000, 20_000, 40_000]


def test_bold_needs_two_cells_of_two_seeds() -> None:
    alone, few, good, fair = (
        format_aggregate(np.array(values), Aggregation()) for values in ([1.0], [0.9], [0.8, 0.8], [0.5, 0.5])
    )
    assert find_best([alone]) == find_best([good, None]) == find_best([alone, few]) == find_best([alone, good]) == []
    assert find_best([alone, good, fair]) == [1]


NOT_A_BUDGET = pytest.raises(ValueError, match=r"\bbudget\b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("common", nullcontext("common")), ("own", nullcontext("own"))],
        *[("0.8M", nullcontext(800_000)), (20_000, nullcontext(20_000))],
        *[(text, NOT_A_BUDGET) for text in ("", "-5", "1, 2", "nan")],
    ],
)
def test_a_budget_is_a_word_or_one_number_of_env_steps(text, expected) -> None:
    with expected as budget:
        assert parse_budget(text) == budget
