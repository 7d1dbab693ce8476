"""Readings of the gate, which are possible interpretations of the paper: a figure and a table.

The figure runs memory, embedder and gate again on the recorded episodes, once for each reading. Its caption states
which readings show the published shape. The table shows the effect of the gate in finished runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from app.analysis.aggregates import Aggregation, select_finite
from app.analysis.comparable import cut_to_budget
from app.analysis.finals import (
    FinalRule,
    caption_final,
    compute_final_rates,
    get_final_title,
    make_final_scale,
    make_mu_w_scale_at_fraction,
    name_final,
)
from app.analysis.intervals import INTERVAL_LABELS, BinomialScale, Values
from app.analysis.quantities import Quantity, average_over_time, find_quantity
from app.analysis.rates import read_rates
from app.analysis.series import Group, join_seeds, read_seeds
from app.analysis.tables import MISSING, Cell, Column, Table, make_table
from app.analysis.win_rates import find_best, format_aggregate
from app.figures.figure import FigureKind, StoredRuns, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.options import BUDGET, FINAL, FINAL_OPTIONS, INCLUDE_UNFINISHED, RATE, REFIT_EVERY, Options
from app.figures.theme import BETA, DELTA_MEM, TAU
from emtc_core.metrics import CLOSED_BELOW
from storage.queries.gate_state import GateState, gate_states

if TYPE_CHECKING:  # this module imports torch
    from app.analysis.gate_readings import GateReading as GateReading
    from app.analysis.gate_readings import ReadingPoint

X_LABEL = "recorded training env steps"
N_PARTS = 10
"""The shape is measured between the means of the first and of the last tenth of the points."""
DELTA_FALL, BETA_RISE = 0.5, 0.25
"""Published shape: Δ̄ falls to at most this fraction of its first value, and β̄ rises by at least this much."""
LINKS_DASH = (6, 4)
DEFAULT_AGGREGATION = Aggregation("mean", "ci")
_OVERESTIMATION_METRIC = find_quantity("eval/overestimation")
_GATE_COLUMNS = {
    "gate/incentive_removed": Column("incentive removed", unit="%"),
    "gate/closed_fraction": Column(f"β < {CLOSED_BELOW:g}", unit="%"),
    "memory/merge_rate": Column("states merged", unit="%"),
}
"""Metric of the gate, as a fraction → column of the table."""
_OVERESTIMATION_COLUMN = Column("overestimation", unit="return")


def draw_readings(readings: Sequence[GateReading], *, run: str, refit_every: int | None = None) -> Chart:
    """Draw Δ̄ and β̄ in one row for each reading: solid with a band for new transitions, dashed for links in memory.

    Args:
        readings: The readings in the order of the rows.
        run: Name of the run.
        refit_every: Interval of the refits [env steps], if it differs from the interval of the readings.
    """
    refits = "" if refit_every is None else f"Embedders refitted every {refit_every:,} env steps (--refit-every). "
    panels = [draw(reading) for reading in readings for draw in (_draw_delta, _draw_beta)]
    caption = (
        f"Gate of each reading of the paper, recomputed for the recorded episodes of {run}. Solid: mean over the "
        "transitions collected since the last point, band from their 10 % to their 90 % quantile; dashed: mean over "
        "the links in memory; long dashes: τ. " + refits + " ".join(describe_shape(reading) for reading in readings)
    )
    description = f"One row each for {', '.join(r.name for r in readings)}: delta_mem and beta over env steps."
    title = f"Readings of the gate on the episodes of {run}"
    return Chart("gate-readings", title, X_LABEL, tuple(panels), caption, description, columns=2)


def describe_shape(reading: GateReading) -> str:
    """Describe in one sentence whether a reading shows the published shape: Δ̄ falls to 0 and β̄ rises to 1."""
    delta, beta = reading.series(lambda p: p.delta_new[0]), reading.series(lambda p: p.beta_new[0])
    if len(delta) < 2 * N_PARTS:
        return f"{reading.name}: too few points to measure the shape."
    (d0, d1), (b0, b1) = (_average_ends(values) for values in (delta, beta))
    falls, rises = d0 > 0 and d1 <= DELTA_FALL * d0, b1 >= b0 + BETA_RISE
    verdict = {
        (True, True): "both halves of the published shape",
        (True, False): "Δ̄ falls, β̄ does not rise",
        (False, True): "β̄ rises, Δ̄ does not fall",
        (False, False): "not the published shape",
    }[falls, rises]
    closed, merged = np.nanmean(reading.series(lambda p: p.closed)), np.nanmean(reading.series(lambda p: p.merge_rate))
    return (
        f"{reading.name}: Δ̄ {d0:.2g} → {d1:.2g}, β̄ {b0:.2f} → {b1:.2f} ({verdict}); "
        f"{100 * merged:.1f} % of states merged, {100 * closed:.1f} % of gates below {CLOSED_BELOW:g}."
    )


def _gate_table(runs: StoredRuns, options: Options) -> Table:
    """Make a table with one row per variant with memory: outcome, effect of the gate, overestimation of Q."""
    db, aggregation, final_rule = runs.db, options.aggregation or DEFAULT_AGGREGATION, options[FINAL]
    rows = [row for row in runs.rows if row.algo.startswith(("emtc-", "emu-"))]
    joined = join_seeds(*read_rates(db, rows, options[RATE]), include_unfinished=options[INCLUDE_UNFINISHED])
    comparison = cut_to_budget(joined, options[BUDGET])
    quantity, mu_w_title = comparison.quantity, average_over_time(comparison.quantity).title
    gates = gate_states(db, [row.id for row in rows])
    overestimations = {}
    for seed in read_seeds(db, rows, _OVERESTIMATION_METRIC):
        values = select_finite(seed.curve.values)
        overestimations[seed.id] = float(values.mean()) if len(values) else np.nan
    final_column = Column(get_final_title(final_rule, quantity), unit="%")
    outcomes = [_format_outcome(group, aggregation, final_rule, quantity) for group in comparison.groups]
    table = [
        [
            group.variant.task,
            f"{group.variant.name}{group.mark}",
            group.n,
            *(cell or MISSING for cell in (*outcome, *_format_gate_effect(group, gates, overestimations, aggregation))),
        ]
        for group, outcome in zip(comparison.groups, outcomes, strict=True)
    ]
    best = []
    for task in comparison.tasks:
        if task in comparison.mixed_length_tasks:
            continue
        task_rows = [i for i, group in enumerate(comparison.groups) if group.variant.task == task]
        for index, title in enumerate((final_column.title, mu_w_title)):
            best += [(task_rows[i], title) for i in find_best([outcomes[row][index] for row in task_rows])]
    explanation = (
        f"Readings of the gate, {aggregation.describe(is_fraction=True)}; n is the number of seeds. {mu_w_title}: "
        "over the whole training. "
        "Removed: Σ|(1-β) r_p| divided by Σ|r_p|. β and merges: means over a run's reports. Overestimation: greedy "
        "Q_tot(s_0) minus the return of the same episode, mean over a run's evaluations. —: the run has no gate."
    )
    if any(seed.comparison_budget for seed in comparison.seeds):
        explanation += " The effect of the gate and the overestimation are measured over whole runs."
    if aggregation.band == "ci":
        explanation += f" The band of the overestimation is a {INTERVAL_LABELS[aggregation.center, False]}."
    caption = caption_final(
        comparison.seeds, final_rule, explanation, unit="%", quantity=quantity, comparison=comparison
    )
    columns = ["task", "variant", "n", final_column, mu_w_title, *_GATE_COLUMNS.values(), _OVERESTIMATION_COLUMN]
    return make_table(columns, table, caption=caption, excluded=comparison.excluded_runs, best=best)


def _format_outcome(
    group: Group, aggregation: Aggregation, final: FinalRule, quantity: Quantity
) -> tuple[Cell | None, Cell | None]:
    """Format the final win rate and mu_w of a variant."""
    task_quantity = quantity.at(group.variant.task)
    final_percent = 100 * compute_final_rates(group.seeds, final)
    final_scale = make_final_scale(group.seeds, final, top=100, quantity=task_quantity)
    averages = [seed.mu_w_at(1.0) for seed in group.seeds]
    average_scale = make_mu_w_scale_at_fraction(group.seeds, quantity=task_quantity)
    return (
        _format_numbers(
            final_percent, aggregation, final_scale, name=name_final(final, unit="%", quantity=task_quantity)
        ),
        _format_numbers(averages, aggregation, average_scale, digits=3, name=average_over_time(task_quantity).title),
    )


def _format_gate_effect(
    group: Group, gates: dict[str, GateState], overestimations: dict[str, float], aggregation: Aggregation
) -> list[Cell | None]:
    """Format the effect of a variant's gate in the order of `_GATE_COLUMNS`, and its overestimation of Q."""
    cells = []
    for metric, column in _GATE_COLUMNS.items():
        values = [100 * gates[run].values.get(metric, np.nan) for run in group.run_ids if run in gates]
        cells.append(_format_numbers(values, aggregation, BinomialScale(100), name=column.title))
    q_errors = [overestimations.get(run, np.nan) for run in group.run_ids]
    return [*cells, _format_numbers(q_errors, aggregation, digits=2, name=_OVERESTIMATION_COLUMN.title)]


