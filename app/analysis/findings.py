"""Findings of a study: the claims of its plan, measured on each task and pooled over tasks.

Each measure is one number per run. `app.analysis.significance.compare_seeds` computes each comparison of the plan
(`app.analysis.study_plans`). `app.figures.named.findings` makes the tables.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from app.analysis import collapse
from app.analysis.aggregates import compute_mu_w
from app.analysis.comparable import select_common_budget
from app.analysis.finals import LAST_TENTH, compute_final_rate, count_falls, make_final_scale, make_mu_w_scale
from app.analysis.format import format_run_count
from app.analysis.intervals import BinomialScale
from app.analysis.quantities import ROBUST, WIN_RATE, find_quantity
from app.analysis.series import Comparison, SeedRun, get_seed, join_seeds, read_seeds
from app.analysis.significance import (
    MeanDifference,
    Verdict,
    adjust_p_values,
    compare_seeds,
    decide,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.study_plans import (
    BETA_RISE,
    BETA_RISE_WHOLE,
    CLOSED_MORE,
    DELTA_RATIO,
    DELTA_RATIO_WHOLE,
    FALLS,
    FINAL,
    FINAL_GREEDY,
    MEASURES,
    MU_W,
    MU_W_GREEDY,
    OVERESTIMATION,
    PLANS,
    Q_ERROR,
    R2_OF_H,
    R2_OVER_DCAE,
    R2_OVER_RANDOM,
    REMOVED,
    REMOVED_WHOLE,
    UNPLANNED,
    Claim,
    Measure,
    StudyPlan,
    StudyVariant,
)
from storage.engine import Database
from storage.queries.gate_progress import (
    compute_gate_by_run_part,
    compute_removed_after_first_win,
    count_closed_by_outcome,
)
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.projections import find_embedding
from storage.runs.rows import RunRow
from storage.runs.sweeps import list_sweeps

Numbers = Mapping[str, float]
"""Numbers of a measure by run id; runs without a number are missing."""

OWN: Final = "own"
"""The embedder with which a run was trained; the others are newly fitted to its last snapshot."""
EMBEDDERS: Final = (OWN, "tcse", "dcae", "random")
PARTS: Final = 10
"""Number of parts of a run in which the gate is averaged."""
_EMBEDDING_MEASURES: Final = (R2_OF_H, R2_OVER_DCAE, R2_OVER_RANDOM)
ALL_TASKS: Final = "all tasks"
NO_COMMIT: Final = "no commit stored"


@dataclass(frozen=True)
class Finding:
    """One measure of one claim on one task, or pooled over tasks."""

    claim: Claim
    task: str
    first: str
    second: str
    measure: Measure
    difference: MeanDifference
    improvement: float = np.nan
    """Fraction of pairs of runs in which the first variant is better; NaN without a second variant."""
    adjusted_p: float = np.nan
    """p value of the t test, adjusted by Holm over the claims of the plan on this task; NaN unless primary."""
    commits: tuple[str, ...] = ()
    """Commits of the runs."""
    decides: bool = True
    """Whether the claim names these variants. Other variants are reported without a verdict."""

    @property
    def is_primary(self) -> bool:
        """Whether it decides the claim."""
        return self.decides and self.measure is self.claim.measures[0]

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
    comparison: Comparison
    """The included runs with their greedy win rates."""
    missing: tuple[str, ...]
    """Planned runs that are not included, each with the reason."""
    n_planned: int
    """Number of planned runs; 0 for runs outside the plans."""
    commits: Mapping[str, int]
    """Number of included runs by commit."""


@dataclass(frozen=True)
class StudyFindings(StudyRuns):
    """All findings of one plan."""

    findings: tuple[Finding, ...]
    samples: str = ""
    """Sentence about the samples from which R² of H is computed; empty if it is computed from whole snapshots."""


def compute_findings(db: Database, rows: Sequence[RunRow]) -> list[StudyFindings]:
    """Compute the findings of all plans to which these runs belong; see `read_studies`."""
    return [measure_study(db, study) for study in read_studies(db, rows)]


def read_studies(db: Database, rows: Sequence[RunRow]) -> list[StudyRuns]:
    """Group runs by plan and select the runs that are included in the findings.

    A run belongs to the plan that names its sweep. Runs outside the plans are measured by the claims of the first study
    and labeled as exploratory.
    """
    sweeps = {sweep.id: sweep for sweep in list_sweeps(db, limit=10_000)}
    plan_of = {sweep.id: plan for sweep in sweeps.values() for plan in PLANS if sweep.name in plan.sweeps}
    studies = []
    for plan in (*PLANS, UNPLANNED):
        plan_rows = [row for row in rows if plan_of.get(row.sweep_id or "", UNPLANNED) is plan]
        if plan_rows:
            sweep_ids = [sweep_id for sweep_id, sweep_plan in plan_of.items() if sweep_plan is plan]
            planned = [name for sweep_id in sweep_ids for name in _list_planned_names(sweeps[sweep_id].plan)]
            studies.append(_read_study(db, plan, plan_rows, planned))
    return studies


def measure_study(db: Database, study: StudyRuns) -> StudyFindings:
    """Compute the findings of one plan."""
    plan, comparison = study.plan, study.comparison
    measures = [measure for claim in plan.claims for measure in claim.measures]
    numbers = measure_runs(db, study.rows, comparison.seeds, measures)
    scales = _make_scales(comparison.seeds)
    commits = {row.id: _get_commit(row) for row in study.rows}
    findings: list[Finding] = []
    for claim in plan.claims:
        for first, second in (*claim.pairs, *claim.other_pairs):
            for measure in claim.measures:
                by_task = [
                    finding
                    for task in comparison.tasks
                    if (
                        finding := _make_finding(
                            claim, task, (first, second), measure, numbers[measure.key], comparison, scales, commits
                        )
                    )
                ]
                findings += by_task
                has_intervals = all(np.isfinite(finding.difference.low) for finding in by_task)
                if measure.is_pooled and len(by_task) > 1 and has_intervals:
                    findings.append(_pool(by_task))
    has_r2 = any(finding.measure in _EMBEDDING_MEASURES for finding in findings)
    samples = describe_samples(db, study) if has_r2 else ""
    return StudyFindings(**vars(study), findings=tuple(_adjust(findings)), samples=samples)


def read_win_rates(db: Database, study: StudyRuns) -> list[Comparison]:
    """Read the win rates of a study by task: robust on skirmish, greedy on other environments.

    The runs are those of the findings; for a task without finished runs, they are the unfinished ones. The task with
    the most runs is the first.
    """
    included = {seed.id for seed in study.comparison.seeds}
    finished_tasks = set(study.comparison.tasks)
    comparisons = []
    for is_skirmish, quantity in ((True, ROBUST), (False, replace(WIN_RATE, title="greedy win rate"))):
        seeds = read_seeds(db, [row for row in study.rows if (row.env == "skirmish") == is_skirmish], quantity)
        selected = [
            seed for seed in seeds if seed.id in included or (seed.task not in finished_tasks and len(seed.curve.steps))
        ]
        for task in dict.fromkeys(seed.task for seed in selected):
            comparisons.append(join_seeds([seed for seed in selected if seed.task == task], quantity))
    return sorted(comparisons, key=lambda comparison: (-len(comparison.seeds), comparison.tasks))


def measure_runs(
    db: Database, rows: Sequence[RunRow], seeds: Sequence[SeedRun], measures: Collection[Measure] = MEASURES
) -> dict[str, Numbers]:
    """Compute the measures of runs, by key of the measure and run id; runs without a number are missing.

    Args:
        db: An open database.
        rows: The runs.
        seeds: The included runs with their greedy win rates.
        measures: The needed measures. R² of H takes most of the time and is computed only if it is needed; all other
            measures are always computed.
    """
    included = {seed.id for seed in seeds}
    rows = [row for row in rows if row.id in included]
    on_skirmish = [row for row in rows if row.env == "skirmish"]
    rated = [seed for seed in seeds if seed.settings.get("env.name") != "skirmish"]
    rated += [seed for seed in read_seeds(db, on_skirmish, ROBUST) if len(seed.curve.steps)]
    falls = {seed.id: count for seed in rated if (count := count_falls(seed.curve)) is not None}
    q_errors = {
        seed.id: seed.curve.values[2 * seed.curve.steps > seed.target_steps]
        for seed in read_seeds(db, rows, find_quantity("eval/overestimation"))
    }
    ids = [row.id for row in rows]
    numbers: dict[str, Numbers] = {
        MU_W.key: {seed.id: float(compute_mu_w(seed.curve)[-1]) for seed in rated},
        FINAL.key: {seed.id: compute_final_rate(seed, LAST_TENTH) for seed in rated},
        MU_W_GREEDY.key: {seed.id: float(compute_mu_w(seed.curve)[-1]) for seed in seeds},
        FINAL_GREEDY.key: {seed.id: compute_final_rate(seed, LAST_TENTH) for seed in seeds},
        FALLS.key: {run_id: float(count.falls) for run_id, count in falls.items()},
        Q_ERROR.key: _select_finite({run_id: np.abs(error).mean() for run_id, error in q_errors.items() if len(error)}),
        OVERESTIMATION.key: _select_finite({run_id: error.mean() for run_id, error in q_errors.items() if len(error)}),
        REMOVED.key: compute_removed_after_first_win(db, ids),
        REMOVED_WHOLE.key: {row.id: row.gate_removed for row in rows if row.gate_removed is not None},
    }
    for frame, ratio, rise in (
        (compute_gate_by_run_part(db, ids, PARTS), DELTA_RATIO_WHOLE, BETA_RISE_WHOLE),
        (compute_gate_by_run_part(db, ids, PARTS, from_first_win=True), DELTA_RATIO, BETA_RISE),
    ):
        delta_ends = _read_pairs(frame, "delta_mem", "part", (0, PARTS - 1))
        beta_ends = _read_pairs(frame, "beta", "part", (0, PARTS - 1))
        numbers[ratio.key] = {
            run_id: float(np.log(last / first))
            for run_id, (first, last) in delta_ends.items()
            if first > 0 and last > 0
        }
        numbers[rise.key] = _select_finite({run_id: last - first for run_id, (first, last) in beta_ends.items()})
    steps = count_closed_by_outcome(db, ids)
    closed = _read_pairs(steps.assign(fraction=steps["closed"] / steps["steps"]), "fraction", "won", (False, True))
    numbers[CLOSED_MORE.key] = _select_finite({run_id: not_won - won for run_id, (not_won, won) in closed.items()})
    if set(_EMBEDDING_MEASURES) & set(measures):
        numbers |= _measure_embeddings(db, rows)
    return numbers


def compute_return_r2(db: Database, row: RunRow) -> Numbers:
    """Compute the R² of H at a run's last snapshot by embedder: `OWN` and the stored newly fitted ones."""
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return {}
    snapshot = get_snapshot(db, int(snapshots.iloc[-1]))
    space: Literal["raw", "normalized"] = (
        "raw" if row.config.get("memory", {}).get("delta_space") == "raw" else "normalized"
    )
    r2 = {OWN: collapse.compute_return_r2(snapshot, delta_space=space)}
    for kind in EMBEDDERS[1:]:
        if fitted := find_embedding(db, snapshot.id, kind, seed=0):
            r2[kind] = collapse.compute_return_r2(snapshot, delta_space=space, embedding=fitted.coordinates)
    return r2


