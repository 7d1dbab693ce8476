"""Comparison of variants: tests, probabilities of improvement, performance profiles.

In this file, a method is an algorithm with its changed settings; `Curves.methods` lists methods by key. A variant is a
method on one task. In `app.analysis.findings` and `StudyVariant`, a variant is not limited to one task: it is a method.
The reference variant is compared with each other variant of its task.

A pair is the reference variant and another variant of the same task, each as the `Curves` of its runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from app.analysis.curves import Curves, RunTables, describe_excluded, format_range
from app.analysis.finals import (
    FINAL_NAMES,
    LAST_TENTH,
    FinalRule,
    caption_final,
    compute_final_rates,
    get_final_title,
    list_runs_without_last_tenth,
    make_final_scale,
    name_final,
)
from app.analysis.format import count_decimals, format_run_count
from app.analysis.identical_runs import are_identical, label_identical
from app.analysis.intervals import BinomialScale
from app.analysis.quantities import UNIT_RANGE, Quantity
from app.analysis.significance import (
    MIN_SEEDS,
    Interval,
    MeanDifference,
    adjust_p_values,
    compare_seeds,
    decide,
    performance_profile,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.study_plans import StudyVariant
from app.analysis.tables import MISSING, Cell, Column, Table, make_table
from app.figures.figure import FigureKind, PageSection, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import read_finals, read_run_tables, style_comparison
from app.figures.options import BudgetOptions, FinalRuleOptions, Option, Options, ResultOptions
from emtc_core.errors import ConfigError, Fault

_SECTION = PageSection("compare", "Statistics")
_KEY_COLUMNS = ("task", "variant", "against")
"""Columns that identify a test."""
_DIFFERENCE = Column("difference", unit="%")
# in two groups, because a line of all names is too long
_COLUMNS = (
    *(*_KEY_COLUMNS, "n", _DIFFERENCE, "P(improvement)", "p", "p (Holm)"),
    *("p (randomization)", "verdict"),
)
_COLUMNS_OF_RATE = (Column("n"), _DIFFERENCE, Column("p (Holm)"), Column("verdict"))
"""Columns of each win rate in the table with several win rates."""
_DIFFERENT_LENGTHS = "no verdict: runs of different lengths"
_RATES: Final[tuple[Literal["robust", "greedy"], ...]] = ("robust", "greedy")
_FULL_METHODS = tuple(
    StudyVariant(algo=algo, settings={"gate.enabled": True, "embed.type": "tcse"}, without={"preset": "prewrite"})
    for algo in ("emtc-qplex", "emtc-cds")
)
"""Methods that are the default reference, in this order: EMTC(QPLEX), EMTC(CDS).

They use the gate and the default embedder (`tcse`). Runs of the preset "prewrite", which computes the gate before the
write of the memory, do not match.
"""
_VERDICT_WORDS = {"supported": "higher", "contradicted": "lower", "equal": "equal in every pair of seeds"}
"""Verdict → word for the table: whether the reference is higher or lower. Other verdicts are written unchanged."""
_PROFILE_STATISTIC = "share of runs above x; band: 95 % interval (Wilson's score)"
_REQUIRED_RUNS = "finished runs of two variants on one map"

EXPLANATION = (
    "n is the number of pairs of seeds, or of seeds of each variant. If every seed of one variant exists in the other, "
    "the differences of equal seeds are tested (95 % interval and p by the paired t test; p (randomization) by the "
    "exact sign-flip test), else the variants are independent groups (Welch's t; exact permutation test). Several "
    f"tasks have equal weights. A verdict needs {MIN_SEEDS} pairs of seeds, or seeds of each variant, and "
    "p (Holm) < .05; win rates whose interval is within ±.05 have no relevant difference."
)
"""Text for captions: how the tables of comparisons compute their numbers.

