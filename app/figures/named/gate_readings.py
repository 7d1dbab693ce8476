"""Readings of the gate: one stream of episodes judged by each, and what each did to incentive and learning, as a table.

The figure's caption says which reading shows the published shape. It runs memory, embedder and gate anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from app.analysis.comparable import at_budget
from app.analysis.finals import (
    FinalRule,
    caption_final,
    final_rates,
    name_final,
    rate_of_final,
    rate_of_whole_mu_w,
    title_final,
)
from app.analysis.quantities import Quantity, average_over_time, find_quantity
from app.analysis.rates import read_rates
from app.analysis.series import Group, join_seeds, read_seeds
from app.analysis.statistics import CLAIMS, Rate, Reading, Values, finite
from app.analysis.tables import MISSING, Cell, describe_table
from app.analysis.win_rates import find_best, quote
from app.figures.figure import FINAL_OPTIONS, FigureKind, Options, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import BETA, DELTA_MEM, TAU
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.gate import GateState, gate_states
from storage.runs.rows import RunRow

if TYPE_CHECKING:  # it brings torch
    from app.analysis.judge_readings import Reading as GateReading
    from app.analysis.judge_readings import ReadingPoint

INTERVAL = Reading("mean", "ci")
_OVERESTIMATION = find_quantity("eval/overestimation")
_REMOVED, _CLOSED, _MERGED, _GAP = (
    "incentive removed [%]", f"β < {CLOSED_BELOW:g} [%]", "states merged [%]", "overestimation [return]",
)  # fmt: skip


def _readings(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """One row for each variant of an algorithm with a memory: outcome, what the gate removed, how far Q is off."""
    reading = options.reading or INTERVAL
    rows = [row for row in rows if row.algo.startswith(("emtc-", "emu-"))]
    joined = join_seeds(*read_rates(db, rows, options.rate_name), include_unfinished=options.include_unfinished)
    comparison = at_budget(joined, options.read_at)
    quantity, mu_w = comparison.quantity, average_over_time(comparison.quantity).title
    gates = gate_states(db, [row.id for row in rows])
    gaps = {seed.id: _mean(seed.curve.values) for seed in read_seeds(db, rows, _OVERESTIMATION)}
    at_end = f"{title_final(options.final_rule, quantity)} [%]"
    table = [
        {
            "task": group.variant.task,
            "variant": f"{group.variant.name}{group.mark}",
            "n": group.n,
            **dict(zip((at_end, mu_w), _outcome(group, reading, options.final_rule, quantity), strict=True)),
            **_gate_cells(group, gates, gaps, reading),
        }
        for group in comparison.groups
    ]
    columns = ["task", "variant", "n", at_end, mu_w, _REMOVED, _CLOSED, _MERGED, _GAP]
    best = [
        (places[at], column)
        for task in comparison.tasks
        for places in [[i for i, row in enumerate(table) if row["task"] == task]]
        for column in (at_end, mu_w)
        for at in find_best([_quoted(table[i][column]) for i in places] if task not in comparison.mixed else [])
    ]
    said = (
        f"Readings of the gate, {reading.say(share=True)}; n is the number of seeds. {mu_w}: over the whole training; "
        "removed: Σ|(1-β) r_p| over Σ|r_p|, β and merges: means over a run's reports; overestimation: greedy "
        "Q_tot(s_0) minus the return then obtained, mean over a run's evaluations. — where there is no gate."
    )
    if any(seed.read_at for seed in comparison.seeds):
        said += " Readings of the gate and the overestimation are of whole runs."
    if reading.band == "ci":
        said += f" Overestimation is no share; its band is a {CLAIMS[reading.center, False]}."
    caption, about = caption_final(comparison.seeds, options.final_rule, said, unit="%", of=quantity, at=comparison)
    left_out = [str(each) for each in comparison.left_out]
    cells = {name: [row[name] for row in table] for name in columns}
    frame = pd.DataFrame(table, columns=pd.Index(columns), dtype="object")
    return describe_table(frame, caption=caption, best=best, left_out=left_out, about=about, cells=cells)


def _quoted(cell: str | int) -> Cell | None:
    return cell if isinstance(cell, Cell) else None


def _outcome(group: Group, reading: Reading, final: FinalRule, quantity: Quantity) -> tuple[str, str]:
    """Quote the final win rate and mu_w of a variant."""
    of = quantity.at(group.variant.task)
    rate = rate_of_final(group.seeds, final, top=100, of=of)
    ends = 100 * final_rates(group.seeds, final)
    averages = [seed.mu_w_at(1.0) for seed in group.seeds]
    return (
        _quote(ends, reading, rate, of=name_final(final, unit="%", of=of)),
        _quote(averages, reading, rate_of_whole_mu_w(group.seeds, of=of), digits=3, of=average_over_time(of).title),
    )


def _gate_cells(
    group: Group, gates: dict[str, GateState], gaps: dict[str, float], reading: Reading
) -> dict[str, str | int]:
    """Quote what the gate of a variant did, and how far Q is off, by column."""

    def gated(name: str, of: str) -> str:
        values = (gates[run].values.get(name, np.nan) for run in group.run_ids if run in gates)
        return _quote([100 * value for value in values], reading, Rate(100), of=of)

    return {
        _REMOVED: gated("gate/incentive_removed", _REMOVED),
        _CLOSED: gated("gate/closed_fraction", _CLOSED),
        _MERGED: gated("memory/merge_rate", _MERGED),
        _GAP: _quote([gaps.get(run, np.nan) for run in group.run_ids], reading, digits=2, of=_GAP),
    }


def _quote(numbers: Iterable[float], reading: Reading, rate: Rate | None = None, *, of: str, digits: int = 1) -> str:
    known = finite(numbers)
    return quote(known, reading, digits=digits, rate=rate, of=of) if len(known) else MISSING


def _mean(values: Values) -> float:
    known = finite(values)
    return float(known.mean()) if len(known) else float("nan")


X_LABEL = "recorded training env steps"
ENDS = 10  # the first and the last tenth of the points are compared
FALLS, RISES = 0.5, 0.25  # Δ̄ at most half of what it was; β̄ higher by a quarter of its range
LINKS_DASH = (6, 4)


def draw_readings(readings: Sequence[GateReading], *, run: str, refit_every: int | None = None) -> Chart:
    """Draw Δ̄ beside β̄ in one row for each reading, new transitions solid with their band, the memory's links dashed.

    Args:
        readings: The readings in the order of their rows.
        run: Name of the run.
        refit_every: Interval of the refits [env steps] if it was not the readings' own.
    """
    refits = "" if refit_every is None else f"Embedders refitted every {refit_every:,} env steps (--refit-every). "
    panels = [draw(reading) for reading in readings for draw in (_delta_panel, _beta_panel)]
    caption = (
        f"The recorded episodes of {run} judged again by each reading of the paper. Solid: mean over the transitions "
        "collected since the last point, band from their 10 % to their 90 % quantile; dashed: mean over the links "
        "stored in the memory; long dashes: τ. " + refits + " ".join(describe_shape(reading) for reading in readings)
    )
    described = f"One row each for {', '.join(r.name for r in readings)}: delta_mem and beta over env steps."
    title = f"Readings of the gate on the episodes of {run}"
    return Chart("gate-readings", title, X_LABEL, tuple(panels), caption, described, columns=2)


def describe_shape(reading: GateReading) -> str:
    """In one sentence, with numbers, how much of the published shape (Δ̄ falls to 0, β̄ rises to 1) is there."""
    delta, beta = reading.series(lambda p: p.delta_new[0]), reading.series(lambda p: p.beta_new[0])
    if len(delta) < 2 * ENDS:
        return f"{reading.name}: too few points to tell a shape."
    (d0, d1), (b0, b1) = (_ends(values) for values in (delta, beta))
    falls, rises = d0 > 0 and d1 <= FALLS * d0, b1 >= b0 + RISES
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


def _ends(values: Values) -> tuple[float, float]:
    """Average the first and the last tenth; 0 where nothing was measured at all."""
    n = max(1, len(values) // ENDS)
    parts = (values[:n], values[-n:])
    first, last = (float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else 0.0 for part in parts)
    return first, last


def _delta_panel(reading: GateReading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _banded(reading, "new transitions", DELTA_MEM, x, lambda p: p.delta_new),
        Line("memory links", DELTA_MEM, x, reading.series(lambda p: p.delta_links), dash=LINKS_DASH, width=1.5),
        Line("τ", TAU, x, reading.series(lambda p: p.tau), dash=(8, 3), width=1.2),
    )
    return Panel(f"Δ̄_mem, {reading.name}", "return", lines, from_zero=True)


def _beta_panel(reading: GateReading) -> Panel:
    x = reading.series(lambda p: p.env_step)
    lines = (
        _banded(reading, "new transitions", BETA, x, lambda p: p.beta_new),
        Line("memory links", BETA, x, reading.series(lambda p: p.beta_links), dash=LINKS_DASH, width=1.5),
    )
    return Panel(f"β̄, {reading.name}", "fraction", lines, range=(-0.03, 1.03))


def _banded(
    reading: GateReading, name: str, color: str, x: Values, value: Callable[[ReadingPoint], tuple[float, float, float]]
) -> Line:
    mean, low, high = (reading.series(lambda p, i=i: value(p)[i]) for i in range(3))
    return Line(name, color, x, mean, low, high)


def _judged_again(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    from app.analysis.judge_readings import judge_readings  # torch; no page offers this figure

    found = judge_readings(
        db, rows, on_progress=options.on_progress or (lambda part, share, of_all: None), refit_every=options.refit_every
    )
    return draw_readings(found, run=rows[0].name, refit_every=options.refit_every)


FIGURES = (
    FigureKind(
        "gate-readings", _judged_again, frozenset({"refit_every"}), needs_runs=True,
        question="Which reading of the paper shows the published shape?",
    ),
)  # fmt: skip
TABLES = (TableKind("gate-readings", _readings, FINAL_OPTIONS, needs="an evaluated run of an EMTC or EMU algorithm"),)
