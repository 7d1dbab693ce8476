"""*What if*: the gate of a snapshot and of the newest transitions, recomputed with another τ, δ or source of H.

The gate multiplies the episodic incentive by β, which decreases with the consistency error Δ_mem. τ is its temperature:
with a larger τ, larger errors are tolerated. δ is the merge radius of the memory. H is the return that the memory
recalls at both ends of a transition; its source is the setting `gate.lookup` and, for s′, `gate.successor`.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isfinite
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import escape_markdown, format_count, format_number, format_percent
from app.analysis.samples import NEEDS_WHOLE
from app.analysis.what_if import (
    GateSettings,
    RecordedTransitions,
    WhatIfResult,
    WhatIfSettings,
    evaluate_what_if,
    explain_tau,
    read_gate_settings,
    tabulate_what_if,
)
from app.figures.named.what_if import RecomputedGate, WhatIfOptions
from app.figures.registry import draw_chart
from app.ui import memory_data, messages, run_data
from app.ui.memory.snapshot_map import MapChoice
from app.ui.page_state import Flag
from app.ui.widgets import canvas, pin, result_table
from app.ui.widgets.option_widget import OptionWidget
from emtc_core.metrics import CLOSED_BELOW
from storage.queries.memory import Snapshot
from storage.runs.rows import RunRow


def _list_factors(low: float, high: float) -> list[str]:
    """Return 17 factors as texts, evenly spaced on a log scale, with three significant digits."""
    return [f"{float(f'{factor:.3g}'):g}" for factor in np.geomspace(low, high, 17)]


PAGE = "memory"
RECORDED = "recorded"
"""Option for the value of the run."""
TAU_FACTORS = _list_factors(0.1, 10)
TAUS = [RECORDED, "0.1", "0.2", "0.3", "0.45", "0.6", "0.8", "1.2", "1.5", "2", "3", "5", "10", "30", "100"]
"""Fixed temperatures [return]."""
DELTA_FACTORS = [RECORDED, *_list_factors(1, 1e4)]
_IS_BOX_OPEN = Flag("what_if", PAGE)
_TAU_FIXED = OptionWidget(WhatIfOptions, "tau_fixed", PAGE)
_TAU_FACTOR = OptionWidget(WhatIfOptions, "tau_factor", PAGE, kind="slider")
_DELTA_FACTOR = OptionWidget(WhatIfOptions, "delta_factor", PAGE, kind="slider")
_LOOKUP = OptionWidget(WhatIfOptions, "lookup", PAGE)
_SUCCESSOR = OptionWidget(WhatIfOptions, "successor", PAGE)


@st.fragment
def show(
    choice: MapChoice, rows: NDArray[np.int64] | None = None, *, pinned_values: Mapping[str, Any] | None = None
) -> None:
    """Draw the settings and the recomputed gate. It is computed only while the box is open.

    Args:
        choice: The snapshot and its run.
        rows: Selected rows of the snapshot; None for all.
        pinned_values: Values that identify the selected rows. They are stored with a pinned figure.
    """
    run = choice.run
    snapshot = choice.snapshot
    with st.container(key="what_if_box"):
        box = st.expander("What if", icon=":material/tune:", **_IS_BOX_OPEN.bind())
    if not box.open:
        return
    with box, messages.guarded():
        rules = read_gate_settings(run.config)
        settings = _choose_settings(rules, is_sample=snapshot.whole is not None)
        transitions = memory_data.get_stream(choice.snapshot_key, rules)
        merged_nodes = None
        if settings.delta_factor is not None:
            merged_nodes = memory_data.get_merged_nodes(choice.snapshot_key, rules, settings.delta_factor)
        result = evaluate_what_if(snapshot, transitions, rules, settings, merged=merged_nodes, rows=rows)
        explanation = explain_tau(result)
        if explanation:
            st.warning(escape_markdown(explanation), icon=":material/warning:")
        _show_result(run, snapshot, settings, result, dict(pinned_values or {}))
        st.caption(_explain_limits(run, transitions, rules, result))


def _choose_settings(rules: GateSettings, *, is_sample: bool) -> WhatIfSettings:
    """Draw the settings in one bar. The defaults are the settings of the run.

    If the snapshot is a sample of the memory (`is_sample`), only τ can be changed.
    """

    def format_factor(option: str) -> str:
        return option if option == RECORDED else f"×{option}"

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        fixed_tau = str(_TAU_FIXED.draw(TAUS, width=120))
        tau_factor = _TAU_FACTOR.draw(
            TAU_FACTORS, format_factor, default="1", disabled=fixed_tau != RECORDED, width=200
        )
        tau_settings = WhatIfSettings(
            tau_factor=float(tau_factor), tau_fixed=None if fixed_tau == RECORDED else float(fixed_tau)
        )
        if is_sample:
            st.caption(f"Another δ or source of H needs {NEEDS_WHOLE}.")
            return tau_settings
        delta_factor = _DELTA_FACTOR.draw(DELTA_FACTORS, format_factor, label=f"δ × {rules.memory.delta:g}", width=200)
        is_merging = delta_factor != RECORDED
        lookup = _LOOKUP.draw(default=rules.gate.lookup, disabled=not is_merging, width=175)
        successor = _SUCCESSOR.draw(default=rules.gate.successor, disabled=not is_merging, width=175)
    return replace(
        tau_settings,
        delta_factor=float(delta_factor) if is_merging else None,
        lookup="written" if str(lookup) == "written" else "nearest",
        successor="link" if str(successor) == "link" else "nn",
    )


def _show_result(
    run: RunRow, snapshot: Snapshot, settings: WhatIfSettings, result: WhatIfResult, pinned_values: dict[str, Any]
) -> None:
    """Draw the table and the chart of the result, with their exports."""
    chart = draw_chart("what-if", RecomputedGate(result, run.name, snapshot.env_step))
    left, right = st.columns(2, gap="medium")
    with left:
        table = tabulate_what_if(result)
        frame = result_table.make_text_frame(table)
        st.dataframe(frame, hide_index=True, height="content", column_config={"quantity": {"width": 235}})
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            result_table.download(table, key="what-if-table", stem=f"{run.id}-{snapshot.env_step}-what-if")
            st.caption(escape_markdown(table.caption))
    with right:
        canvas.show(chart, key="what-if", x_name="share [%]", panel_height=110)
        pinned_values = pinned_values | {"snapshot": snapshot.id, **asdict(settings)}
        stem = f"{run.id}-{snapshot.env_step}"
        pin.show_with_export(chart, key="what-if", stem=stem, page=PAGE, run=run, facts=pinned_values)
        st.caption(escape_markdown(chart.caption))


def _explain_limits(run: RunRow, transitions: RecordedTransitions, rules: GateSettings, result: WhatIfResult) -> str:
    """Explain which values cannot be recomputed, and why."""
    sentences: list[str] = []
    n_transitions = len(transitions.beta)
    if n_transitions:
        sentences.append(f"Transitions are the newest {format_count(n_transitions)} up to the snapshot.")
    else:
        sentences.append("No transition up to this snapshot is stored, so only the links between nodes are evaluated.")
    if isfinite(result.tau):
        sentences.append(f"τ at the snapshot was {format_number(result.tau)}.")
    if not result.sample:
        sentences += [
            "δ and the sources of H change only the links, because the memory at the time of each transition is not "
            "stored. For the same reason, gate.timing, gate.on_miss and a stale index cannot be changed here.",
            "The snapshot contains nodes that were merged at the recorded δ; the states of merged nodes are not "
            "stored. So a smaller δ cannot split nodes, and the slider starts at ×1. δ is applied in the scaling of "
            "this snapshot's nodes.",
            "Q(s′) is not recorded for each transition and is set to 0 in the incentive. So β̄ and "
            f"β < {CLOSED_BELOW:g} are those of the training, but the share of removed incentive is computed from H "
            "only.",
        ]
        if result.n_nodes >= rules.memory.capacity:
            sentences.append("The memory was full, so slots of removed nodes are used by other nodes.")
    gate = run_data.get_gate_verdict(run.id, run.live_status).gate
    removed_fraction = gate.values.get("gate/incentive_removed") if gate else None
    if removed_fraction is not None:
        percent = format_percent(removed_fraction, 1)
        sentences.append(f"The run removed {percent} of its incentive on average, computed with the learner's Q.")
    return escape_markdown(" ".join(sentences))
