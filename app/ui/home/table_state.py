"""What the runs table remembers between two drawings: which rows were shown and chosen, and what was just done."""

from collections.abc import Callable, Sequence

import streamlit as st

from app.analysis.format import escape_markdown, runs_of
from app.jobs.bulk_actions import Outcome
from app.ui import messages
from emtc_core.errors import EmtcError

_SHOWN, _FORGOTTEN, _SAID = "run_table_shown", "run_table_forgotten", "run_table_said"


def key() -> str:
    """Name the table's widget; another name is another table, in which nothing is chosen."""
    times = st.session_state.get(_FORGOTTEN, 0)
    return f"run_table-{times}" if times else "run_table"


def chosen_rows() -> Sequence[int]:
    """List the places of the chosen rows, as the browser told them last."""
    table = st.session_state.get(key())
    return table["selection"]["rows"] if table else ()


def forget_choice() -> None:
    """Choose no row any more."""
    st.session_state[_FORGOTTEN] = st.session_state.get(_FORGOTTEN, 0) + 1


def shown(view: str) -> list[str]:
    """List the runs that were shown last in this view, or none if it was another one."""
    known_view, ids = st.session_state.get(_SHOWN, ("", []))
    return ids if known_view == view else []


def remember_shown(view: str, ids: list[str]) -> None:
    """Keep which runs are shown now."""
    st.session_state[_SHOWN] = (view, ids)


def act(do: Callable[[], str]) -> None:
    """Do something to runs, and keep the sentence that it returns, or why it failed, for the next drawing."""
    try:
        st.session_state[_SAID] = (do(), False)
    except EmtcError as exc:
        st.session_state[_SAID] = (exc, True)
    st.cache_data.clear()


def tell() -> None:
    """Say what the last act did, once."""
    said, is_fault = st.session_state.pop(_SAID, (None, False))
    if is_fault:
        messages.error(said)
    elif said is not None:
        st.toast(escape_markdown(said), icon=":material/check:", duration="long")
        st.caption(escape_markdown(said))


def describe(what: str, outcome: Outcome) -> str:
    """Say what was done, and what was not and why."""
    left = f" Not done to {runs_of(len(outcome.refused))}: {outcome.refused[0]}" if outcome.refused else ""
    return f"{what} {runs_of(len(outcome.done))}.{left}"
