"""The Health page: alerts of the last seven days by kind, finished runs, and the check of this machine.

An event is an alert or a finished run. A finished run has the severity "info", is listed below the alerts, and is never
unread. All users of a database share the marks of the alerts that were read. The check of the machine is that of
`emtc doctor`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_time
from app.jobs.alerts import KIND_LABELS, KIND_MEANINGS, SEVERITY, Alert, Severity, list_alerts
from app.jobs.doctor import Check, run_checks
from app.ui import data, messages
from app.ui.page_state import RUN, Choices, Flag
from storage.alerts import mark_read, read_keys

_ICON: Final[dict[Severity, str]] = {
    "info": ":material/check_circle:",
    "warning": ":material/warning:",
    "error": ":material/error:",
}
_COLOR: Final = {"info": "green", "warning": "orange", "error": "red"}
_MAX_UNFOLDED: Final = 5
"""Maximum number of alerts of a kind that are drawn unfolded. The older ones are in an expander."""
_MAX_FINISHED: Final = 100
"""Maximum number of listed finished runs."""
_KINDS: Final = Choices("kind", "health")
_ONLY_UNREAD: Final = Flag("unread", "health")
_IS_CHECKED: Final = "machine_checked"
"""Key of Streamlit's session state: whether the button *Check this machine* was pressed."""


def show() -> None:
    """Draw the alerts of the last seven days, grouped by kind, then the runs that have finished."""
    events = data.cached(list_alerts, ttl=10)()
    alerts = [event for event in events if event.severity != "info"]
    keys_of_read_alerts = read_keys(data.database())
    unread = [alert for alert in alerts if alert.key not in keys_of_read_alerts]
    st.subheader(f"Inbox: {format_count(len(unread))} unread")
    if alerts:
        _show_alerts(alerts, unread, events)
    else:
        messages.empty(
            "No alerts in the last seven days.",
            "This list shows runs that fail, are lost, make no progress or compute NaN. `emtc watch` sends these "
            "alerts, and a message for each finished run.",
        )
    _show_finished([event for event in events if event.severity == "info"])


def _show_alerts(alerts: Sequence[Alert], unread: Sequence[Alert], events: Sequence[Alert]) -> None:
    counts = Counter(alert.kind for alert in alerts)
    by_kind: dict[str, list[Alert]] = {}
    order_of_kinds = list(SEVERITY)
    for alert in sorted(alerts, key=lambda alert: order_of_kinds.index(alert.kind)):
        by_kind.setdefault(alert.kind, []).append(alert)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Mark all as read", key="read_all", disabled=not (unread and messages.may_act())):
            _mark_read(unread, events)
        only_unread = st.toggle("Only unread", **_ONLY_UNREAD.bind())
        kinds = st.pills(
            "Kind", label_visibility="collapsed", selection_mode="multi",
            **_KINDS.bind(list(by_kind), lambda kind: f"{kind} · {format_count(counts[kind])}"),
        )  # fmt: skip
    has_visible_alerts = False
    for kind, group in by_kind.items():
        if kinds and kind not in kinds:
            continue
        visible = [alert for alert in group if alert in unread] if only_unread else group
        if visible:
            _show_kind(visible, unread)
            has_visible_alerts = True
    if not has_visible_alerts:
        st.caption("No alert of this kind." if unread and kinds else "All alerts are read.")


def _show_kind(alerts: Sequence[Alert], unread: Sequence[Alert]) -> None:
    """Draw the alerts of one kind, newest first."""
    kind, severity = alerts[0].kind, alerts[0].severity
    with st.container(border=True, gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(f"{KIND_LABELS[kind]} · {format_count(len(alerts))}", icon=_ICON[severity], color=_COLOR[severity])  # type: ignore[arg-type]
            st.caption(KIND_MEANINGS[kind], width="stretch")
        for alert in alerts[:_MAX_UNFOLDED]:
            _show_alert(alert, is_unread=alert in unread)
        if older := alerts[_MAX_UNFOLDED:]:
            with st.expander(f"{format_count(len(older))} more"):
                for alert in older:
                    _show_alert(alert, is_unread=alert in unread)


def _show_finished(events: Sequence[Alert]) -> None:
    """Draw the runs that have finished, in an expander."""
    if not events:
        return
    with st.expander(f"Finished runs ({format_count(len(events))})", icon=_ICON["info"]):
        for event in events[:_MAX_FINISHED]:
            _show_alert(event, is_unread=False)


def _show_alert(alert: Alert, *, is_unread: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        mark = ":orange[●] " if is_unread else ""
        name = f"{mark}**{escape_markdown(alert.run_name)}** " if alert.run_id else mark
        st.markdown(f"{name}{escape_markdown(alert.message)}", width="stretch")
        st.caption(format_time(alert.at), width="content")
        if alert.run_id:
            st.page_link("../pages/live.py", label="Live", query_params={RUN.name: alert.run_id})


def _mark_read(unread: Sequence[Alert], events: Sequence[Alert]) -> None:
    """Store that these alerts are read, and draw the page again. Keys of events that no longer exist are removed."""
    try:
        mark_read(data.database(), [alert.key for alert in unread], existing_keys=[event.key for event in events])
    except OSError as exc:
        st.error(escape_markdown(f"Cannot save which alerts are read: {exc.strerror}."))
        return
    st.rerun()


def show_machine() -> None:
    """Draw the button that checks this machine, and the results once it was pressed."""
    st.subheader("This machine")
    if st.button("Check this machine", icon=":material/stethoscope:", key="check_machine"):
        _checks.clear()
        st.session_state[_IS_CHECKED] = True
    if not st.session_state.get(_IS_CHECKED):
        st.caption("Libraries, graphics card, environments and browser, as in `emtc doctor`. Takes a few seconds.")
        return
    checks = _checks()
    missing = [check.name for check in checks if check.needed and not check.usable]
    if missing:
        st.error(
            escape_markdown(f"Required and missing: {', '.join(missing)}. The table shows how to install each part.")
        )
    else:
        st.success("All required parts are usable. A missing optional part affects only its own feature.")
    st.dataframe(
        make_rows(checks), hide_index=True, key="machine_table",
        alt="Table of the parts of this machine: name, state, details, and how to install a missing part.",
    )  # fmt: skip


@st.cache_data(ttl=600, show_spinner="Checking this machine …")
def _checks() -> list[Check]:
    return run_checks()


def make_rows(checks: list[Check]) -> pd.DataFrame:
    """Make the rows of the table of parts; each state has a symbol and a word."""
    return pd.DataFrame(
        {
            "Part": [check.name for check in checks],
            "State": ["✔ usable" if check.usable else "✖ missing" for check in checks],
            "Details": [check.detail for check in checks],
            "How to install": [check.advice for check in checks],
        }
    )
