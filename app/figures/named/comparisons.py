"""Comparison of variants: tests, probabilities of improvement, performance profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from app.analysis.comparable import describe_excluded
from app.analysis.compared import ComparedRuns
from app.analysis.finals import (
    FINAL_NAMES,
    LAST_TENTH,
    FinalRule,
    caption_final,
    compute_final_rate,
    compute_final_rates,
    get_final_title,
    list_runs_without_last_tenth,
    make_final_scale,
    name_final,
)
from app.analysis.format import count_decimals
from app.analysis.identical_runs import are_identical, label_identical
from app.analysis.intervals import BinomialScale
from app.analysis.quantities import UNIT_RANGE, Quantity
from app.analysis.series import Comparison, ExcludedRun, Group, get_seed
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
from app.figures.named.curves import join_finals, read_all_rates, read_comparison, style_comparison
from app.figures.options import BudgetOptions, FinalRuleOptions, Option, Options, ResultOptions
from emtc_core.errors import ConfigError, Fault

_SECTION = PageSection("compare", "Statistics")
_TEST_NAMES = ("task", "variant", "against")
_DIFFERENCE = Column("difference", unit="%")
_RESULTS = ("p (Holm)", "verdict")
_COLUMNS = (
    *(*_TEST_NAMES, "n", _DIFFERENCE, "P(improvement)", "p", "p (Holm)"),
    *("p (randomization)", "verdict"),
)
_NOT_COMPARED = "no verdict: runs of different lengths"
_RATES: Final[tuple[Literal["robust", "greedy"], ...]] = ("robust", "greedy")
_FULL_METHODS = tuple(
    StudyVariant(algo=algo, settings={"gate.enabled": True, "embed.type": "tcse"}, without={"preset": "prewrite"})
    for algo in ("emtc-qplex", "emtc-cds")
)
"""Variants that are the default reference, in this order."""
_VERDICT_WORDS = {"supported": "higher", "contradicted": "lower", "equal": "equal in every pair of seeds"}
"""Verdict → word for the table. The table tests no claim: it states whether the reference is higher or lower."""
_PROFILE_STATISTIC = "share of runs above x; band: 95 % interval (Wilson's score)"
_TABLE_NEEDS = "finished runs of two variants on one map"

EXPLANATION = (
    "n is the number of pairs of seeds, or of seeds of each variant. If every seed of one variant exists in the other, "
    "the differences of equal seeds are tested (95 % interval and p by the paired t test; p (randomization) by the "
    "exact sign-flip test), else the variants are independent groups (Welch's t; exact permutation test). Several "
    f"tasks have equal weights. A verdict needs {MIN_SEEDS} pairs of seeds, or seeds of each variant, and "
    "p (Holm) < .05; win rates whose interval is within ±.05 have no relevant difference."
)
"""Text for captions: how the tables of comparisons compute their numbers."""


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
    """The comparison of two variants on one task, or pooled over several tasks."""

    task: str
    reference: Group
    other: Group
    difference: MeanDifference
    improvement: Interval
    identical: str = ""
    """Label of runs that are identical on all these tasks, otherwise empty."""


def find_reference(comparison: Comparison, reference: str = "") -> str:
    """Find the method that all others are compared with.

    Args:
        comparison: The variants.
        reference: Name or key of a method. Default: EMTC(QPLEX), then EMTC(CDS), then the first method.

    Returns:
        The key of the method.

    Raises:
        ConfigError: If no variant has this name or key.
    """
    methods = comparison.methods
    if reference:
        matches = [method for method, name in methods.items() if reference in (method, name)]
        if not matches and methods:
            raise ConfigError(f"must be one of {', '.join(methods.values())}", key="reference", value=reference)
        return next(iter(matches), "")
    for full_method in _FULL_METHODS:
        for group in comparison.groups:
            if full_method.matches(group.seeds[0].settings):
                return group.variant.method
    return next(iter(methods), "")


def tabulate_tests(comparison: Comparison, final: FinalRule = LAST_TENTH, *, reference: str = "") -> Table:
    """Compare the final win rate of the reference variant with each other variant, per task and pooled over tasks.

    Args:
        comparison: The variants.
        final: Definition of the final win rate.
        reference: Name or key of the reference variant; see `find_reference`.
    """
    reference = find_reference(comparison, reference)
    pairs_by_method = {
        method: [
            (first, other)
            for task in comparison.tasks
            if (first := _find_group(comparison, reference, task)) and (other := _find_group(comparison, method, task))
        ]
        for method in comparison.methods
        if method != reference
    }
    tests = [
        _test_variants(comparison, [pair], pair[0].variant.task, final)
        for pairs in pairs_by_method.values()
        for pair in pairs
    ]
    tests.sort(key=lambda test: comparison.tasks.index(test.task))
    tests += [
        _test_variants(comparison, pairs, f"all {len(pairs)} tasks", final)
        for pairs in pairs_by_method.values()
        if len(pairs) > 1
    ]
    adjusted = adjust_p_values([test.difference.p for test in tests], [test.task for test in tests])
    rows = [_make_row(comparison, test, p, final) for test, p in zip(tests, adjusted, strict=True)]
    name = comparison.methods.get(reference, "")
    explanation = (
        f"The reference variant {name} is compared with each other variant of its task. {EXPLANATION} p (Holm) is "
        "adjusted over the rows of the same task. P(improvement): share of pairs of runs in which the reference is the "
        "better one, a tie counts half, with the 95 % interval of the Mann-Whitney statistic (Newcombe 2006, with "
        "Student's t)."
    )
    caption = caption_final(
        comparison.seeds, final, explanation, _list_missing(comparison, reference), comparison.shared_note,
        quantity=comparison.quantity, comparison=comparison,
    )  # fmt: skip
    return make_table(_COLUMNS, rows, caption=caption, excluded=comparison.excluded_runs)


def tabulate_tests_by_rate(
    comparisons: Mapping[str, Comparison], final: FinalRule = LAST_TENTH, *, reference: str = ""
) -> Table:
    """Compare the reference variant with each other variant, by several win rates next to each other.

    Args:
        comparisons: The variants, by the name of the win rate.
        final: Definition of the final win rate.
        reference: Name or key of the reference variant; see `find_reference`.
    """
    tables = {rate: tabulate_tests(comparison, final, reference=reference) for rate, comparison in comparisons.items()}
    rows: dict[tuple[object, ...], dict[str, list[object]]] = {}
    for rate, table in tables.items():
        differences = table.cells.get(_DIFFERENCE.title, [None] * len(table))
        for cell, row in zip(differences, table.frame.to_dict("records"), strict=True):
            key = tuple(row[name] for name in _TEST_NAMES)
            rows.setdefault(key, {})[rate] = [row["n"], cell or row[_DIFFERENCE.title], row["p (Holm)"], row["verdict"]]
    columns = [
        replace(column, group=rate) for rate in tables for column in (Column("n"), _DIFFERENCE, *map(Column, _RESULTS))
    ]
    notes = [
        sentence
        for comparison in comparisons.values()
        for sentence in (
            comparison.quantity.note,
            comparison.budget_note,
            list_runs_without_last_tenth(comparison.seeds, final, comparison.quantity),
            _list_missing(comparison, find_reference(comparison, reference)),
            comparison.shared_note,
        )
    ]
    definition = f"Differences of the {FINAL_NAMES[final]} by the episodes of the evaluation."
    return make_table(
        [*_TEST_NAMES, *columns],
        [
            [*key, *(value for rate in tables for value in cells.get(rate, [MISSING] * 4))]
            for key, cells in rows.items()
        ],
        caption=" ".join(dict.fromkeys(filter(None, (definition, EXPLANATION, *notes)))),
        excluded=dict.fromkeys(run for table in tables.values() for run in table.excluded),
    )


def draw_profiles(comparison: Comparison, final: FinalRule = LAST_TENTH) -> Chart:
    """Draw the share of runs of each variant whose final win rate is above x, over the tasks that all variants have.

    Raises:
        ConfigError: If the variants have no common task.
    """
    tasks = list_shared_tasks(comparison)
    if not tasks:
        raise ConfigError(
            Fault("env.map", rule="must be shared by all variants", hint=explain_no_shared_tasks(comparison))
        )
    thresholds = np.linspace(0, 1, 201)
    styles, lines = style_comparison(comparison), []
    for method, name in comparison.methods.items():
        groups = [_find_group(comparison, method, task) for task in tasks]
        scores = [compute_final_rates(group.seeds, final) for group in groups if group]
        share, low, high = performance_profile(scores, thresholds)
        counts = sorted({len(task_scores) for task_scores in scores})
        n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
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
    not_shared = [
        ExcludedRun(
            seed.id, f"{group.variant.label}; seed {seed.seed_text}", "not every variant has a result on this map"
        )
        for group in comparison.groups
        for seed in group.seeds
        if group.variant.task not in tasks
    ]
    panel = Panel("share of runs above", "fraction", tuple(lines), range=UNIT_RANGE)
    x_label = get_final_title(final, comparison.quantity)
    few = [group.variant.label for group in comparison.groups if group.n < 3]
    warning = f" Too few seeds to trust an interval (fewer than 3): {', '.join(few)}." if few else ""
    explanation = (
        f"Share of runs whose {x_label} is above each value, over {', '.join(tasks)}. All tasks have the same weight. "
        "Band: 95 % interval (Wilson's) of the share for this number of runs, separately at each x."
        f"{warning}{describe_excluded([*not_shared, *comparison.excluded_runs])}"
    )
    seeds = [seed for seed in comparison.seeds if seed.task in tasks]
    caption = caption_final(seeds, final, explanation, quantity=comparison.quantity, comparison=comparison)
    return Chart(
        "performance-profile",
        f"Performance profiles, {', '.join(tasks)}",
        x_label,
        (panel,),
        caption,
        f"Performance profiles of {', '.join(comparison.methods.values())} over {', '.join(tasks)}.",
        subtitle=f"{len(seeds)} runs on {', '.join(tasks)}; band: 95 % interval (Wilson's)",
    )


def list_shared_tasks(comparison: Comparison) -> list[str]:
    """List the tasks on which all variants have a result."""
    return [
        task for task in comparison.tasks if all(_find_group(comparison, method, task) for method in comparison.methods)
    ]


def explain_no_shared_tasks(comparison: Comparison) -> str:
    """Make the message for runs without a common task, which cannot have a performance profile."""
    tasks_of_variants = []
    for method, name in comparison.methods.items():
        tasks = [task for task in comparison.tasks if _find_group(comparison, method, task)]
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
    n, number_format = count_seeds(difference), f"+.{count_decimals(value, 1)}f" if scale == 100 else "+.3g"
    if not np.isfinite(low):
        return Cell(f"{value:{number_format}}", value, n=n, statistic=statistic)
    text = f"{value:{number_format}} [{low:{number_format}}, {high:{number_format}}]"
    return Cell(text, value, low, high, n, statistic, difference.method)


def format_p(p: float) -> str:
    """Format a p value: "0.034", "< 0.001"."""
    return MISSING if not np.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _list_missing(comparison: Comparison, reference: str) -> str:
    """List the tasks without a result of the reference variant in a sentence; empty if there are none."""
    without = [task for task in comparison.tasks if not _find_group(comparison, reference, task)]
    name = comparison.methods.get(reference, "")
    return f"Not compared, because {name} has no result there: {', '.join(without)}." if without else ""


def _find_group(comparison: Comparison, method: str, task: str) -> Group | None:
    return next((g for g in comparison.groups if g.variant.method == method and g.variant.task == task), None)


def _test_variants(
    comparison: Comparison, pairs: Sequence[tuple[Group, Group]], task: str, final: FinalRule
) -> _VariantTest:
    """Compare two variants. Each pair has the groups of one task; all tasks have the same weight."""
    differences = []
    for first, other in pairs:
        values = [{get_seed(seed): compute_final_rate(seed, final) for seed in group.seeds} for group in (first, other)]
        scale = make_final_scale([*first.seeds, *other.seeds], final, quantity=comparison.quantity)
        differences.append(compare_seeds(*values, scale=scale))
    improvement = probability_of_improvement(
        [compute_final_rates(first.seeds, final) for first, _ in pairs],
        [compute_final_rates(other.seeds, final) for _, other in pairs],
    )
    pooled = differences[0] if len(pairs) == 1 else pool_differences(differences, BinomialScale())
    identical = ""
    if all(are_identical(*pair) for pair in pairs):
        # the sample of a difference must not contain copies of the same run, so there is no interval and no test
        pooled = replace(pooled, low=np.nan, high=np.nan, p=np.nan, randomization_p=np.nan)
        identical = label_identical([group for pair in pairs for group in pair])
    return _VariantTest(task, *pairs[0], pooled, improvement, identical)


def _make_row(comparison: Comparison, test: _VariantTest, adjusted_p: float, final: FinalRule) -> list[Cell | str]:
    """Make one row of the table, in the order of `_COLUMNS`."""
    quantity, difference = comparison.quantity, test.difference
    reference, other = (f"{group.variant.name}{group.mark}" for group in (test.reference, test.other))
    verdict = decide(difference, adjusted_p, is_rate=True)
    if test.task in comparison.mixed_length_tasks:
        verdict_text = _NOT_COMPARED
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
    interval = "95 % interval (Newcombe, Student's t; covers 95 to 100 %)"
    value, low, high = improvement.value, improvement.low, improvement.high
    return Cell(f"{value:.2f} [{low:.2f}–{high:.2f}]", value, low, high, n, statistic, interval)


def _make_tests_table(runs: ComparedRuns, options: ComparisonOptions) -> Table:
    return tabulate_tests(join_finals(runs, options), options.final, reference=options.reference)


def _make_rates_table(runs: ComparedRuns, options: RateComparisonOptions) -> Table:
    comparisons = {rate: join_finals(runs, options, rate) for rate in _RATES}
    has_both = all(comparison.groups for comparison in comparisons.values())
    return tabulate_tests_by_rate(comparisons if has_both else {}, options.final, reference=options.reference)


def _make_profiles_chart(runs: ComparedRuns, options: ResultOptions) -> Chart:
    return draw_profiles(join_finals(runs, options), options.final)


FIGURES = (
    FigureKind(
        "performance-profile", _make_profiles_chart, read_comparison, ResultOptions,
        question="Which share of the runs ends above x?", section=_SECTION,
    ),
)  # fmt: skip
TABLES = (
    TableKind(
        "comparisons",
        _make_tests_table,
        read_comparison,
        ComparisonOptions,
        required_runs=_TABLE_NEEDS,
        section=_SECTION,
    ),
    TableKind(
        "comparisons-by-rate",
        _make_rates_table,
        read_all_rates,
        RateComparisonOptions,
        required_runs=f"{_TABLE_NEEDS}, with greedy and robust evaluations",
        section=_SECTION,
    ),
)
