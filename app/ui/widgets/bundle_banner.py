"""Parts of every page: the banner of an opened bundle (a file with runs), and the unread alerts in the sidebar."""

from collections.abc import Collection, Sequence

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.jobs.alerts import KIND_LABELS, Alert, list_alerts
from app.ui import data, messages, view
from app.ui.page_state import RUN
from emtc_core.errors import EmtcError
from storage.alerts import read_keys

REFRESH_S = 15
"""Interval of the updates of the alerts [s]."""
_MAX_ALERTS = 3
"""Number of alerts in the sidebar. *Health* lists all."""


def select_bundle() -> None:
    """Select the bundle that the URL names, before any data is read; warn if this server does not have that bundle."""
    missing_key = view.select_bundle()
    if missing_key is not None:
        st.warning(
            f"The link refers to a bundle that is not open here ({escape_markdown(missing_key)}). This page shows your "
            "own runs. Open the file on Home, then follow the link again.",
            icon=":material/link_off:",
        )


def show() -> None:
    """If the pages show a bundle, draw the banner, with a button that switches back to the user's own runs."""
    bundle = view.get_bundle()
    if bundle is None:
        return
    note = None
    if bundle.contents.sampled_snapshots:
        n_nodes = format_count(bundle.contents.max_sample_nodes)
        note = f"Contains memory snapshots as samples of at most {n_nodes} nodes."
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bundle_banner"):
        st.markdown(f":material/lock: **Read-only: {escape_markdown(bundle.name)}.**", width="content", help=note)
        st.button(
            "Back to my own runs", icon=":material/undo:", type="tertiary", key="leave_bundle",
            on_click=view.switch_to_bundle, args=(None,),
        )  # fmt: skip


def show_alerts() -> None:
    """Draw the newest unread warnings and errors in the sidebar, updated every `REFRESH_S`. A bundle has no alerts."""
    if view.get_bundle() is None:
        with st.sidebar:
            st.fragment(_show_unread, run_every=REFRESH_S)()


def list_unread_warnings(alerts: Sequence[Alert], keys_of_read_alerts: Collection[str]) -> list[Alert]:
    """List the warnings and errors that are not read, in the order of `alerts`.

    The events of finished runs, which have the severity "info", are left out.
    """
    return [alert for alert in alerts if alert.severity != "info" and alert.key not in keys_of_read_alerts]


@messages.guarded()
def _show_unread() -> None:
    try:
        unread = list_unread_warnings(data.cached(list_alerts, ttl=10)(), read_keys(data.database()))
    except EmtcError:  # the page itself shows the error of the database
        return
    for alert in unread[:_MAX_ALERTS]:
        page = "health"
        name = ""
        parameters: dict[str, str] = {}
        if alert.run_id:
            page = "live"
            name = f"{escape_markdown(alert.run_name)}: "
            parameters = {RUN.name: alert.run_id}
        st.page_link(
            f"../pages/{page}.py", label=f":orange[●] {name}{KIND_LABELS[alert.kind]}",
            query_params=parameters, help=escape_markdown(alert.message),
        )  # fmt: skip
    if unread:
        n_more = len(unread) - _MAX_ALERTS
        label = f"{format_count(n_more)} more in Health" if n_more > 0 else "Open in Health"
        st.page_link("../pages/health.py", label=label, query_params={"unread": "true"})
