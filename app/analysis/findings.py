"""Findings of a study: the claims of its plan, measured on each task and pooled over tasks.

A plan names the sweeps (groups of planned runs) of a study, its claims, and the measures of each claim. A claim
compares two variants of an algorithm, or the number of one variant with 0 (the claim is that it is above, or below, 0).
Its first measure is the primary one and decides it.

`app.analysis.study_plans` reads the plan, and `app.analysis.measures` computes one number per run.
`app.analysis.significance.compare_seeds` computes each comparison. `app.figures.named.findings` makes the tables.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from app.analysis.curves import ComparedRun, Curves, read_curves, read_quantity, read_tables, regroup
from app.analysis.format import format_run_count
from app.analysis.intervals import BinomialScale
from app.analysis.measures import MEASURES, Measure, Numbers, measure_runs
from app.analysis.quantities import ROBUST, WIN_RATE
from app.analysis.results import select_common_budget, select_results
from app.analysis.significance import (
    MeanDifference,
    Verdict,
    adjust_p_values,
    compare_seeds,
    decide,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.study_plans import Claim, Pair, StudyPlan, list_plans, make_exploratory_plan
from storage.engine import Database
from storage.queries.memory import list_snapshots
from storage.runs.rows import RunRow
from storage.runs.sweeps import find_sweep_names, list_sweeps

ALL_TASKS: Final = "all tasks"
NO_COMMIT: Final = "no commit stored"
_MAX_SWEEPS: Final = 10_000
"""Limit of the list of stored sweeps in `_list_planned_names`, above any real number of sweeps."""


@dataclass(frozen=True)
class Finding:
    """One measure of one claim on one task, or pooled over tasks."""

    claim: Claim
    task: str
    first: str
    """Name of the first variant."""
    second: str
    """Name of the second variant. Empty if the claim has only the first one and compares its measure with 0."""
    measure: Measure
    difference: MeanDifference
    improvement: float = np.nan
    """Probability of improvement: the fraction of pairs of runs (one run of each variant) in which the first variant is
    better. NaN without a second variant."""
    adjusted_p: float = np.nan
    """Corrected p value of the t test: the primary findings of a family of claims are corrected together on each task.
    NaN if this finding is not primary."""
    commits: tuple[str, ...] = ()
    """Git commits that trained the runs."""
    decides: bool = True
    """Whether this pair of variants counts for the verdict: it is in `Claim.pairs`, not in `Claim.other_pairs`."""

    @property
    def is_primary(self) -> bool:
        """Whether it decides the claim on this task."""
        return self.decides and self.measure.name == self.claim.measures[0]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the claim; None for a measure that does not decide it."""
        if not self.is_primary:
            return None
        return decide(self.difference, self.adjusted_p, sign=self.claim.sign, is_rate=self.measure.is_rate)


@dataclass(frozen=True)
class StudyRuns:
    """The runs of one plan."""

    plan: StudyPlan
    rows: tuple[RunRow, ...]
    curves: Curves
    """The included runs, each with the curve of its greedy win rate (evaluations from the fixed starts of the task). A
    `Curves` object also has the tasks and variants of its runs, and the list of the excluded runs."""
    missing: tuple[str, ...]
    """Planned runs that are not included, each with the reason."""
    n_planned: int
    """Number of planned runs; 0 for the exploratory plan of runs that belong to no study."""
    commits: Mapping[str, int]
    """Number of included runs by git commit."""


@dataclass(frozen=True)
class StudyFindings(StudyRuns):
    """All findings of one plan."""

    findings: tuple[Finding, ...]
    samples: str = ""
    """Note for the caption, if R² of H is computed from a sample of the nodes of the memory; otherwise empty.

    H is the highest return that was reached from a state. Its R² measures the quality of an embedding: how well H of a
    node is predicted by the nearest nodes.
    """


def compute_findings(db: Database, rows: Sequence[RunRow]) -> list[StudyFindings]:
    """Compute the findings of all plans to which these runs belong; see `read_studies`."""
    return [measure_study(db, study) for study in read_studies(db, rows)]


