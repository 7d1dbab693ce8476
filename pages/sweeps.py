"""Sweeps: which sweeps are running, what are their results, and what does the EMTC paper report?

`study` draws the figure of a study, which is an experiment of the paper, such as the gate temperature τ.
"""

import streamlit as st

from app.ui import data, messages
from app.ui.sweeps import detail, overview, search, start, study
from storage.runs.sweeps import list_sweeps

REFRESH_S = 3  # interval of the updates while a sweep is active
_IS_ACTIVE = "sweeps_active"  # in the session state: whether a sweep was active when the page was drawn

st.title(
    "Sweeps",
    help="A sweep trains every combination of the given settings and seeds, several runs at a time. "
    "It continues when you close this page, and resumes after a restart.",
)


def _show_sweeps() -> None:
    """Draw all parts from one snapshot of the database, so that tables and figures agree. A timer executes this."""
    with messages.guarded(), data.use_one_snapshot():
        sweeps = list_sweeps(data.database())
        if overview.is_active(sweeps) != st.session_state[_IS_ACTIVE]:
            st.rerun()  # starts or stops the timer of this fragment
        sweep = overview.select(sweeps)
        runs = detail.show(sweep)
        search.show(sweep)
        study.show(sweep)
        detail.show_runs(sweep, runs)
        overview.show_table(sweeps)


with messages.guarded():
    sweeps = list_sweeps(data.database())
    start.show(expanded=not sweeps)
    if sweeps:
        is_active = overview.is_active(sweeps)
        st.session_state[_IS_ACTIVE] = is_active
        st.fragment(_show_sweeps, run_every=REFRESH_S if is_active else None)()
    else:
        messages.empty(
            "There is no sweep yet.", "Select a template above, check its runs, and press *Start the sweep*."
        )
