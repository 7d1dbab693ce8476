"""The findings of a study as tables: its claims, one row of numbers per run, and the settings that differ."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.analysis.findings import NO_COMMIT, Finding, StudyFindings, find_all, measure_runs
from app.analysis.series import seed_number
from app.analysis.settings import is_harmless
from app.analysis.study_plans import MEASURES
from app.analysis.tables import MISSING, Cell, Number, describe_table
from app.analysis.variants import list_differences
from app.figures.figure import Options, TableKind
from app.figures.named.comparisons import EXPLANATION, count_seeds, quote_difference, show_p
from storage.engine import Database
from storage.runs.rows import RunRow

_FINDING_COLUMNS = (
    *("study", "claim", "task", "compared", "measure", "n", "estimate", "p", "p (Holm)", "p (randomization)"),
    *("detectable", "P(improvement)", "verdict"),
)


def tabulate_findings(studies: Sequence[StudyFindings]) -> pd.DataFrame:
    """Lay out one row for each claim, task and measure; the primary measure of a claim has the verdict."""
    rows = [_finding_row(study, finding) for study in studies for finding in study.findings]
    measures = {finding.measure.title: finding.measure.meaning for study in studies for finding in study.findings}
    caption = " ".join(
        [
            f"{EXPLANATION} p (Holm) is adjusted over the claims of a plan on the same task, primary measures only. "
            "detectable: smallest difference that a test at p < .05 detects with a power of 80 %.",
            *(f"{title}: {meaning}." for title, meaning in measures.items()),
            *(describe_study(study) for study in studies),
        ]
    )
    left_out = [str(each) for study in studies for each in study.comparison.left_out]
    left_out += [f"planned, without result: {each}" for study in studies for each in study.missing]
    frame = pd.DataFrame(rows, columns=pd.Index(_FINDING_COLUMNS), dtype="object")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(_FINDING_COLUMNS)}
    return describe_table(frame, caption=caption, left_out=left_out, cells=cells)


def describe_study(study: StudyFindings) -> str:
    """Write which runs a study has, and the commits that trained them."""
    n = len(study.comparison.seeds)
    runs = f"{n} of {study.n_planned} planned runs" if study.n_planned else f"{n} runs"
    commits = ", ".join(
        f"{commit if commit == NO_COMMIT else commit[:10]} ({count} runs)" for commit, count in study.commits.items()
    )
    differ = sorted({f"claim {each.claim.number} on {each.task}" for each in study.findings if len(each.commits) > 1})
    warning = f" WARNING: runs of different commits are compared in {'; '.join(differ)}." if differ else ""
    return f"{study.plan.title}: {runs}; commits: {commits or 'none'}.{warning}"


def _finding_row(study: StudyFindings, finding: Finding) -> list[str]:
    """Write one row of the table of findings, as `_FINDING_COLUMNS` names it."""
    difference, verdict = finding.difference, finding.verdict
    kind = "difference of the means" if finding.second else "mean"
    return [
        study.plan.title,
        f"{finding.claim.number}. {finding.claim.text}",
        finding.task,
        f"{finding.first} − {finding.second}" if finding.second else finding.first,
        finding.measure.title,
        count_seeds(difference),
        quote_difference(difference, f"{finding.measure.title}, {kind} over seeds"),
        show_p(difference.p),
        show_p(finding.adjusted_p),
        show_p(difference.randomization_p),
        MISSING if np.isnan(difference.detectable) else f"{difference.detectable:.2g}",
        MISSING if np.isnan(finding.improvement) else f"{finding.improvement:.2f}",
        (verdict or MISSING) + (" (different commits)" if verdict and len(finding.commits) > 1 else ""),
    ]


def tabulate_measures(db: Database, rows: Sequence[RunRow]) -> pd.DataFrame:
    """Lay out the numbers behind the findings: one row for each run, one column for each measure."""
    lines = []
    for study in find_all(db, rows):
        numbers = measure_runs(db, rows, study.comparison.seeds)
        for group in study.comparison.groups:
            for seed in group.seeds:
                named = [study.plan.title, group.variant.task, group.variant.name, seed_number(seed), seed.id]
                lines.append(
                    [*named, *(_quote_number(numbers[each.key].get(seed.id), each.title) for each in MEASURES)]
                )
    columns = ["study", "task", "variant", "seed", "run", *(measure.title for measure in MEASURES)]
    frame = pd.DataFrame(lines, columns=pd.Index(columns), dtype="object")
    caption = " ".join(f"{measure.title}: {measure.meaning}." for measure in MEASURES)
    return describe_table(frame, caption=caption, cells={name: list(frame[name]) for name in columns[5:]})


def _quote_number(value: float | None, title: str) -> Cell | str:
    return MISSING if value is None else Cell(f"{value:.4g}", Number(value, n=1, statistic=title))


def tabulate_settings(db: Database, rows: Sequence[RunRow]) -> pd.DataFrame:
    """Lay out the settings that differ between the variants of each study, task by task."""
    parts = []
    for study in find_all(db, rows):
        for task in study.comparison.tasks:
            variants = [group.variant for group in study.comparison.groups if group.variant.task == task]
            configs = {row.id: row.config for row in rows}
            frame = list_differences(configs, variants)
            frame = frame[[key not in ("seed", "algo") and not is_harmless(key) for key in frame["setting"]]]
            frame.columns = ["setting", *(variant.name for variant in variants)]
            parts.append(frame.assign(study=study.plan.title, task=task))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"study": [], "task": [], "setting": []})
    names = [name for name in whole.columns if name not in ("study", "task", "setting")]
    frame = pd.DataFrame(whole, columns=pd.Index(["study", "task", "setting", *names]), dtype="object").fillna(MISSING)
    return describe_table(frame, caption="Settings that differ between the variants of a task, except algo and seed.")


def _findings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_findings(find_all(db, rows))


def _measures(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_measures(db, rows)


def _settings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    return tabulate_settings(db, rows)


_CLAIMED = "finished runs of two algorithms or ablations that a claim compares, on one map"
TABLES = (
    TableKind("findings", _findings, needs=_CLAIMED),
    TableKind("study-measures", _measures, needs="finished runs"),
    TableKind("study-settings", _settings, needs="finished runs of two variants on one map"),
)