def read_studies(db: Database, rows: Sequence[RunRow]) -> list[StudyRuns]:
    """Group runs by plan and select the runs that are included in the findings.

    A run belongs to each plan that names its sweep. Runs of no plan get the exploratory plan, which has the claims of
    the study `first` (see `make_exploratory_plan`).
    """
    plans = list_plans()
    sweep_ids = {row.sweep_id for row in rows if row.sweep_id is not None}
    names_by_id = find_sweep_names(db, sorted(sweep_ids))
    sweep_names = {row.id: names_by_id.get(row.sweep_id or "", "") for row in rows}
    studies = []
    for plan in plans:
        plan_rows = [row for row in rows if sweep_names[row.id] in plan.sweeps]
        if plan_rows:
            studies.append(read_study(db, plan, plan_rows))
    all_sweeps = {name for plan in plans for name in plan.sweeps}
    unplanned_rows = [row for row in rows if sweep_names[row.id] not in all_sweeps]
    if unplanned_rows:
        studies.append(read_study(db, make_exploratory_plan(), unplanned_rows))
    return studies


def read_study(db: Database, plan: StudyPlan, rows: Sequence[RunRow]) -> StudyRuns:
    """Select the runs of one plan that are included in the findings.

    Args:
        db: An open database.
        plan: The plan.
        rows: All runs of its sweeps.
    """
    greedy_rates = read_curves(read_tables(db, rows), WIN_RATE.key)
    # `final`: only finished runs. The budget is the training length: of each task, only the runs with the most frequent
    # length are included.
    curves = select_common_budget(select_results(greedy_rates, for_final_numbers=True))
    included = [row for row in rows if row.id in curves.run_ids]
    included_names = {row.name for row in included}
    by_name = {row.name: row for row in rows}
    planned_names = _list_planned_names(db, plan)
    missing = [
        f"{name}: {_describe_progress(by_name.get(name))}" for name in planned_names if name not in included_names
    ]
    commits = Counter(_get_commit(row) for row in included)
    return StudyRuns(plan, tuple(rows), curves, tuple(missing), len(planned_names), commits)


def measure_study(db: Database, study: StudyRuns) -> StudyFindings:
    """Compute the findings of one plan."""
    measure_names = dict.fromkeys(name for claim in study.plan.claims for name in claim.measures)  # without duplicates
    numbers = measure_runs(db, study.rows, study.curves, measure_names)
    findings: list[Finding] = []
    for claim in study.plan.claims:
        for pair in (*claim.pairs, *claim.other_pairs):
            for name in claim.measures:
                findings += _measure_claim(study, claim, pair, MEASURES[name], numbers[name])
    uses_snapshots = any(finding.measure.uses_snapshots for finding in findings)
    samples = describe_samples(db, study) if uses_snapshots else ""
    # `StudyFindings` has all fields of `StudyRuns`: `vars` copies them
    return StudyFindings(**vars(study), findings=tuple(_adjust(findings)), samples=samples)


def read_win_rates(db: Database, study: StudyRuns) -> list[Curves]:
    """Read the win rates of a study by task: robust on skirmish, greedy on other environments.

    Both are the won fraction of greedy evaluation episodes: the robust one from shifted starts, the greedy one from the
    fixed starts of the task.

    The runs are those of the findings; for a task without finished runs, they are the unfinished ones. The task with
    the most runs is the first.
    """
    included_ids = set(study.curves.run_ids)
    finished_tasks = set(study.curves.tasks)
    curves_by_task = []
    greedy = replace(WIN_RATE, title="greedy win rate")
    for is_skirmish, quantity in ((True, ROBUST), (False, greedy)):
        rows = [row for row in study.rows if (row.env == "skirmish") == is_skirmish]
        curves = read_quantity(read_tables(db, rows), quantity)
        ids_by_task: dict[str, list[str]] = {}
        for run in curves.runs:
            has_points = len(curves.get_points(run.id).value) > 0
            if run.id in included_ids or (run.task not in finished_tasks and has_points):
                ids_by_task.setdefault(run.task, []).append(run.id)
        # `regroup` keeps these runs and names their variants again, because a name depends on the compared runs
        curves_by_task += [select_results(regroup(curves, run_ids)) for run_ids in ids_by_task.values()]
    return sorted(curves_by_task, key=lambda curves: (-curves.n, curves.tasks))


def describe_samples(db: Database, study: StudyRuns) -> str:
    """Return `StudyFindings.samples`; empty if the last snapshot of each run contains all nodes of the memory."""
    snapshots = [list_snapshots(db, run_id).tail(1) for run_id in sorted(study.curves.run_ids)]
    if not snapshots:
        return ""
    last = pd.concat(snapshots)
    samples = last[last["size"] < last["memory_size"]]
    if samples.empty:
        return ""
    nodes = _format_range(list(samples["size"]))
    memories = _format_range(list(samples["memory_size"]))
    return f"R² of H is computed from samples of {nodes} of {memories} nodes ({format_run_count(len(samples))})."


