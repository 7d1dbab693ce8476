"""Deleting chosen runs for good: offered, then counted and named, then done."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.analysis.format import count, escape_markdown, runs_of
from app.jobs import bulk_actions
from app.ui import data, messages
from app.ui.home import table_state
from app.ui.widgets import run_picker
from storage.runs import lifecycle
from storage.runs.lifecycle import Event, State
from storage.runs.removal import count_run_contents, total_run_contents

_ASKED = "runs_to_delete"
_NAMED = 10


def offer(states: Mapping[str, State]) -> None:
    """Draw the button that asks what would go; nothing is deleted by it."""
    free = [run_id for run_id, now in states.items() if lifecycle.allows(now, Event.DELETE)]
    can = bool(free) and messages.may_act()
    label = f"Delete {len(free):,} …"
    st.button(label, icon=":material/delete:", key="act-delete", disabled=not can, on_click=_ask, args=(free,))


def _ask(run_ids: Sequence[str]) -> None:
    st.session_state[_ASKED] = list(run_ids)


def confirm(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say what goes with the runs that were asked for, as long as they are chosen; delete on a second press."""
    names = {str(row["id"]): str(row["name"]) for row in rows}
    asked = st.session_state.get(_ASKED, [])
    if not asked or not set(asked) <= names.keys() or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        _say_what_goes(asked, names)
        with st.container(horizontal=True):
            label = f"Delete {runs_of(len(asked))} for good"
            st.button(label, type="primary", key="delete-now", on_click=_delete, args=(asked,))
            st.button("Keep", key="delete-not", on_click=_ask, args=([],))


def _say_what_goes(run_ids: Sequence[str], names: Mapping[str, str]) -> None:
    db = data.database()
    if len(run_ids) == 1:
        belongings = count_run_contents(db, run_ids[0])
        st.markdown(f"For good, this removes run `{run_ids[0]}`: {escape_markdown(str(belongings))}.")
        if belongings.entries or belongings.children:
            kept = f"{count(belongings.entries)} notebook entries and {count(belongings.children)} later runs"
            st.caption(f"{kept} that name it stay.")
        return
    named = ", ".join(f"{escape_markdown(names[run_id])} (`{run_id}`)" for run_id in run_ids[:_NAMED])
    more = f" and {len(run_ids) - _NAMED:,} more" if len(run_ids) > _NAMED else ""
    total = escape_markdown(str(total_run_contents(db, run_ids)))
    st.markdown(f"For good, this removes **{len(run_ids):,} runs**: {total}.")
    st.caption(f"{named}{more}. Notebook entries that name them stay.")


def _delete(run_ids: Sequence[str]) -> None:
    st.session_state[_ASKED] = []
    table_state.forget_choice()
    table_state.act(lambda: _remove(run_ids))


def _remove(run_ids: Sequence[str]) -> str:
    outcome = bulk_actions.delete_runs(data.database(), run_ids)
    for run_id in outcome.done:
        run_picker.forget(run_id)
    return table_state.describe("Deleted", outcome)
