"""The study of the gate's readings as a table: what each did to the incentive, and to what was learned."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.results.kinds import OVER_SEEDS, Options, TableKind
from app.results.quantities import find_quantity
from app.results.series import Group, read_comparison, read_seeds
from app.results.statistics import Reading, Values, finite
from app.results.win_rates import find_best, quote
from app.tables import MISSING, describe_table
from storage.engine import Database
from storage.queries.gate_state import GateState, gate_states
from storage.runs import RunRow

INTERVAL = Reading("mean", "ci")
_OVERESTIMATION = find_quantity("eval/overestimation")
_FINAL, _MU_W, _REMOVED, _CLOSED, _MERGED, _GAP = (
    "last win rate [%]", "μ̄_w", "incentive removed [%]", "β < 0.5 [%]", "states merged [%]", "overestimation [return]",
)  # fmt: skip


def _readings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """One row for each variant of an algorithm with a memory: outcome, what the gate removed, how far Q is off."""
    reading = options.reading or INTERVAL
    rows = [row for row in rows if row.algo.startswith(("emtc-", "emu-"))]
    comparison = read_comparison(db, rows, include_unfinished=options.include_unfinished)
    gates = gate_states(db, [row.id for row in rows])
    gaps = {seed.id: _mean(seed.curve.values) for seed in read_seeds(db, rows, _OVERESTIMATION)}
    table = [_row(group, gates, gaps, reading) for group in comparison.groups]
    columns = ["task", "variant", "n", _FINAL, _MU_W, _REMOVED, _CLOSED, _MERGED, _GAP]
    best = [
        (places[at], column)
        for task in comparison.tasks
        for places in [[i for i, row in enumerate(table) if row["task"] == task]]
        for column in (_FINAL, _MU_W)
        for at in find_best([None if table[i][column] == MISSING else str(table[i][column]) for i in places])
    ]
    caption = (
        f"Readings of the gate, {reading}; n is the number of seeds. Win rate of the last evaluation; μ̄_w over the "
        "whole training; removed: Σ|(1-β) r_p| over Σ|r_p|, β and merges: means over a run's reports; overestimation: "
        "greedy Q_tot(s_0) minus the return then obtained, mean over a run's evaluations. — where there is no gate."
    )
    frame = pd.DataFrame(table, columns=pd.Index(columns), dtype="object")
    return describe_table(frame, caption=caption, best=best, left_out=[str(each) for each in comparison.left_out])


def _row(group: Group, gates: dict[str, GateState], gaps: dict[str, float], reading: Reading) -> dict[str, str | int]:
    def gated(name: str) -> str:
        values = (gates[run].values.get(name, np.nan) for run in group.run_ids if run in gates)
        return _quote([100 * value for value in values], reading)

    return {
        "task": group.variant.task,
        "variant": f"{group.variant.name}{group.mark}",
        "n": group.n,
        _FINAL: _quote([100 * seed.final for seed in group.seeds], reading),
        _MU_W: _quote([seed.mu_w_at(1.0) for seed in group.seeds], reading, digits=3),
        _REMOVED: gated("gate/incentive_removed"),
        _CLOSED: gated("gate/closed_fraction"),
        _MERGED: gated("memory/merge_rate"),
        _GAP: _quote([gaps.get(run, np.nan) for run in group.run_ids], reading, digits=2),
    }


def _quote(numbers: Sequence[float], reading: Reading, *, digits: int = 1) -> str:
    known = finite(numbers)
    return quote(known, reading, digits=digits) if len(known) else MISSING


def _mean(values: Values) -> float:
    known = finite(values)
    return float(known.mean()) if len(known) else float("nan")


TABLES = (TableKind("gate-readings", _readings, OVER_SEEDS),)
