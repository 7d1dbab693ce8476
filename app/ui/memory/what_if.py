"""The Memory page's last part: another τ, δ or lookup rule, recomputed beside what was recorded."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import count, escape_markdown, number, percent
from app.analysis.what_if import Answer, Lookup, Question, Rules, Stream, Successor, answer, read_rules, tabulate
from app.figures.named.what_if import draw_what_if
from app.ui import data, in_url, memory_data, messages
from app.ui.widgets import curves, pin, result_table
from storage.queries.memory import Snapshot
from storage.runs.rows import RunRow

PAGE = "memory"
RECORDED = "recorded"
TAU_FACTORS = [f"{float(f'{factor:.3g}'):g}" for factor in np.geomspace(0.1, 10, 17)]
TAUS = [RECORDED, "0.1", "0.2", "0.3", "0.45", "0.6", "0.8", "1.2", "1.5", "2", "3", "5", "10", "30", "100"]
DELTA_FACTORS = [RECORDED, *(f"{float(f'{factor:.3g}'):g}" for factor in np.geomspace(1, 1e4, 17))]
_LOOKUPS = {"nearest": "nearest to the state", "written": "written by Algorithm 2"}
_SUCCESSORS = {"nn": "the actual next state's", "link": "the node's own link"}
_HELP = {
    "tau": "Every recorded τ, times this; of the transitions and of the snapshot.",
    "fixed": "One τ in place of the schedule, as the paper's study of τ has it.",
    "delta": "Nodes merge anew within this many times the run's δ, by Algorithm 2 in the order in which they were "
    "written. ×1 merges those that refits of the embedder moved within δ since; recorded leaves the nodes alone.",
    "lookup": "gate.lookup: which merged node a state of the snapshot reads. Before merging both are the same.",
    "successor": "gate.successor: whose H stands for the next state. Before merging both are the same.",
}


@st.fragment
def show(
    run: RunRow, snapshot: Snapshot, rows: NDArray[np.int64] | None = None, *, facts: Mapping[str, Any] | None = None
) -> None:
    """Draw the question and its answer over a snapshot or some rows of it, once somebody opens it.

    Args:
        run: Whose memory it is.
        snapshot: The memory at one moment.
        rows: Of the snapshot; all of them when missing.
        facts: How a recipe finds these rows again.
    """
    box = st.expander("What if", icon=":material/tune:", key="what_if", bind="query-params")
    if not box.open:
        return
    with box, messages.guarded():
        rules = read_rules(run.config)
        question = _ask(rules)
        stream = memory_data.stream(snapshot, rules)
        factor = question.delta_factor
        merged = None if factor is None else memory_data.merged(snapshot, rules, factor)
        found = answer(snapshot, stream, rules, question, merged=merged, rows=rows)
        _draw(run, snapshot, question, found, dict(facts or {}))
        st.caption(_explain(run, stream, rules, found))


def _ask(rules: Rules) -> Question:
    """Draw the choices in one bar; the rules of the run are the usual ones."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        fixed = str(
            st.selectbox("τ [return]", **in_url.one(PAGE, "wi_tau_fixed", TAUS), help=_HELP["fixed"], width=120)
        )
        tau = st.select_slider(
            "τ × recorded", **in_url.one(PAGE, "wi_tau", TAU_FACTORS, usual="1"), format_func=_times, help=_HELP["tau"],
            disabled=fixed != RECORDED, width=200,
        )  # fmt: skip
        delta = st.select_slider(
            f"δ × {rules.memory.delta:g}", **in_url.one(PAGE, "wi_delta", DELTA_FACTORS), format_func=_times,
            help=_HELP["delta"], width=200,
        )  # fmt: skip
        merges = delta != RECORDED
        lookup = st.selectbox(
            "H of a state from the node", **in_url.one(PAGE, "wi_lookup", get_args(Lookup), usual=rules.gate.lookup),
            format_func=_LOOKUPS.__getitem__, help=_HELP["lookup"], disabled=not merges, width=175,
        )  # fmt: skip
        successor = st.selectbox(
            "H of its successor from", **in_url.one(PAGE, "wi_next", get_args(Successor), usual=rules.gate.successor),
            format_func=_SUCCESSORS.__getitem__, help=_HELP["successor"], disabled=not merges, width=175,
        )  # fmt: skip
    return Question(
        tau_factor=float(tau),
        tau_fixed=None if fixed == RECORDED else float(fixed),
        delta_factor=float(delta) if merges else None,
        lookup="written" if str(lookup) == "written" else "nearest",
        successor="link" if str(successor) == "link" else "nn",
    )


def _times(option: str) -> str:
    return option if option == RECORDED else f"×{option}"


def _draw(run: RunRow, snapshot: Snapshot, question: Question, found: Answer, chosen: dict[str, Any]) -> None:
    chart = draw_what_if(found, run=run.name, env_step=snapshot.env_step)
    left, right = st.columns(2, gap="medium")
    with left:
        table = tabulate(found)
        st.dataframe(table, hide_index=True, height="content", column_config={"quantity": {"width": 235}})
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            result_table.download(table, key="what-if-table", stem=f"{run.id}-{snapshot.env_step}-what-if")
            st.caption(escape_markdown(str(table.attrs["caption"])))
    with right:
        curves.show(chart, key="what-if", x_name="share [%]", panel_height=110)
        facts = chosen | {"snapshot": snapshot.id, "question": vars(question)}
        stem = f"{run.id}-{snapshot.env_step}"
        pin.show_with_export(chart, key="what-if", stem=stem, page=PAGE, run=run, facts=facts)
        st.caption(escape_markdown(chart.caption))


def _explain(run: RunRow, stream: Stream, rules: Rules, found: Answer) -> str:
    """What cannot be recomputed, and why."""
    state = data.gate_state(run)
    removed = state.values.get("gate/incentive_removed") if state else None
    metric = (
        f" The run itself, by the learner's Q, removed {percent(removed, 1)} on average." if removed is not None else ""
    )
    full = found.nodes >= rules.memory.capacity
    parts = (
        "The nodes had merged at the recorded δ already, and a state that merged is gone: a smaller δ cannot split "
        "them, so the slider begins there.",
        f"Transitions are the newest {count(len(stream.beta))} up to the snapshot; δ and the lookup rule act on the "
        "links alone, for the memory that judged a transition is gone." if len(stream.beta) else
        "No transition up to this snapshot is kept, so the links alone are judged.",
        "Not offered, for the same reason: gate.timing, gate.on_miss and a stale index; δ is tested in the scaling of "
        f"this snapshot's nodes. τ at the snapshot was {number(found.tau)}.",
        "Q(s′) is not recorded for each transition and stands at 0 in the incentive." + metric,
        "The memory was full: slots of nodes that left belong to others by now." if full else "",
    )  # fmt: skip
    return escape_markdown(" ".join(part for part in parts if part))