def describe_samples(db: Database, study: StudyRuns) -> str:
    """Write of which part of the memories R² of H is computed; empty if all last snapshots are whole."""
    included = {seed.id for seed in study.comparison.seeds}
    snapshots = [list_snapshots(db, run_id).tail(1) for run_id in sorted(included)]
    last = pd.concat(snapshots) if snapshots else pd.DataFrame({"size": [], "memory_size": []})
    samples = last[last["size"] < last["memory_size"]]
    if samples.empty:
        return ""
    nodes, memories = (
        f"{values.min():,} to {values.max():,}" if len(values) > 1 else f"{values.min():,}"
        for values in (samples["size"], samples["memory_size"])
    )
    return f"R² of H is computed from samples of {nodes} of {memories} nodes ({format_run_count(len(samples))})."


def _read_study(db: Database, plan: StudyPlan, rows: Sequence[RunRow], planned: Sequence[str]) -> StudyRuns:
    """Select the runs of one plan; `planned` are the names of its planned runs."""
    comparison = select_common_budget(join_seeds(read_seeds(db, rows), final=True))
    ids = {seed.id for seed in comparison.seeds}
    included = [row for row in rows if row.id in ids]
    names = {row.name for row in included}
    by_name = {row.name: row for row in rows}
    missing = []
    for name in planned:
        if name not in names:
            row = by_name.get(name)
            state = "not in this database"
            if row is not None:
                state = f"{row.live_status} at {row.env_steps:,} of {row.target_steps:,}"
            missing.append(f"{name}: {state}")
    commits = Counter(_get_commit(row) for row in included)
    return StudyRuns(plan, tuple(rows), comparison, tuple(missing), len(planned), commits)


