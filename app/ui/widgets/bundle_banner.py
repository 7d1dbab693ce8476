"""On every page: whose runs these are, where they are not one's own, and the way back.

On every page, in the sidebar: how many warnings wait in Health.
"""

from collections.abc import Collection, Sequence

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.jobs.alerts import Alert
from app.ui import data, view
from emtc_core.errors import EmtcError
from storage.alerts import read_keys
from storage.bundles.bundle_cache import Bundle

EVERY_S = 15


def show_alerts() -> None:
    """Show in the sidebar how many warnings wait in Health, and look again every few seconds; nothing for none."""
    if view.bundle() is not None:  # runs of a bundle have no news
        return
    with st.sidebar:
        st.fragment(_count, run_every=EVERY_S)()


def _count() -> None:
    try:
        waiting = unread_warnings(data.alerts(), read_keys(data.database()))
    except EmtcError:  # the page says what is wrong with the database
        return
    if waiting:
        noun = "warning" if len(waiting) == 1 else "warnings"
        st.page_link(
            "../pages/health.py", label=f":orange[●] {format_count(len(waiting))} {noun} in Health",
            query_params={"unread": "true"}, help=describe(waiting[0]),
        )  # fmt: skip


def unread_warnings(alerts: Sequence[Alert], read: Collection[str]) -> list[Alert]:
    """List what somebody should look at, newest first; that a run has finished is no warning."""
    return [alert for alert in alerts if alert.severity != "info" and alert.key not in read]


def describe(alert: Alert) -> str:
    """An alert in one line, harmless in Markdown."""
    return escape_markdown(f"{alert.run_name}: {alert.message}" if alert.run_id else alert.message)


def decide() -> None:
    """Decide whose runs this session looks at, before anything is read."""
    missing = view.decide()
    if missing is not None:
        st.warning(
            f"This link shows a bundle that is not open here ({escape_markdown(missing)}): these are your own runs. "
            "Open the file on Home, then follow the link again.",
            icon=":material/link_off:",
        )


def show() -> None:
    """Show that the pages are of a bundle, which nobody can change."""
    bundle = view.bundle()
    if bundle is None:
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="bundle_banner"):
        st.markdown(
            f":material/lock: **From {escape_markdown(bundle.name)}, read-only.** These are not your runs; "
            f"nothing about them can be started or changed.{_say_samples(bundle)}",
            width="stretch",
        )
        st.button("Back to my own runs", icon=":material/undo:", key="leave_bundle", on_click=view.enter, args=(None,))


def _say_samples(bundle: Bundle) -> str:
    """That maps show only a part of each memory, where its maker kept no more."""
    samples = [escape_markdown(each) for each in bundle.contents if "samples" in each]
    return f" It holds {samples[0]}." if samples else ""