def _format_range(sizes: Sequence[int]) -> str:
    smallest, largest = min(sizes), max(sizes)
    return f"{smallest:,} to {largest:,}" if len(sizes) > 1 else f"{smallest:,}"


def _list_planned_names(db: Database, plan: StudyPlan) -> list[str]:
    """List the names of the planned runs in the stored sweeps of a plan."""
    sweeps = [sweep for sweep in list_sweeps(db, limit=_MAX_SWEEPS) if sweep.name in plan.sweeps]
    # `sweep.plan` is the stored plan of the sweep, which lists its runs. It is not a `StudyPlan`.
    return [str(run["name"]) for sweep in sweeps for run in sweep.plan.get("runs", ())]


def _describe_progress(row: RunRow | None) -> str:
    if row is None:
        return "not in this database"
    return f"{row.live_status} at {row.env_steps:,} of {row.target_steps:,}"


def _get_commit(row: RunRow) -> str:
    return str(row.versions.get("commit") or NO_COMMIT)


def _measure_claim(study: StudyRuns, claim: Claim, pair: Pair, measure: Measure, numbers: Numbers) -> list[Finding]:
    """Measure one pair of variants on each task, and pooled over the tasks if each has an interval."""
    findings = []
    for task in study.curves.tasks:
        finding = _measure_task(study, claim, pair, measure, numbers, task)
        if finding is not None:
            findings.append(finding)
    has_intervals = all(np.isfinite(finding.difference.low) for finding in findings)
    if measure.is_pooled and len(findings) > 1 and has_intervals:
        findings.append(_pool(findings))
    return findings


def _measure_task(
    study: StudyRuns, claim: Claim, pair: Pair, measure: Measure, numbers: Numbers, task: str
) -> Finding | None:
    """Compare two variants, or one variant with 0, on one task; None if a variant has no run with this measure."""
    curves = study.curves.on_task(task)
    runs_by_variant: list[list[ComparedRun]] = []
    for name in pair:
        variant = study.plan.variants[name]
        runs = [run for run in curves.runs if variant.matches(run.settings) and run.id in numbers]
        if not runs:
            return None
        runs_by_variant.append(runs)
    values = [{run.seed: numbers[run.id] for run in runs} for runs in runs_by_variant]
    improvement = np.nan
    if len(values) == 2:
        # after multiplication by the claimed sign (1 or -1), a larger number is better for every claim
        x, y = (claim.sign * np.array(list(by_seed.values())) for by_seed in values)
        improvement = probability_of_improvement([x], [y]).value
    commits = {row.id: _get_commit(row) for row in study.rows}
    # `scale`, below, is the binomial scale of a win rate: the interval is computed with at least the binomial variance.
    return Finding(
        claim,
        task,
        pair[0],
        pair[1] if len(pair) > 1 else "",
        measure,
        compare_seeds(*values, scale=measure.make_scale(curves) if measure.make_scale else None),
        improvement,
        commits=tuple(dict.fromkeys(commits[run.id] for runs in runs_by_variant for run in runs)),
        decides=pair in claim.pairs,
    )


def _pool(findings: Sequence[Finding]) -> Finding:
    """Average the findings of several tasks."""
    first = findings[0]
    scale = BinomialScale() if first.measure.is_rate else None
    return replace(
        first,
        task=ALL_TASKS,
        difference=pool_differences([finding.difference for finding in findings], scale),
        improvement=float(np.mean([finding.improvement for finding in findings])),
        commits=tuple(dict.fromkeys(commit for finding in findings for commit in finding.commits)),
    )


def _adjust(findings: Sequence[Finding]) -> list[Finding]:
    """Return all findings, with corrected p values of the primary ones.

    The claims of one family are corrected together, separately on each task.
    """
    primary = [i for i, finding in enumerate(findings) if finding.is_primary]
    p_values = [findings[i].difference.p for i in primary]
    families = [f"{findings[i].claim.family} on {findings[i].task}" for i in primary]
    adjusted = dict(zip(primary, adjust_p_values(p_values, families), strict=True))
    return [replace(finding, adjusted_p=adjusted.get(i, np.nan)) for i, finding in enumerate(findings)]