def _list_planned_names(plan: Mapping[str, Any]) -> list[str]:
    """List the names of the runs of a stored sweep."""
    return [str(run["name"]) for run in plan.get("runs", ())]


def _get_commit(row: RunRow) -> str:
    return str(row.versions.get("commit") or NO_COMMIT)


def _make_scales(seeds: Sequence[SeedRun]) -> dict[tuple[str, str], BinomialScale]:
    """Make the binomial scales of the win rates, by task and key of the measure."""
    scales: dict[tuple[str, str], BinomialScale] = {}
    for task in {seed.task for seed in seeds}:
        task_seeds = [seed for seed in seeds if seed.task == task]
        shortest = np.float64(min(seed.curve.steps[-1] for seed in task_seeds))
        scales[task, FINAL.key] = scales[task, FINAL_GREEDY.key] = make_final_scale(task_seeds, LAST_TENTH)
        scales[task, MU_W.key] = scales[task, MU_W_GREEDY.key] = make_mu_w_scale(task_seeds, shortest)
    return scales


def _make_finding(
    claim: Claim,
    task: str,
    pair: tuple[StudyVariant, StudyVariant | None],
    measure: Measure,
    numbers: Numbers,
    comparison: Comparison,
    scales: Mapping[tuple[str, str], BinomialScale],
    commits: Mapping[str, str],
) -> Finding | None:
    """Compare two variants, or one variant with 0, on one task; None if a variant has no run with this measure."""
    first, second = pair
    seeds = [seed for group in comparison.groups if group.variant.task == task for seed in group.seeds]
    runs_by_arm = [
        [seed for seed in seeds if arm.matches(seed) and seed.id in numbers] for arm in pair if arm is not None
    ]
    if not all(runs_by_arm):
        return None
    values = [{get_seed(run): numbers[run.id] for run in runs} for runs in runs_by_arm]
    improvement = np.nan
    if second:
        x, y = (claim.sign * np.array(list(by_seed.values())) for by_seed in values)
        improvement = probability_of_improvement([x], [y]).value
    return Finding(
        claim,
        task,
        first.name,
        second.name if second else "",
        measure,
        compare_seeds(*values, scale=scales.get((task, measure.key))),
        improvement,
        commits=tuple(dict.fromkeys(commits[run.id] for runs in runs_by_arm for run in runs)),
        decides=pair in claim.pairs,
    )


