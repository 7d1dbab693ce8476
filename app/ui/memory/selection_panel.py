"""What was selected on the map: how many, what they are against the rest, the list of them, and ways to keep it.

Numbers under a map: does this embedding tell returns and success apart, and how far can the map be trusted? And
*What if*: another τ, δ or lookup rule, recomputed beside what was recorded.
"""

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import isfinite
from typing import Any, get_args

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app.analysis.collapse import USEFUL, USELESS, EmbeddingNumber
from app.analysis.format import escape_markdown, format_count, format_number, format_percent
from app.analysis.neighborhoods import measure_neighbor_agreement
from app.analysis.selection import NodeSelection, has_place, list_nodes, tabulate_selection
from app.analysis.what_if import (
    Lookup,
    Rules,
    Stream,
    Successor,
    WhatIfResult,
    WhatIfSettings,
    evaluate_what_if,
    explain_tau,
    read_rules,
    tabulate_what_if,
)
from app.figures.figure import NO_OPTIONS
from app.figures.named.memory_map import SelectedNodes
from app.figures.named.what_if import RecomputedGate
from app.figures.registry import find_figure
from app.ui import data, in_url, memory_data, messages
from app.ui.memory import atlas, snapshot_map
from app.ui.memory.snapshot_map import Shown
from app.ui.widgets import canvas, pin, result_table
from emtc_core.metrics import CLOSED_BELOW
from storage.queries.memory import Snapshot
from storage.runs.rows import RunRow


@st.fragment
def show_collapse(shown: Shown) -> None:
    """Draw the numbers once somebody opens them."""
    box = st.expander(
        "Has this embedding collapsed?", icon=":material/compress:", key=f"{shown.chosen.side.prefix}collapse",
        bind="query-params",
    )  # fmt: skip
    if not box.open:
        return
    with box, messages.guarded():
        found = memory_data.collapse(shown.embedded, shown.embedding, shown.run.config.get("memory", {}))
        st.markdown(f"**{escape_markdown(found.verdict)}**")
        layout = memory_data.faithfulness(shown.embedded, shown.coordinates, shown.plane)
        st.dataframe(tabulate_collapse([*found.numbers, *layout]), hide_index=True, height="content")
        st.caption(
            f"Yes: the whole interval of R² lies below {USELESS:g}; no: above {USEFUL:g}. 95 % percentile bootstrap "
            "over whole episodes, 1000 draws; of the embedding, whatever its projection, and below it of this map."
        )


def tabulate_collapse(numbers: Sequence[EmbeddingNumber]) -> pd.DataFrame:
    """List the numbers by what they mean; one that nothing can be said of says so."""
    rows = [(_name(each), _say_number(each), each.unit, format_count(each.n)) for each in numbers]
    return pd.DataFrame(rows, columns=["what", "value [95 %]", "unit", "nodes"])


def _name(each: EmbeddingNumber) -> str:
    return f"{each.name} {each.meaning}" if each.meaning.startswith("of the layout") else each.meaning


def _say_number(each: EmbeddingNumber) -> str:
    if not isfinite(each.value):
        return "no such nodes" if not each.n else "not defined"
    return f"{format_number(each.value)} [{format_number(each.low)} to {format_number(each.high)}]"


LISTED = 1000


@st.fragment
def show(shown: Shown, beside: DeltaGenerator | None = None) -> None:
    """Offer the map as a file, and hold a selection against the rest of it; a new selection draws this part alone.

    The numbers of a selection stand in the place `beside` the map, where there is one.
    """
    atlas.hear({"view": snapshot_map.keep_view, "select": snapshot_map.keep_choice}, channel=shown.chosen.side.channel)
    asked = snapshot_map.read_choice()
    run, chosen = shown.run, asked.mask(shown.snapshot, shown.coordinates)
    _tools(run, shown, chosen)
    if not asked:
        if beside is not None:
            beside.empty()
        st.caption(
            "Select a region with *Lasso*, *Box* or *Select view*, or keep a range with *Filter*: "
            "what it holds against the rest stands beside the map then."
        )
        show_what_if(run, shown.snapshot, None)
        return
    with st.container() if beside is None else beside.container():
        _selected(run, shown, asked, chosen)
    show_what_if(run, shown.snapshot, np.flatnonzero(chosen), facts=shown.facts)


