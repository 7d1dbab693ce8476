"""What if: Δ_mem and β as recorded, and recomputed with another τ, δ or lookup rule.

The gate β is the weight of the episodic incentive. It is small where the consistency error Δ_mem is large compared with
the temperature τ. δ is the radius within which memory nodes are merged.

The table recomputes the gate without any change. For a run that was trained without gate, the recomputed numbers can be
compared with the recorded numbers of a run with gate and the same seed.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Final, NamedTuple

import numpy as np

from app.analysis.tables import Column, Table, make_table
from app.analysis.what_if import (
    DEFAULT_MAX_TRANSITIONS,
    ComparedSet,
    Lookup,
    Successor,
    WhatIfResult,
    WhatIfSettings,
    WhatIfValues,
    compute_gate_means,
    evaluate_what_if,
    explain_tau,
    merge_nodes,
    read_gate_settings,
    read_recorded_transitions,
)
from app.figures.figure import FigureKind, StoredRuns, TableKind, get_single_run
from app.figures.kinds.chart import Chart, Line, Panel, Values
from app.figures.named.memory_map import MapOptions, compute_coordinates, get_selected_snapshot, read_selection
from app.figures.options import Option, Options
from app.figures.theme import BETA_COLOR, DELTA_MEM_COLOR
from emtc_core.errors import ConfigError
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.rows import RunRow

X_LABEL = "share of the transitions or links, least consistent first [%]"
N_POINTS = 400
"""Number of points of each curve."""
RECORDED_DASH = (6, 4)
_NEGLIGIBLE = 0.01
"""Δ_mem below this fraction of its maximum, and β closer to 1 than this, are not drawn."""
_MIN_X_RANGE = 0.01
"""Smallest length of the x axis, as a fraction of the transitions or links."""
_TABLE_COLUMNS = tuple(
    Column(f"{name}, {side}", format=format)
    for name, format in (("β̄", ".4f"), (f"β < {CLOSED_BELOW:g} [%]", ".2f"), ("incentive removed [%]", ".2f"))
    for side in ("recorded", "recomputed")
)


class WhatIfOptions(MapOptions):
    """Options of the figure `what-if`: the map with the selected nodes, and the changes of the gate.

    The five options declared here are the fields of `WhatIfSettings`. At least one of them must be set.
    """

    tau_factor: Annotated[
        float,
        Option(
            "τ × recorded",
            "Multiplies every recorded τ, of the transitions and of the snapshot.",
            rule="a factor for every recorded τ",
            url_parameter="wi_tau",
        ),
    ] = 1.0
    tau_fixed: Annotated[
        float | None,
        Option(
            "τ [return]",
            "Replaces the schedule by one τ, as in the paper's study of τ.",
            rule="one τ that replaces all recorded ones [return]",
            url_parameter="wi_tau_fixed",
        ),
    ] = None
    delta_factor: Annotated[
        float | None,
        Option(
            "δ × recorded",
            "Merges the nodes again within this multiple of the run's δ, by Algorithm 2, in the order in which they "
            "were written. ×1 merges nodes that a refit of the embedder has moved within δ. 'recorded' merges no "
            "nodes.",
            rule="a factor for the run's δ; nodes are merged again with the new δ",
            url_parameter="wi_delta",
        ),
    ] = None
    lookup: Annotated[
        Lookup,
        Option(
            "H(s) source",
            "gate.lookup: the merged node that gives H of a state. It has no effect without merging.",
            choices={"nearest": "nearest node", "written": "node written by Algorithm 2"},
            rule="nearest or written",
            url_parameter="wi_lookup",
        ),
    ] = "nearest"
    successor: Annotated[
        Successor,
        Option(
            "H(s′) source",
            "gate.successor: the node that gives H of the next state. It has no effect without merging.",
            choices={"nn": "node of the next state", "link": "stored link"},
            rule="nn or link",
            url_parameter="wi_next",
        ),
    ] = "nn"


_GATE_OPTIONS: Final = tuple(field.name for field in fields(WhatIfSettings))
"""Names of the options that change the gate."""


class RecomputedGate(NamedTuple):
    """A recomputed gate: the data of the figure `what-if`."""

    result: WhatIfResult
    run: str
    """Name of the run."""
    env_step: int
    """Env step of the snapshot."""


def draw_what_if(result: WhatIfResult, *, run: str, env_step: int) -> Chart:
    """Draw the recorded and the recomputed values for each set of transitions or links. Each curve is sorted."""
    x_max = max(_MIN_X_RANGE, *(_find_x_range(compared) for compared in result.sets))
    x = np.linspace(0.0, x_max, N_POINTS)
    panels = []
    for compared in result.sets:
        recorded, recomputed = compared.recorded, compared.recomputed
        beta = _draw_sorted(recorded.beta, recomputed.beta, BETA_COLOR, x, descending=False)
        panels.append(Panel(f"β of {compared.name}", "fraction", beta, range=(-0.03, 1.03)))
        has_new_errors = recomputed.delta_mem is not recorded.delta_mem  # a change of τ alone keeps the array
        if has_new_errors:
            error = _draw_sorted(recorded.delta_mem, recomputed.delta_mem, DELTA_MEM_COLOR, x, descending=True)
            panels.append(Panel(f"Δ_mem of {compared.name}", "return", error, from_zero=True))
    caption = (
        f"{describe_change(result)} Dashed: recorded; solid: recomputed from the recorded data with the same "
        f"functions. Each curve is sorted separately. Beyond {100 * x_max:.3g} %, Δ_mem is at most "
        f"{100 * _NEGLIGIBLE:.0f} % of its maximum and β is within {100 * _NEGLIGIBLE:.0f} % of 1. "
        f"Snapshot at env step {env_step:,}: {result.n_nodes:,} nodes, {result.n_nodes_after:,} recomputed. "
        f"{result.sample} {explain_tau(result)}"
    ).rstrip()
    names = " and ".join(compared.name for compared in result.sets)
    is_unchanged = all(_is_unchanged(compared) for compared in result.sets)
    subtitle = f"recomputed = recorded for all {names}" if names and is_unchanged else ""
    description = f"Sorted Δ_mem and β of {run}, recorded and recomputed, over the share of transitions and links."
    title = f"What if: the gate of {run} recomputed"
    return Chart("what-if", title, X_LABEL, tuple(panels), caption, description, subtitle=subtitle)


def _is_unchanged(compared: ComparedSet) -> bool:
    """Return whether Δ_mem and β are recomputed as recorded, except for rounding."""
    recorded, recomputed = compared.recorded, compared.recomputed
    is_same_error = np.allclose(recorded.delta_mem, recomputed.delta_mem, rtol=1e-6, equal_nan=True)
    is_same_beta = np.allclose(recorded.beta, recomputed.beta, rtol=1e-6, equal_nan=True)
    return is_same_error and is_same_beta


def describe_change(result: WhatIfResult) -> str:
    """Write the changes of τ and δ as a question, or their values if neither is changed."""
    is_tau_known = np.isfinite(result.tau)
    tau, tau_after = f"{result.tau:.3g}", f"{result.tau_after:.3g}"
    delta, delta_after = f"{result.delta:.3g}", f"{result.delta_after:.3g}"
    changes = []
    if tau != tau_after:
        recorded_tau = f" instead of {tau}" if is_tau_known else ""
        changes.append(f"τ were {tau_after} at the snapshot{recorded_tau}")
    if delta != delta_after:
        changes.append(f"δ were {delta_after} instead of {delta}")
    if changes:
        return f"What if {' and '.join(changes)}?"
    tau_text = f"τ = {tau}" if is_tau_known else "τ is unknown"
    return f"{tau_text} at the snapshot and δ = {delta}, as in the run."


def _draw_sorted(recorded: Values, recomputed: Values, color: str, x: Values, *, descending: bool) -> tuple[Line, Line]:
    """Draw the quantiles of recorded and of recomputed values at the fractions `x`; NaN if no value is finite."""
    recorded_curve = _select_quantiles(recorded, x, descending=descending)
    recomputed_curve = _select_quantiles(recomputed, x, descending=descending)
    return (
        Line("recorded", color, 100 * x, recorded_curve, dash=RECORDED_DASH, width=1.5),
        Line("recomputed", color, 100 * x, recomputed_curve),
    )


def _select_quantiles(values: Values, x: Values, *, descending: bool) -> Values:
    """Select the sorted finite values at the fractions `x`, the largest value first if `descending`."""
    ascending = np.sort(values[np.isfinite(values)])
    if not len(ascending):
        return np.full(len(x), np.nan)
    ordered = ascending[::-1] if descending else ascending
    index = np.minimum((x * len(ordered)).astype(np.int64), len(ordered) - 1)
    return ordered[index]


def _find_x_range(compared: ComparedSet) -> float:
    """Find the fraction of the transitions in which Δ_mem or 1 − β is not negligible: the largest of all curves."""
    fractions = [0.0]
    for values in (compared.recorded, compared.recomputed):
        error = values.delta_mem[np.isfinite(values.delta_mem)]
        if len(error):
            fractions.append(float((error > _NEGLIGIBLE * error.max()).mean()))
        if len(values.beta):
            fractions.append(float((values.beta < 1 - _NEGLIGIBLE).mean()))
    return max(fractions)


def _read_what_if(db: Database, rows: Sequence[RunRow], options: WhatIfOptions) -> RecomputedGate:
    run = get_single_run("what-if", rows)
    snapshot = get_selected_snapshot(db, run, options)
    rules = read_gate_settings(run.config)
    if not options.model_fields_set.intersection(_GATE_OPTIONS):
        hint = "Set one of them, for example with --set tau_factor=0.5."
        raise ConfigError(f"needs a change of the gate: {', '.join(_GATE_OPTIONS)}", key="what-if", hint=hint)
    settings = WhatIfSettings(**options.model_dump(include=set(_GATE_OPTIONS)))
    stream = read_recorded_transitions(db, run.id, rules, until=snapshot.env_step)
    factor = settings.delta_factor
    merged = None if factor is None else merge_nodes(snapshot, rules, factor)
    selected_rows = None
    selection = read_selection(options)
    if selection:
        coordinates = compute_coordinates(db, snapshot, options).coordinates
        selected_rows = np.flatnonzero(selection.mask(snapshot, coordinates))
    result = evaluate_what_if(snapshot, stream, rules, settings, merged=merged, rows=selected_rows)
    return RecomputedGate(result, run.name, snapshot.env_step)


def _draw_what_if(gate: RecomputedGate, options: WhatIfOptions) -> Chart:
    return draw_what_if(gate.result, run=gate.run, env_step=gate.env_step)


def _tabulate_gates(runs: StoredRuns, options: Options) -> Table:
    """Make a table with one row for each EMTC run: the gate as recorded, and recomputed without any change."""
    rows = []
    excluded = []
    for run in runs.rows:
        if not run.algo.startswith("emtc-"):
            continue
        compared = _recompute_run(runs.db, run)
        if compared is None:
            excluded.append(f"{run.name}: no transitions are stored for its snapshots")
            continue
        recorded = compute_gate_means(compared.recorded)
        recomputed = compute_gate_means(compared.recomputed)
        recorded_removed = np.nan if run.gate_removed is None else run.gate_removed
        row = (
            *(run.name, recomputed.n),
            *(recorded.beta, recomputed.beta),
            *(100 * recorded.closed, 100 * recomputed.closed),
            *(100 * recorded_removed, 100 * recomputed.removed),
        )
        rows.append(row)
    caption = (
        "Recomputed: without any change, for the newest transitions before each snapshot. Recorded: during the run. "
        "—: the run has no gate. Incentive removed, recomputed: computed from H alone, with Q(s′) = 0. Incentive "
        "removed, recorded: computed from the learner's Q during training, for the sampled transitions."
    )
    return make_table(["run", "transitions", *_TABLE_COLUMNS], rows, caption=caption, excluded=excluded)


def _recompute_run(db: Database, run: RunRow) -> ComparedSet | None:
    """Recompute Δ_mem and β of a run's transitions without any change; None if no transitions are stored.

    H of a transition is looked up in the first snapshot after it.
    """
    rules = read_gate_settings(run.config)
    previous_step = 0
    parts: list[ComparedSet] = []
    for snapshot_id in list_snapshots(db, run.id)["id"]:
        snapshot = get_snapshot(db, int(snapshot_id))
        limit = min(DEFAULT_MAX_TRANSITIONS, snapshot.env_step - previous_step)
        stream = read_recorded_transitions(db, run.id, rules, until=snapshot.env_step, limit=limit)
        if len(stream.beta):
            parts.append(evaluate_what_if(snapshot, stream, rules, WhatIfSettings()).sets[0])
        previous_step = snapshot.env_step
    if not parts:
        return None
    recorded = _concatenate([part.recorded for part in parts])
    return ComparedSet("transitions", recorded, _concatenate([part.recomputed for part in parts]))


def _concatenate(parts: Sequence[WhatIfValues]) -> WhatIfValues:
    return WhatIfValues(
        delta_mem=np.concatenate([part.delta_mem for part in parts]),
        beta=np.concatenate([part.beta for part in parts]),
        r_p=np.concatenate([part.r_p for part in parts]),
    )


FIGURES = (
    FigureKind(
        "what-if", _draw_what_if, _read_what_if, WhatIfOptions, needs_runs=True,
        question="What would the gate have done with another τ, δ or lookup rule?",
    ),
)  # fmt: skip
TABLES = (
    TableKind(
        "what-if", _tabulate_gates, required_runs="an EMTC run with a snapshot whose transitions are still stored"
    ),
)
