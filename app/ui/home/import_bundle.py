"""Taking the runs of an open bundle into one's own database: first what that would add, then the doing."""

import streamlit as st

from app.analysis.format import escape_markdown, runs_of
from app.ui import data, messages
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import Bundle
from storage.bundles.import_bundle import Plan, import_opened, plan_import

_ASKED, _SAID = "bundle_to_import", "bundle_said"
_NAMED = 10


def offer(bundle: Bundle) -> None:
    """Draw the button that asks what an import would add; nothing is written by it."""
    key = f"bundle-import-{bundle.key}"
    st.button("Import …", icon=":material/download:", key=key, on_click=_ask, args=(bundle.key,))


def _ask(key: str | None) -> None:
    st.session_state[_ASKED] = key


def confirm(bundle: Bundle) -> None:
    """Say what the import that was asked for would add and what it leaves alone; do it on a second press."""
    if st.session_state.get(_ASKED) != bundle.key or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        plan = plan_import(data.database(), bundle)
        st.markdown(f"Adds {escape_markdown(str(plan))}.")
        if plan.here:
            st.markdown(f"Already here, and left as they are: {_name(plan)}.")
        st.caption(
            f"Imported runs are your own from then on: they carry the tag `{bundle.origin}`, and Compare puts seeds "
            "of one variant together whoever trained them. Find or leave them out by that tag."
        )
        with st.container(horizontal=True):
            st.button(
                f"Import {runs_of(len(plan.new))}", type="primary", key="import-now", disabled=not plan.new,
                on_click=_import, args=(bundle, plan),
            )  # fmt: skip
            st.button("Not now", key="import-not", on_click=_ask, args=(None,))


def _name(plan: Plan) -> str:
    named = ", ".join(f"`{run_id}`" for run_id in plan.here[:_NAMED])
    return f"{named} and {len(plan.here) - _NAMED:,} more" if len(plan.here) > _NAMED else named


def _import(bundle: Bundle, plan: Plan) -> None:
    _ask(None)
    try:
        made = import_opened(data.database(), bundle, plan.new)
    except EmtcError as exc:
        say(exc)
        return
    say(f"Imported {runs_of(len(made))} from {bundle.name}.")
    st.cache_data.clear()


def say(what: str | EmtcError) -> None:
    """Keep what was done, or why not, for the next drawing."""
    st.session_state[_SAID] = what


def tell() -> None:
    """Say it, once."""
    said = st.session_state.pop(_SAID, None)
    if isinstance(said, EmtcError):
        messages.error(said)
    elif said is not None:
        st.success(escape_markdown(said), icon=":material/check:")
