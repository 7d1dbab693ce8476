"""What a study shows: the claims of its plan, measured on each task and pooled over tasks.

A number per run and measure, then `app.analysis.significance.compare_seeds` for each comparison of the plan
(`app.analysis.study_plans`). The tables are made by `app.figures.named.findings`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pandas as pd

from app.analysis import collapse
from app.analysis.comparable import keep_usual_length
from app.analysis.finals import LAST_TENTH, count_falls, final_rate, rate_of_final, rate_of_mu_w
from app.analysis.quantities import ROBUST, WIN_RATE, find_quantity
from app.analysis.series import Comparison, Seed, join_seeds, read_seeds, seed_number
from app.analysis.significance import (
    Difference,
    Verdict,
    adjust_p,
    compare_seeds,
    decide,
    pool_differences,
    probability_of_improvement,
)
from app.analysis.statistics import Rate, mu_w
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
    Arm,
    Claim,
    Measure,
    StudyPlan,
)
from storage.engine import Database
from storage.queries.gate import closed_by_outcome, gate_parts, removed_after_first_win
from storage.queries.memory import find_embedding, get_snapshot, list_snapshots
from storage.runs.rows import RunRow
from storage.runs.sweeps import list_sweeps

Numbers = Mapping[str, float]
"""A measure's number of each run that has one, by run id."""

OWN: Final = "own"
EMBEDDERS: Final = (OWN, "tcse", "dcae", "random")
PARTS: Final = 10
_OF_EMBEDDINGS: Final = (R2_OF_H, R2_OVER_DCAE, R2_OVER_RANDOM)
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
    difference: Difference
    improvement: float = np.nan
    """Share of pairs of runs in which the first variant is the better one; NaN without a second variant."""
    adjusted_p: float = np.nan
    """p value of the t test, adjusted by Holm over the plan's claims on this task; primary measures only."""
    commits: tuple[str, ...] = ()
    """Commits of the runs behind it."""
    decides: bool = True
    """Whether the claim is about these variants; others are reported without a verdict."""

    @property
    def is_primary(self) -> bool:
        """Whether the claim depends on it."""
        return self.decides and self.measure is self.claim.measures[0]

    @property
    def verdict(self) -> Verdict | None:
        """What the seeds show about the claim; None for a measure that does not decide it."""
        if not self.is_primary:
            return None
        return decide(self.difference, self.adjusted_p, sign=self.claim.sign, is_rate=self.measure.is_rate)


@dataclass(frozen=True)
class StudyRuns:
    """The runs of one plan."""

    plan: StudyPlan
    rows: tuple[RunRow, ...]
    comparison: Comparison
    """The runs that are in the findings, with their greedy win rates."""
    missing: tuple[str, ...]
    """Planned runs that are not in the findings, each with the reason."""
    n_planned: int
    """Number of planned runs; 0 for runs outside the plans."""
    commits: Mapping[str, int]
    """Number of runs in the findings by commit."""


@dataclass(frozen=True)
class StudyFindings(StudyRuns):
    """All findings of one plan."""

    findings: tuple[Finding, ...]


def find_all(db: Database, rows: Sequence[RunRow]) -> list[StudyFindings]:
    """Measure every claim of every plan that some of these runs belong to; see `read_studies`."""
    return [measure_study(db, study) for study in read_studies(db, rows)]


def read_studies(db: Database, rows: Sequence[RunRow]) -> list[StudyRuns]:
    """Group runs by their plan and decide which of them are in its findings.

    A run belongs to the plan that its sweep is part of. Runs outside the plans are measured by the claims of the first
    study and labelled as exploratory.
    """
    sweeps = {sweep.id: sweep for sweep in list_sweeps(db, limit=10_000)}
    plan_of = {sweep.id: plan for sweep in sweeps.values() for plan in PLANS if sweep.name in plan.sweeps}
    studies = []
    for plan in (*PLANS, UNPLANNED):
        here = [row for row in rows if plan_of.get(row.sweep_id or "", UNPLANNED) is plan]
        if here:
            planned = [run for key, each in plan_of.items() if each is plan for run in _planned_runs(sweeps[key].plan)]
            studies.append(_read_study(db, plan, here, planned))
    return studies


