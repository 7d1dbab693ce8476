"""Is one variant better? The table of tests and probabilities of improvement, and performance profiles."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.figures.chart import Chart, Line, Panel
from app.results.comparing import TELLING, compare_means, performance_profile, probability_of_improvement
from app.results.curves import style_comparison
from app.results.kinds import FigureKind, Option, Options, TableKind
from app.results.quantities import UNIT_RANGE
from app.results.series import Comparison, Group
from app.results.statistics import Values
from app.results.study import read_study, tell_left_out
from app.tables import MISSING, describe_table
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs import RunRow

_UNFINISHED: frozenset[Option] = frozenset({"include_unfinished"})
_COLUMNS = (
    *("task", "variant", "against", "n", "difference [%]", "P(improvement)", "Welch p", "permutation p", "verdict"),
)


def tabulate_tests(comparison: Comparison) -> pd.DataFrame:
    """Compare the final win rates of every variant with those of the first, on each task and over all shared tasks."""
    rows = []
    for task in comparison.tasks:
        first, *others = (group for group in comparison.groups if group.variant.task == task)
        rows += [_compare(task, first, other) for other in others]
    if len(comparison.tasks) > 1:
        rows += _over_tasks(comparison)
    caption = (
        "Last test win rate, each variant against the first of its task. P(improvement): how often a run of the first "
        "beats a run of the variant, a tie counts half, with its 95 % bootstrap interval over seeds; over several "
        "tasks, tasks weigh equally. Welch's t test and the permutation test of the means are two-sided and not "
        f"corrected for the number of comparisons; a difference is p < {TELLING} in the permutation test. n is the "
        "number of seeds of both."
    )
    frame = pd.DataFrame(rows, columns=pd.Index(_COLUMNS), dtype="object")
    return describe_table(frame, caption=caption, left_out=[str(each) for each in comparison.left_out])


def draw_profiles(comparison: Comparison) -> Chart:
    """Draw which share of the runs of each variant ends above each win rate, over the tasks that all of them have."""
    tasks = _shared_tasks(comparison)
    if not tasks:
        raise ConfigError("performance-profile needs a map on which every variant has a result. Choose with --algo.")
    thresholds = np.linspace(0, 1, 201)
    styles, lines = style_comparison(comparison), []
    for method, name in comparison.methods.items():
        scores = _scores(comparison, method, tasks)
        share, low, high = performance_profile(scores, thresholds)
        counts = sorted({len(each) for each in scores})
        n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        color, dash, marker = styles[method]
        lines.append(
            Line(f"{name} (n = {n})", color, thresholds, share, low, high, dash=dash, marker=marker, label=name)
        )
    panel = Panel("share of runs above", "fraction", tuple(lines), range=UNIT_RANGE)
    caption = (
        f"Share of runs whose last greedy win rate lies above each value, over {', '.join(tasks)}, tasks weighing "
        f"equally; band: 95 % bootstrap interval, 2000 draws of whole seeds within each task."
        f"{_warn(comparison)}{tell_left_out(comparison.left_out)}"
    )
    described = f"Performance profiles of {', '.join(comparison.methods.values())} over {', '.join(tasks)}."
    subtitle = "all seeds and maps pooled; band: 95 % bootstrap interval over seeds"
    return Chart(
        "performance-profile", "Performance profiles", "final win rate", (panel,), caption, described, subtitle=subtitle
    )


def _compare(task: str, first: Group, other: Group) -> list[str]:
    x, y = (_finals(group) for group in (first, other))
    tests, better = compare_means(x, y), probability_of_improvement([x], [y])
    return [
        task,
        f"{first.variant.name}{first.mark}",
        f"{other.variant.name}{other.mark}",
        f"{len(x)} and {len(y)}",
        f"{100 * tests.difference:+.1f}",
        f"{better.value:.2f} [{better.low:.2f}–{better.high:.2f}]",
        _show_p(tests.welch_p),
        _show_p(tests.permutation_p),
        tests.verdict,
    ]


def _over_tasks(comparison: Comparison) -> list[list[str]]:
    """Compare over the tasks on which both variants have results; tests belong to one task and stay empty."""
    first, *others = comparison.methods
    rows = []
    for other in others:
        tasks = [task for task in comparison.tasks if _has(comparison, first, task) and _has(comparison, other, task)]
        if len(tasks) < 2:
            continue
        x, y = _scores(comparison, first, tasks), _scores(comparison, other, tasks)
        better = probability_of_improvement(x, y)
        difference = np.mean([a.mean() - b.mean() for a, b in zip(x, y, strict=True)])
        n = f"{sum(map(len, x))} and {sum(map(len, y))}"
        said = f"{better.value:.2f} [{better.low:.2f}–{better.high:.2f}]"
        names = comparison.methods[first], comparison.methods[other]
        task = f"all {len(tasks)} tasks"
        rows.append([task, *names, n, f"{100 * difference:+.1f}", said, MISSING, MISSING, MISSING])
    return rows


def _finals(group: Group) -> Values:
    return np.array([seed.final for seed in group.seeds])


def _has(comparison: Comparison, method: str, task: str) -> bool:
    return any(each.variant.method == method and each.variant.task == task for each in comparison.groups)


def _scores(comparison: Comparison, method: str, tasks: Sequence[str]) -> list[Values]:
    found = {each.variant.task: _finals(each) for each in comparison.groups if each.variant.method == method}
    return [found[task] for task in tasks]


def _shared_tasks(comparison: Comparison) -> list[str]:
    return [task for task in comparison.tasks if all(_has(comparison, method, task) for method in comparison.methods)]


def _warn(comparison: Comparison) -> str:
    few = [group.variant.label for group in comparison.groups if group.n < 3]
    return f" Too few seeds to trust an interval (fewer than 3): {', '.join(few)}." if few else ""


def _show_p(p: float) -> str:
    return MISSING if not np.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _tests(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_tests(read_study(db, rows, include_unfinished=options.include_unfinished))


def _profiles(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    return draw_profiles(read_study(db, rows, include_unfinished=options.include_unfinished))


FIGURES = (FigureKind("performance-profile", _profiles, _UNFINISHED),)
TABLES = (TableKind("comparisons", _tests, _UNFINISHED),)
