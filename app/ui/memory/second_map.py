"""The choice of a second map: another snapshot, another projection or another run beside the first."""

import streamlit as st

from app.ui import data, in_url
from app.ui.memory import snapshot_map
from app.ui.memory.snapshot_map import SECOND, Chosen
from app.ui.widgets.run_picker import LISTED
from emtc_core.errors import EmtcError
from storage.queries.run_table import RunFilter
from storage.runs.rows import RunRow

_HELP = (
    "Another snapshot, projection or run beside this one: colour and filters are shared, and of one run the selection, "
    "the point under the pointer and, under one projection, the camera too."
)


def asked() -> bool:
    """Draw the switch; tell whether two maps are wanted."""
    wanted = st.toggle("Two maps", key="two", bind="query-params", help=_HELP)
    return bool(wanted)


def choose(run: RunRow) -> Chosen | None:
    """Draw the choices in one bar; None while there is nothing to draw a second map of."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = _choose_run(run)
        return snapshot_map.choose(chosen, SECOND)


def _choose_run(run: RunRow) -> RunRow:
    names = {run.id: run.name} | data.run_names(RunFilter(), LISTED)[0]
    chosen = st.selectbox(
        "Run of the second map", **in_url.one("memory", "b_run", list(names)),
        format_func=lambda each: f"{names[each]} · {each}", width=220,
    )  # fmt: skip
    try:
        return data.get_run(str(chosen))
    except EmtcError:  # deleted between two looks
        return run
