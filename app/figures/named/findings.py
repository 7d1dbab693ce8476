"""Charts and tables of the findings of a study: win rates, claims, measures of each run, and settings.

A study is a group of runs with a plan. The plan states claims about the variants (algorithms or ablations). A finding
is the test of one claim on one task by one measure. Only the primary measure of a claim gives its verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from app.analysis.aggregates import Aggregation
from app.analysis.curves import Curves, describe_excluded, format_range, smooth_curves
from app.analysis.findings import (
    NO_COMMIT,
    Finding,
    StudyFindings,
    StudyRuns,
    compute_findings,
    describe_samples,
    read_studies,
    read_win_rates,
)
from app.analysis.measures import MEASURES, Measure, measure_runs
from app.analysis.settings import is_irrelevant_for_learning
from app.analysis.significance import MIN_SEEDS, NEGLIGIBLE, Verdict
from app.analysis.study_plans import StudyPlan
from app.analysis.tables import MISSING, Cell, Column, Table, make_plain_table, make_table
from app.analysis.variants import list_differences
from app.figures.figure import FigureKind, StoredRuns, TableKind
from app.figures.kinds.chart import Chart
from app.figures.named.comparisons import EXPLANATION, count_seeds, format_difference, format_p
from app.figures.named.curves import draw_comparison
from app.figures.options import Options
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

MAX_LINES: Final = 4
"""Largest number of variants in the chart of a task."""
AGGREGATION: Final = Aggregation("mean", "ci")
"""Line and band of the charts of a study."""
SUBTITLE: Final = "mean over seeds; band: 95 % interval"
WINDOWS_PER_BUDGET: Final = 20
"""The smoothing window of the curves is the budget divided by this number."""

VERDICTS: Final[dict[Verdict, str]] = {
    "supported": "p (Holm) < .05, and the estimate has the sign that the claim states.",
    "contradicted": "p (Holm) < .05, and the estimate has the opposite sign.",
    "no relevant difference": f"Win rates only: the 95 % interval is within ±{NEGLIGIBLE:g}.",
    "cannot tell": "No other rule applies. The table shows the smallest difference that a test at p < .05 detects with "
    "a power of 80 % with this number of seeds and their standard deviation.",
    "too few seeds": f"Fewer than {MIN_SEEDS} pairs of seeds ({MIN_SEEDS} seeds of one variant): no verdict.",
    "equal": "Both variants have the same number in every pair of seeds.",
}
"""The rule for each verdict."""

_CLAIM_COLUMNS: Final[tuple[str, ...]] = (
    "claim",
    "task",
    "compared",
    "measure",
    "estimate",
    "n",
    "p (Holm)",
    "verdict",
)
_FINDING_COLUMNS = (
    *("study", "claim", "compared", "task", "measure", "n", "estimate", "p", "p (Holm)", "p (randomization)"),
    *("detectable", "P(improvement)", "verdict"),
)
_NUMBER_FORMATS: Final = {"detectable": ".2g", "P(improvement)": ".2f"}
"""Column → format of its numbers."""
_RUNS_FOR_CLAIMS = "finished runs of two algorithms or ablations that a claim compares, on one map"


class TaskLines(NamedTuple):
    """The variants of one task."""

    in_chart: Curves
    """The variants that are drawn."""
    others: tuple[Curves, ...]
    """The variants that the caption lists."""


def select_lines(curves: Curves, plan: StudyPlan) -> TaskLines:
    """Select at most `MAX_LINES` variants for the chart of one task.

    The variants of the plan are first, in its order. The variants that are not in the plan follow.
    """
    planned = list(plan.variants.values())

    def get_position(group: Curves) -> int:
        settings = group.runs[0].settings
        positions = (index for index, variant in enumerate(planned) if variant.matches(settings))
        return next(positions, len(planned))

    selected = sorted(curves.by_variant, key=get_position)[:MAX_LINES]
    methods = {group.variant.method for group in selected}
    others = tuple(group for group in curves.by_variant if group.variant.method not in methods)
    in_chart = curves.hide(group.variant.method for group in others)
    return TaskLines(in_chart.keep(run for group in selected for run in group.runs), others)


def compute_smoothing_window(curves: Curves) -> int:
    """Compute the smoothing window for the curves of a task [env steps]."""
    return max(run.target_steps for run in curves.runs) // WINDOWS_PER_BUDGET


def draw_win_rates(lines_by_task: Sequence[TaskLines], options: Options) -> Chart:
    """Draw the win rates of a study, smoothed, with 95 % intervals of the mean over seeds: one panel for each task.

    Raises:
        ConfigError: If no run of the study was evaluated.
    """
    charts = [_draw_task(lines) for lines in lines_by_task if lines.in_chart.tasks]
    if not charts:
        raise ConfigError("study-win-rates needs an evaluated run", hint="Wait for the first evaluation of a run.")
    if len(charts) == 1:
        return charts[0]
    return replace(
        charts[0],
        title="Win rates of the study",
        panels=tuple(panel for chart in charts for panel in chart.panels),
        caption=" ".join(f"{chart.title}: {chart.caption}" for chart in charts),
        description=" ".join(chart.description for chart in charts),
        columns=min(3, len(charts)),
        subtitle=SUBTITLE,
    )


def _draw_task(lines: TaskLines) -> Chart:
    task = lines.in_chart.tasks[0]
    window = compute_smoothing_window(lines.in_chart)
    note = (
        f"Smoothed: each seed's mean over the {window:,} env steps up to each point (1/{WINDOWS_PER_BUDGET} of the "
        "budget)."
    )
    if lines.others:
        note += f" {_list_others(lines)}"
    chart = draw_comparison(smooth_curves(lines.in_chart, window), AGGREGATION, title=f"Win rate on {task}", note=note)
    return replace(chart, subtitle=f"{SUBTITLE}; smoothed over {window:,} env steps")


def summarize_lines(lines: TaskLines) -> str:
    """Write the number of seeds in the chart of a task, the variants that are not drawn, and the runs left out.

    The chart itself states the quantity, its unit and what the band is; its caption defines them.
    """
    counts = lines.in_chart.seed_counts
    sentences = [f"n = {format_range(counts)} {'seed' if max(counts) == 1 else 'seeds'} per line."]
    if min(counts) == 1:
        sentences.append("A single seed has no band.")
    if lines.others:
        sentences.append(_list_others(lines))
    return " ".join(sentences) + describe_excluded(lines.in_chart.excluded)


def tabulate_claims(studies: Sequence[StudyFindings], options: Options) -> Table:
    """Make a table with one row for each claim and task: the primary measure and the verdict.

    The column "detectable" exists only if a verdict is "cannot tell". The column "study" exists only if there are
    several studies.
    """
    rows = []
    measures: dict[str, str] = {}
    has_undecided = False
    for study in studies:
        for finding in study.findings:
            if not finding.is_primary:
                continue
            row = dict(zip(_FINDING_COLUMNS, _make_finding_row(study, finding), strict=True))
            if finding.verdict == "cannot tell":
                has_undecided = True
            else:
                row["detectable"] = np.nan
            rows.append(row)
            measures[finding.measure.title] = finding.measure.meaning
    columns: list[str] = ["study"] if len(studies) > 1 else []
    columns += _CLAIM_COLUMNS
    if has_undecided:
        columns.append("detectable")
    introduction = f"The primary measure of each claim. {EXPLANATION} {_describe_correction(studies)}"
    cells = [[row[column] for column in columns] for row in rows]
    return _make_findings_table(columns, cells, studies, introduction=introduction, measures=measures)


def tabulate_findings(studies: Sequence[StudyFindings], options: Options) -> Table:
    """Make a table with one row for each claim, task and measure. Only the primary measure has a verdict."""
    rows = []
    measures: dict[str, str] = {}
    for study in studies:
        for finding in study.findings:
            rows.append(_make_finding_row(study, finding))
            measures[finding.measure.title] = finding.measure.meaning
    introduction = (
        f"{EXPLANATION} {_describe_correction(studies)} "
        "detectable: smallest difference that a test at p < .05 detects with a power of 80 %."
    )
    return _make_findings_table(_FINDING_COLUMNS, rows, studies, introduction=introduction, measures=measures)


def count_study_runs(study: StudyRuns) -> str:
    """Write the number of runs of a study: "20 of 36 planned runs"."""
    n = study.curves.n
    return f"{n} of {study.n_planned} planned runs" if study.n_planned else f"{n} runs"


def describe_study_runs(study: StudyRuns) -> str:
    """Write the number of runs of a study, and the commits with which they were trained."""
    commits = []
    for commit, count in study.commits.items():
        short_commit = commit if commit == NO_COMMIT else commit[:10]
        commits.append(f"{short_commit} ({count} runs)")
    return f"{count_study_runs(study)}; commits: {', '.join(commits) or 'none'}."


def describe_study(study: StudyFindings) -> str:
    """Write the runs and commits of a study, with a warning if runs of different commits are compared."""
    sentences = [f"{study.plan.title}: {describe_study_runs(study)}"]
    if study.samples:
        sentences.append(study.samples)
    with_several_commits = {
        f"claim {finding.claim.number} on {finding.task}" for finding in study.findings if len(finding.commits) > 1
    }
    if with_several_commits:
        claims = "; ".join(sorted(with_several_commits))
        sentences.append(f"WARNING: runs of different commits are compared in {claims}.")
    return " ".join(sentences)


def tabulate_measures(runs: StoredRuns, options: Options) -> Table:
    """Make a table of all measures: one row for each run, one column for each measure."""
    rows = []
    sample_notes = []
    for study in read_studies(runs.db, runs.rows):
        sample_notes.append(describe_samples(runs.db, study))
        values_by_measure = measure_runs(runs.db, study.rows, study.curves)
        for run in study.curves.runs:
            cells = [
                _make_measure_cell(measure, values_by_measure[name].get(run.id)) for name, measure in MEASURES.items()
            ]
            rows.append([study.plan.title, run.task, run.variant.name, run.seed, run.id, *cells])
    columns = ["study", "task", "variant", "seed", "run", *(measure.title for measure in MEASURES.values())]
    meanings = [f"{measure.title}: {measure.meaning}." for measure in MEASURES.values()]
    return make_table(columns, rows, caption=" ".join(filter(None, [*meanings, *sample_notes])))


def tabulate_settings(runs: StoredRuns, options: Options) -> Table:
    """Make a table of the settings that differ between the variants of a task, for each study."""
    configs = {row.id: row.config for row in runs.rows}
    first_columns = ["study", "task", "setting"]
    frames = [pd.DataFrame(columns=pd.Index(first_columns))]  # so that the table has columns without any study
    for study in read_studies(runs.db, runs.rows):
        for task in study.curves.tasks:
            groups = study.curves.on_task(task).by_variant
            variants = [replace(group.variant, run_ids=group.run_ids) for group in groups]
            differences = list_differences(configs, variants)
            differences.columns = ["setting", *(variant.name for variant in variants)]
            is_compared = [
                key not in ("seed", "algo") and not is_irrelevant_for_learning(key) for key in differences["setting"]
            ]
            frames.append(differences[is_compared].assign(study=study.plan.title, task=task))
    settings = pd.concat(frames, ignore_index=True)
    variant_names = [name for name in settings.columns if name not in first_columns]
    settings = settings.reindex(columns=[*first_columns, *variant_names]).astype("object").fillna(MISSING)
    caption = "Settings that differ between the variants of a task, except algo and seed."
    return make_plain_table(settings, caption=caption)


def _list_others(lines: TaskLines) -> str:
    """List the variants that are not drawn. A name is quoted, because it may contain a comma."""
    names = ", ".join(f"“{group.variant.name}”{group.mark} (n = {group.n})" for group in lines.others)
    return f"Not drawn: {names}."


def _make_measure_cell(measure: Measure, value: float | None) -> Cell | str:
    return MISSING if value is None else Cell(f"{value:.4g}", value, n=1, statistic=measure.title)


def _make_findings_table(
    column_names: Sequence[str],
    rows: Sequence[Sequence[Cell | str | float]],
    studies: Sequence[StudyFindings],
    *,
    introduction: str,
    measures: Mapping[str, str],
) -> Table:
    """Make a table of findings with its caption and the list of excluded runs.

    Args:
        column_names: Names of the columns.
        rows: The cells of each row.
        studies: The studies with these findings.
        introduction: First sentences of the caption.
        measures: Title → meaning of the measures in the table.
    """
    meanings = [f"{title}: {meaning}." for title, meaning in measures.items()]
    caption = " ".join([introduction, *meanings, *(describe_study(study) for study in studies)])
    excluded = [str(run) for study in studies for run in study.curves.excluded]
    excluded += [f"planned, without result: {run}" for study in studies for run in study.missing]
    columns = [Column(name, format=_NUMBER_FORMATS.get(name, "")) for name in column_names]
    return make_table(columns, rows, caption=caption, excluded=excluded)


def _describe_correction(studies: Sequence[StudyFindings]) -> str:
    """Write over which claims the p values are adjusted. A family is a group of claims in a plan."""
    has_families = any(len({claim.family for claim in study.plan.claims}) > 1 for study in studies)
    claims = "the claims of one family of a plan" if has_families else "the claims of a plan"
    return f"p (Holm) is adjusted over {claims} on the same task, primary measures only."


def _make_finding_row(study: StudyFindings, finding: Finding) -> list[Cell | str | float]:
    """Make one row of the table of findings, in the order of `_FINDING_COLUMNS`."""
    difference = finding.difference
    statistic = "difference of the means" if finding.second else "mean"
    verdict = finding.verdict or MISSING
    if finding.verdict and len(finding.commits) > 1:
        verdict += " (different commits)"
    return [
        study.plan.title,
        f"{finding.claim.number}. {finding.claim.text}",
        f"{finding.first} − {finding.second}" if finding.second else finding.first,
        finding.task,
        finding.measure.title,
        count_seeds(difference),
        format_difference(difference, f"{finding.measure.title}, {statistic} over seeds"),
        format_p(difference.p),
        format_p(finding.adjusted_p),
        format_p(difference.randomization_p),
        _limit_detectable(finding),
        finding.improvement,
        verdict,
    ]


def _limit_detectable(finding: Finding) -> float | str:
    """Return the smallest detectable difference; "> 1" for rates if it is above 1, which no difference can reach."""
    value = finding.difference.detectable_difference
    return "> 1" if finding.measure.is_rate and value > 1 else value


def _read_findings(db: Database, rows: Sequence[RunRow], options: Options) -> Sequence[StudyFindings]:
    return compute_findings(db, rows)


def _read_win_rates(db: Database, rows: Sequence[RunRow], options: Options) -> list[TaskLines]:
    lines_by_task = []
    for study in read_studies(db, rows):
        lines_by_task += [select_lines(curves, study.plan) for curves in read_win_rates(db, study)]
    return lines_by_task


FIGURES = (
    FigureKind(
        "study-win-rates", draw_win_rates, _read_win_rates,
        question="How do the main variants of a study learn, on each task?",
    ),
)  # fmt: skip
TABLES = (
    TableKind("claims", tabulate_claims, _read_findings, required_runs=_RUNS_FOR_CLAIMS),
    TableKind("findings", tabulate_findings, _read_findings, required_runs=_RUNS_FOR_CLAIMS),
    TableKind("study-measures", tabulate_measures, required_runs="finished runs"),
    TableKind("study-settings", tabulate_settings, required_runs="finished runs of two variants on one map"),
)