def _read_study(
    db: Database, plan: StudyPlan, rows: Sequence[RunRow], planned: Sequence[Mapping[str, object]]
) -> StudyRuns:
    comparison = keep_usual_length(join_seeds(read_seeds(db, rows), final=True))
    counted = {seed.id for seed in comparison.seeds}
    names = {row.name for row in rows if row.id in counted}
    by_name = {row.name: row for row in rows}
    missing = tuple(
        f"{name}: {_describe_state(by_name.get(name))}"
        for run in planned
        if (name := str(run.get("name"))) not in names
    )
    commits = Counter(_commit_of(row) for row in rows if row.id in counted)
    return StudyRuns(plan, tuple(rows), comparison, missing, len(planned), commits)


def _commit_of(row: RunRow) -> str:
    return str(row.versions.get("commit") or NO_COMMIT)


def measure_study(db: Database, study: StudyRuns) -> StudyFindings:
    """Measure the claims of one plan on its runs. Only the measures of these claims are computed."""
    plan, comparison = study.plan, study.comparison
    measures = [measure for claim in plan.claims for measure in claim.measures]
    numbers = measure_runs(db, study.rows, comparison.seeds, measures)
    rates = _rates(comparison.seeds)
    commits = {row.id: _commit_of(row) for row in study.rows}
    findings: list[Finding] = []
    for claim in plan.claims:
        for first, second in (*claim.pairs, *claim.others):
            for measure in claim.measures:
                by_task = [
                    found
                    for task in comparison.tasks
                    if (found := _find(claim, task, (first, second), measure, numbers, comparison, rates, commits))
                ]
                findings += by_task
                if measure.is_pooled and len(by_task) > 1 and all(np.isfinite(each.difference.low) for each in by_task):
                    findings.append(_pool(by_task))
    return StudyFindings(**vars(study), findings=tuple(_adjust(findings)))


def read_win_rates(db: Database, study: StudyRuns) -> list[Comparison]:
    """Read the win rates of a study by task: robust on skirmish, greedy elsewhere.

    The runs are those of the findings. Where no run of a task has finished, they are the unfinished ones. The task with
    the most runs comes first.
    """
    counted = {seed.id for seed in study.comparison.seeds}
    finished_tasks = set(study.comparison.tasks)
    comparisons = []
    for is_skirmish, quantity in ((True, ROBUST), (False, replace(WIN_RATE, title="greedy win rate"))):
        seeds = read_seeds(db, [row for row in study.rows if (row.env == "skirmish") == is_skirmish], quantity)
        selected = [
            seed for seed in seeds if seed.id in counted or (seed.task not in finished_tasks and len(seed.curve.steps))
        ]
        for task in dict.fromkeys(seed.task for seed in selected):
            comparisons.append(join_seeds([seed for seed in selected if seed.task == task], quantity))
    return sorted(comparisons, key=lambda each: (-len(each.seeds), each.tasks))


