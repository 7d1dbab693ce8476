"""The table `findings`: every claim of the first study's plan, with its numbers and what they can tell."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.analysis.findings import FEWEST_SEEDS, Finding, find_all, judge
from app.analysis.tables import MISSING, Cell, Number, describe_table
from app.figures.figure import Options, TableKind
from storage.engine import Database
from storage.runs.rows import RunRow

_COLUMNS = ("claim", "task", "compared", "measure", "n", "difference", "P(improvement)", "on this map", "verdict")
_INTERVAL = "95 % t interval over seeds (Welch)"


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
    frame = pd.DataFrame(rows, columns=pd.Index(_COLUMNS), dtype="object")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
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
    return Cell(f"{value:+.3g} [{low:+.3g}–{high:+.3g}]", Number(value, low, high, n, statistic, _INTERVAL))


def _findings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    found, comparison = find_all(db, rows)
    return tabulate_findings(found, [str(each) for each in comparison.left_out])


_NEEDS = "finished runs of two algorithms or ablations that a claim compares, on one map"
TABLES = (TableKind("findings", _findings, needs=_NEEDS),)
