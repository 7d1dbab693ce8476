"""The study of the gate's readings as a table: what each did to the incentive, and to what was learned."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from app.analysis.finals import FINAL_NAMES, FinalRule, caption_final, final_rates, name_final
from app.analysis.intervals import CLAIMS, Rate
from app.analysis.quantities import find_quantity
from app.analysis.rates import rate_of, rate_of_final
from app.analysis.series import Group, read_comparison, read_seeds
from app.analysis.statistics import Reading, Values, finite
from app.analysis.tables import MISSING, describe_table
from app.analysis.win_rates import find_best, quote
from app.figures.figure import AT_THE_END, Options, TableKind
from storage.engine import Database
from storage.queries.gate_state import GateState, gate_states
from storage.runs.rows import RunRow

INTERVAL = Reading("mean", "ci")
_OVERESTIMATION = find_quantity("eval/overestimation")
_MU_W, _REMOVED, _CLOSED, _MERGED, _GAP = (
    "μ̄_w", "incentive removed [%]", "β < 0.5 [%]", "states merged [%]", "overestimation [return]",
)  # fmt: skip


def _readings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """One row for each variant of an algorithm with a memory: outcome, what the gate removed, how far Q is off."""
    reading = options.reading or INTERVAL
    rows = [row for row in rows if row.algo.startswith(("emtc-", "emu-"))]
    comparison = read_comparison(db, rows, include_unfinished=options.include_unfinished)
    gates = gate_states(db, [row.id for row in rows])
    gaps = {seed.id: _mean(seed.curve.values) for seed in read_seeds(db, rows, _OVERESTIMATION)}
    table = [_row(group, gates, gaps, reading, options.final_rule) for group in comparison.groups]
    at_end = _column(options.final_rule)
    columns = ["task", "variant", "n", at_end, _MU_W, _REMOVED, _CLOSED, _MERGED, _GAP]
    best = [
        (places[at], column)
        for task in comparison.tasks
        for places in [[i for i, row in enumerate(table) if row["task"] == task]]
        for column in (at_end, _MU_W)
        for at in find_best([None if table[i][column] == MISSING else str(table[i][column]) for i in places])
    ]
    said = (
        f"Readings of the gate, {reading.say(share=True)}; n is the number of seeds. μ̄_w: over the whole training; "
        "removed: Σ|(1-β) r_p| over Σ|r_p|, β and merges: means over a run's reports; overestimation: greedy "
        "Q_tot(s_0) minus the return then obtained, mean over a run's evaluations. — where there is no gate."
    )
    if reading.band == "ci":
        said += f" Overestimation is no share; its band is a {CLAIMS[reading.center, False]}."
    caption, about = caption_final(comparison.seeds, options.final_rule, said, unit="%")
    left_out = [str(each) for each in comparison.left_out]
    cells = {name: [row[name] for row in table] for name in columns}
    frame = pd.DataFrame(table, columns=pd.Index(columns), dtype="object")
    return describe_table(frame, caption=caption, best=best, left_out=left_out, about=about, cells=cells)


def _column(final: FinalRule) -> str:
    return f"{FINAL_NAMES[final]} [%]"


def _row(
    group: Group, gates: dict[str, GateState], gaps: dict[str, float], reading: Reading, final: FinalRule
) -> dict[str, str | int]:
    def gated(name: str, of: str) -> str:
        values = (gates[run].values.get(name, np.nan) for run in group.run_ids if run in gates)
        return _quote([100 * value for value in values], reading, Rate(100), of=of)

    return {
        "task": group.variant.task,
        "variant": f"{group.variant.name}{group.mark}",
        "n": group.n,
        _column(final): _quote(
            100 * final_rates(group.seeds, final), reading, rate_of_final(group.seeds, final, top=100),
            of=name_final(final, unit="%"),
        ),
        _MU_W: _quote([seed.mu_w_at(1.0) for seed in group.seeds], reading, _over_training(group), digits=3, of=_MU_W),
        _REMOVED: gated("gate/incentive_removed", _REMOVED),
        _CLOSED: gated("gate/closed_fraction", _CLOSED),
        _MERGED: gated("memory/merge_rate", _MERGED),
        _GAP: _quote([gaps.get(run, np.nan) for run in group.run_ids], reading, digits=2, of=_GAP),
    }  # fmt: skip


def _over_training(group: Group) -> Rate:
    return rate_of(group.seeds, evaluations=max(1, min(len(seed.curve.steps) for seed in group.seeds)))


def _quote(numbers: Iterable[float], reading: Reading, rate: Rate | None = None, *, of: str, digits: int = 1) -> str:
    known = finite(numbers)
    return quote(known, reading, digits=digits, rate=rate, of=of) if len(known) else MISSING


def _mean(values: Values) -> float:
    known = finite(values)
    return float(known.mean()) if len(known) else float("nan")


TABLES = (TableKind("gate-readings", _readings, AT_THE_END),)