def _selected(run: RunRow, shown: Shown, asked: NodeSelection, chosen: NDArray[np.bool_]) -> None:
    snapshot, among, rows = shown.snapshot, has_place(shown.coordinates), np.flatnonzero(chosen)
    st.markdown(f"##### {format_count(len(rows))} of {format_count(int(among.sum()))} nodes selected")
    st.caption(escape_markdown(f"{asked.words}. The address keeps it; a pin keeps it under a name in the notebook."))
    nodes = SelectedNodes(snapshot, chosen, among, run.name, asked.words)
    chart = find_figure("memory-selection").draw(nodes, NO_OPTIONS)
    st.dataframe(_as_text(tabulate_selection(snapshot, chosen, among)), hide_index=True, height="content")
    with st.container(horizontal=True, gap="small"):
        _downloads(run, shown, rows)
        pin.show_with_export(chart, key="selection", stem=run.id, page="memory", run=run, facts=shown.facts)
    canvas.show(chart, key="selection-curves", panel_height=84, x_name="share of nodes")
    _agreement(shown, rows)


def _tools(run: RunRow, shown: Shown, chosen: NDArray[np.bool_]) -> None:
    """Offer what the map shows now as a file or an entry of the notebook."""
    figure = snapshot_map.make_figure(shown, chosen)
    look = {"color": figure.quantity.key, "scale": list(figure.scale), "drawn": snapshot_map.MOST_IN_FILE}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(escape_markdown(figure.caption.split(". ")[0]))
        stem = f"{run.id}-{shown.snapshot.env_step}"
        pin.show_with_export(figure, key="atlas", stem=stem, page="memory", run=run, facts=shown.facts | look)


def _agreement(shown: Shown, rows: NDArray[np.int64]) -> None:
    """How far this region of the map can be trusted, once somebody asks."""
    box = st.expander("Can the map be trusted here?", key="agreement", bind="query-params", icon=":material/rule:")
    if not box.open or not len(rows):
        return
    found = measure_neighbor_agreement(shown.embedded.embedding, shown.coordinates, rows, n_jobs=os.cpu_count() or 1)
    box.markdown(
        f"Of a node's {found.k} nearest neighbors in the embedding, the map keeps "
        f"**{format_percent(found.selected)}** near it in the selection ({format_count(found.n_selected)} nodes "
        f"asked), "
        f"{format_percent(found.rest)} in the rest ({format_count(found.n_rest)} asked)."
    )


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    parts = {part: [format_number(value) for value in frame[part]] for part in ("selected", "rest")}
    return pd.DataFrame({"": frame["what"], **parts, "unit": frame["unit"]})


def _downloads(run: RunRow, shown: Shown, rows: NDArray[np.int64]) -> None:
    with st.container(horizontal=True, gap="small"):
        with st.popover("List", icon=":material/table_rows:"):
            more = f", the first {format_count(LISTED)}" if len(rows) > LISTED else ""
            st.caption(f"{format_count(len(rows))} nodes{more}; a file holds all of them.")
            st.dataframe(list_nodes(shown.snapshot, shown.coordinates, rows[:LISTED]), hide_index=True)
        stem = f"selection-{run.id}-{shown.snapshot.env_step}"
        st.download_button(
            "CSV", lambda: list_nodes(shown.snapshot, shown.coordinates, rows).to_csv(index=False).encode(),
            file_name=f"{stem}.csv", mime="text/csv", key="selection-csv", on_click="ignore",
            icon=":material/download:",
        )  # fmt: skip
        st.download_button(
            "Parquet", lambda: _parquet(list_nodes(shown.snapshot, shown.coordinates, rows)),
            file_name=f"{stem}.parquet", mime="application/vnd.apache.parquet", key="selection-parquet",
            on_click="ignore", icon=":material/download:",
        )  # fmt: skip


