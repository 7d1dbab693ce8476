"""Parts of every page: the banner of an opened bundle, and the number of unread warnings in the sidebar."""

from collections.abc import Collection, Sequence

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.jobs.alerts import Alert
from app.ui import data, view
from emtc_core.errors import EmtcError
from storage.alerts import read_keys

REFRESH_S = 15


def select_bundle() -> None:
    """Select the bundle that the link names, before any data is read; warn if that bundle is not open."""
    missing = view.decide()
    if missing is not None:
        st.warning(
            f"The link refers to a bundle that is not open here ({escape_markdown(missing)}). This page shows your own "
            "runs. Open the file on Home, then follow the link again.",
            icon=":material/link_off:",
        )


def show() -> None:
    """Draw the banner if the pages show a bundle, with a button that leaves the bundle."""
    bundle = view.bundle()
    if bundle is None:
        return
    n_nodes = bundle.sample_nodes
    note = (
        f" Contains memory snapshots as samples of at most {format_count(n_nodes)} nodes."
        if n_nodes is not None
        else ""
    )
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="bundle_banner"):
        st.markdown(f":material/lock: **Read-only: {escape_markdown(bundle.name)}.**{note}", width="stretch")
        st.button("Back to my own runs", icon=":material/undo:", key="leave_bundle", on_click=view.enter, args=(None,))


def show_alerts() -> None:
    """Show the number of unread warnings in the sidebar, updated every 15 s; a bundle has no alerts."""
    if view.bundle() is None:
        with st.sidebar:
            st.fragment(_show_unread_count, run_every=REFRESH_S)()


def list_unread_warnings(alerts: Sequence[Alert], read: Collection[str]) -> list[Alert]:
    """List the warnings and errors whose keys are not in `read`, newest first. A finished run is not a warning."""
    return [alert for alert in alerts if alert.severity != "info" and alert.key not in read]


def _show_unread_count() -> None:
    try:
        unread = list_unread_warnings(data.alerts(), read_keys(data.database()))
    except EmtcError:  # the page itself shows the error of the database
        return
    if unread:
        noun = "warning" if len(unread) == 1 else "warnings"
        first = unread[0]
        st.page_link(
            "../pages/health.py", label=f":orange[●] {format_count(len(unread))} {noun} in Health",
            query_params={"unread": "true"},
            help=escape_markdown(f"{first.run_name}: {first.message}" if first.run_id else first.message),
        )  # fmt: skip
