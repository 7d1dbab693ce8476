"""Is one variant better? Tests, probabilities of improvement, performance profiles."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.analysis.comparable import read_study, tell_left_out
from app.analysis.finals import (
    LAST_TENTH,
    FinalRule,
    caption_final,
    final_rate,
    final_rates,
    name_final,
    rate_of_final,
    title_final,
)
from app.analysis.quantities import UNIT_RANGE, Quantity
from app.analysis.series import Comparison, Group, seed_number
from app.analysis.significance import (
    FEWEST_SEEDS,
    Difference,
    Interval,
    adjust_p,
    compare_seeds,
    decide,
    performance_profile,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.statistics import Rate, Values
from app.analysis.tables import MISSING, Cell, Number, describe_table
from app.figures.figure import FigureKind, Option, Options, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import style_comparison
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database
from storage.runs.rows import RunRow

_TAKES: frozenset[Option] = frozenset({"include_unfinished", "budget", "final", "rate"})
_COLUMNS = (
    *("task", "variant", "against", "n", "difference [%]", "P(improvement)", "p", "p (Holm)", "p (randomization)"),
    "verdict",
)
_NOT_COMPARED = "no verdict: runs of different lengths"
_COMPARED = {"supported": "higher", "contradicted": "lower", "equal": "equal in every pair of seeds"}
"""Verdicts of a table that compares variants without a claim: the variant against the other one."""
_PROFILE = "share of runs above x; band: 95 % interval (Wilson's score)"

EXPLANATION = (
    "n is the number of pairs of seeds, or of seeds of each variant. If every seed of one variant exists in the other, "
    "the differences of equal seeds are tested (95 % interval and p by the paired t test; p (randomization) by the "
    "exact sign-flip test), else the variants are independent groups (Welch's t; exact permutation test). Several "
    f"tasks have equal weights. A verdict needs {FEWEST_SEEDS} pairs of seeds, or seeds of each variant, and "
    "p (Holm) < .05; win rates whose interval lies within ±.05 have no relevant difference."
)
"""How every table of comparisons computes its numbers."""


def tabulate_tests(comparison: Comparison, final: FinalRule = LAST_TENTH) -> pd.DataFrame:
    """Compare the final win rates of every variant with those of the first, on each task and pooled over tasks."""
    tests: list[_Test] = []
    for task in comparison.tasks:
        first, *others = (group for group in comparison.groups if group.variant.task == task)
        tests += [_test(comparison, [(first, other)], task, final) for other in others]
    if len(comparison.tasks) > 1:
        reference, *methods = comparison.methods
        for method in methods:
            pairs = [
                (_group(comparison, reference, task), _group(comparison, method, task))
                for task in comparison.tasks
                if _has(comparison, reference, task) and _has(comparison, method, task)
            ]
            if len(pairs) > 1:
                tests.append(_test(comparison, pairs, f"all {len(pairs)} tasks", final))
    adjusted = adjust_p([test.difference.p for test in tests], [test.task for test in tests])
    rows = [_lay_out(comparison, test, p, final) for test, p in zip(tests, adjusted, strict=True)]
    explained = (
        f"Each variant is compared with the first one of its task. {EXPLANATION} p (Holm) is adjusted over the "
        "rows of the same task. P(improvement): share of pairs of runs in which the first variant is the better one, "
        "a tie counts half, with the 95 % interval of the Mann-Whitney statistic (Newcombe 2006, with Student's t)."
    )
    caption, about = caption_final(comparison.seeds, final, explained, of=comparison.quantity, at=comparison)
    frame = pd.DataFrame(rows, columns=pd.Index(_COLUMNS), dtype="object")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
    left_out = [str(each) for each in comparison.left_out]
    return describe_table(frame, caption=caption, left_out=left_out, about=about, cells=cells)


def draw_profiles(comparison: Comparison, final: FinalRule = LAST_TENTH) -> Chart:
    """Draw which share of the runs of each variant ends above each win rate, over the tasks that all of them have."""
    tasks = shared_tasks(comparison)
    if not tasks:
        raise ConfigError(Fault("env.map", rule="must be shared by all variants", hint=say_none_shared(comparison)))
    thresholds = np.linspace(0, 1, 201)
    styles, lines = style_comparison(comparison), []
    for method, name in comparison.methods.items():
        scores = _scores(comparison, method, tasks, final)
        share, low, high = performance_profile(scores, thresholds)
        counts = sorted({len(each) for each in scores})
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
                statistic=_PROFILE,
                n=sum(map(len, scores)),
            )
        )
    panel = Panel("share of runs above", "fraction", tuple(lines), range=UNIT_RANGE)
    at_end = title_final(final, comparison.quantity)
    said = (
        f"Share of runs whose {at_end} lies above each value, over {', '.join(tasks)}, tasks weighing "
        f"equally; band: 95 % interval (Wilson's) of a share of that many runs, at each win rate for itself."
        f"{_warn(comparison)}{tell_left_out(comparison.left_out)}"
    )
    shown = [seed for seed in comparison.seeds if seed.task in tasks]
    caption, _ = caption_final(shown, final, said, of=comparison.quantity, at=comparison)
    described = f"Performance profiles of {', '.join(comparison.methods.values())} over {', '.join(tasks)}."
    subtitle = "all seeds and maps pooled; band: 95 % interval (Wilson's)"
    return Chart(
        "performance-profile",
        "Performance profiles",
        at_end,
        (panel,),
        caption,
        described,
        subtitle=subtitle,
    )


def say_none_shared(comparison: Comparison) -> str:
    """What a performance profile needs and these runs lack."""
    on = (f"{name} on {', '.join(_tasks_of(comparison, method))}" for method, name in comparison.methods.items())
    return (
        "Performance profiles need a map on which every variant has finished runs, and these share none "
        f"({'; '.join(on)}). Choose runs of one map, or fewer variants."
    )


def _tasks_of(comparison: Comparison, method: str) -> list[str]:
    return [task for task in comparison.tasks if _has(comparison, method, task)]


class _Test(NamedTuple):
    """Two variants compared on one task, or on several."""

    task: str
    first: Group
    other: Group
    difference: Difference
    improvement: Interval


def _test(comparison: Comparison, pairs: Sequence[tuple[Group, Group]], task: str, final: FinalRule) -> _Test:
    """Compare two variants on the tasks of these pairs of groups, each task with the same weight."""
    differences = []
    for first, other in pairs:
        values = [{seed_number(seed): final_rate(seed, final) for seed in group.seeds} for group in (first, other)]
        rate = rate_of_final([*first.seeds, *other.seeds], final, of=comparison.quantity)
        differences.append(compare_seeds(*values, rate=rate))
    improvement = probability_of_improvement(
        [final_rates(first.seeds, final) for first, _ in pairs], [final_rates(other.seeds, final) for _, other in pairs]
    )
    pooled = differences[0] if len(pairs) == 1 else pool_differences(differences, Rate())
    return _Test(task, *pairs[0], pooled, improvement)


def _lay_out(comparison: Comparison, test: _Test, adjusted_p: float, final: FinalRule) -> list[str]:
    """Write one row of the table, as `_COLUMNS` names it."""
    of, difference = comparison.quantity, test.difference
    first, other = (f"{group.variant.name}{group.mark}" for group in (test.first, test.other))
    verdict = decide(difference, adjusted_p, is_rate=True)
    return [
        test.task,
        first,
        other,
        count_seeds(difference),
        quote_difference(difference, f"{name_final(final, unit='%', of=of)}, difference of the means", scale=100),
        _quote_improvement(test.improvement, count_seeds(difference), final, of),
        show_p(difference.p),
        show_p(adjusted_p),
        show_p(difference.randomization_p),
        _NOT_COMPARED if test.task in comparison.mixed else _COMPARED.get(verdict, verdict),
    ]


def _quote_improvement(found: Interval, n: str, final: FinalRule, of: Quantity) -> Cell:
    statistic = f"{name_final(final, of=of)}, share of pairs of seeds in which it is greater"
    interval = "95 % interval (Newcombe, Student's t; covers 95 to 100 %)"
    number = Number(found.value, found.low, found.high, n, statistic, interval)
    return Cell(f"{found.value:.2f} [{found.low:.2f}–{found.high:.2f}]", number)


def _has(comparison: Comparison, method: str, task: str) -> bool:
    return any(each.variant.method == method and each.variant.task == task for each in comparison.groups)


def _group(comparison: Comparison, method: str, task: str) -> Group:
    return next(each for each in comparison.groups if each.variant.method == method and each.variant.task == task)


def _scores(comparison: Comparison, method: str, tasks: Sequence[str], final: FinalRule) -> list[Values]:
    found = {each.variant.task: each.seeds for each in comparison.groups if each.variant.method == method}
    return [final_rates(found[task], final) for task in tasks]


def shared_tasks(comparison: Comparison) -> list[str]:
    """The maps on which every variant has a result."""
    return [task for task in comparison.tasks if all(_has(comparison, method, task) for method in comparison.methods)]


def _warn(comparison: Comparison) -> str:
    few = [group.variant.label for group in comparison.groups if group.n < 3]
    return f" Too few seeds to trust an interval (fewer than 3): {', '.join(few)}." if few else ""


def count_seeds(difference: Difference) -> str:
    """Write how many seeds a comparison rests on: "5 pairs", "3 and 5", "4 pairs (without seed 7)"."""
    if not difference.is_paired:
        return " and ".join(map(str, difference.n))
    n = difference.n[0]
    without = f" (without seed {', '.join(map(str, difference.unpaired))})" if difference.unpaired else ""
    return f"{n} pair{'' if n == 1 else 's'}{without}"


def quote_difference(difference: Difference, statistic: str, *, scale: float = 1.0) -> Cell:
    """Quote a difference with its interval: "+0.14 [−0.23, 0.51]"."""
    value, low, high = (scale * each for each in (difference.estimate, difference.low, difference.high))
    n, digits = count_seeds(difference), "+.1f" if scale == 100 else "+.3g"
    if not np.isfinite(low):
        return Cell(f"{value:{digits}}", Number(value, n=n, statistic=statistic))
    number = Number(value, low, high, n, statistic, difference.method)
    return Cell(f"{value:{digits}} [{low:{digits}}, {high:{digits}}]", number)


def show_p(p: float) -> str:
    """Write a p value: "0.034", "< 0.001"."""
    return MISSING if not np.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _tests(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_tests(_read(db, rows, options), options.final_rule)


def _profiles(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    return draw_profiles(_read(db, rows, options), options.final_rule)


def _read(db: Database, rows: Sequence[RunRow], options: Options) -> Comparison:
    unfinished, rate = options.include_unfinished, options.rate_name
    return read_study(db, rows, include_unfinished=unfinished, rate=rate, budget=options.read_at)


FIGURES = (FigureKind("performance-profile", _profiles, _TAKES, question="Which share of the runs ends above x?"),)


_NEEDS = "finished runs of two variants on one map"
TABLES = (TableKind("comparisons", _tests, _TAKES, needs=_NEEDS),)