If the two variants are paired by seed, n is the number of pairs. Otherwise n is the number of seeds of each of the two
groups. If the interval of a difference of win rates is within ±.05, the verdict is "no relevant difference".
"""


class ReferenceOptions(Options):
    """The variant with which the others are compared."""

    reference: Annotated[
        str,
        Option(
            "Reference variant",
            "The variant that all others are compared with. Default: the full method, EMTC",
            rule="the name of a variant, for example EMTC(QPLEX), or its key",
        ),
    ] = ""


class ComparisonOptions(ResultOptions, ReferenceOptions):
    """Options of the table of comparisons by one win rate."""


class RateComparisonOptions(BudgetOptions, FinalRuleOptions, ReferenceOptions):
    """Options of the table of comparisons by several win rates."""


class _VariantTest(NamedTuple):
    """The comparison of two variants on one task, or pooled over several tasks.

    If pooled, `reference` and `other` are the variants on the first task; only their names and marks are used.
    """

    task: str
    reference: Curves
    other: Curves
    difference: MeanDifference
    improvement: Interval
    identical: str = ""
    """Text for the column "verdict" if both variants have identical runs on all these tasks, otherwise empty."""


def find_reference(curves: Curves, reference: str = "") -> str:
    """Find the method with which all others are compared.

    Args:
        curves: The variants.
        reference: Name or key of a method. Default: EMTC(QPLEX), then EMTC(CDS), then the first method.

    Returns:
        The key of the method.

    Raises:
        ConfigError: If no variant has this name or key.
    """
    methods = curves.methods
    if reference:
        matches = [method for method, name in methods.items() if reference in (method, name)]
        if not matches and methods:
            raise ConfigError(f"must be one of {', '.join(methods.values())}", key="reference", value=reference)
        return next(iter(matches), "")
    for full_method in _FULL_METHODS:
        for group in curves.by_variant:
            if full_method.matches(group.runs[0].settings):
                return group.variant.method
    return next(iter(methods), "")


def tabulate_tests(curves: Curves, final: FinalRule = LAST_TENTH, *, reference: str = "") -> Table:
    """Compare the final win rate of the reference variant with each other variant, per task and pooled over tasks.

    Args:
        curves: The variants.
        final: Definition of the final win rate.
        reference: Name or key of the reference variant; see `find_reference`.
    """
    reference = find_reference(curves, reference)
    pairs_by_method = {
        method: _list_pairs(curves, reference, method) for method in curves.methods if method != reference
    }
    # one test per task, then one over all tasks of the two methods
    tests = [
        _test_variants(curves, [pair], pair[0].variant.task, final)
        for pairs in pairs_by_method.values()
        for pair in pairs
    ]
    tests.sort(key=lambda test: curves.tasks.index(test.task))
    tests += [
        _test_variants(curves, pairs, f"all {len(pairs)} tasks", final)
        for pairs in pairs_by_method.values()
        if len(pairs) > 1
    ]
    adjusted = adjust_p_values([test.difference.p for test in tests], [test.task for test in tests])
    rows = [_make_row(curves, test, p, final) for test, p in zip(tests, adjusted, strict=True)]
    name = curves.methods.get(reference, "")
    explanation = (
        f"The reference variant {name} is compared with each other variant of its task. {EXPLANATION} p (Holm) is "
        "adjusted over the rows of the same task. P(improvement): share of pairs of runs in which the reference is the "
        "better one, a tie counts half, with the 95 % interval of the Mann-Whitney statistic (Newcombe 2006, with "
        "Student's t)."
    )
    caption = caption_final(curves, final, explanation, _list_missing(curves, reference), curves.shared_note)
    return make_table(_COLUMNS, rows, caption=caption, excluded=curves.excluded)


def _list_pairs(curves: Curves, reference: str, method: str) -> list[tuple[Curves, Curves]]:
    """List the reference variant and another variant, for each task on which both have a result."""
    pairs = []
    for task in curves.tasks:
        first, other = curves.find_variant(reference, task), curves.find_variant(method, task)
        if first is not None and other is not None:
            pairs.append((first, other))
    return pairs


def tabulate_tests_by_rate(
    curves_by_rate: Mapping[str, Curves], final: FinalRule = LAST_TENTH, *, reference: str = ""
) -> Table:
    """Compare the reference variant with each other variant, by several win rates next to each other.

    Args:
        curves_by_rate: The variants, by the name of the win rate.
        final: Definition of the final win rate.
        reference: Name or key of the reference variant; see `find_reference`.
    """
    tables = {rate: tabulate_tests(curves, final, reference=reference) for rate, curves in curves_by_rate.items()}
    cells_by_key: dict[tuple[object, ...], dict[str, list[object]]] = {}  # key columns → win rate → cells
    for rate, table in tables.items():
        # The cell of a difference also contains its interval. Where the table has no cell (None), the text of the frame
        # is used.
        differences = table.cells.get(_DIFFERENCE.title, [None] * len(table))
        for difference, row in zip(differences, table.frame.to_dict("records"), strict=True):
            key = tuple(row[name] for name in _KEY_COLUMNS)
            cells: list[object] = [row["n"], difference or row[_DIFFERENCE.title], row["p (Holm)"], row["verdict"]]
            cells_by_key.setdefault(key, {})[rate] = cells
    missing = [MISSING] * len(_COLUMNS_OF_RATE)
    rows = []
    for key, cells_by_rate in cells_by_key.items():
        rows.append([*key, *(cell for rate in tables for cell in cells_by_rate.get(rate, missing))])
    columns = [replace(column, group=rate) for rate in tables for column in _COLUMNS_OF_RATE]
    notes: list[str] = []
    for curves in curves_by_rate.values():
        notes += [
            curves.measure.note,
            curves.budget_note,
            list_runs_without_last_tenth(curves, final),
            _list_missing(curves, find_reference(curves, reference)),
            curves.shared_note,
        ]
    # "by the episodes of the evaluation": a group of columns for each kind of episodes (robust, greedy)
    definition = f"Differences of the {FINAL_NAMES[final]} by the episodes of the evaluation."
    return make_table(
        [*_KEY_COLUMNS, *columns],
        rows,
        caption=" ".join(dict.fromkeys(filter(None, (definition, EXPLANATION, *notes)))),
        excluded=dict.fromkeys(run for table in tables.values() for run in table.excluded),
    )


def draw_profiles(curves: Curves, final: FinalRule = LAST_TENTH) -> Chart:
    """Draw the share of runs of each variant whose final win rate is above x, over the tasks that all variants have.

    Raises:
        ConfigError: If the variants have no common task.
    """
    tasks = list_shared_tasks(curves)
    if not tasks:
        # a Fault with key, rule and hint is the same as a text with the arguments `key` and `hint`
        raise ConfigError(Fault("env.map", rule="must be shared by all variants", hint=explain_no_shared_tasks(curves)))
    thresholds = np.linspace(0, 1, 201)
    styles = style_comparison(curves)
    lines = []
    for method, name in curves.methods.items():
        groups = [curves.find_variant(method, task) for task in tasks]
        scores = [compute_final_rates(group, final) for group in groups if group]
        share, low, high = performance_profile(scores, thresholds)
        n = format_range([len(task_scores) for task_scores in scores])
        color, dash, marker = styles[method]
        lines.append(
            Line(
                f"{name} (n = {n})",
                color,
                thresholds,
                share,
                low,
                high,
                dash=dash,
                marker=marker,
                label=name,
                statistic=_PROFILE_STATISTIC,
                n=sum(map(len, scores)),
            )
        )
    on_shared_tasks = curves.keep(run for run in curves.runs if run.task in tasks)
    reason = "not every variant has a result on this map"
    not_shared = [run.make_excluded(reason) for run in curves.runs if run.task not in tasks]
    panel = Panel("share of runs above", "fraction", tuple(lines), range=UNIT_RANGE)
    x_label = get_final_title(final, curves.measure)
    small_groups = [group.variant.label for group in curves.by_variant if group.n < 3]
    warning = f" Too few seeds to trust an interval (fewer than 3): {', '.join(small_groups)}." if small_groups else ""
    explanation = (
        f"Share of runs whose {x_label} is above each value, over {', '.join(tasks)}. All tasks have the same weight. "
        "Band: 95 % interval (Wilson's) of the share for this number of runs, separately at each x."
        f"{warning}{describe_excluded([*not_shared, *curves.excluded])}"
    )
    return Chart(
        "performance-profile",
        f"Performance profiles, {', '.join(tasks)}",
        x_label,
        (panel,),
        caption_final(on_shared_tasks, final, explanation),
        f"Performance profiles of {', '.join(curves.methods.values())} over {', '.join(tasks)}.",
        subtitle=f"{format_run_count(on_shared_tasks.n)} on {', '.join(tasks)}; band: 95 % interval (Wilson's)",
    )


def list_shared_tasks(curves: Curves) -> list[str]:
    """List the tasks on which all variants have a result."""
    return [task for task in curves.tasks if all(curves.find_variant(method, task) for method in curves.methods)]


def explain_no_shared_tasks(curves: Curves) -> str:
    """Make the message for runs without a common task, which cannot have a performance profile."""
    tasks_of_variants = []
    for method, name in curves.methods.items():
        tasks = [task for task in curves.tasks if curves.find_variant(method, task)]
        tasks_of_variants.append(f"{name} on {', '.join(tasks)}")
    return (
        "Performance profiles need a map on which every variant has finished runs. There is no such map "
        f"({'; '.join(tasks_of_variants)}). Select runs of one map, or fewer variants."
    )


def count_seeds(difference: MeanDifference) -> str:
    """Format the number of seeds of a comparison: "5 pairs", "3 and 5", "4 pairs (without seed 7)"."""
    if not difference.is_paired:
        return " and ".join(map(str, difference.n))
    n = difference.n[0]
    without = f" (without seed {', '.join(map(str, difference.unpaired))})" if difference.unpaired else ""
    return f"{n} pair{'' if n == 1 else 's'}{without}"


def format_difference(difference: MeanDifference, statistic: str, *, scale: float = 1.0) -> Cell:
    """Format a difference with its interval: "+0.14 [-0.23, +0.51]". `scale` = 100 gives percent."""
    value, low, high = (scale * number for number in (difference.estimate, difference.low, difference.high))
    n = count_seeds(difference)
    number_format = f"+.{count_decimals(value, 1)}f" if scale == 100 else "+.3g"
    if not np.isfinite(low):
        return Cell(f"{value:{number_format}}", value, n=n, statistic=statistic)
    text = f"{value:{number_format}} [{low:{number_format}}, {high:{number_format}}]"
    return Cell(text, value, low, high, n, statistic, difference.method)


def format_p(p: float) -> str:
    """Format a p value: "0.034", "< 0.001", or a dash if there is none."""
    if not np.isfinite(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _list_missing(curves: Curves, reference: str) -> str:
    """List the tasks without a result of the reference variant in a sentence; empty if there are none."""
    without = [task for task in curves.tasks if not curves.find_variant(reference, task)]
    name = curves.methods.get(reference, "")
    return f"Not compared, because {name} has no result there: {', '.join(without)}." if without else ""


def _test_variants(curves: Curves, pairs: Sequence[tuple[Curves, Curves]], task: str, final: FinalRule) -> _VariantTest:
    """Compare two variants. Each pair has the runs of one task; all tasks have the same weight."""
    differences = []
    for first, other in pairs:
        both = curves.keep((*first.runs, *other.runs))
        scale = make_final_scale(both, final, quantity=curves.measure)
        differences.append(compare_seeds(_get_rates(first, final), _get_rates(other, final), scale=scale))
    improvement = probability_of_improvement(
        [compute_final_rates(first, final) for first, _ in pairs],
        [compute_final_rates(other, final) for _, other in pairs],
    )
    pooled = differences[0] if len(pairs) == 1 else pool_differences(differences, BinomialScale())
    identical = ""
    if all(are_identical(*pair) for pair in pairs):
        # the runs of the two variants are copies, not independent samples: no interval and no test is computed
        pooled = replace(pooled, low=np.nan, high=np.nan, p=np.nan, randomization_p=np.nan)
        identical = label_identical([group for pair in pairs for group in pair])
    return _VariantTest(task, *pairs[0], pooled, improvement, identical)


def _get_rates(group: Curves, final: FinalRule) -> dict[int, float]:
    """Return the final win rate of each run by its seed."""
    return {run.seed: rate for run, rate in zip(group.runs, compute_final_rates(group, final), strict=True)}


def _make_row(curves: Curves, test: _VariantTest, adjusted_p: float, final: FinalRule) -> list[Cell | str]:
    """Make one row of the table, in the order of `_COLUMNS`."""
    # `mark` is a dagger if an unfinished run is included
    quantity = curves.measure
    difference = test.difference
    reference, other = (f"{group.variant.name}{group.mark}" for group in (test.reference, test.other))
    verdict = decide(difference, adjusted_p, is_rate=True)
    if test.task in curves.mixed_length_tasks:
        verdict_text = _DIFFERENT_LENGTHS
    else:
        verdict_text = test.identical or _VERDICT_WORDS.get(verdict, verdict)
    return [
        test.task,
        reference,
        other,
        count_seeds(difference),
        format_difference(
            difference, f"{name_final(final, unit='%', quantity=quantity)}, difference of the means", scale=100
        ),
        _format_improvement(test.improvement, count_seeds(difference), final, quantity),
        format_p(difference.p),
        format_p(adjusted_p),
        format_p(difference.randomization_p),
        verdict_text,
    ]


def _format_improvement(improvement: Interval, n: str, final: FinalRule, quantity: Quantity) -> Cell:
    statistic = f"{name_final(final, quantity=quantity)}, share of pairs of seeds in which it is greater"
    # "covers": the true coverage of the interval is between 95 and 100 %
    interval = "95 % interval (Newcombe, Student's t; covers 95 to 100 %)"
    value, low, high = improvement.value, improvement.low, improvement.high
    return Cell(f"{value:.2f} [{low:.2f}–{high:.2f}]", value, low, high, n, statistic, interval)


def _make_tests_table(tables: RunTables, options: ComparisonOptions) -> Table:
    return tabulate_tests(read_finals(tables, options, options.rate), options.final, reference=options.reference)


def _make_rates_table(tables: RunTables, options: RateComparisonOptions) -> Table:
    curves_by_rate = {rate: read_finals(tables, options, rate) for rate in _RATES}
    has_both = all(curves.runs for curves in curves_by_rate.values())
    return tabulate_tests_by_rate(curves_by_rate if has_both else {}, options.final, reference=options.reference)


def _make_profiles_chart(tables: RunTables, options: ResultOptions) -> Chart:
    return draw_profiles(read_finals(tables, options, options.rate), options.final)


FIGURES = (
    FigureKind(
        "performance-profile", _make_profiles_chart, read_run_tables, ResultOptions,
        question="Which share of the runs ends above x?", section=_SECTION,
    ),
)  # fmt: skip
TABLES = (
    TableKind(
        "comparisons",
        _make_tests_table,
        read_run_tables,
        ComparisonOptions,
        required_runs=_REQUIRED_RUNS,
        section=_SECTION,
    ),
    TableKind(
        "comparisons-by-rate",
        _make_rates_table,
        read_run_tables,
        RateComparisonOptions,
        required_runs=f"{_REQUIRED_RUNS}, with greedy and robust evaluations",
        section=_SECTION,
    ),
)
