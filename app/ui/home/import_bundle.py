"""The import of a bundle's runs into the user's database: a button, then a summary of the changes to confirm.

A bundle is a file of exported runs.
"""

from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown, format_run_count
from app.ui import data, messages
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import Bundle
from storage.bundles.import_bundle import import_runs, plan_import

_TO_IMPORT: Final = "bundle_to_import"
_OUTCOME: Final = "bundle_outcome"
"""Key of the session state: the message or the error of the last action."""
_MAX_NAMED: Final = 10


def show_button(bundle: Bundle) -> None:
    """Draw the button that shows the summary; it writes nothing."""
    key = f"bundle-import-{bundle.key}"
    st.button("Import …", icon=":material/download:", key=key, on_click=_set_bundle_to_import, args=(bundle.key,))


def show_confirmation(bundle: Bundle) -> None:
    """Draw the runs that the requested import would add and the runs it would skip, with the button that imports."""
    if st.session_state.get(_TO_IMPORT) != bundle.key or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        plan = plan_import(data.database(), bundle)
        st.markdown(f"Adds {escape_markdown(str(plan))}.")
        if plan.existing:
            listed = ", ".join(f"`{run_id}`" for run_id in plan.existing[:_MAX_NAMED])
            more = f" and {len(plan.existing) - _MAX_NAMED:,} more" if len(plan.existing) > _MAX_NAMED else ""
            st.markdown(f"Already in your database and not changed: {listed}{more}.")
        st.caption(
            f"Imported runs get the tag `{bundle.origin}`. Compare groups their seeds with your own seeds of the same "
            "variant; filter by the tag to separate them."
        )
        with st.container(horizontal=True):
            st.button(
                f"Import {format_run_count(len(plan.new))}", type="primary", key="import-now", disabled=not plan.new,
                on_click=_import, args=(bundle,),
            )  # fmt: skip
            st.button("Cancel", key="import-not", on_click=_set_bundle_to_import, args=(None,))


def set_outcome(outcome: str | EmtcError) -> None:
    """Store the message or the error of an action for the next run of the page."""
    st.session_state[_OUTCOME] = outcome


def show_outcome() -> None:
    """Show the stored message or error once."""
    outcome = st.session_state.pop(_OUTCOME, None)
    if isinstance(outcome, EmtcError):
        messages.error(outcome)
    elif outcome is not None:
        st.success(escape_markdown(outcome), icon=":material/check:")


def _set_bundle_to_import(key: str | None) -> None:
    st.session_state[_TO_IMPORT] = key


def _import(bundle: Bundle) -> None:
    _set_bundle_to_import(None)
    try:
        imported = import_runs(data.database(), bundle.study, bundle.name)
    except EmtcError as exc:
        set_outcome(exc)
        return
    set_outcome(f"Imported {format_run_count(len(imported.new))} from {bundle.name}.")
    st.cache_data.clear()