def _parquet(frame: pd.DataFrame) -> bytes:
    file = BytesIO()
    frame.to_parquet(file, index=False)
    return file.getvalue()


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
def show_what_if(
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
        found = evaluate_what_if(snapshot, stream, rules, question, merged=merged, rows=rows)
        if cannot := explain_tau(found):
            st.warning(escape_markdown(cannot), icon=":material/warning:")
        _draw(run, snapshot, question, found, dict(facts or {}))
        st.caption(_explain(run, stream, rules, found))


def _ask(rules: Rules) -> WhatIfSettings:
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
    return WhatIfSettings(
        tau_factor=float(tau),
        tau_fixed=None if fixed == RECORDED else float(fixed),
        delta_factor=float(delta) if merges else None,
        lookup="written" if str(lookup) == "written" else "nearest",
        successor="link" if str(successor) == "link" else "nn",
    )


def _times(option: str) -> str:
    return option if option == RECORDED else f"×{option}"


def _draw(
    run: RunRow, snapshot: Snapshot, question: WhatIfSettings, found: WhatIfResult, chosen: dict[str, Any]
) -> None:
    chart = find_figure("what-if").draw(RecomputedGate(found, run.name, snapshot.env_step), NO_OPTIONS)
    left, right = st.columns(2, gap="medium")
    with left:
        table = tabulate_what_if(found)
        st.dataframe(table.frame, hide_index=True, height="content", column_config={"quantity": {"width": 235}})
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            result_table.download(table, key="what-if-table", stem=f"{run.id}-{snapshot.env_step}-what-if")
            st.caption(escape_markdown(table.caption))
    with right:
        canvas.show(chart, key="what-if", x_name="share [%]", panel_height=110)
        facts = chosen | {"snapshot": snapshot.id, "question": vars(question)}
        stem = f"{run.id}-{snapshot.env_step}"
        pin.show_with_export(chart, key="what-if", stem=stem, page=PAGE, run=run, facts=facts)
        st.caption(escape_markdown(chart.caption))


def _explain(run: RunRow, stream: Stream, rules: Rules, found: WhatIfResult) -> str:
    """What cannot be recomputed, and why."""
    state = data.gate_state(run)
    removed = state.values.get("gate/incentive_removed") if state else None
    metric = (
        f" The run itself, by the learner's Q, removed {format_percent(removed, 1)} on average."
        if removed is not None
        else ""
    )
    full = found.nodes >= rules.memory.capacity
    parts = (
        "The nodes had merged at the recorded δ already, and a state that merged is gone: a smaller δ cannot split "
        "them, so the slider begins there.",
        f"Transitions are the newest {format_count(len(stream.beta))} up to the snapshot; δ and the lookup rule act "
        f"on the "
        "links alone, for the memory that judged a transition is gone." if len(stream.beta) else
        "No transition up to this snapshot is kept, so the links alone are judged.",
        "Not offered, for the same reason: gate.timing, gate.on_miss and a stale index; δ is tested in the scaling of "
        f"this snapshot's nodes.{f' τ at the snapshot was {format_number(found.tau)}.' if isfinite(found.tau) else ''}",
        "Q(s′) is not recorded for each transition and stands at 0 in the incentive, so what is removed is a share "
        f"by H alone: β̄ and β < {CLOSED_BELOW:g} carry over to training, that share does not." + metric,
        "The memory was full: slots of nodes that left belong to others by now." if full else "",
    )  # fmt: skip
    return escape_markdown(" ".join(part for part in parts if part))