def _format_numbers(
    numbers: Iterable[float],
    aggregation: Aggregation,
    scale: BinomialScale | None = None,
    *,
    name: str,
    digits: int = 1,
) -> Cell | None:
    """Format numbers over seeds with their band; None if there is no finite number."""
    values = select_finite(numbers)
    return format_aggregate(values, aggregation, digits=digits, scale=scale, name=name) if len(values) else None


def _average_ends(values: Values) -> tuple[float, float]:
    """Return the mean of the first and of the last tenth of the values; 0 if a tenth has no finite value."""
    n = max(1, len(values) // N_PARTS)
    parts = (values[:n], values[-n:])
    first, last = (float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else 0.0 for part in parts)
    return first, last


def _draw_delta(reading: GateReading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _draw_new_transitions(reading, DELTA_MEM, x, lambda p: p.delta_new),
        Line("memory links", DELTA_MEM, x, reading.series(lambda p: p.delta_links), dash=LINKS_DASH, width=1.5),
        Line("τ", TAU, x, reading.series(lambda p: p.tau), dash=(8, 3), width=1.2),
    )
    return Panel(f"Δ̄_mem, {reading.name}", "return", lines, from_zero=True)


def _draw_beta(reading: GateReading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _draw_new_transitions(reading, BETA, x, lambda p: p.beta_new),
        Line("memory links", BETA, x, reading.series(lambda p: p.beta_links), dash=LINKS_DASH, width=1.5),
    )
    return Panel(f"β̄, {reading.name}", "fraction", lines, range=(-0.03, 1.03))


def _draw_new_transitions(
    reading: GateReading, color: str, x: Values, get_mean_and_band: Callable[[ReadingPoint], tuple[float, float, float]]
) -> Line:
    mean, low, high = (reading.series(lambda p, i=i: get_mean_and_band(p)[i]) for i in range(3))
    return Line("new transitions", color, x, mean, low, high)


def _gate_readings(runs: StoredRuns, options: Options) -> Chart:
    from app.analysis.gate_readings import evaluate_readings  # imports torch; pages do not draw this figure

    on_progress = options.on_progress or (lambda part, part_fraction, fraction: None)
    readings = evaluate_readings(*runs, on_progress=on_progress, refit_every=options[REFIT_EVERY])
    return draw_readings(readings, run=runs.rows[0].name, refit_every=options[REFIT_EVERY])


FIGURES = (
    FigureKind(
        "gate-readings", _gate_readings, options=(REFIT_EVERY,), needs_runs=True,
        question="Which reading of the paper shows the published shape?",
    ),
)  # fmt: skip
TABLES = (
    TableKind(
        "gate-readings", _gate_table, options=FINAL_OPTIONS,
        required_runs="an evaluated run of an EMTC or EMU algorithm",
    ),
)  # fmt: skip