def _pool(findings: Sequence[Finding]) -> Finding:
    """Average the findings of several tasks."""
    first = findings[0]
    return replace(
        first,
        task=ALL_TASKS,
        difference=pool_differences(
            [finding.difference for finding in findings], BinomialScale() if first.measure.is_rate else None
        ),
        improvement=float(np.mean([finding.improvement for finding in findings])),
        commits=tuple(dict.fromkeys(commit for finding in findings for commit in finding.commits)),
    )


def _adjust(findings: Sequence[Finding]) -> list[Finding]:
    """Adjust the p values of the primary measures; each task is one family of tests."""
    primary = [i for i, finding in enumerate(findings) if finding.is_primary]
    p_values = adjust_p_values([findings[i].difference.p for i in primary], [findings[i].task for i in primary])
    adjusted = dict(zip(primary, p_values, strict=True))
    return [replace(finding, adjusted_p=adjusted.get(i, np.nan)) for i, finding in enumerate(findings)]


def _measure_embeddings(db: Database, rows: Sequence[RunRow]) -> dict[str, Numbers]:
    """Compute the R² of H with the run's embedder, and its differences between newly fitted embedders."""
    r2 = {row.id: compute_return_r2(db, row) for row in rows}
    run_embedder, tcse, dcae, random = (
        {run_id: values[kind] for run_id, values in r2.items() if kind in values} for kind in EMBEDDERS
    )
    return {
        R2_OF_H.key: _select_finite(run_embedder),
        R2_OVER_DCAE.key: _select_finite({run: tcse[run] - dcae[run] for run in tcse.keys() & dcae.keys()}),
        R2_OVER_RANDOM.key: _select_finite({run: tcse[run] - random[run] for run in tcse.keys() & random.keys()}),
    }


def _read_pairs(frame: pd.DataFrame, column: str, key: str, keys: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Return the values of a column at two keys, by run id; runs without one of them are left out."""
    by_run: dict[str, dict[int, float]] = {}
    for run_id, row_key, value in zip(frame["run_id"], frame[key], frame[column], strict=True):
        by_run.setdefault(str(run_id), {})[int(row_key)] = float(value)
    first, second = keys
    return {
        run_id: (values[first], values[second])
        for run_id, values in by_run.items()
        if first in values and second in values
    }


def _select_finite(numbers: Numbers) -> dict[str, float]:
    return {run_id: float(number) for run_id, number in numbers.items() if np.isfinite(number)}