def _planned_runs(plan: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Read the runs of a stored sweep; a database of another origin may contain anything."""
    runs = plan.get("runs")
    return [run for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []


def _describe_state(row: RunRow | None) -> str:
    return "not in this database" if row is None else f"{row.live_status} at {row.env_steps:,} of {row.target_steps:,}"


def _adjust(findings: Sequence[Finding]) -> list[Finding]:
    """Adjust the p values of the primary measures, a family for each task."""
    primary = [place for place, finding in enumerate(findings) if finding.is_primary]
    p_values = adjust_p(
        [findings[place].difference.p for place in primary], [findings[place].task for place in primary]
    )
    adjusted = dict(zip(primary, p_values, strict=True))
    return [replace(each, adjusted_p=adjusted.get(place, np.nan)) for place, each in enumerate(findings)]


def _find(
    claim: Claim,
    task: str,
    pair: tuple[Arm, Arm | None],
    measure: Measure,
    numbers: Mapping[str, Numbers],
    comparison: Comparison,
    rates: Mapping[tuple[str, str], Rate],
    commits: Mapping[str, str],
) -> Finding | None:
    first, second = pair
    seeds = [seed for group in comparison.groups if group.variant.task == task for seed in group.seeds]
    sides = [
        {seed.id: seed for seed in seeds if arm.matches(seed) and seed.id in numbers[measure.key]}
        for arm in pair
        if arm is not None
    ]
    if not all(sides):
        return None
    values = [{seed_number(seed): numbers[measure.key][run_id] for run_id, seed in side.items()} for side in sides]
    difference = compare_seeds(*values, rate=rates.get((task, measure.key)))
    improvement = np.nan
    if second:
        x, y = (claim.sign * np.array(list(side.values())) for side in values)
        improvement = probability_of_improvement([x], [y]).value
    used = tuple(dict.fromkeys(commits[run_id] for side in sides for run_id in side))
    return Finding(
        claim,
        task,
        first.name,
        second.name if second else "",
        measure,
        difference,
        improvement,
        commits=used,
        decides=pair in claim.pairs,
    )


def _pool(findings: Sequence[Finding]) -> Finding:
    first = findings[0]
    rate = Rate() if first.measure.is_rate else None
    return replace(
        first,
        task=ALL_TASKS,
        difference=pool_differences([each.difference for each in findings], rate),
        improvement=float(np.mean([each.improvement for each in findings])),
        commits=tuple(dict.fromkeys(commit for each in findings for commit in each.commits)),
    )


def _rates(seeds: Sequence[Seed]) -> dict[tuple[str, str], Rate]:
    """Find of how many episodes the win rates of each task are shares, by task and measure."""
    rates: dict[tuple[str, str], Rate] = {}
    for task in {seed.task for seed in seeds}:
        here = [seed for seed in seeds if seed.task == task]
        shortest = np.float64(min(seed.curve.steps[-1] for seed in here))
        rates[task, FINAL.key] = rates[task, FINAL_GREEDY.key] = rate_of_final(here, LAST_TENTH)
        rates[task, MU_W.key] = rates[task, MU_W_GREEDY.key] = rate_of_mu_w(here, shortest)
    return rates


def measure_runs(
    db: Database, rows: Sequence[RunRow], seeds: Sequence[Seed], measures: Collection[Measure] = MEASURES
) -> dict[str, Numbers]:
    """Compute the measures of each run that has them, by measure and run id.

    Args:
        db: An open database.
        rows: The runs.
        seeds: The runs that count, with their greedy win rates.
        measures: Which of them are needed. R² of H takes most of the time; without it nothing else is left out.
    """
    counted = {seed.id for seed in seeds}
    rows = [row for row in rows if row.id in counted]
    on_skirmish = [row for row in rows if row.env == "skirmish"]
    rated = [seed for seed in seeds if seed.settings.get("env.name") != "skirmish"]
    rated += [seed for seed in read_seeds(db, on_skirmish, ROBUST) if len(seed.curve.steps)]
    falls = {seed.id: count for seed in rated if (count := count_falls(seed.curve)) is not None}
    gaps = {seed.id: _second_half(seed) for seed in read_seeds(db, rows, find_quantity("eval/overestimation"))}
    ids = [row.id for row in rows]
    numbers: dict[str, Numbers] = {
        MU_W.key: {seed.id: float(mu_w(seed.curve)[-1]) for seed in rated},
        FINAL.key: {seed.id: final_rate(seed, LAST_TENTH) for seed in rated},
        MU_W_GREEDY.key: {seed.id: float(mu_w(seed.curve)[-1]) for seed in seeds},
        FINAL_GREEDY.key: {seed.id: final_rate(seed, LAST_TENTH) for seed in seeds},
        FALLS.key: {run_id: float(count.falls) for run_id, count in falls.items()},
        Q_ERROR.key: _finite({run_id: np.abs(gap).mean() for run_id, gap in gaps.items() if len(gap)}),
        OVERESTIMATION.key: _finite({run_id: gap.mean() for run_id, gap in gaps.items() if len(gap)}),
        REMOVED.key: removed_after_first_win(db, ids),
        REMOVED_WHOLE.key: {row.id: row.gate_removed for row in rows if row.gate_removed is not None},
    }
    whole, won = gate_parts(db, ids, PARTS), gate_parts(db, ids, PARTS, from_first_win=True)
    return (
        numbers
        | _gate_numbers(whole, DELTA_RATIO_WHOLE, BETA_RISE_WHOLE)
        | _gate_numbers(won, DELTA_RATIO, BETA_RISE)
        | _closed_numbers(closed_by_outcome(db, ids))
        | (_embedding_numbers(db, rows) if set(_OF_EMBEDDINGS) & set(measures) else {})
    )


def _second_half(seed: Seed) -> np.ndarray:
    return seed.curve.values[2 * seed.curve.steps > seed.target_steps]


def _gate_numbers(frame: pd.DataFrame, ratio: Measure, rise: Measure) -> dict[str, Numbers]:
    delta, beta = (_by_run(frame, "part", name) for name in ("delta_mem", "beta"))
    ends = 0, PARTS - 1
    return {
        ratio.key: _finite({key: np.log(part[ends[1]] / part[ends[0]]) for key, part in _with(delta, *ends)}),
        rise.key: _finite({key: part[ends[1]] - part[ends[0]] for key, part in _with(beta, *ends)}),
    }


def _closed_numbers(frame: pd.DataFrame) -> dict[str, Numbers]:
    shares = _by_run(frame.assign(share=frame["closed"] / frame["steps"]), "won", "share")
    return {CLOSED_MORE.key: _finite({key: share[False] - share[True] for key, share in _with(shares, False, True)})}


def _embedding_numbers(db: Database, rows: Sequence[RunRow]) -> dict[str, Numbers]:
    """R² of H by a run's own embedder, and by those that were fitted anew to the same nodes where there are any."""
    r2 = {row.id: predict_returns(db, row) for row in rows}
    own, tcse, dcae, random = ({run: each[kind] for run, each in r2.items() if kind in each} for kind in EMBEDDERS)
    return {
        R2_OF_H.key: _finite(own),
        R2_OVER_DCAE.key: _finite({run: tcse[run] - dcae[run] for run in tcse.keys() & dcae.keys()}),
        R2_OVER_RANDOM.key: _finite({run: tcse[run] - random[run] for run in tcse.keys() & random.keys()}),
    }


def predict_returns(db: Database, row: RunRow) -> Numbers:
    """R² of H at a run's last snapshot by embedder: `OWN`, and the types that were fitted anew and are stored."""
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return {}
    snapshot = get_snapshot(db, int(snapshots.iloc[-1]))
    fitted = {kind: find_embedding(db, snapshot.id, kind, seed=0) for kind in EMBEDDERS[1:]}
    memory = row.config["memory"]
    space: Literal["raw", "normalized"] = "raw" if memory.get("delta_space") == "raw" else "normalized"
    return {
        kind: collapse.predict_returns(snapshot, delta_space=space, embedding=found and found.coordinates)
        for kind, found in {OWN: None, **fitted}.items()
        if kind == OWN or found
    }


def _by_run(frame: pd.DataFrame, key: str, value: str) -> dict[str, dict[int, float]]:
    """A column by run and by another column."""
    found: dict[str, dict[int, float]] = {}
    for run_id, place, number in zip(frame["run_id"], frame[key], frame[value], strict=True):
        found.setdefault(str(run_id), {})[int(place)] = float(number)
    return found


def _with(found: Mapping[str, dict[int, float]], *keys: int) -> list[tuple[str, dict[int, float]]]:
    return [(run_id, here) for run_id, here in found.items() if all(key in here for key in keys)]


def _finite(numbers: Numbers) -> Numbers:
    return {run_id: float(number) for run_id, number in numbers.items() if np.isfinite(number)}
