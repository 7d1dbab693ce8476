"""What a gate did beside what it would have done: sorted Δ_mem and β, recorded and recomputed.

The table holds the question against runs: asked of a run that was trained without its gate, it can be laid beside what
was recorded of the same seed with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd

from app.analysis.tables import MISSING, describe_table
from app.analysis.what_if import (
    MOST_TRANSITIONS,
    Answer,
    Compared,
    Judged,
    Lookup,
    Question,
    Successor,
    answer,
    explain_tau,
    merge_nodes,
    read_rules,
    read_stream,
    shares,
)
from app.figures.figure import FigureKind, FigureOption, Options, TableKind, get_single_run
from app.figures.kinds.chart import Chart, Line, Panel, Values
from app.figures.named.memory_map import PLACES, chosen_snapshot, place_nodes, read_choice
from app.figures.theme import BETA, DELTA_MEM
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.rows import RunRow

X_LABEL = "share of the transitions or links, least consistent first [%]"
POINTS = 400
RECORDED_DASH = (6, 4)
_NEGLIGIBLE = 0.01  # of the largest Δ_mem, or of 1 for β: where both sides are closer, there is nothing to see
_SHORTEST = 0.01  # of all: the axis is never cut further


def draw_what_if(found: Answer, *, run: str, env_step: int) -> Chart:
    """Draw, for each set, the verdicts as recorded and as recomputed, sorted; each x is one share of them."""
    reach = max(_SHORTEST, *(_reach(each) for each in found.sets))
    x = np.linspace(0.0, reach, POINTS)
    panels = [panel for each in found.sets for panel in _panels_of(each, x)]
    caption = (
        f"{ask_what_if(found)} Dashed: recorded; solid: recomputed from the record by "
        f"the same functions. Every curve is sorted by itself; beyond {100 * reach:.3g} % Δ_mem is within "
        f"{100 * _NEGLIGIBLE:.0f} % of 0, as seen from its largest, and β within {100 * _NEGLIGIBLE:.0f} % of 1. "
        f"Snapshot at env step {env_step:,}: {found.nodes:,} nodes, {found.nodes_after:,} recomputed. "
        f"{explain_tau(found)}"
    ).rstrip()
    described = f"Sorted Δ_mem and β of {run}, recorded and recomputed, over the share of transitions and links."
    return Chart("what-if", f"What if: the gate of {run} recomputed", X_LABEL, tuple(panels), caption, described)


def ask_what_if(found: Answer) -> str:
    """The question in words: what would be otherwise, or that nothing would."""
    is_known = np.isfinite(found.tau)
    changes = []
    if f"{found.tau:.3g}" != f"{found.tau_after:.3g}":
        instead = f" instead of {found.tau:.3g}" if is_known else ""
        changes.append(f"τ were {found.tau_after:.3g} at the snapshot{instead}")
    if f"{found.delta:.3g}" != f"{found.delta_after:.3g}":
        changes.append(f"δ were {found.delta_after:.3g} instead of {found.delta:.3g}")
    if changes:
        return f"What if {' and '.join(changes)}?"
    tau = f"τ = {found.tau:.3g}" if is_known else "τ is unknown"
    return f"{tau} at the snapshot and δ = {found.delta:.3g}, as the run had them."


def _panels_of(each: Compared, x: Values) -> list[Panel]:
    """Draw β, and Δ_mem where it was recomputed at all."""
    before, after = each.recorded, each.recomputed
    beta = _lines(before.beta, after.beta, BETA, x, descending=False)
    panels = [Panel(f"β of {each.name}", "fraction", beta, range=(-0.03, 1.03))]
    if after.delta_mem is not before.delta_mem:
        error = _lines(before.delta_mem, after.delta_mem, DELTA_MEM, x, descending=True)
        panels.append(Panel(f"Δ_mem of {each.name}", "return", error, from_zero=True))
    return panels


def _lines(before: Values, after: Values, color: str, x: Values, *, descending: bool) -> tuple[Line, Line]:
    recorded, recomputed = (_sorted_at(values, x, descending=descending) for values in (before, after))
    return (
        Line("recorded", color, 100 * x, recorded, dash=RECORDED_DASH, width=1.5),
        Line("recomputed", color, 100 * x, recomputed),
    )


def _sorted_at(values: Values, share: Values, *, descending: bool) -> Values:
    """Read sorted values at some shares in [0, 1]; missing ones are left out, NaN where none is left."""
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return np.full(len(share), np.nan)
    place = np.minimum((share * len(known)).astype(np.int64), len(known) - 1)
    return known[len(known) - 1 - place if descending else place]


def _reach(each: Compared) -> float:
    """The share up to which any of the curves is worth a look."""
    shares = [0.0]
    for judged in (each.recorded, each.recomputed):
        error = judged.delta_mem[np.isfinite(judged.delta_mem)]
        if len(error):
            shares.append(float((error > _NEGLIGIBLE * error.max()).mean()))
        if len(judged.beta):
            shares.append(float((judged.beta < 1 - _NEGLIGIBLE).mean()))
    return max(shares)


def _what_if(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run = get_single_run("what-if", rows)
    snapshot = chosen_snapshot(db, run, options)
    rules = read_rules(run.config)
    question = options.get("question") or read_question(options.own)
    stream = read_stream(db, run.id, rules, until=snapshot.env_step)
    factor = question.delta_factor
    merged = None if factor is None else merge_nodes(snapshot, rules, factor)
    chosen = None
    if choice := read_choice(options):
        chosen = np.flatnonzero(choice.mask(snapshot, place_nodes(db, snapshot, options).coordinates))
    found = answer(snapshot, stream, rules, question, merged=merged, rows=chosen)
    return draw_what_if(found, run=run.name, env_step=snapshot.env_step)


def read_question(given: Mapping[str, Any]) -> Question:
    """Read a question from its parts; what is not given is as it was."""

    def number(name: str) -> float | None:
        value = given.get(name)
        return None if value is None else float(value)

    return Question(
        tau_factor=float(given.get("tau_factor", 1.0)),
        tau_fixed=number("tau_fixed"),
        delta_factor=number("delta_factor"),
        lookup=next(each for each in get_args(Lookup) if each == given.get("lookup", "nearest")),
        successor=next(each for each in get_args(Successor) if each == given.get("successor", "nn")),
    )


def _one_of(*names: str) -> Any:
    return lambda value: names[names.index(value)]


_QUESTION = (
    FigureOption("question", read_question, "its parts by name"),
    FigureOption("tau_factor", float, "a factor of every recorded τ"),
    FigureOption("tau_fixed", float, "one τ in place of the recorded ones [return]"),
    FigureOption("delta_factor", float, "a factor of the run's δ, by which nodes merge anew"),
    FigureOption("lookup", _one_of(*get_args(Lookup)), "nearest or written"),
    FigureOption("successor", _one_of(*get_args(Successor)), "nn or link"),
)
FIGURES = (
    FigureKind(
        "what-if", _what_if, frozenset({"method"}), needs_runs=True, own=(*PLACES, *_QUESTION),
        question="What would the gate have done with another τ, δ or lookup rule?",
    ),
)  # fmt: skip


_MEASURED = ("β̄", f"β < {CLOSED_BELOW:g} [%]", "incentive removed [%]")


def _beside_the_record(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """One row for each run with a memory: what its gate did, and what *What if* says with nothing changed."""
    asked = [(row, _ask_all(db, row)) for row in rows if row.algo.startswith("emtc-")]
    columns = ["run", "transitions", *(f"{name}, {side}" for name in _MEASURED for side in ("recorded", "asked"))]
    table = [_row_of(row, found) for row, found in asked if found]
    left_out = [f"{row.name}: no snapshot has its transitions beside it" for row, found in asked if not found]
    said = (
        "What if, asked with nothing changed, over the newest transitions before each snapshot, beside what the runs "
        "recorded; — where a run had no gate. Removed: asked with Q(s′) = 0, by H alone; recorded while training, by "
        "the learner's Q, over the transitions that it sampled."
    )
    return describe_table(pd.DataFrame(table, columns=pd.Index(columns)), caption=said, left_out=left_out)


def _ask_all(db: Database, row: RunRow) -> Compared | None:
    """Join the verdicts on a run's transitions over its snapshots, each asked of the memory that came next."""
    rules, before, found = read_rules(row.config), 0, list[Compared]()
    for snapshot_id in list_snapshots(db, row.id)["id"]:
        snapshot = get_snapshot(db, int(snapshot_id))
        limit = min(MOST_TRANSITIONS, snapshot.env_step - before)
        stream = read_stream(db, row.id, rules, until=snapshot.env_step, limit=limit)
        if len(stream.beta):
            found.append(answer(snapshot, stream, rules, Question()).sets[0])
        before = snapshot.env_step
    if not found:
        return None
    return Compared("transitions", _join([each.recorded for each in found]), _join([each.recomputed for each in found]))


def _join(parts: Sequence[Judged]) -> Judged:
    return Judged(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("delta_mem", "beta", "r_p")))


def _row_of(run: RunRow, asked: Compared) -> tuple[str | int, ...]:
    recorded, recomputed = shares(asked.recorded), shares(asked.recomputed)
    removed = np.nan if run.gate_removed is None else run.gate_removed
    pairs = (
        (recorded.beta, recomputed.beta, 1, 4),
        (recorded.closed, recomputed.closed, 100, 2),
        (removed, recomputed.removed, 100, 2),
    )
    cells = (_write(scale * value, digits) for *both, scale, digits in pairs for value in both)
    return (run.name, recomputed.n, *cells)


def _write(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else MISSING


TABLES = (
    TableKind("what-if", _beside_the_record, needs="an EMTC run with a snapshot whose transitions are still stored"),
)
