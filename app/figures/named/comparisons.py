"""Is one variant better? Tests, probabilities of improvement, performance profiles and the first study's findings."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.analysis.comparable import read_study, tell_left_out
from app.analysis.finals import (
    LAST_TENTH,
    FinalRule,
    caption_final,
    final_rates,
    name_final,
    rate_of_final,
    title_final,
)
from app.analysis.findings import FEWEST_SEEDS, Finding, find_all, judge
from app.analysis.quantities import UNIT_RANGE, Quantity
from app.analysis.series import Comparison, Group
from app.analysis.significance import (
    TELLING,
    Interval,
    compare_means,
    difference_of_means,
    performance_profile,
    probability_of_improvement,
)
from app.analysis.statistics import Values
from app.analysis.tables import MISSING, Cell, Number, describe_table
from app.figures.figure import FigureKind, Option, Options, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.named.curves import style_comparison
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

_TAKES: frozenset[Option] = frozenset({"include_unfinished", "budget", "final", "rate"})
_COLUMNS = (
    *("task", "variant", "against", "n", "difference [%]", "P(improvement)", "Welch p", "permutation p", "verdict"),
)
_NOT_COMPARED = "no verdict: runs of different lengths"
_PROFILE = "share of runs above x; band: 95 % interval (Wilson's score)"

_FOUND_COLUMNS = ("claim", "task", "compared", "measure", "n", "difference", "P(improvement)", "on this map", "verdict")
_WELCH = "95 % t interval over seeds (Welch)"


def tabulate_tests(comparison: Comparison, final: FinalRule = LAST_TENTH) -> pd.DataFrame:
    """Compare the final win rates of every variant with those of the first, on each task and over all shared tasks."""
    rows = []
    for task in comparison.tasks:
        first, *others = (group for group in comparison.groups if group.variant.task == task)
        rows += [_compare(comparison, first, other, final) for other in others]
    if len(comparison.tasks) > 1:
        rows += _over_tasks(comparison, final)
    said = (
        "Each variant against the first of its task: the difference of the means, with the 95 % "
        "interval that follows from both Wilson intervals with Student's t (Zou and Donner 2008). P(improvement): how "
        "often a run of the first beats a run of the variant, a tie counts half, with the 95 % interval of the "
        "Mann-Whitney statistic (Newcombe 2006, with Student's t). Both cover 95 to 100 % with 3 to 10 seeds. Over "
        "several tasks, tasks weigh equally. Welch's t test and the permutation test of the means are two-sided and "
        f"not corrected for the number of comparisons; a difference is p < {TELLING} in the permutation test. n is the "
        "number of seeds of both."
    )
    caption, about = caption_final(comparison.seeds, final, said, of=comparison.quantity, at=comparison)
    frame = pd.DataFrame(rows, columns=pd.Index(_COLUMNS), dtype="object")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
    left_out = [str(each) for each in comparison.left_out]
    return describe_table(frame, caption=caption, left_out=left_out, about=about, cells=cells)


def draw_profiles(comparison: Comparison, final: FinalRule = LAST_TENTH) -> Chart:
    """Draw which share of the runs of each variant ends above each win rate, over the tasks that all of them have."""
    tasks = shared_tasks(comparison)
    if not tasks:
        raise ConfigError(say_none_shared(comparison))
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


def _compare(comparison: Comparison, first: Group, other: Group, final: FinalRule) -> list[str]:
    of, task = comparison.quantity, first.variant.task
    x, y = (final_rates(group.seeds, final) for group in (first, other))
    tests, better = compare_means(x, y), probability_of_improvement([x], [y])
    rate = rate_of_final([*first.seeds, *other.seeds], final, of=of)
    n, apart = f"{len(x)} and {len(y)}", difference_of_means([x], [y], rate)
    return [
        task,
        f"{first.variant.name}{first.mark}",
        f"{other.variant.name}{other.mark}",
        n,
        _quote_difference(apart, n, final, of),
        _quote_improvement(better, n, final, of),
        _show_p(tests.welch_p),
        _show_p(tests.permutation_p),
        _NOT_COMPARED if task in comparison.mixed else tests.verdict,
    ]


def _over_tasks(comparison: Comparison, final: FinalRule) -> list[list[str]]:
    """Compare over the tasks on which both variants have results; tests belong to one task and stay empty."""
    first, *others = comparison.methods
    rows, of = [], comparison.quantity
    for other in others:
        tasks = [task for task in comparison.tasks if _has(comparison, first, task) and _has(comparison, other, task)]
        if len(tasks) < 2:
            continue
        x, y = (_scores(comparison, method, tasks, final) for method in (first, other))
        better = probability_of_improvement(x, y)
        apart = difference_of_means(x, y, rate_of_final(comparison.seeds, final, of=of))
        n = f"{sum(map(len, x))} and {sum(map(len, y))}"
        names = comparison.methods[first], comparison.methods[other]
        task = f"all {len(tasks)} tasks"
        quoted = _quote_difference(apart, n, final, of), _quote_improvement(better, n, final, of)
        rows.append([task, *names, n, *quoted, MISSING, MISSING, MISSING])
    return rows


def _quote_difference(found: Interval, n: str, final: FinalRule, of: Quantity) -> Cell:
    value, low, high = (100 * each for each in (found.value, found.low, found.high))
    statistic = f"{name_final(final, unit='%', of=of)}, difference of the means over seeds"
    if not np.isfinite(low):
        return Cell(f"{value:+.1f}", Number(value, n=n, statistic=statistic))
    number = Number(value, low, high, n, statistic, "95 % interval (Zou and Donner; covers 95 to 100 %)")
    return Cell(f"{value:+.1f} [{low:+.1f}–{high:+.1f}]", number)


def _quote_improvement(found: Interval, n: str, final: FinalRule, of: Quantity) -> Cell:
    statistic = f"{name_final(final, of=of)}, share of pairs of seeds in which it is greater"
    interval = "95 % interval (Newcombe, Student's t; covers 95 to 100 %)"
    number = Number(found.value, found.low, found.high, n, statistic, interval)
    return Cell(f"{found.value:.2f} [{found.low:.2f}–{found.high:.2f}]", number)


def _has(comparison: Comparison, method: str, task: str) -> bool:
    return any(each.variant.method == method and each.variant.task == task for each in comparison.groups)


def _scores(comparison: Comparison, method: str, tasks: Sequence[str], final: FinalRule) -> list[Values]:
    found = {each.variant.task: each.seeds for each in comparison.groups if each.variant.method == method}
    return [final_rates(found[task], final) for task in tasks]


def shared_tasks(comparison: Comparison) -> list[str]:
    """The maps on which every variant has a result."""
    return [task for task in comparison.tasks if all(_has(comparison, method, task) for method in comparison.methods)]


def _warn(comparison: Comparison) -> str:
    few = [group.variant.label for group in comparison.groups if group.n < 3]
    return f" Too few seeds to trust an interval (fewer than 3): {', '.join(few)}." if few else ""


def _show_p(p: float) -> str:
    return MISSING if not np.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _tests(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_tests(_read(db, rows, options), options.final_rule)


def _profiles(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    return draw_profiles(_read(db, rows, options), options.final_rule)


def _read(db: Database, rows: Sequence[RunRow], options: Options) -> Comparison:
    unfinished, rate = options.include_unfinished, options.rate_name
    return read_study(db, rows, include_unfinished=unfinished, rate=rate, budget=options.read_at)


FIGURES = (FigureKind("performance-profile", _profiles, _TAKES, question="Which share of the runs ends above x?"),)


def tabulate_findings(found: Sequence[Finding], left_out: Sequence[str] = ()) -> pd.DataFrame:
    """One row for each claim, map and measure; the measure that decides a claim has the verdicts."""
    verdicts = judge(found)
    rows = [_row(finding, verdicts[finding.claim.text]) for finding in found]
    measures = {finding.measure.title: finding.measure.meaning for finding in found}
    caption = (
        "The claims of the first study's plan. Difference of the means over seeds with Welch's 95 % t interval; "
        "P(improvement): share of pairs of seeds in which the first is the better. Held: on every map with at least "
        f"{FEWEST_SEEDS} seeds of each the interval lies on the claim's side of 0. Not held: on one of them it lies on "
        "the other side, or, of win rates, within ±.05. Cannot tell: anything else. "
        + " ".join(f"{title}: {meaning}." for title, meaning in measures.items())
    )
    frame = pd.DataFrame(rows, columns=pd.Index(_FOUND_COLUMNS), dtype="object")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(_FOUND_COLUMNS)}
    return describe_table(frame, caption=caption, left_out=left_out, cells=cells)


def _row(finding: Finding, verdict: str) -> list[str]:
    n = " and ".join(map(str, finding.n))
    compared = f"{finding.first} − {finding.second}" if finding.second else finding.first
    said = (finding.verdict, verdict) if finding.decides else (MISSING, MISSING)
    better = MISSING if np.isnan(finding.improvement) else f"{finding.improvement:.2f}"
    claim = f"{finding.claim.number}. {finding.claim.text}"
    return [claim, finding.task, compared, finding.measure.title, n, _quote(finding, n), better, *said]


def _quote(finding: Finding, n: str) -> Cell:
    statistic = f"{finding.measure.title}, {'difference of the means' if finding.second else 'mean'} over seeds"
    value, low, high = finding.difference, finding.low, finding.high
    if not np.isfinite(low):
        return Cell(f"{value:+.3g}", Number(value, n=n, statistic=statistic))
    return Cell(f"{value:+.3g} [{low:+.3g}–{high:+.3g}]", Number(value, low, high, n, statistic, _WELCH))


def _findings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    found, comparison = find_all(db, rows)
    return tabulate_findings(found, [str(each) for each in comparison.left_out])


_NEEDS = "finished runs of two variants on one map"
_CLAIMED = "finished runs of two algorithms or ablations that a claim compares, on one map"
TABLES = (
    TableKind("comparisons", _tests, _TAKES, needs=_NEEDS),
    TableKind("findings", _findings, needs=_CLAIMED),
)
